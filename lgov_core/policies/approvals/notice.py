"""Tells people that a call waits for approval: a log line, and what the operator names, a command or a web address."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import threading
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlsplit

from lgov_core.errors import PolicyError
from lgov_core.governor.options import string_tuple

_LOG = logging.getLogger("lgov.approvals")
_TIMEOUT_S: Final = 10.0
#: Set for the Python processes of a governed program. The operator's command is not one of them.
_GOVERNED: Final = "LGOV_CHILD"


@dataclass(frozen=True, slots=True)
class Notice:
    """Whom to notify of a new request: ``command`` gets it as JSON on standard input, ``webhook`` by POST."""

    command: tuple[str, ...] = ()
    webhook: str | None = None

    @classmethod
    def of(cls, owner: str, command: Sequence[str] = (), webhook: str | None = None) -> Self:
        """Checks the options of a rule. Raises `PolicyError`."""
        words = string_tuple(owner, "command", command)
        if webhook is not None and (not isinstance(webhook, str) or urlsplit(webhook).scheme not in ("http", "https")):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise PolicyError(f"{owner}: webhook is {webhook!r}", hint="write an address that begins with https://")
        return cls(words, webhook)

    def send(self, request: Mapping[str, Any]) -> None:
        """Notifies, in a thread of its own that the process waits for. What goes wrong is logged."""
        if self.command or self.webhook:
            threading.Thread(target=self._send, args=(json.dumps(request).encode(),), name="lgov-notice").start()

    def _send(self, data: bytes) -> None:
        try:
            if self.command:
                environment = {name: value for name, value in os.environ.items() if name != _GOVERNED}
                run_command(self.command, data, environment)
            if self.webhook:
                headers = {"Content-Type": "application/json"}
                asked = urllib.request.Request(self.webhook, data, headers, method="POST")
                urllib.request.urlopen(asked, timeout=_TIMEOUT_S).close()
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            _LOG.warning("lgov: the notice of an approval request failed: %s: %s", type(error).__name__, error)


def run_command(command: Sequence[str], data: bytes, environment: Mapping[str, str]) -> None:
    """Runs the operator's command with ``data`` as its input. Raises `OSError` and `subprocess.SubprocessError`."""
    quiet = subprocess.DEVNULL
    subprocess.run(
        command, input=data, env=environment, stdout=quiet, stderr=quiet, timeout=_TIMEOUT_S, check=True, close_fds=True
    )


def log_request(name: str, request_id: str, path: Path | None, waits_s: float) -> None:
    """The line for people that a call needs approval, and the command that answers."""
    waits = f"waits up to {waits_s:.0f} s for approval" if waits_s > 0 else "needs approval"
    if path is None:
        _LOG.info("lgov: %s %s (%s); only this process can answer", name, waits, request_id)
    else:
        _LOG.warning("lgov: %s %s: %s", name, waits, answer_command(path, request_id))


def answer_command(path: str | Path, request_id: str) -> str:
    """The command that approves a request."""
    return f"lgov approvals {path} --approve {short_id(request_id)} --by NAME"


def short_id(request_id: str) -> str:
    """The beginning of an id, which is enough to name it: eight digits of twenty-four."""
    return request_id[:12]
