"""HTTP to a training server: JSON there and back, with patience for a server that is away for a moment."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import lgov_core
from lgov_core.client.wire import PROTOCOL, PROTOCOL_HEADER, VERSION_HEADER
from lgov_core.errors import ClientError

#: Answers after which the same request may be sent again.
_AGAIN: Final = frozenset({429, 500, 502, 503, 504})
_LOOPBACK: Final = ("127.", "localhost", "::1")


class Connection:
    """Requests to one server, from any thread.

    ``key`` is an admin key. A request that meets no server, or a busy one, is repeated for up to ``patience_s``
    seconds: every request of the protocol may be sent twice. Raises `ClientError`: no server, another version, or a
    refusal.
    """

    def __init__(self, url: str, *, key: str | None = None, patience_s: float = 60.0) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ClientError(f"{url!r} is not a server's URL", hint="such as http://localhost:8000")
        self.url = url.rstrip("/").removesuffix("/v1")
        self.patience_s = patience_s
        self._headers = {
            "content-type": "application/json",
            PROTOCOL_HEADER: str(PROTOCOL),
            VERSION_HEADER: lgov_core.__version__,
            **({} if key is None else {"authorization": f"Bearer {key}"}),
        }
        # What a machine says to itself goes through no proxy.
        own = parts.hostname.startswith(_LOOPBACK)
        self._opener = urllib.request.build_opener(*([urllib.request.ProxyHandler({})] if own else []))

    def get(self, path: str) -> dict[str, Any]:
        """The answer to ``GET path``."""
        return self._ask("GET", path, None, 30.0, None)

    def post(
        self, path: str, body: Mapping[str, Any], *, timeout_s: float = 30.0, patience_s: float | None = None
    ) -> dict[str, Any]:
        """The answer to ``POST path`` with a JSON object."""
        return self._ask("POST", path, json.dumps(body, allow_nan=False).encode(), timeout_s, patience_s)

    def _ask(
        self, method: str, path: str, body: bytes | None, timeout_s: float, patience_s: float | None
    ) -> dict[str, Any]:
        patience = self.patience_s if patience_s is None else patience_s
        until, pause = time.monotonic() + patience, 0.05
        while True:
            request = urllib.request.Request(f"{self.url}{path}", body, self._headers, method=method)
            try:
                with self._opener.open(request, timeout=timeout_s) as answer:
                    return _object(answer.read())
            except urllib.error.HTTPError as error:
                refused = self._refused(error, path)
                if error.code not in _AGAIN or time.monotonic() + pause > until:
                    raise refused from None
            except (OSError, http.client.HTTPException) as error:
                if time.monotonic() + pause > until:
                    reason = getattr(error, "reason", None) or error
                    raise ClientError(
                        f"there is no answer from {self.url}: {reason}",
                        hint="is the server running? check the address, or AGENT_LIGHTNING_SERVER_URL",
                    ) from error
            time.sleep(pause)
            pause = min(pause * 2, 2.0)

    def _refused(self, error: urllib.error.HTTPError, path: str) -> ClientError:
        raw = error.read()
        try:
            document: Any = json.loads(raw)
            detail = document.get("error") or document.get("detail") or document
            message = detail.get("message") if isinstance(detail, dict) else detail
        except (ValueError, AttributeError):
            message = raw[:200].decode(errors="replace")
        if error.code == 404 and path == "/train/about":
            return ClientError(
                f"{self.url} is not a training server", status=404, hint="start one with python -m lgov_core.server"
            )
        if error.code in (401, 403):
            return ClientError(
                f"{self.url} refuses the key: {message}", status=error.code, hint="pass key=, an admin key"
            )
        return ClientError(f"{self.url} refuses: {message}", status=error.code)


def _object(raw: bytes) -> dict[str, Any]:
    try:
        value = json.loads(raw)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ClientError("the server's reply is not a JSON object", hint="is this a training server of lgov?")
    return value
