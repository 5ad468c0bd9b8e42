"""Approval requests: what was asked for, who approved or rejected it, when the answer expires, and who is told of it."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import sqlite3
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeAlias
from urllib.parse import urlsplit

from lgov_core._util.json_text import canonical_json
from lgov_core._util.sqlite_file import FileKind
from lgov_core.errors import PolicyError
from lgov_core.governor.options import positive_integer, positive_number, string_tuple
from lgov_core.policies.budgets.counting import now_of
from lgov_core.policies.budgets.ledger import SharedDatabase
from lgov_core.types import new_id

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
                http_request = urllib.request.Request(self.webhook, data, headers, method="POST")
                urllib.request.urlopen(http_request, timeout=_TIMEOUT_S).close()
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


#: State of a request. One that was not answered in time, or whose approval was not used in time, has lapsed.
State: TypeAlias = Literal["pending", "approved", "rejected", "used", "lapsed"]

APPROVALS: Final = FileKind(
    what="approvals file",
    application_id=int.from_bytes(b"lgvP"),
    version=2,
    schema=(
        """CREATE TABLE requests (
            request_id TEXT PRIMARY KEY, digest TEXT NOT NULL, content TEXT NOT NULL, asked_at REAL NOT NULL,
            state TEXT NOT NULL, answered_at REAL, answered_by TEXT, reason TEXT, until REAL NOT NULL,
            rollout_id TEXT, waits_until REAL
        )""",
        "CREATE INDEX requests_by_digest ON requests (digest, state)",
    ),
    error=PolicyError,
    migrations={
        1: ("ALTER TABLE requests ADD COLUMN rollout_id TEXT", "ALTER TABLE requests ADD COLUMN waits_until REAL")
    },
)
#: A call that waits says so again within this time, in seconds.
_SIGN_OF_LIFE_S: Final = 5.0
#: How far the clocks of those that use one file may be apart, in seconds.
_CLOCKS_APART_S: Final = 60.0
#: Requests named in a message.
_NAMED: Final = 5
_COLUMNS = (
    "request_id, digest, content, asked_at, state, answered_at, answered_by, reason, until, rollout_id, waits_until"
)


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """One call that wants to be approved, or was.

    ``content`` is exactly what is approved: point, kind, name, agent, arguments and scope; ``digest`` is the SHA-256 of its
    canonical JSON. ``until`` (Unix time) is when the request, the approval or the rejection lapses. ``rollout_id`` is the
    rollout that asked last; ``waits_until`` is in the future while its call waits for the answer.
    """

    request_id: str
    digest: str
    content: Mapping[str, Any]
    asked_at: float
    state: State
    until: float
    answered_at: float | None = None
    answered_by: str | None = None
    reason: str | None = None
    rollout_id: str | None = None
    waits_until: float | None = None

    @property
    def name(self) -> str:
        """Of the tool."""
        return str(self.content["name"])

    @property
    def arguments(self) -> Mapping[str, Any]:
        """The arguments that the tool would be called with: a copy, as JSON values."""
        return self.content["arguments"]


class ApprovalRequests(SharedDatabase):
    """The requests of an `ApprovalPolicy`, in the SQLite file at ``path`` or, without one, in this process.

    The file (mode 0600) is made when it is missing; an operator's program opens the same file and answers. Any process that can
    write to it can approve: keep it where the agent's tools cannot reach. How long an unanswered request waits, and how
    long an answer holds, is said by the policy that asks; ``expires_s`` shortens it, and never lengthens it. ``max_pending``
    is how many may wait at once. ``clock`` is Unix time in seconds. Each new request is logged (logger ``lgov.approvals``) and
    sent to ``notices``; with ``quiet`` it is not.

    Every change is one transaction. May be called from several threads and processes at once. Raises `PolicyError`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        expires_s: float | None = None,
        max_pending: int = 1000,
        clock: Callable[[], float] = time.time,
        notices: Sequence[Notice] = (),
        quiet: bool = False,
    ) -> None:
        self._notices = tuple(notices)
        self._quiet = quiet
        self.expires_s = math.inf if expires_s is None else positive_number("approvals", "expires_s", expires_s)
        self.max_pending = positive_integer("approvals", "max_pending", max_pending)
        self._clock = clock
        super().__init__(APPROVALS, path)

    @property
    def place(self) -> str:
        """The file that a person answers in; empty where only this process can answer."""
        return "" if self.path is None else str(self.path)

    # ------------------------------------------------------------------ for people

    def pending(self) -> list[ApprovalRequest]:
        """The requests that wait for an answer, oldest first."""
        return [request for request in self.all() if request.state == "pending"]

    def all(self) -> list[ApprovalRequest]:
        """Every request that is still known, oldest first."""
        with self._change() as (connection, now):
            _lapse(connection, now)
            rows = connection.execute(f"SELECT {_COLUMNS} FROM requests ORDER BY asked_at, request_id").fetchall()
        return [_request(row) for row in rows]

    def approve(self, request_id: str, *, by: str) -> ApprovalRequest:
        """Approves a pending request, in the name of ``by``. Raises `PolicyError` when it is not pending any more."""
        return self._answer(request_id, "approved", by, None)

    def reject(self, request_id: str, *, by: str, reason: str = "") -> ApprovalRequest:
        """Rejects a pending request; the model reads ``reason``. Raises `PolicyError` when it is not pending any more."""
        return self._answer(request_id, "rejected", by, reason)

    def _answer(self, request_id: str, state: State, by: str, reason: str | None) -> ApprovalRequest:
        if not isinstance(by, str) or not by.strip():  # pyright: ignore[reportUnnecessaryIsInstance]
            raise PolicyError(f"approval {request_id}: no one is named as answering", hint="say who you are in by")
        with self._change() as (connection, now):
            _lapse(connection, now)
            request = _found(connection, request_id)
            request_id = request.request_id
            if request.state != "pending":
                raise PolicyError(
                    f"approval request {request_id} is {request.state} already", hint="have it asked again"
                )
            until = now + min(request.until - request.asked_at, self.expires_s)
            connection.execute(
                "UPDATE requests SET state = ?, answered_at = ?, answered_by = ?, reason = ?, until = ?"
                " WHERE request_id = ?",
                (state, now, by, reason, until, request_id),
            )
        return replace(request, state=state, answered_at=now, answered_by=by, reason=reason, until=until)

    # ------------------------------------------------------------------ for the policy

    def ask(
        self,
        content: Mapping[str, Any],
        digest: str,
        *,
        expires_s: float = 3600.0,
        rollout_id: str | None = None,
        waits_s: float = 0.0,
    ) -> tuple[ApprovalRequest, bool] | None:
        """The request for exactly ``content``: approved (and hereby used up), rejected, or pending; and whether it is new.

        A new one is made when there is none: it waits for ``expires_s`` seconds, and its answer holds as long. None when too
        many are pending already. ``rollout_id`` asks, and will wait for the answer for ``waits_s`` seconds.
        """
        outcome = self._make_or_find(content, digest, expires_s, rollout_id, waits_s)
        if outcome is not None and outcome[1] and not self._quiet:
            request = outcome[0]
            log_request(request.name, request.request_id, self.path, waits_s)
            for notice in self._notices:
                notice.send(_described(request, self.path))
        return outcome

    def _make_or_find(
        self, content: Mapping[str, Any], digest: str, expires_s: float, rollout_id: str | None, waits_s: float
    ) -> tuple[ApprovalRequest, bool] | None:
        with self._change() as (connection, now):
            _lapse(connection, now)
            waits = (rollout_id, now + min(waits_s, _SIGN_OF_LIFE_S) if waits_s > 0 else None)
            row = connection.execute(
                f"SELECT {_COLUMNS} FROM requests WHERE digest = ? AND state IN ('approved', 'rejected', 'pending')"
                " ORDER BY state = 'pending', asked_at LIMIT 1",
                (digest,),
            ).fetchone()
            if row is not None:
                request = _request(row)
                if request.state == "approved":
                    connection.execute("UPDATE requests SET state = 'used' WHERE request_id = ?", (request.request_id,))
                elif request.state == "pending" and waits_s > 0:
                    change = "UPDATE requests SET rollout_id = ?, waits_until = ? WHERE request_id = ?"
                    connection.execute(change, (*waits, request.request_id))
                return request, False
            (waiting,) = connection.execute("SELECT count(*) FROM requests WHERE state = 'pending'").fetchone()
            if waiting >= self.max_pending:
                return None
            row = (new_id("apr"), digest, canonical_json(content), now, "pending")
            row = (*row, None, None, None, now + min(expires_s, self.expires_s), *waits)
            connection.execute(f"INSERT INTO requests ({_COLUMNS}) VALUES ({', '.join('?' * len(row))})", row)
        return _request(row), True

    def give_back(self, request_id: str) -> None:
        """The approval was not used after all; it holds for as long as it would have."""
        with self._change() as (connection, _):
            connection.execute(
                "UPDATE requests SET state = 'approved' WHERE request_id = ? AND state = 'used'", (request_id,)
            )

    def withdraw(self, request_id: str) -> None:
        """Withdraws a request: no answer is needed any more."""
        with self._change() as (connection, _):
            connection.execute("DELETE FROM requests WHERE request_id = ? AND state = 'pending'", (request_id,))

    # ------------------------------------------------------------------ the file

    @contextmanager
    def _change(self) -> Generator[tuple[sqlite3.Connection, float]]:
        with self.transaction() as connection:
            yield connection, now_of("approvals", self._clock)


