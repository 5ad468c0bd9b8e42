"""Answers to requests for approval: what is asked, who may answer, with which key, and which are on no record yet."""

from __future__ import annotations

import hashlib
import re
import sqlite3
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Self

from lgov_core.errors import PolicyError

APPROVERS: Final = "CREATE TABLE approvers (name TEXT PRIMARY KEY, key_hash TEXT NOT NULL UNIQUE, since REAL NOT NULL)"
ENDED_KEYS: Final = "CREATE TABLE ended_keys (key_hash TEXT PRIMARY KEY, name TEXT NOT NULL, ended_at REAL NOT NULL)"
#: Answers on their way to an audit record: the entry, the texts in it that can be erased, and, once it is begun, the
#: position in the record behind which it is.
UNRECORDED: Final = (
    "CREATE TABLE unrecorded (number INTEGER PRIMARY KEY AUTOINCREMENT, request_id TEXT NOT NULL, entry TEXT NOT NULL,"
    " texts TEXT, behind INTEGER)"
)
#: The beginning of an approver's key, and what an approver may be called.
KEY_PREFIX: Final = "lgov_approver_"
NAME: Final = re.compile(r"[\w.@-]{1,64}")


class NotAllowedToAnswer(PolicyError):
    """Who answers may not answer this request: without a key, not named by the rule, or the requester."""

    code = "forbidden"


@dataclass(frozen=True, slots=True)
class Inquiry:
    """The circumstances of a request: what a person reads beside the call, and who may answer.

    ``question`` is what is asked in words, ``rule`` the rule that asks, ``user_text`` the request of the program's user.
    ``requesters`` are the names of those for whom the call is made: none of them may answer with a key. ``approvers`` is how
    many different people have to approve; ``by`` are the names of those who may answer, empty for everyone. ``keyed``: only an
    approver's key answers. ``calls`` are the names of the calls that wait for it, where a framework carries the question.
    """

    rule: str = ""
    question: str = ""
    user_text: str = ""
    requesters: tuple[str, ...] = ()
    approvers: int = 1
    by: tuple[str, ...] = ()
    keyed: bool = False
    calls: tuple[str, ...] = ()

    @classmethod
    def of_rule(cls, options: Mapping[str, Any]) -> Self:
        """Who answers a rule, by its options ``name``, ``approvers``, ``by`` and ``teams``."""
        teams: Mapping[str, Sequence[str]] = options.get("teams") or {}
        by = dict.fromkeys(person for name in options.get("by") or () for person in teams.get(name, (name,)))
        return cls(rule=options["name"], approvers=options.get("approvers", 1), by=tuple(by))

    @property
    def needs_key(self) -> bool:
        """True where only an approver's key answers, because names count."""
        return self.approvers > 1 or bool(self.by)


@dataclass(frozen=True, slots=True)
class Answer:
    """One person's answer at Unix time ``at``. ``key`` is the beginning of the SHA-256 of their key; None without a key."""

    by: str
    at: float
    key: str | None = None

    def __str__(self) -> str:
        return self.by if self.key is None else f"{self.by} (key {self.key})"


def allowed_answer(
    connection: sqlite3.Connection, request_id: str, inquiry: Inquiry, before: Sequence[Answer], by: str, now: float
) -> Answer:
    """The answer of ``by``, a name or a key, to a request that has those of ``before``.

    Raises `NotAllowedToAnswer`, which says for logs to which request, and by whom.
    """
    of = f"approval request {request_id}: "
    if not by.startswith(KEY_PREFIX):
        if inquiry.needs_key or has_approvers(connection):
            raise NotAllowedToAnswer(
                f"approval request {request_id} is answered with an approver's key, not by the name {by!r}",
                hint="give the key as by, or --by -; lgov approvals FILE --key NAME makes one",
            )
        return Answer(by, now)
    name = approver_of(connection, by)
    if name is None:
        ended = connection.execute(
            "SELECT name, ended_at FROM ended_keys WHERE key_hash = ?", (hash_of(by),)
        ).fetchone()
        problem = f"this is not the key of an approver of this file (key {hash_of(by)[:8]})"
        if ended is not None:
            problem = f"this key of {ended[0]} ended at {utc(ended[1])}, when another was made"
        raise NotAllowedToAnswer(of + problem, hint="lgov approvals FILE --key NAME makes one")
    if _folded(name) in map(_folded, inquiry.requesters):
        raise NotAllowedToAnswer(f"{of}{name} asks for this call, so somebody else has to answer")
    if inquiry.by and _folded(name) not in map(_folded, inquiry.by):
        raise NotAllowedToAnswer(f"{of}rule {inquiry.rule} names who may answer: {', '.join(inquiry.by)}; not {name}")
    if any(_folded(answer.by) == _folded(name) for answer in before):
        raise NotAllowedToAnswer(f"{of}{name} has approved this already; it needs {inquiry.approvers} people")
    return Answer(name, now, hash_of(by)[:8])


def approver_of(connection: sqlite3.Connection, key: str) -> str | None:
    """The name of the approver whose key this is, or None."""
    row = connection.execute("SELECT name FROM approvers WHERE key_hash = ?", (hash_of(key),)).fetchone()
    return None if row is None else str(row[0])


def has_approvers(connection: sqlite3.Connection) -> bool:
    """True once the file has an approver: then every answer takes a key."""
    return bool(connection.execute("SELECT 1 FROM approvers LIMIT 1").fetchone())


def hash_of(key: str) -> str:
    """The SHA-256 of an approver's key, which is all that is kept of it."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def utc(moment: float) -> str:
    """A moment as it stands in texts about answers."""
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _folded(name: str) -> str:
    return unicodedata.normalize("NFKC", name).casefold()
