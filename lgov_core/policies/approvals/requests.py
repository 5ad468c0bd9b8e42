"""Approval requests: what was asked for, who may answer, who approved or rejected it, and when the answer expires."""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
import sqlite3
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from msgspec import convert

from lgov_core._util.json_text import canonical_json
from lgov_core._util.sqlite_file import FileKind
from lgov_core.errors import PolicyError
from lgov_core.governor.options import ANSWER, APPROVED, REJECTED, positive_integer, positive_number
from lgov_core.policies.approvals.answers import (
    APPROVERS,
    ENDED_KEYS,
    KEY_PREFIX,
    NAME,
    UNRECORDED,
    Answer,
    Inquiry,
    allowed_answer,
    approver_of,
    has_approvers,
    hash_of,
    utc,
)
from lgov_core.policies.approvals.notices import Notice, answer_command, log_request
from lgov_core.policies.budgets.counting import now_of
from lgov_core.policies.budgets.ledger import SharedDatabase
from lgov_core.types import new_id

#: State of a request. One that was not answered in time, or whose approval was not used in time, has lapsed.
State: TypeAlias = Literal["pending", "approved", "rejected", "used", "lapsed"]

APPROVALS: Final = FileKind(
    what="approvals file",
    application_id=int.from_bytes(b"lgvP"),
    version=5,
    schema=(
        """CREATE TABLE requests (
            request_id TEXT PRIMARY KEY, digest TEXT NOT NULL, content TEXT NOT NULL, asked_at REAL NOT NULL,
            state TEXT NOT NULL, answered_at REAL, answered_by TEXT, reason TEXT, until REAL NOT NULL,
            rollout_id TEXT, waits_until REAL, wait_ends REAL, inquiry TEXT NOT NULL DEFAULT '{}',
            answers TEXT NOT NULL DEFAULT '[]'
        )""",
        "CREATE INDEX requests_by_digest ON requests (digest, state)",
        APPROVERS,
        ENDED_KEYS,
        UNRECORDED,
    ),
    error=PolicyError,
    migrations={
        1: ("ALTER TABLE requests ADD COLUMN rollout_id TEXT", "ALTER TABLE requests ADD COLUMN waits_until REAL"),
        2: (
            "ALTER TABLE requests ADD COLUMN wait_ends REAL",
            "ALTER TABLE requests ADD COLUMN inquiry TEXT NOT NULL DEFAULT '{}'",
            "ALTER TABLE requests ADD COLUMN answers TEXT NOT NULL DEFAULT '[]'",
            APPROVERS,
        ),
        3: (ENDED_KEYS,),
        4: (UNRECORDED,),
    },
)
_NO_INQUIRY: Final = Inquiry()
#: A call that waits says so again within this time, in seconds.
_SIGN_OF_LIFE_S: Final = 5.0
#: How far the clocks of those that use one file may be apart, in seconds.
_CLOCKS_APART_S: Final = 60.0
_JSON: Final = ("content", "inquiry", "answers")
_COLUMNS: Final = (
    "request_id, digest, content, asked_at, state, answered_at, answered_by, reason, until, rollout_id, waits_until,"
    " wait_ends, inquiry, answers"
)


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """One call that wants to be approved, or was.

    ``content`` is exactly what is approved: point, kind, name, agent, arguments and scope; ``digest`` is the SHA-256 of its
    canonical JSON. ``until`` (Unix time) is when the request, the approval or the rejection lapses. ``rollout_id`` is the
    rollout that asked last; ``waits_until`` is in the future while its call waits for the answer, until ``wait_ends`` at most.
    ``answers`` are those given so far: a pending request may have some of several approvals.
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
    wait_ends: float | None = None
    inquiry: Inquiry = _NO_INQUIRY
    answers: tuple[Answer, ...] = ()

    @property
    def name(self) -> str:
        """Of the tool."""
        return str(self.content["name"])

    @property
    def arguments(self) -> Mapping[str, Any]:
        """The arguments that the tool would be called with: a copy, as JSON values."""
        return self.content["arguments"]

    @property
    def requester(self) -> str:
        """For whom it was asked first, in words: ``user ada``, ``conversation ada/x``, or a name. A team's id names nobody."""
        kind, _, name = str(self.content.get("scope", {}).get("requester", "")).partition(" ")
        words = f"{'conversation' if kind == 'session' else kind} {name}"
        return words if name and kind != "team" else next(iter(self.inquiry.requesters), "")

    @property
    def answered(self) -> str:
        """Which request was answered, and when last, as it stands on the record."""
        return f"request {self.request_id}, {utc(self.answered_at or 0.0)}"

    @property
    def answerers(self) -> str:
        """Who answered, with the fingerprints of their keys."""
        return " and ".join(map(str, self.answers)) or self.answered_by or "?"


