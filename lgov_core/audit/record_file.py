"""The file of an audit record: its tables, the triggers that keep them append-only, what else changed it, and the erasure of
texts.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from lgov_core._util.file_kind import FileKind, require_same_file
from lgov_core._util.sqlite_file import describe, is_busy, open_sqlite
from lgov_core.audit.entry import canonical
from lgov_core.audit.reading import AuditEntry
from lgov_core.audit.signing import LOOKED_AT, ForeignEntry, LookedAt, Seals, Signer
from lgov_core.errors import AuditError, AuditKeyError

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

AUDIT_RECORD: Final = FileKind(
    what="audit record",
    application_id=int.from_bytes(b"lgvA"),
    version=2,
    schema=_SCHEMA,
    error=AuditError,
)

_OWN_SCHEMA: Final = frozenset(statement for statement in _SCHEMA if statement.startswith("CREATE"))
_SELECT_SCHEMA: Final = (
    "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND NOT (type = 'table' AND name GLOB 'sqlite_*')"
)


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


#: The record's id, and how often its schema was changed: once more in a copy that SQLite makes.
_MADE: Final = "SELECT id, (SELECT schema_version FROM pragma_schema_version) FROM record"
#: Entries of others between two of a writer that it looks at.
_MOST_BETWEEN: Final = 4
_LAST: Final = "SELECT coalesce(max(position), 0) FROM entries"


class Watch:
    """Notices that a record is no longer what its open writer wrote, and read of others. For one thread at a time.

    Every method raises `ForeignEntry` then. ``seals`` recognise the entries of others; without them none are looked at.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, seals: Seals | None) -> None:
        self._path, self._seals = path, seals
        self._made: tuple[str, int] = connection.execute(_MADE).fetchone()
        self._last: int = connection.execute(_LAST).fetchone()[0]
        row = connection.execute("SELECT hash FROM entries WHERE position = ?", (self._last,)).fetchone()
        self._hash: bytes | None = None if row is None else row[0]
        #: The last position that is in the file itself, and not only in SQLite's log beside it.
        self._settled = 0
        #: The hashes of entries behind the last head, by position.
        self._seen: dict[int, bytes] = {}
        status = os.stat(path)
        self._identity, self._state = (status.st_dev, status.st_ino), (status.st_size, status.st_mtime_ns)

    @property
    def identity(self) -> tuple[int, int]:
        """Device and inode of the record's file."""
        return self._identity

    def require_same_file(self) -> None:
        """Looks whether the file is the one that was opened, and was changed by SQLite only. Raises `AuditError`."""
        try:
            status = os.stat(self._path)
        except OSError:
            status = None
        if status is None or (status.st_dev, status.st_ino) != self._identity:
            require_same_file(AUDIT_RECORD, self._path, self._identity)
            return
        state = status.st_size, status.st_mtime_ns
        if state != self._state:  # by a checkpoint, or by another program
            if state[0] < self._state[0]:
                raise self._foreign("is shorter than it was")
            self._look_again()
            self._state = state

    def wrote(self, connection: sqlite3.Connection, position: int, entry_hash: bytes) -> None:
        """Notes an entry that the writer has just written, and looks at those that others wrote before it.

        Where many others write, their entries wait for the next head: each would be looked at by all of them.
        """
        expected = self._last + 1
        if position < expected:
            raise self._foreign(f"has lost entries: the entry after {self._last} became entry {position}")
        if expected < position <= expected + _MOST_BETWEEN and self._seals is not None:
            between = f"SELECT {LOOKED_AT} FROM entries WHERE position BETWEEN ? AND ? ORDER BY position"
            self._look_at(connection.execute(between, (expected, position - 1)))
        if self._seals is not None:
            self._seen[position] = entry_hash
        self._last, self._hash = position, entry_hash

    def covered(self, last: int, rows: Sequence[LookedAt]) -> None:
        """Looks at the entries behind position ``last`` before a head is signed over them."""
        self._look_at(rows)
        behind = {position for position in self._seen if position > last}
        if missing := behind - {row[0] for row in rows}:
            raise self._foreign(f"has lost entry {min(missing)}")
        self._seen = {position: self._seen[position] for position in behind}

    def _look_at(self, rows: Iterable[LookedAt]) -> None:
        assert self._seals is not None
        for position, entry_hash, prev_hash, body in rows:
            if (before := self._seen.get(position)) is None:
                if not self._seals.is_right(prev_hash, body):
                    raise self._foreign(f"holds entry {position}, which no writer with the record's key wrote")
                self._seen[position] = entry_hash
            elif before != entry_hash:
                raise self._foreign(f"holds another entry {position} than was written")

    def _look_again(self) -> None:
        """Reads the file anew, without SQLite's log and with it: the open connection would go on with what it has in memory.

        A checkpoint leaves in the file the record as it was until some entry, and never until an earlier one than before. While
        one is going on, or was killed, the file cannot be read without the log.
        """
        with suppress(sqlite3.Error):
            settled, _ = self._read("&immutable=1")
            if settled < self._settled:
                raise self._foreign("was replaced by an older copy")
            self._settled = settled
        try:
            last, entry_hash = self._read("")
        except sqlite3.Error as error:
            if is_busy(error):
                raise describe(AUDIT_RECORD, self._path, error) from error
            raise self._foreign(f"is damaged: {error}") from error
        if last < self._last or entry_hash != self._hash:
            raise self._foreign("does not hold the last entry as it was written: it was replaced by a copy, or changed")

    def _read(self, options: str) -> tuple[int, bytes | None]:
        """The last position in the file, and the hash of the entry that this writer saw last."""
        address = f"file:{quote(str(self._path))}?mode=ro{options}"
        with closing(sqlite3.connect(address, uri=True, timeout=5)) as fresh:
            if fresh.execute(_MADE).fetchone() != self._made:
                raise self._foreign("was replaced by another file or a copy")
            row = fresh.execute("SELECT hash FROM entries WHERE position = ?", (self._last,)).fetchone()
            return fresh.execute(_LAST).fetchone()[0], None if row is None else row[0]

    def _foreign(self, problem: str) -> ForeignEntry:
        hint = "keep a copy, check it with lgov audit verify, and begin a new record"
        return ForeignEntry(f"audit record {self._path} {problem}", hint=hint)


