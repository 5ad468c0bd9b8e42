"""The file of an audit record: its tables, the triggers that keep them append-only, and its entries as they are read."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from lgov_core._util.sqlite_file import FileKind, describe, open_sqlite
from lgov_core.errors import AuditError
from lgov_core.governor.options import ANSWER, APPROVED, REJECTED
from lgov_core.types import Effect

# `lgov_core.audit.verify` documents the format. One row, and so one statement, an entry: a transaction of its own costs
# half of what several statements do. Replacing a row would delete the old one without firing the triggers for DELETE,
# hence those for INSERT. The texts of an entry may be erased together with their salt, but not rewritten.
_SCHEMA = (
    "CREATE TABLE record (id TEXT PRIMARY KEY, made_at INTEGER NOT NULL)",
    "INSERT INTO record VALUES (lower(hex(randomblob(16))), unixepoch())",
    """CREATE TABLE entries (
        position INTEGER PRIMARY KEY,
        writer TEXT NOT NULL,
        seq INTEGER NOT NULL,
        rollout_id TEXT,
        body TEXT NOT NULL,
        prev_hash BLOB NOT NULL,
        hash BLOB NOT NULL,
        salt BLOB,
        arguments TEXT,
        content TEXT
    )""",
    "CREATE INDEX entries_of_rollout ON entries (rollout_id) WHERE rollout_id IS NOT NULL",
    "CREATE TABLE heads (number INTEGER PRIMARY KEY, body TEXT NOT NULL, signature BLOB NOT NULL)",
    """CREATE TRIGGER entries_are_not_changed BEFORE UPDATE ON entries
       WHEN NEW.position IS NOT OLD.position OR NEW.writer IS NOT OLD.writer OR NEW.seq IS NOT OLD.seq
         OR NEW.rollout_id IS NOT OLD.rollout_id OR NEW.body IS NOT OLD.body OR NEW.prev_hash IS NOT OLD.prev_hash
         OR NEW.hash IS NOT OLD.hash OR NEW.salt IS NOT NULL OR NEW.arguments IS NOT NULL OR NEW.content IS NOT NULL
       BEGIN SELECT RAISE(ABORT, 'the audit record is append-only'); END""",
    """CREATE TRIGGER entries_are_not_removed BEFORE DELETE ON entries
       BEGIN SELECT RAISE(ABORT, 'the audit record is append-only'); END""",
    """CREATE TRIGGER entries_are_not_replaced BEFORE INSERT ON entries
       WHEN EXISTS (SELECT 1 FROM entries WHERE position = NEW.position)
       BEGIN SELECT RAISE(ABORT, 'the audit record is append-only'); END""",
    """CREATE TRIGGER heads_are_not_changed BEFORE UPDATE ON heads
       BEGIN SELECT RAISE(ABORT, 'the audit record is append-only'); END""",
    """CREATE TRIGGER heads_are_not_removed BEFORE DELETE ON heads
       BEGIN SELECT RAISE(ABORT, 'the audit record is append-only'); END""",
    """CREATE TRIGGER heads_are_not_replaced BEFORE INSERT ON heads
       WHEN EXISTS (SELECT 1 FROM heads WHERE number = NEW.number)
       BEGIN SELECT RAISE(ABORT, 'the audit record is append-only'); END""",
)

#: What an entry's hash begins with.
DOMAIN: Final = b"lgov-audit-v2\0"
AUDIT_RECORD: Final = FileKind(
    what="audit record",
    application_id=int.from_bytes(b"lgvA"),
    version=2,
    schema=_SCHEMA,
    error=AuditError,
)

_OWN_SCHEMA: Final = frozenset(statement for statement in _SCHEMA if statement.startswith("CREATE"))
_SELECT_SCHEMA: Final = "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL"


def open_record(path: Path, *, busy_timeout_s: float, expected: tuple[int, int] | None = None) -> sqlite3.Connection:
    """Opens the record at ``path`` to append to it, and makes it (mode 0600) when it does not exist.

    ``expected`` is what `file_identity` said of the file. Raises `AuditError`, also when its tables or triggers are not
    those that lgov makes.
    """
    connection = open_sqlite(AUDIT_RECORD, path, busy_timeout_s=busy_timeout_s, expected=expected)
    try:
        schema = frozenset(row[0] for row in connection.execute(_SELECT_SCHEMA))
        if schema != _OWN_SCHEMA:  # entries could be dropped or changed unseen
            raise AuditError(
                f"audit record {path}: its tables or triggers are not those that lgov makes",
                hint="they were changed; keep a copy, check it with lgov audit verify, and start a new record",
            )
    except BaseException as error:
        connection.close()
        if isinstance(error, sqlite3.Error):
            raise describe(AUDIT_RECORD, path, error) from error
        raise
    return connection


# ---------------------------------------------------------------------- entries

#: Kinds of entries whose reasons are lgov's own words about names; any other reason may quote what was written.
_OWN_WORDS: Final = frozenset({"confinement", "loss", "policy", "rotation"})
#: The words that follow the name of who answered in the reason of a verdict, by its rule.
_ANSWERS: Final = {APPROVED: " approved it (", REJECTED: " rejected this call"}
_VERDICT: Final = ("effect", "policy", "rule", "reason", "severity", "by", "request")


def answerer(verdict: Mapping[str, Any]) -> str | None:
    """Who approved or rejected the call by this verdict, with the fingerprints of their keys; None where nobody did."""
    words = _ANSWERS.get(verdict.get("rule") or "")
    name, is_there, _ = (verdict.get("reason") or "").partition(words) if words else ("", "", "")
    return verdict.get("by") or (name if is_there else None)


def _unquoted(verdict: Mapping[str, Any]) -> dict[str, Any]:
    """``verdict`` without its reason, and with who answered, who is named there."""
    by = answerer(verdict)
    return {**verdict, **({"reason": ""} if "reason" in verdict else {}), **({} if by is None else {"by": by})}


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One entry as it is read back.

    ``kind`` is ``decision`` or ``outcome``, or one of those that a flight recorder, an erasure or a rotation writes
    (``trace``, ``trace_end``, ``signal``, ``erasure``, ``rotation``, ``retirement``), ``confinement``, the box of a program,
    ``ungoverned``, the Python programs that it started and that were not governed, ``loss``, that entries are lost,
    ``approval``, a person's answer, or ``policy``: what happened to what governs; ``refers_to`` is the entry id that an outcome
    or an end belongs to.
    ``position`` counts over the whole record, ``seq`` within the writer's chain; both from 1. ``time_ns`` is Unix time
    and ``monotonic_ns`` the writer's monotonic clock, in nanoseconds. ``arguments`` is canonical JSON, and ``content`` a
    JSON object of what else belongs to the entry (``text``, the replacements of a transform, ``result``, ``error``);
    both None once erased. ``arguments_sha256`` is the SHA-256 (hex) of the entry's secret salt and the stored arguments:
    it stays, and says nothing about them once the salt is erased too. ``source`` says who wrote the judged text: ``user``,
    ``system``, ``agent`` or ``tool``. ``effect`` to ``shadowed`` and ``latency_us`` are
    None on an outcome, ``status`` on a decision. ``body`` holds every field that was hashed; ``inside`` is true in it when a
    program in a box said so, and the outside knows nothing but that.
    """

    position: int
    entry_id: str
    writer: str
    seq: int
    kind: str
    time_ns: int
    monotonic_ns: int
    point: str | None
    action_kind: str | None
    name: str | None
    arguments: str | None
    arguments_sha256: str | None
    content: str | None
    agent: str | None
    framework: str | None
    session_id: str | None
    rollout_id: str | None
    attempt: int | None
    call_id: str | None
    source: str | None
    refers_to: str | None
    status: str | None
    effect: str | None
    policy: str | None
    rule: str | None
    reason: str | None
    severity: str | None
    shadowed: bool | None
    policy_digest: str
    code_version: str
    latency_us: float | None
    prev_hash: bytes
    hash: bytes
    body: Mapping[str, Any]

    @property
    def verdict(self) -> Mapping[str, Any]:
        """The verdict of the policies, enforced or not: ``effect``, ``policy``, ``rule``, ``reason`` and ``severity``.

        Those of the most severe part that shadow mode kept from being enforced, or else the entry's own.
        """
        own = {name: self.body.get(name) for name in _VERDICT}
        shadowed = [part for part in self.body.get("parts") or () if part["shadowed"]]
        return max([own, *shadowed], key=lambda part: Effect[(part["effect"] or "allow").upper()])

    @property
    def approval(self) -> Mapping[str, Any] | None:
        """The verdict by which a person, or a callback, approved the call; None where none did."""
        own = {name: self.body.get(name) for name in _VERDICT}
        verdicts = (own, *(self.body.get("parts") or ()))
        return next((each for each in verdicts if each["rule"] == APPROVED and each["effect"] == "allow"), None)

    def without_content(self) -> AuditEntry:
        """The entry without what users, models and tools wrote: arguments, texts, and reasons, which may quote them."""
        body = self.body
        if self.kind not in _OWN_WORDS or body.get("inside"):
            parts = {"parts": [_unquoted(verdict) for verdict in body["parts"]]} if "parts" in body else {}
            body = _unquoted(body) | parts
        return replace(self, arguments=None, content=None, reason=body.get("reason"), body=body)