@dataclass(frozen=True, slots=True)
class Asking:
    """One asking about the call of ``content``, whose fingerprint is ``digest``; an answer holds for ``expires_s`` seconds.

    The call of ``rollout_id`` waits for the answer for ``waits_s`` seconds, and ``begins`` to.
    """

    content: Mapping[str, Any]
    digest: str
    inquiry: Inquiry
    expires_s: float = 3600.0
    rollout_id: str | None = None
    waits_s: float = 0.0
    begins: bool = True


class ApprovalRequests(SharedDatabase):
    """The requests of an `ApprovalPolicy`, in the SQLite file at ``path`` or, without one, in this process.

    The file (mode 0600) is made when it is missing; an operator's program opens the same file and answers. Any process that can
    write to it can approve: keep it where the agent's tools cannot reach. How long an unanswered request waits, and how
    long an answer holds, is said by the policy that asks; ``expires_s`` shortens it, and never lengthens it. ``max_pending``
    is how many may wait at once. ``clock`` is Unix time in seconds. Each new request, and each begin of a wait, is logged
    (logger ``lgov.approvals``) and sent to ``notices``; with ``quiet`` it is not. ``rules`` has, by name, the rules that may
    ask here and who answers them; None believes the ``inquiry`` of each request.

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
        rules: Mapping[str, Inquiry] | None = None,
    ) -> None:
        self._notices = tuple(notices)
        self._rules = rules
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
        """Approves a pending request. ``by`` is a name, or an approver's key, which has a name.

        It stays pending while it needs further approvers. Raises `NotAllowedToAnswer`, and `PolicyError` when it is not
        pending any more.
        """
        return self._answer(request_id, "approved", by, None)

    def reject(self, request_id: str, *, by: str, reason: str = "") -> ApprovalRequest:
        """Rejects a pending request, or an approved one that is not used yet; the model reads ``reason``.

        One rejection is enough. As `approve` otherwise.
        """
        return self._answer(request_id, "rejected", by, reason)

    def _answer(self, request_id: str, state: State, by: str, reason: str | None) -> ApprovalRequest:
        if not isinstance(by, str) or not by.strip():  # pyright: ignore[reportUnnecessaryIsInstance]
            raise PolicyError(f"approval {request_id}: no one is named as answering", hint="say who you are in by")
        with self._change() as (connection, now):
            _lapse(connection, now)
            request = _found(connection, request_id)
            request_id = request.request_id
            is_rejection = state == "rejected"
            if request.state != "pending" and not (is_rejection and request.state == "approved"):
                raise PolicyError(
                    f"approval request {request_id} is {request.state} already", hint="have it asked again"
                )
            before = () if is_rejection else request.answers
            answer = allowed_answer(connection, request_id, request.inquiry, before, by, now)
            answers = (*request.answers, answer)
            since = (request.answered_at if request.state == "approved" else None) or request.asked_at
            until = now + min(request.until - since, self.expires_s)
            if state == "approved" and len(answers) < request.inquiry.approvers:
                state, until = "pending", request.until
            names = answer.by if is_rejection else " and ".join(answer.by for answer in answers)
            connection.execute(
                "UPDATE requests SET state = ?, answered_at = ?, answered_by = ?, reason = ?, until = ?, answers = ?"
                " WHERE request_id = ?",
                (state, now, names, reason, until, json.dumps([asdict(answer) for answer in answers]), request_id),
            )
            answered = _found(connection, request_id)
            values = (request_id, *_entry_of(answered, answer, reason))
            connection.execute("INSERT INTO unrecorded (request_id, entry, texts) VALUES (?, ?, ?)", values)
            return answered

    def put_on_record(self, log: Any) -> None:
        """Moves each answer that is on no record yet to an `AuditLog`, the oldest first. Hardly waits for others.

        An answer that a process had begun to move when it ended is looked for there. Raises what writing raises.
        """
        with self._connected() as connection:
            connection.execute("PRAGMA busy_timeout = 100")
            waiting = connection.execute("SELECT number FROM unrecorded ORDER BY number").fetchall()
        for (number,) in waiting:
            with self._change() as (connection, _):
                begin = "UPDATE unrecorded SET behind = ? WHERE number = ? AND behind IS NULL"
                connection.execute(begin, (log.last_position(), number))
            with self._change() as (connection, _):  # in which no other process moves it
                select = "SELECT entry, texts, behind FROM unrecorded WHERE number = ?"
                if (row := connection.execute(select, (number,)).fetchone()) is None:
                    continue
                about, texts = json.loads(row[0]), json.loads(row[1] or "{}")
                since = log.entries(about.get("rollout_id"), after=row[2])
                if not any(about.items() <= entry.body.items() for entry in since):
                    log.append(ANSWER, about, arguments=texts.pop("arguments", None), content=texts)
                connection.execute("DELETE FROM unrecorded WHERE number = ?", (number,))

    def add_approver(self, name: str) -> str:
        """Makes a key for an approver and returns it: it is not kept, only its SHA-256. It ends the older key of that name.

        A request that was approved with the older key and is not used yet lapses.
        As soon as a file has an approver, its requests are answered with a key. Raises `PolicyError`.
        """
        if not NAME.fullmatch(name):
            raise PolicyError(f"{name!r} cannot be the name of an approver", hint="letters, digits and . @ _ - only")
        key = KEY_PREFIX + secrets.token_urlsafe(32)
        with self._change() as (connection, now):
            ended = "INSERT INTO ended_keys SELECT key_hash, name, ? FROM approvers WHERE name = ?"
            connection.execute(ended, (now, name))
            connection.execute("INSERT OR REPLACE INTO approvers VALUES (?, ?, ?)", (name, hash_of(key), now))
        return key

    def has_key(self, name: str) -> bool:
        """True where an approver of that name has a key. Raises `PolicyError`."""
        with self._change() as (connection, _):
            return connection.execute("SELECT 1 FROM approvers WHERE name = ?", (name,)).fetchone() is not None

    def approver(self, key: str) -> str | None:
        """The name of the approver whose key this is, or None. Raises `PolicyError` when the file cannot be read."""
        with self._change() as (connection, _):
            return approver_of(connection, key)

    # ------------------------------------------------------------------ for the policy

    def ask(self, asking: Asking) -> tuple[ApprovalRequest, bool] | None:
        """The request for exactly this call: approved (and hereby used up), rejected, or pending; and whether it is new.

        A new one is made when there is none; None when too many are pending already. A new request and the begin of a wait are
        announced.
        """
        inquiry, waits_s = asking.inquiry, asking.waits_s
        if self._rules is not None:
            if (named := self._rules.get(inquiry.rule)) is None:
                raise PolicyError(f"no rule called {inquiry.rule!r} asks for approvals in {self.path}")
            inquiry = replace(inquiry, approvers=named.approvers, by=named.by)
        with self._change() as (connection, now):
            outcome = self._make_or_find(connection, now, asking)
            if outcome is None:
                return None
            request, is_new = outcome
            if request.state == "pending":
                before = inquiry if is_new else request.inquiry
                everyone, calls = (
                    tuple(dict.fromkeys(getattr(before, name) + getattr(inquiry, name)))
                    for name in ("requesters", "calls")
                )
                keyed = before.needs_key or has_approvers(connection)
                after = replace(before, requesters=everyone, calls=calls, keyed=keyed)
                connection.execute(
                    "UPDATE requests SET inquiry = ?, rollout_id = coalesce(rollout_id, ?) WHERE request_id = ?",
                    (json.dumps(asdict(after)), asking.rollout_id, request.request_id),
                )
                if waits_s > 0:
                    connection.execute(
                        "UPDATE requests SET rollout_id = ?, waits_until = ?, wait_ends = ? WHERE request_id = ?",
                        (asking.rollout_id, now + min(waits_s, _SIGN_OF_LIFE_S), now + waits_s, request.request_id),
                    )
                request = _found(connection, request.request_id)
        if request.state == "pending" and not self._quiet and (is_new or (asking.begins and waits_s > 0)):
            log_request(request.name, request.request_id, self.path, waits_s, keyed=request.inquiry.keyed)
            for notice in self._notices:
                notice.send(described(request, self.path, waits_s))
        return request, is_new

    def _make_or_find(
        self, connection: sqlite3.Connection, now: float, asking: Asking
    ) -> tuple[ApprovalRequest, bool] | None:
        _lapse(connection, now)
        row = connection.execute(
            f"SELECT {_COLUMNS} FROM requests WHERE digest = ? AND state IN ('approved', 'rejected', 'pending')"
            " ORDER BY state = 'pending', asked_at LIMIT 1",
            (asking.digest,),
        ).fetchone()
        if row is not None:
            request = _request(row)
            if request.state == "approved":
                connection.execute("UPDATE requests SET state = 'used' WHERE request_id = ?", (request.request_id,))
            return request, False
        (waiting,) = connection.execute("SELECT count(*) FROM requests WHERE state = 'pending'").fetchone()
        if waiting >= self.max_pending:
            return None
        request_id, until = new_id("apr"), now + min(asking.expires_s, self.expires_s)
        connection.execute(
            "INSERT INTO requests (request_id, digest, content, asked_at, state, until) VALUES (?, ?, ?, ?, 'pending', ?)",
            (request_id, asking.digest, canonical_json(asking.content), now, until),
        )
        return _found(connection, request_id), True

    def give_back(self, request_id: str) -> None:
        """The approval was not used after all; it holds for as long as it would have."""
        with self._change() as (connection, _):
            connection.execute(
                "UPDATE requests SET state = 'approved' WHERE request_id = ? AND state = 'used'", (request_id,)
            )

    def withdraw(self, request_id: str, *calls: str) -> None:
        """Withdraws what ``calls`` asked for: the pending request, but if it has answers or other calls wait for it."""
        with self._change() as (connection, _):
            query = f"SELECT {_COLUMNS} FROM requests WHERE request_id = ? AND state = 'pending'"
            if (row := connection.execute(query, (request_id,)).fetchone()) is None:
                return
            request = _request(row)
            others = tuple(call for call in request.inquiry.calls if call not in calls)
            if others or request.answers:
                inquiry = json.dumps(asdict(replace(request.inquiry, calls=others)))
                connection.execute("UPDATE requests SET inquiry = ? WHERE request_id = ?", (inquiry, request_id))
            else:
                connection.execute("DELETE FROM requests WHERE request_id = ?", (request_id,))

    def erase(self, holds: Callable[[Any], bool], *, dry_run: bool = False) -> tuple[int, int]:
        """Deletes every request with a value of which ``holds`` is true, for good, and overwrites it in the file.

        Of an answer that is on no record yet, the texts go. Returns how many requests these are, and how many stay because
        their call waits for the answer now.
        """
        columns = "content, inquiry, answers, answered_by, reason"
        with self._change() as (connection, now):
            rows = connection.execute(
                f"SELECT request_id, state = 'pending' AND coalesce(waits_until, 0) > ?, {columns} FROM requests",
                (now,),
            ).fetchall()
            fitting = {row[0]: row[1] for row in rows if holds(list(row[2:]))}
            going = {request_id for request_id, waits in fitting.items() if not waits}
            answers = connection.execute("SELECT number, request_id, texts FROM unrecorded WHERE texts IS NOT NULL")
            bared = [(number, of) for number, of, texts in answers.fetchall() if of in going or holds(texts)]
            if not dry_run:
                connection.execute("PRAGMA secure_delete = ON")
                connection.executemany("DELETE FROM requests WHERE request_id = ?", zip(going, strict=True))
                numbers = [(number,) for number, _ in bared]
                connection.executemany("UPDATE unrecorded SET texts = NULL WHERE number = ?", numbers)
        if (going or bared) and not dry_run and self.path is not None:
            with self._connected() as connection:
                (busy, *_) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            if busy:
                raise PolicyError(
                    f"approvals file {self.path}: what was deleted is still in its -wal file, because another process reads it",
                    hint="erase again once no process reads the file",
                )
        waiting = fitting.keys() - going
        return len(going.union(of for _, of in bared) - waiting), len(waiting)

    @contextmanager
    def _change(self) -> Generator[tuple[sqlite3.Connection, float]]:
        with self.transaction() as connection:
            yield connection, now_of("approvals", self._clock)


def described(request: ApprovalRequest, path: Path | None, waits_s: float) -> dict[str, Any]:
    """A request in the file at ``path`` as a notice has it; ``waits_s`` is how long its call waits for the answer."""
    inquiry, ends, agent = request.inquiry, request.wait_ends if waits_s > 0 else None, request.content.get("agent")
    fields = ("request_id", "digest", "name", "arguments", "requester", "rollout_id", "asked_at", "until")
    about: dict[str, Any] = {"waits_until": ends, "agent": agent, **{name: getattr(request, name) for name in fields}}
    about |= {name: getattr(inquiry, name) for name in ("rule", "question", "user_text", "approvers", "by")}
    if path is not None:
        about |= {"store": str(path), "approve": answer_command(path, request.request_id, keyed=inquiry.keyed)}
    return about


def _lapse(connection: sqlite3.Connection, now: float) -> None:
    """Marks what has lapsed, and forgets what was over a good while ago, so that the table stays small.

    So is an approval from a future further off than clocks are apart: where the clock was put back, its age is unknown. And
    what somebody approved with a key that has ended.
    """
    connection.execute(
        "UPDATE requests SET state = 'lapsed' WHERE until <= ? AND state IN ('pending', 'approved', 'rejected')", (now,)
    )
    connection.execute(
        "UPDATE requests SET state = 'lapsed' WHERE state = 'approved' AND answered_at > ?", (now + _CLOCKS_APART_S,)
    )
    connection.execute(
        "UPDATE requests SET state = 'lapsed' WHERE state IN ('pending', 'approved') AND EXISTS (SELECT 1"
        " FROM json_each(answers) AS answer JOIN ended_keys ON name = json_extract(answer.value, '$.by')"
        " AND substr(key_hash, 1, 8) = json_extract(answer.value, '$.key'))"
    )
    connection.execute("DELETE FROM requests WHERE state IN ('lapsed', 'used') AND until <= ? - 86400", (now,))


def _request(row: tuple[Any, ...]) -> ApprovalRequest:
    """A row as a request. Raises `PolicyError` when its content does not match its digest."""
    fields: dict[str, Any] = dict(zip(_COLUMNS.split(", "), row, strict=True))
    if hashlib.sha256(fields["content"].encode()).hexdigest() != fields["digest"]:
        raise PolicyError(
            f"approval request {row[0]} was changed: it shows another call than the one its digest is of",
            hint="find out who writes to the file, and start a new one",
        )
    return convert(fields | {name: json.loads(fields[name]) for name in _JSON}, ApprovalRequest)


def _entry_of(request: ApprovalRequest, answer: Answer, reason: str | None) -> tuple[str, str]:
    """The entry of the record about an answer, which rejects where it has a ``reason``, and its texts that can be erased.

    These are all that the person was shown. No digest of them is in the entry itself, where it would outlive them.
    """
    inquiry, is_approval = request.inquiry, reason is None
    of = f" ({len(request.answers)} of {inquiry.approvers})" if is_approval and inquiry.approvers > 1 else ""
    about = {
        **{name: request.content.get(name) for name in ("name", "agent")},
        "rollout_id": request.rollout_id,
        "request": request.request_id,
        "policy": inquiry.rule,
        "rule": APPROVED if is_approval else REJECTED,
        "by": str(answer),
        "answered_at": answer.at,
        "reason": f"{answer} {'approved' if is_approval else 'rejected'} {request.answered}{of}",
    }
    present = {name: value for name, value in about.items() if value is not None}
    circumstances = {"question": inquiry.question, "user_text": inquiry.user_text, "requesters": inquiry.requesters}
    return json.dumps(present), json.dumps({"arguments": request.arguments, "reason": reason, **circumstances})


def _found(connection: sqlite3.Connection, prefix: str) -> ApprovalRequest:
    """The request of that id, or the only one whose id begins so, with or without ``apr_``. Raises `PolicyError`."""
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM requests WHERE substr(request_id, 1, ?) = ? OR substr(request_id, 5, ?) = ?",
        (len(prefix), prefix, len(prefix), prefix),
    ).fetchall()
    if not rows or not prefix:
        raise PolicyError(f"there is no approval request {prefix}", hint="lgov approvals names those there are")
    exact = [row for row in rows if row[0] == prefix]
    if len(rows) > 1 and not exact:
        ids = ", ".join(row[0] for row in rows[:5])
        raise PolicyError(f"several approval requests begin with {prefix!r}: {ids}", hint="write more of the id")
    return _request((exact or rows)[0])
