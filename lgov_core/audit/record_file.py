"""The file of an audit record: its tables, the triggers that keep them append-only, and the erasure of texts."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from lgov_core._util.file_kind import FileKind
from lgov_core._util.sqlite_file import describe, open_sqlite
from lgov_core.audit.entry import canonical
from lgov_core.audit.reading import AuditEntry
from lgov_core.audit.signing import Signer
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