_DOMAIN: Final = b"lgov-audit-erasure-v1\0"


def erasure_fields(
    connection: sqlite3.Connection, entries: Iterable[AuditEntry], reason: str, signer: Signer | None
) -> dict[str, Any]:
    """The fields of an erasure's entry, signed when the record is.

    Raises `AuditKeyError` unless ``signer`` has the key of the record's last head, `AuditError` when it fails.
    """
    statement = {"erased": {entry.entry_id: entry.hash.hex() for entry in entries}, "reason": reason or None}
    head = connection.execute("SELECT body FROM heads ORDER BY number DESC LIMIT 1").fetchone()
    if head is None:
        return statement
    key = json.loads(head[0])["key"]
    if signer is None or signer.public.hex() != key:
        raise AuditKeyError(
            f"the record is signed with the key {key}: only who has its key may erase from it",
            hint="name the secret key: lgov audit erase --key, the setting audit_key, or AuditLog(signer=...)",
        )
    try:
        signature = signer.sign(_DOMAIN + canonical(statement).encode())
    except Exception as error:
        raise AuditError(f"the erasure could not be signed: {error}", hint="nothing was erased") from error
    return {**statement, "key": key, "signature": signature.hex()}


def erase_texts(connection: sqlite3.Connection, positions: Iterable[int]) -> None:
    """Erases the texts of entries with their salts, and has the file's free pages overwritten. Raises ``sqlite3.Error``."""
    connection.execute("PRAGMA secure_delete=ON")
    connection.execute("BEGIN IMMEDIATE")
    with connection:  # commits, or rolls back
        connection.executemany(
            "UPDATE entries SET salt = NULL, arguments = NULL, content = NULL WHERE position = ?",
            [(position,) for position in positions],
        )
