"""What the shared store needs of a database: connections, transactions and errors.

Statements are written once, in PostgreSQL's SQL with ``?`` for each value. A sequence is given as a list, for ``= ANY(?)``.
Each database translates what it writes differently.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from lgov_core.errors import StoreError
from lgov_core.store.rows import Row


class DatabaseUnavailable(StoreError):
    """The database is locked or unreachable, so that trying the same write again at once is pointless."""


class Transaction(ABC):
    """An open transaction, used by the writer's thread only. ``now`` is its time by the database's clock (Unix seconds)."""

    now: float

    @abstractmethod
    def _run(self, statement: str, given: Sequence[Any]) -> Any:
        """Runs a statement and returns the driver's cursor."""

    def execute(self, statement: str, given: Sequence[Any] = ()) -> list[Row]:
        """Runs a statement and returns its rows."""
        return self._run(statement, given).fetchall()

    def change(self, statement: str, given: Sequence[Any] = ()) -> int:
        """Runs a statement and returns how many rows it changed."""
        return self._run(statement, given).rowcount

    @abstractmethod
    def change_each(self, statement: str, given: Sequence[Sequence[Any]]) -> int:
        """Runs a statement once for each item of ``given``; returns how many rows were changed in all."""

    @abstractmethod
    def insert(self, table: str, new: Sequence[Row]) -> None:
        """Inserts rows of `rows.TABLES`. An id that exists raises `StoreError`."""

    @abstractmethod
    def insert_call(self, row: Row) -> int:
        """Inserts a row of ``FOLDED_COLUMNS`` and returns its ``seq``. A call that exists raises `StoreError`."""

    @abstractmethod
    def end(self, rollout_id: str) -> None:
        """Appends a rollout of the queue to the order of those that ended."""


class Database(ABC):
    """One connection to a database, opened when needed. Any thread may call the methods; one call runs at a time."""

    _connection: Any = None

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closed = False

    @abstractmethod
    def run(self, work: Callable[[Transaction], None], *, alone: bool = False) -> None:
        """Runs ``work`` in a transaction and commits. Raises when nothing was written.

        ``work`` may be called again, in a new transaction, after the connection was lost. ``alone`` excludes every other
        writer for the time of the transaction.
        """

    @abstractmethod
    def fetch(self, query: str, given: Sequence[Any] = ()) -> list[Row]:
        """All rows of a query over committed data. Raises `StoreError`."""

    @abstractmethod
    def describe(self, error: BaseException) -> StoreError:
        """``error`` as a `StoreError`: which database, what went wrong, and what to do."""

    def hold(self) -> None:
        """Waits for the call in progress, closes the connection, and blocks further calls until `release`."""
        self._lock.acquire()
        self._disconnect()

    def release(self) -> None:
        """Ends `hold`."""
        self._lock.release()

    def begin_close(self) -> None:  # noqa: B027 - nothing to do where the database is a file
        """The store is being closed: from now on an unreachable database is waited for only briefly."""

    def close(self) -> None:
        """Closes the connection for good."""
        with self._lock:
            self._closed = True
            self._disconnect()

    def _disconnect(self) -> None:
        """Closes the connection; the caller holds the lock. The next call opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