def _lapse(connection: sqlite3.Connection, now: float) -> None:
    """Marks what has lapsed, and forgets what was over a good while ago, so that the table stays small.

    So is an approval from a future further off than clocks are apart: where the clock was put back, its age is unknown.
    """
    connection.execute(
        "UPDATE requests SET state = 'lapsed' WHERE until <= ? AND state IN ('pending', 'approved', 'rejected')", (now,)
    )
    connection.execute(
        "UPDATE requests SET state = 'lapsed' WHERE state = 'approved' AND answered_at > ?", (now + _CLOCKS_APART_S,)
    )
    connection.execute("DELETE FROM requests WHERE state IN ('lapsed', 'used') AND until <= ? - 86400", (now,))


def _request(row: tuple[Any, ...]) -> ApprovalRequest:
    """A row as a request. Raises `PolicyError` when its content does not match its digest."""
    request_id, digest, text, asked_at, state, answered_at, answered_by, reason, until, rollout_id, waits_until = row
    if hashlib.sha256(text.encode()).hexdigest() != digest:
        raise PolicyError(
            f"approval request {request_id} was changed: it shows another call than the one its digest is of",
            hint="find out who writes to the file, and start a new one",
        )
    content: dict[str, Any] = json.loads(text)
    more = (answered_at, answered_by, reason, rollout_id, waits_until)
    return ApprovalRequest(request_id, digest, content, asked_at, state, until, *more)


