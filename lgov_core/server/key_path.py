"""Keys in the path: for agents that say ``api_key="not-used"`` to whatever address they are given."""

from __future__ import annotations

import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lgov_core._util.files import atomic_write
from lgov_core.gateway.serving.keys import KeyRing

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

#: ``/as/{key}/v1/...`` is ``/v1/...`` with that key.
PREFIX: Final = "/as/"
_REPLACED: Final = (b"authorization", b"x-api-key")
#: A key is valid this much longer than its attempt, so that a call at the very end is recorded.
_KEY_SPARE_S: Final = 60.0


def kept_keys(folder: Path) -> KeyRing:
    """Keys for attempts, on a server that requires none. Their secret stays in ``folder``, for its owner alone.

    So an agent whose server was killed and started again continues with the key that it has. Raises `OSError`.
    """
    path = folder / "keys.secret"
    if not path.exists():
        atomic_write(path, secrets.token_bytes(32))
    return KeyRing(path.read_bytes(), required=False)


def model_path(keys: KeyRing, rollout_id: str, attempt: int, timeout_s: float) -> str:
    """The path of the model for one attempt, with a new key for it."""
    key = keys.issue(rollout_id, attempt, expires_at=time.time() + timeout_s + _KEY_SPARE_S)
    return f"{PREFIX}{key}/v1"


class KeyInPath:
    """An application behind ``/as/{key}``: the key in the path replaces the key the client sent.

    ``/v1/v1/messages`` is understood as ``/v1/messages``: of one base URL some clients expect that it ends in ``/v1``, and
    others that it does not.
    """

    def __init__(self, app: Any) -> None:
        self._app: ASGIApp = app
        self.state = app.state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope["type"] == "http" and scope["path"].startswith(PREFIX):
            key, _, rest = scope["path"].removeprefix(PREFIX).partition("/")
            path = f"/{rest}".replace("/v1/v1/", "/v1/", 1)
            headers = [(name, value) for name, value in scope["headers"] if name not in _REPLACED]
            headers.append((b"authorization", b"Bearer " + key.encode("latin-1", "replace")))
            scope = {**scope, "path": path, "raw_path": path.encode(), "headers": headers}
        await self._app(scope, receive, send)