#: The columns of a row of `entry_of`; texts as bytes, since what is damaged may be no text.
ENTRY_COLUMNS: Final = (
    "position, CAST(body AS BLOB), prev_hash, hash, salt, CAST(arguments AS BLOB), CAST(content AS BLOB)"
)


#: SQLite's codes for a file that holds something else than it should.
_DAMAGE: Final = (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_MISMATCH)


def entry_of(path: Path, row: tuple[Any, ...]) -> AuditEntry:
    """The entry of a row of `ENTRY_COLUMNS` in the record at ``path``.

    Raises `AuditError` where it is not what was written, by its hashes, so that nothing else is taken for it.
    """
    position, text, prev_hash, entry_hash, salt, arguments, content = row
    with readable(path, f"entry {position}"):
        if hashlib.sha256(DOMAIN + prev_hash + text).digest() != entry_hash:
            raise ValueError("its contents do not match its hash")
        body: dict[str, Any] = json.loads(text.decode("ascii"))
        texts = {"arguments": arguments, "content": content}
        for name, stored in texts.items():
            if stored is not None and hashlib.sha256(salt + stored).hexdigest() != body.get(f"{name}_sha256"):
                raise ValueError(f"the text of its {name} does not match the hash")
        fields: dict[str, Any] = {name: body.get(name) for name in AuditEntry.__dataclass_fields__}
        fields |= {name: stored and stored.decode() for name, stored in texts.items()}
        fields |= {"position": position, "body": body, "prev_hash": prev_hash, "hash": entry_hash}
        entry = AuditEntry(**fields)
        moment(entry.time_ns)
        entry.verdict, entry.approval  # noqa: B018  # pyright: ignore[reportUnusedExpression]
        return entry


