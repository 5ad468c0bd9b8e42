"""Notices that a call waits for a person: the line for people, the operator's command, and the signed webhook."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
import secrets
import subprocess
import threading
import time
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlsplit

from lgov_core._util.files import open_to_others
from lgov_core.errors import PolicyError
from lgov_core.governor.options import string_tuple

_LOG = logging.getLogger("lgov.approvals")
_TIMEOUT_S: Final = 10.0
#: Seconds before each further try of a webhook that failed.
_TRIES_AGAIN_AFTER_S: Final = (1.0, 3.0, 9.0)
#: Set for the Python processes of a governed program. The operator's command is not one of them.
_GOVERNED: Final = "LGOV_CHILD"
_THIS_MACHINE: Final = ("localhost", "127.0.0.1", "::1")
#: The headers of a webhook: the Unix time in seconds, and the HMAC-SHA256 (hex) of that time, a dot and the body.
TIMESTAMP_HEADER: Final = "X-Lgov-Timestamp"
SIGNATURE_HEADER: Final = "X-Lgov-Signature"


@dataclass(frozen=True, slots=True)
class Notice:
    """Whom to notify of a wait: ``command`` gets the request as JSON on standard input, ``webhook`` by POST.

    A webhook is signed with the key in the file ``webhook_key``, and tried four times.
    """

    command: tuple[str, ...] = ()
    webhook: str | None = None
    webhook_key: Path | None = None

    @classmethod
    def of(cls, owner: str, command: Sequence[str], webhook: str | None, store: str | os.PathLike[str] | None) -> Self:
        """Checks the options of a rule, and makes the key of a webhook beside ``store`` where it is missing.

        Raises `PolicyError`.
        """
        words = string_tuple(owner, "command", command)
        if webhook is None:
            return cls(words)
        address = urlsplit(webhook) if isinstance(webhook, str) else urlsplit("")  # pyright: ignore[reportUnnecessaryIsInstance]
        if address.scheme != "https" and (address.scheme != "http" or address.hostname not in _THIS_MACHINE):
            raise PolicyError(
                f"{owner}: webhook is {webhook!r}",
                hint="write an address that begins with https://; http:// is for this machine only",
            )
        if store is None:
            raise PolicyError(
                f"{owner}: a webhook is signed with a key, which is kept beside the store",
                hint="write store: .lgov/approvals.db",
            )
        return cls(words, webhook, webhook_key(Path(store)))

    def send(self, request: Mapping[str, Any]) -> None:
        """Notifies, in a thread of its own that the process waits for. What goes wrong is logged."""
        if self.command or self.webhook:
            threading.Thread(target=self._send, args=(json.dumps(request).encode(),), name="lgov-notice").start()

    def _send(self, data: bytes) -> None:
        try:
            if self.command:
                environment = {name: value for name, value in os.environ.items() if name != _GOVERNED}
                run_command(self.command, data, environment)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            _LOG.warning("lgov: the notice of an approval request failed: %s: %s", type(error).__name__, error)
        for pause_s in (0.0, *_TRIES_AGAIN_AFTER_S) if self.webhook else ():
            time.sleep(pause_s)
            try:
                self._post(data)
                return
            except (OSError, ValueError, PolicyError) as error:
                words = "lgov: the notice of an approval request failed: %s: %s"
                _LOG.warning(words, type(error).__name__, error)

    def _post(self, data: bytes) -> None:
        assert self.webhook is not None
        assert self.webhook_key is not None
        now = str(int(time.time()))
        headers = {
            "Content-Type": "application/json",
            TIMESTAMP_HEADER: now,
            SIGNATURE_HEADER: signature(_read_key(self.webhook_key), now, data),
        }
        request = urllib.request.Request(self.webhook, data, headers, method="POST")
        urllib.request.urlopen(request, timeout=_TIMEOUT_S).close()


def signature(key: str, timestamp: str, body: bytes) -> str:
    """The signature of a webhook's body: HMAC-SHA256 in hex over the timestamp, a dot and the body."""
    return hmac.new(key.encode(), timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()


def webhook_key(store: Path) -> Path:
    """The file of the key that signs the webhooks of ``store``; it is made (mode 0600) when it is missing.

    Raises `PolicyError`.
    """
    path = store.with_name(f"{store.name}.webhook-key")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            fresh = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
            with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(secrets.token_hex(32) + "\n")
            with suppress(FileExistsError):  # another process was first
                os.link(fresh, path)
            fresh.unlink()
    except OSError as error:
        raise PolicyError(f"the key of webhooks, {path}, cannot be made: {error}") from error
    _read_key(path)
    return path


def _read_key(path: Path) -> str:
    try:
        if open_to_others(path):
            raise PolicyError(f"the key of webhooks, {path}, can be read by other users", hint=f"chmod 600 {path}")
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise PolicyError(f"the key of webhooks, {path}, cannot be read: {error}") from error


def run_command(command: Sequence[str], data: bytes, environment: Mapping[str, str]) -> None:
    """Runs the operator's command with ``data`` as its input. Raises `OSError` and `subprocess.SubprocessError`."""
    quiet = subprocess.DEVNULL
    subprocess.run(
        command, input=data, env=environment, stdout=quiet, stderr=quiet, timeout=_TIMEOUT_S, check=True, close_fds=True
    )


def log_request(name: str, request_id: str, path: Path | None, waits_s: float, *, keyed: bool) -> None:
    """The line for people that a call needs approval, and the command that answers."""
    waits = f"waits up to {waits_s:.0f} s for approval" if waits_s > 0 else "needs approval"
    if path is None:
        level = logging.WARNING if waits_s > 0 else logging.INFO
        _LOG.log(level, "lgov: %s %s (%s); only this process can answer", name, waits, request_id)
    else:
        _LOG.warning("lgov: %s %s: %s", name, waits, answer_command(path, request_id, keyed=keyed))


def answer_command(path: str | Path, request_id: str, *, keyed: bool) -> str:
    """The command that approves a request: in a name, or, where it is ``keyed``, with the key that it asks for."""
    return f"lgov approvals {path} --approve {short_id(request_id)} --by {'-' if keyed else 'NAME'}"


def short_id(request_id: str) -> str:
    """The beginning of an id, which is enough to name it: eight digits of twenty-four."""
    return request_id[:12]
