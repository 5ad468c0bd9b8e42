"""The audit record: every decision, durable before the act goes on."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import threading
import time
import uuid
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from lgov_core.audit.entry import (
    AuditEntry,
    Payload,
    action_fields,
    canonical,
    decision_content,
    decision_fields,
    entry_of,
    outcome_content,
    payload,
)
from lgov_core.errors import AuditError
from lgov_core.sqlite_file import (
    FileKind,
    describe,
    file_identity,
    keep_quiet_across_fork,
    open_database,
    require_same_file,
)
from lgov_core.types import Action, Decision, ToolOutcome

_DOMAIN: Final = b"lgov-audit-v1\0"
_FIRST: Final = bytes(32)

# `lgov_core.audit.verify` documents the format. Replacing a row would delete the old one without firing the triggers
# for DELETE, hence those for INSERT. Payloads may be erased, but not rewritten.
_SCHEMA = (
    """CREATE TABLE entries (
        position INTEGER PRIMARY KEY,
        writer TEXT NOT NULL,
        seq INTEGER NOT NULL,
        rollout_id TEXT,
        body TEXT NOT NULL,
        prev_hash BLOB NOT NULL,
        hash BLOB NOT NULL
    )""",
    "CREATE INDEX entries_of_rollout ON entries (rollout_id) WHERE rollout_id IS NOT NULL",
    "CREATE TABLE payloads (position INTEGER PRIMARY KEY REFERENCES entries (position), arguments TEXT, content TEXT)",
    """CREATE TRIGGER entries_are_not_changed BEFORE UPDATE ON entries
       BEGIN SELECT RAISE(ABORT, 'the audit record is append-only'); END""",
    """CREATE TRIGGER entries_are_not_removed BEFORE DELETE ON entries
       BEGIN SELECT RAISE(ABORT, 'the audit record is append-only'); END""",
    """CREATE TRIGGER entries_are_appended BEFORE INSERT ON entries
       WHEN NEW.position IS NOT (SELECT coalesce(max(position), 0) + 1 FROM entries)
       BEGIN SELECT RAISE(ABORT, 'the audit record is append-only'); END""",
    """CREATE TRIGGER payloads_are_not_changed BEFORE UPDATE ON payloads
       BEGIN SELECT RAISE(ABORT, 'the audit record is append-only'); END""",
    """CREATE TRIGGER payloads_are_not_replaced BEFORE INSERT ON payloads
       WHEN EXISTS (SELECT 1 FROM payloads WHERE position = NEW.position)
       BEGIN SELECT RAISE(ABORT, 'the audit record is append-only'); END""",
)

AUDIT_RECORD: Final = FileKind(
    what="audit record",
    application_id=int.from_bytes(b"lgvA"),
    version=1,
    schema=_SCHEMA,
    error=AuditError,
)

_INSERT_ENTRY = (
    "INSERT INTO entries (position, writer, seq, rollout_id, body, prev_hash, hash)"
    " VALUES ((SELECT coalesce(max(position), 0) + 1 FROM entries), ?, ?, ?, ?, ?, ?)"
)
_INSERT_PAYLOAD = "INSERT INTO payloads (position, arguments, content) VALUES (?, ?, ?)"


@cache
def _own_version() -> str:
    try:
        return version("lgov")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "unknown"


class AuditLog:
    """Appends to the audit record at ``path``, which is made (mode 0600) when it does not exist.

    An entry is committed when `commit` returns, and survives the death of the process. Every object writes a hash chain
    of its own, so several objects, threads and processes may append to one file; a forked child goes on with a chain of
    its own. ``policy_digest`` and ``code_version`` (lgov's own when None) are written into every entry. Fails closed:
    every failure is an `AuditError`, nothing is half-written, and whoever gets one must not let the act go on. Raises
    `AuditError` when the file cannot be opened.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        busy_timeout_s: float = 5.0,
        policy_digest: str = "",
        code_version: str | None = None,
    ) -> None:
        self.path = Path(path)
        self._name = str(self.path)
        self.policy_digest = policy_digest
        self.code_version = _own_version() if code_version is None else code_version
        self._busy_timeout_s = busy_timeout_s
        self._closed = False
        self._connection: sqlite3.Connection | None = open_database(
            AUDIT_RECORD, self.path, busy_timeout_s=busy_timeout_s
        )
        self._identity = file_identity(self.path)
        self._begin_chain()
        keep_quiet_across_fork(self)

    def _begin_chain(self) -> None:
        self._lock = threading.Lock()
        self._writer = uuid.uuid4().hex
        self._seq = 0
        self._head = _FIRST

    # ------------------------------------------------------------------ appending

    def commit(self, action: Action, decision: Decision) -> str:
        """Appends the decision and returns its entry's id once it is durable.

        Raises `AuditError`. Callable from any thread. What the arguments hold besides JSON values is recorded as its
        ``repr``; what is longer than 64 KiB as its beginning, size and SHA-256.
        """
        try:
            fields = {"kind": "decision", **action_fields(action), **decision_fields(decision)}
            arguments, content = payload(action.arguments), decision_content(action, decision)
        except Exception as error:
            raise _unwritable(action, error) from error
        return self._append(fields, arguments, content, "aud")

    def commit_outcome(self, outcome: ToolOutcome, decision_id: str | None) -> str:
        """Appends what came of an act, as an entry that refers to its decision's, and returns the new entry's id.

        The arguments are kept with the decision; the outcome carries their hash, and keeps them only when there was no
        decision. Raises `AuditError`. Callable from any thread.
        """
        try:
            fields = {
                "kind": "outcome",
                **action_fields(outcome.action),
                "refers_to": decision_id,
                "status": outcome.status,
                "error_type": outcome.error_type,
                "started_at": outcome.started_at,
                "duration_s": outcome.duration_s,
            }
            arguments, content = payload(outcome.action.arguments), outcome_content(outcome)
        except Exception as error:
            raise _unwritable(outcome.action, error) from error
        if decision_id is not None:
            fields["arguments_sha256"] = arguments.sha256
            arguments = None
        return self._append(fields, arguments, content, "out")

    def _append(self, fields: dict[str, Any], arguments: Payload | None, content: Payload | None, prefix: str) -> str:
        for name, text in (("arguments", arguments), ("content", content)):
            if text is not None:
                fields[f"{name}_sha256"] = text.sha256
                fields[f"{name}_size"] = text.size
                fields[f"{name}_stored_sha256"] = text.stored_sha256
        fields = {name: value for name, value in fields.items() if value is not None}
        lock = self._lock
        if not lock.acquire(timeout=self._busy_timeout_s):
            raise AuditError(
                f"audit record {self.path}: other threads held it for {self._busy_timeout_s:g} s",
                hint="look for a slow disk, or raise the busy timeout",
            )
        try:
            seq = self._seq + 1
            entry_id = f"{prefix}_{self._writer[:16]}_{seq}"
            body = canonical(
                {
                    **fields,
                    "format": 1,
                    "entry_id": entry_id,
                    "writer": self._writer,
                    "seq": seq,
                    "time_ns": time.time_ns(),
                    "monotonic_ns": time.monotonic_ns(),
                    "policy_digest": self.policy_digest,
                    "code_version": self.code_version,
                }
            )
            head = hashlib.sha256(_DOMAIN + self._head + body.encode()).digest()
            self._write(
                (self._writer, seq, fields.get("rollout_id"), body, self._head, head),
                (arguments and arguments.stored, content and content.stored),
            )
            self._seq, self._head = seq, head
            return entry_id
        except AuditError:
            raise
        except Exception as error:
            raise describe(AUDIT_RECORD, self.path, error) from error
        finally:
            lock.release()

    def _write(self, entry: tuple[Any, ...], texts: tuple[str | None, str | None]) -> None:
        """Writes one entry and its payload in one transaction, which is rolled back when anything fails."""
        connection = self._open()
        try:
            connection.execute("BEGIN IMMEDIATE")
            position = connection.execute(_INSERT_ENTRY, entry).lastrowid
            if texts != (None, None):
                connection.execute(_INSERT_PAYLOAD, (position, *texts))
            connection.execute("COMMIT")
        except BaseException:
            self._start_over(connection)
            raise

    def _start_over(self, connection: sqlite3.Connection) -> None:
        """After a failure: drops the transaction, and begins a new chain, since nobody can say how far it got."""
        self._connection = None
        self._writer, self._seq, self._head = uuid.uuid4().hex, 0, _FIRST
        connection.close()

    def _open(self) -> sqlite3.Connection:
        if self._closed:
            raise AuditError(f"audit record {self.path} is closed", hint="open it again to go on")
        require_same_file(AUDIT_RECORD, self._name, self._identity)
        if self._connection is None:
            self._connection = open_database(
                AUDIT_RECORD, self.path, busy_timeout_s=self._busy_timeout_s, expected=self._identity
            )
        return self._connection

    # ------------------------------------------------------------------ reading

    def entries(self, rollout_id: str | None = None) -> list[AuditEntry]:
        """The entries of all writers, or those of one rollout, in the order of writing. Raises `AuditError`."""
        wanted, given = ("", ()) if rollout_id is None else ("WHERE e.rollout_id = ?", (rollout_id,))
        with self._lock:
            try:
                found = self._open().execute(
                    "SELECT e.position, e.body, e.prev_hash, e.hash, p.arguments, p.content FROM entries AS e"
                    f" LEFT JOIN payloads AS p ON p.position = e.position {wanted} ORDER BY e.position",
                    given,
                )
                return [entry_of(row) for row in found]
            except sqlite3.Error as error:
                raise describe(AUDIT_RECORD, self.path, error) from error

    # ------------------------------------------------------------------ the end, and forks

    def close(self) -> None:
        """Closes the record. Calling it again does nothing; any other call after it raises `AuditError`."""
        with self._lock:
            self._closed = True
            self._let_go()

    def __enter__(self) -> AuditLog:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def before_fork(self) -> None:
        """Closes the connection, so that a child does not inherit it. Called by the interpreter."""
        self._lock.acquire()
        self._let_go()

    def after_fork_in_parent(self) -> None:
        """Lets work go on, on a fresh connection. Called by the interpreter."""
        self._lock.release()

    def after_fork_in_child(self) -> None:
        """Begins a chain of the child's own. Called by the interpreter."""
        self._begin_chain()

    def _let_go(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _unwritable(action: Action, error: Exception) -> AuditError:
    return AuditError(
        f"the arguments of {action.name[:100]!r} cannot be recorded: {type(error).__name__}: {error}",
        hint="an act that cannot be put on record is not done",
    )