@contextmanager
def readable(path: Path, what: str) -> Generator[None]:
    """Turns what reading ``what`` of a damaged record at ``path`` raises into `AuditError`."""
    try:
        yield
    except (sqlite3.Error, ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError) as error:
        if isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", 0) & 0xFF not in _DAMAGE:
            raise describe(AUDIT_RECORD, path, error) from error
        raise AuditError(
            f"{what} of audit record {path} cannot be read: {error}", hint="verify it with lgov audit verify"
        ) from error


def moment(time_ns: int) -> datetime:
    """The moment of an entry, in UTC."""
    return datetime.fromtimestamp(time_ns / 1e9, UTC)


@dataclass(frozen=True, slots=True)
class EntrySelection:
    """The entries that fit every field that is set.

    ``since`` and ``before`` are Unix times in seconds. ``tool`` and ``agent`` are globs; only entries about a tool call have
    a tool. ``text`` is looked for in any case: in the arguments and texts of an entry, its name and its reasons. ``entry_id``
    is the id of an entry, which its outcome fits too.
    """

    rollout_id: str | None = None
    session_id: str | None = None
    since: float | None = None
    before: float | None = None
    tool: str | None = None
    agent: str | None = None
    text: str | None = None
    entry_id: str | None = None

    def holds(self, entry: AuditEntry) -> bool:
        """Returns whether ``entry`` is one of them."""
        return (
            self.rollout_id in (None, entry.rollout_id)
            and self.session_id in (None, entry.session_id)
            and (self.since is None or entry.time_ns >= self.since * 1e9)
            and (self.before is None or entry.time_ns < self.before * 1e9)
            and (self.tool is None or (is_tool_call(entry) and fnmatchcase(entry.name or "", self.tool)))
            and (self.agent is None or fnmatchcase(entry.agent or "", self.agent))
            and self.entry_id in (None, entry.entry_id, entry.refers_to)
            and (self.text is None or _mentions(entry, self.text))
        )


def is_tool_call(entry: AuditEntry) -> bool:
    """Returns whether the entry is about a tool call: before or after it, or an answer to who asked about it."""
    return entry.kind == ANSWER or (entry.point or "").endswith("tool_call")


def _mentions(entry: AuditEntry, text: str) -> bool:
    reasons = [verdict["reason"] for verdict in (entry.verdict, *(entry.body.get("parts") or ()))]
    return mentions([entry.name, reasons, entry.arguments, entry.content], text)


def mentions(value: Any, text: str) -> bool:
    """Returns whether ``text`` is in a text of a JSON value, in any case."""
    needle = text.casefold()
    return any(needle in each.casefold() for each in _texts(value))


def _texts(value: Any) -> Iterator[str]:
    """Every text in ``value``, also those in a text that is JSON, as the arguments of a tool call are in a model's reply."""
    if isinstance(value, Mapping):
        items: Mapping[str, Any] = value
        for key, item in items.items():
            yield key
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:  # pyright: ignore[reportUnknownVariableType]
            yield from _texts(item)
    elif isinstance(value, str):
        yield value
        if value.lstrip().startswith(("{", "[", '"')):
            try:
                yield from _texts(json.loads(value))
            except (ValueError, RecursionError):
                return
    elif value is not None:
        yield str(value)


def modes_of(entries: Iterable[AuditEntry]) -> dict[str, str]:
    """The mode of each policy that begins in these entries, by its digest."""
    policies = (entry for entry in entries if entry.kind == "policy" and "mode" in entry.body)
    return {entry.policy_digest: entry.body["mode"] for entry in policies}
