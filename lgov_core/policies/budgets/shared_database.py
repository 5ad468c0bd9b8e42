"""SharedDatabase: what policies keep count in, a SQLite file that processes share or the memory of this one."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from lgov_core._util.sqlite_file import FileKind, describe, file_identity, open_sqlite, require_same_file
from lgov_core.policies.budgets.bookkeeping import SharedState

BUSY_TIMEOUT_S: Final = 1.5


class SharedDatabase(SharedState):
    """A database of ``kind`` in the file at ``path``, which is made (mode 0600) when it is missing, or in memory.

    Each change is one transaction. Waits `BUSY_TIMEOUT_S` for other threads and processes at most. May be used from
    several threads at once, and after a fork: a child opens the file anew, or goes on with a copy of the memory. Raises
    the kind's error when the file cannot be used.
    """

    def __init__(self, kind: FileKind, path: str | os.PathLike[str] | None, *, more: tuple[str, ...] = ()) -> None:
        self.path = None if path is None else Path(path)
        self._kind = kind
        self._identity: tuple[int, int] | None = None
        self._connection: sqlite3.Connection | None = None
        self._memory_schema = (*kind.schema, *more)
        self._open()
        super().__init__()

    def close(self) -> None:
        """Closes the file; the next call opens it again. What is kept in memory is gone."""
        with self._lock:
            self._disconnect()

    @contextmanager
    def transaction(self) -> Generator[sqlite3.Connection]:
        """A connection within a transaction, committed at the end of the block and rolled back by an exception."""
        shown = self.path or Path(":memory:")
        if not self._lock.acquire(timeout=BUSY_TIMEOUT_S):
            raise self._kind.error(f"{self._kind.what} {shown}: other threads held it for {BUSY_TIMEOUT_S:g} s")
        try:
            connection = self._open()
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        except (sqlite3.Error, OSError, OverflowError) as error:
            if self.path is not None:
                self._disconnect()
            raise describe(self._kind, shown, error) from error
        finally:
            self._lock.release()

    def _open(self) -> sqlite3.Connection:
        if self.path is None:
            if self._connection is None:
                self._connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
                for statement in self._memory_schema:
                    self._connection.execute(statement)
            return self._connection
        if self._identity is not None:
            require_same_file(self._kind, self.path, self._identity)
        if self._connection is None:
            self._connection = open_sqlite(
                self._kind, self.path, busy_timeout_s=BUSY_TIMEOUT_S, expected=self._identity
            )
            self._identity = file_identity(self.path)
        return self._connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def before_fork(self) -> None:
        """Closes the file, so that no child inherits the connection. Called by the interpreter."""
        super().before_fork()
        if self.path is not None:
            self._disconnect()