def _found(connection: sqlite3.Connection, prefix: str) -> ApprovalRequest:
    """The request of that id, or the only one whose id begins so, with or without ``apr_``. Raises `PolicyError`."""
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM requests WHERE substr(request_id, 1, ?) = ? OR substr(request_id, 5, ?) = ?",
        (len(prefix), prefix, len(prefix), prefix),
    ).fetchall()
    rows = rows if prefix else []
    exact = [row for row in rows if row[0] == prefix]
    if len(rows) > 1 and not exact:
        ids = ", ".join(row[0] for row in rows[:_NAMED])
        raise PolicyError(f"several approval requests begin with {prefix!r}: {ids}", hint="write more of the id")
    if not rows:
        raise PolicyError(f"there is no approval request {prefix}", hint="lgov approvals names those there are")
    return _request((exact or rows)[0])


def _described(request: ApprovalRequest, path: Path | None) -> dict[str, Any]:
    """A request as a notice has it."""
    fields = ("request_id", "digest", "name", "arguments", "rollout_id", "asked_at", "until", "waits_until")
    about: dict[str, Any] = {name: getattr(request, name) for name in fields}
    about["agent"] = request.content.get("agent")
    return about if path is None else {**about, "store": str(path), "approve": answer_command(path, request.request_id)}
