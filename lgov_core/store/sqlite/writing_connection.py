"""The connection that writes a store's file: one transaction for all that waits, and each write learns its own fate."""

from __future__ import annotations

import contextlib
import itertools
import os
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from lgov_core._util.sqlite_file import (
    MOST_IN_LOG,
    FileKind,
    describe,
    file_identity,
    is_busy,
    open_sqlite,
    require_same_file,
    write_back,
)
from lgov_core.errors import StoreError
from lgov_core.store.rows import SPAN_COLUMNS, Row, insert, span_digest
from lgov_core.store.sqlite.held_connection import HeldConnection
from lgov_core.store.sqlite.pending_write import PendingWrite

#: The log is written back into the file after so many rows, or bytes once there are ``_FEWEST_ROWS``: by the thread, since
#: that waits for the disk.
_ROWS_A_CHECKPOINT: Final = 1000
_FEWEST_ROWS: Final = 100
_BYTES_A_CHECKPOINT: Final = 16 << 20

#: What is there already is not written again: whoever does not know whether a batch arrived may send it twice.
_INSERT_SPAN = insert("spans", f"{SPAN_COLUMNS}, digest") + " ON CONFLICT (digest) DO NOTHING"


class WritingConnection(HeldConnection[sqlite3.Connection]):
    """Writes batches to the file at ``path``, which is made when it does not exist.

    Each write has its own savepoint, so one that fails takes no other with it. When a whole transaction is lost (a full
    disk), ``on_loss`` is called, and its writes are tried again one by one. A span that cannot be written is told to
    ``on_lost_span``. All methods may be called from any thread; one transaction runs at a time.
    """

    def __init__(
        self,
        kind: FileKind,
        path: Path,
        *,
        busy_timeout_s: float,
        on_loss: Callable[[], None],
        on_lost_span: Callable[[StoreError], None],
    ) -> None:
        super().__init__()
        self._kind = kind
        self._path = path
        self._wal = f"{path}-wal"
        self._busy_timeout_s = busy_timeout_s
        self._on_loss = on_loss
        self._on_lost_span = on_lost_span
        self._rows_in_log = 0
        self._connection = open_sqlite(kind, path, busy_timeout_s=busy_timeout_s)
        self._connection.execute(f"PRAGMA wal_autocheckpoint={MOST_IN_LOG}")
        self.identity = file_identity(path)

    def write(self, batch: Sequence[PendingWrite | Row]) -> None:
        """Writes ``batch``, waiting for whoever holds the file. Every write has its result or its error then."""
        if not batch:
            return
        with self._lock:
            try:
                self._transact(batch)
            except Exception as error:  # noqa: BLE001 - whatever it is, those who wait must hear of it
                if len(batch) == 1 or is_busy(error) or isinstance(error, StoreError):
                    self.fail(batch, error)
                    return
                for item in batch:
                    try:
                        self._transact((item,))
                    except Exception as alone:  # noqa: BLE001
                        self.fail((item,), alone)

    def write_at_once(self, batch: Sequence[PendingWrite]) -> bool:
        """As `write`, if nobody has to be waited for. False: nothing of ``batch`` was written, for whatever reason."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            self._open().execute("PRAGMA busy_timeout=0")
            self._transact(batch)
        except Exception:  # noqa: BLE001 - `write` is tried next, and tells what is wrong
            return False
        finally:
            self._wait_again()
            self._lock.release()
        return True

    @property
    def checkpoint_is_due(self) -> bool:
        """Whether the log is to be written back into the file."""
        if self._rows_in_log < _FEWEST_ROWS:
            return False
        if self._rows_in_log >= _ROWS_A_CHECKPOINT:
            return True
        try:
            return os.stat(self._wal).st_size > _BYTES_A_CHECKPOINT
        except OSError:
            return False

    def checkpoint(self) -> None:
        """Writes the log back into the file, while others write on. Waits for the disk."""
        self._rows_in_log = 0
        with contextlib.suppress(sqlite3.Error, OSError, StoreError):  # it stays in the log then, where it is durable
            write_back(self._kind, self._path, self.identity)

    def fail(self, items: Sequence[PendingWrite | Row], error: BaseException) -> None:
        """Says ``error`` of ``items``, none of which was written."""
        described = self._described(error)
        for item in items:
            if isinstance(item, PendingWrite):
                item.error = described
            else:
                self._on_lost_span(described)

    def _transact(self, batch: Sequence[PendingWrite | Row]) -> None:
        """Writes ``batch`` in one transaction. Raises when none of it was written."""
        connection = self._open()
        try:
            connection.execute("BEGIN IMMEDIATE")
            for spans, items in itertools.groupby(batch, key=lambda item: not isinstance(item, PendingWrite)):
                if spans:
                    self._insert_spans(connection, list(items))  # type: ignore[arg-type]
                else:
                    for write in items:
                        self._run_alone(connection, write)  # type: ignore[arg-type]
            connection.execute("COMMIT")
            self._rows_in_log += len(batch)
        except BaseException:
            self._on_loss()
            self._roll_back(connection)
            raise

    def _run_alone(self, connection: sqlite3.Connection, write: PendingWrite) -> None:
        """Runs ``write`` in a savepoint of its own. Raises only when SQLite gave the whole transaction up."""
        write.error = None
        connection.execute("SAVEPOINT one")
        try:
            write.result = write.run(connection)
        except Exception as error:
            if not connection.in_transaction:
                raise
            connection.execute("ROLLBACK TO one")
            write.error = self._described(error)
        connection.execute("RELEASE one")

    def _insert_spans(self, connection: sqlite3.Connection, rows: Sequence[Row]) -> None:
        connection.execute("SAVEPOINT spans")
        try:
            insert_spans(connection, rows)
        except Exception as error:
            if not connection.in_transaction:
                raise
            connection.execute("ROLLBACK TO spans")
            if len(rows) == 1:
                self.fail(rows, error)
            else:
                for row in rows:
                    self._insert_spans(connection, (row,))
        connection.execute("RELEASE spans")

    def _described(self, error: BaseException) -> StoreError:
        described = describe(self._kind, self._path, error)
        described.__cause__ = error if described is not error else error.__cause__
        return described if isinstance(described, StoreError) else StoreError(str(described))

    def _open(self) -> sqlite3.Connection:
        require_same_file(self._kind, self._path, self.identity)
        if self._connection is None:
            self._connection = open_sqlite(
                self._kind, self._path, busy_timeout_s=self._busy_timeout_s, expected=self.identity
            )
            self._connection.execute(f"PRAGMA wal_autocheckpoint={MOST_IN_LOG}")
        return self._connection

    def _wait_again(self) -> None:
        """Has other processes waited for again; the caller holds the lock."""
        if self._connection is not None:
            try:
                self._connection.execute(f"PRAGMA busy_timeout={round(self._busy_timeout_s * 1000)}")
            except sqlite3.Error:
                self._let_go()

    def _roll_back(self, connection: sqlite3.Connection) -> None:
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error:
            self._let_go()  # closing rolls back; the next transaction begins on a fresh connection


def insert_spans(connection: sqlite3.Connection, rows: Sequence[Row]) -> int:
    """Writes rows of ``SPAN_COLUMNS`` that are not there yet; returns how many those were."""
    return connection.executemany(_INSERT_SPAN, [(*row, span_digest(row)) for row in rows]).rowcount
