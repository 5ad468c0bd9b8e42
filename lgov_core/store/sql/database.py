"""What the shared store needs of a database: connections, transactions and errors.

Statements are written once, in PostgreSQL's SQL with ``?`` for each value. A sequence is given as a list, for ``= ANY(?)``.
Each database translates what it writes differently.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from lgov_core.errors import StoreError
from lgov_core.store.rows import Row


class DatabaseUnavailable(StoreError):
    """The database is locked or unreachable, so that trying the same write again at once is pointless."""


class Transaction(Protocol):
    """An open transaction, used by the writer's thread only."""

    @property
    def now(self) -> float:
        """When the transaction began, by the database's clock (Unix seconds)."""
        ...

    def execute(self, statement: str, given: Sequence[Any] = ()) -> list[Row]:
        """Runs a statement and returns its rows."""
        ...

    def change(self, statement: str, given: Sequence[Any] = ()) -> int:
        """Runs a statement and returns how many rows it changed."""
        ...

    def change_each(self, statement: str, given: Sequence[Sequence[Any]]) -> int:
        """Runs a statement once for each item of ``given``; returns how many rows were changed in all."""
        ...

    def insert(self, table: str, new: Sequence[Row]) -> None:
        """Inserts rows of `rows.TABLES`. An id that exists raises `StoreError`."""
        ...

    def insert_call(self, row: Row) -> int:
        """Inserts a row of ``FOLDED_COLUMNS`` and returns its ``seq``. A call that exists raises `StoreError`."""
        ...

    def end(self, rollout_id: str) -> None:
        """Appends a rollout of the queue to the order of those that ended."""
        ...


class Database(Protocol):
    """One connection to a database, opened when needed. Any thread may call the methods; one call runs at a time."""

    def run(self, work: Callable[[Transaction], None], *, alone: bool = False) -> None:
        """Runs ``work`` in a transaction and commits. Raises when nothing was written.

        ``work`` may be called again, in a new transaction, after the connection was lost. ``alone`` excludes every other
        writer for the time of the transaction.
        """
        ...

    def fetch(self, query: str, given: Sequence[Any] = ()) -> list[Row]:
        """All rows of a query over committed data. Raises `StoreError`."""
        ...

    def describe(self, error: BaseException) -> StoreError:
        """``error`` as a `StoreError`: which database, what went wrong, and what to do."""
        ...

    def hold(self) -> None:
        """Waits for the call in progress, closes the connection, and blocks further calls until `release`."""
        ...

    def release(self) -> None:
        """Ends `hold`."""
        ...

    def begin_close(self) -> None:
        """The store is being closed: from now on an unreachable database is waited for only briefly."""
        ...

    def close(self) -> None:
        """Closes the connection for good."""
        ...


class Closable(Protocol):
    """A connection."""

    def close(self) -> None:
        """Closes it; what was not committed is rolled back."""
        ...


C = TypeVar("C", bound=Closable)


class HeldConnection(Generic[C]):
    """A connection used under a lock, so that none is open while the process forks. Callable from any thread."""

    _connection: C | None = None

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closed = False

    def hold(self) -> None:
        """See `Database.hold`."""
        self._lock.acquire()
        self._disconnect()

    def release(self) -> None:
        """See `Database.release`."""
        self._lock.release()

    def begin_close(self) -> None:
        """See `Database.begin_close`."""

    def close(self) -> None:
        """See `Database.close`."""
        with self._lock:
            self._closed = True
            self._disconnect()

    def _disconnect(self) -> None:
        """Closes the connection; the caller holds the lock. The next call opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
