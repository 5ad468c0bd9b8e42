"""A SQLite connection as the shared store uses it (`lgov_core.store.sql.database`)."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from lgov_core._util.sqlite_file import describe, file_identity, is_busy, open_in_memory, open_sqlite, require_same_file
from lgov_core.errors import StoreError
from lgov_core.store import rows
from lgov_core.store.sql.database import Database, DatabaseUnavailable, Transaction
from lgov_core.store.sqlite.schema import TRACE_STORE, translate

#: Steps of SQLite's machine between two looks at the clock.
_STEPS: Final = 10_000


def _values(given: Sequence[Any]) -> list[Any]:
    return [json.dumps(value) if isinstance(value, list) else value for value in given]


class SQLiteTransaction(Transaction):
    """See `Transaction`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__()
        self._connection = connection
        self.now = time.time()

    def _run(self, statement: str, given: Sequence[Any]) -> Any:
        return self._connection.execute(translate(statement), _values(given))

    def change_each(self, statement: str, given: Sequence[Sequence[Any]]) -> int:
        """See `Transaction.change_each`."""
        return self._connection.executemany(translate(statement), given).rowcount

    def insert(self, table: str, new: Sequence[rows.Row]) -> None:
        """See `Transaction.insert`."""
        columns, _ = rows.TABLES[table]
        for row in new:
            self._insert(table, columns, row)

    def insert_call(self, row: rows.Row) -> int:
        """See `Transaction.insert_call`."""
        return self._insert("calls", rows.FOLDED_COLUMNS, row)

    def _insert(self, table: str, columns: str, row: rows.Row) -> int:
        try:
            return self._connection.execute(rows.insert(table, columns), row).lastrowid or 0
        except sqlite3.IntegrityError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_CONSTRAINT_UNIQUE:
                raise rows.exists_already(table, row) from error
            raise

    def end(self, rollout_id: str) -> None:
        """See `Transaction.end`."""
        self._connection.execute("INSERT INTO ended (rollout_id) VALUES (?)", (rollout_id,))


class SQLiteDatabase(Database):
    """A connection to the file at ``path``, which is created (mode 0600) when it does not exist; None: in memory.

    With ``identity`` (from `file_identity`) the connection is opened when first used, without it at once.
    """

    def __init__(self, path: Path | None, *, busy_timeout_s: float, identity: tuple[int, int] | None = None) -> None:
        super().__init__()
        self.path = path
        self.shown = "memory://" if path is None else str(path)
        self._busy_timeout_s = busy_timeout_s
        self.identity = identity or (0, 0)
        if path is None:
            self._connection = open_in_memory(TRACE_STORE)
        elif identity is None:
            self._connection = open_sqlite(TRACE_STORE, path, busy_timeout_s=busy_timeout_s)
            self.identity = file_identity(path)

    def run(self, work: Callable[[Transaction], None], *, alone: bool = False) -> None:
        """See `Database.run`."""
        with self._lock:
            try:
                connection = self._open()
                connection.execute("BEGIN IMMEDIATE")
                work(SQLiteTransaction(connection))
                connection.execute("COMMIT")
            except BaseException as error:
                self._roll_back()
                if is_busy(error):
                    described = self.describe(error)
                    raise DatabaseUnavailable(described.message, hint=described.hint) from error
                raise

    def fetch(self, query: str, given: Sequence[Any] = (), *, limit_s: float | None = None) -> list[rows.Row]:
        """See `Database.fetch`."""
        with self._lock:
            try:
                connection = self._open()
                if limit_s is None:
                    return connection.execute(translate(query), _values(given)).fetchall()
                until = time.monotonic() + limit_s
                connection.set_progress_handler(lambda: time.monotonic() > until, _STEPS)
                try:
                    return connection.execute(translate(query), _values(given)).fetchall()
                finally:
                    connection.set_progress_handler(None, 0)
            except sqlite3.Error as error:
                if limit_s is not None and getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_INTERRUPT:
                    raise self.too_slow(limit_s) from error
                raise self.describe(error) from error

    def vacuum(self) -> None:
        """Rewrites the file without what was deleted. Raises `StoreError`."""
        with self._lock:
            try:
                self._open().execute("VACUUM")
                self._open().execute("PRAGMA wal_checkpoint(TRUNCATE)")
            except sqlite3.Error as error:
                raise self.describe(error) from error

    def describe(self, error: BaseException) -> StoreError:
        """See `Database.describe`."""
        described = describe(TRACE_STORE, self.shown, error)
        return described if isinstance(described, StoreError) else StoreError(str(described))

    def _open(self) -> sqlite3.Connection:
        if self._closed:
            raise StoreError(f"trace store {self.shown} is closed", hint="open it again to go on")
        if self.path is not None:
            require_same_file(TRACE_STORE, self.path, self.identity)
            if self._connection is None:
                self._connection = open_sqlite(
                    TRACE_STORE, self.path, busy_timeout_s=self._busy_timeout_s, expected=self.identity
                )
        return self._connection

    def _roll_back(self) -> None:
        try:
            if self._connection is not None and self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            self._disconnect()  # closing rolls back; the next transaction opens another connection

    def _disconnect(self) -> None:
        if self.path is not None or self._closed:  # a database in memory ends with its connection
            super()._disconnect()
