"""The database as the shared store uses it: connections, transactions and errors.

Statements are written once, in PostgreSQL's SQL with ``?`` for each value. A sequence is given as a list, for ``= ANY(?)``.
Each database translates what it writes differently.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final

from lgov_core.errors import StoreError
from lgov_core.store.rows import Row


class DatabaseUnavailable(StoreError):
    """The database is locked or unreachable, so that trying the same write again at once is pointless."""


class QueryTooSlow(StoreError):
    """A query that was given a limit did not end within it; it was stopped."""

    code = "slow"


#: Gives a rollout that nobody added its row, or an earlier beginning; one that has both is left alone without a lock.
_NAME_ROLLOUT: Final = (
    "INSERT INTO rollouts (rollout_id, task_id, run_id, input, created_at, added)"
    " SELECT ?, ?, '', '{}', ?, 0 WHERE NOT EXISTS"
    " (SELECT 1 FROM rollouts WHERE rollout_id = ? AND (added = 1 OR created_at <= ?))"
    " ON CONFLICT (rollout_id) DO UPDATE SET created_at = excluded.created_at"
    " WHERE rollouts.added = 0 AND rollouts.created_at > excluded.created_at"
)


class Transaction(ABC):
    """An open transaction, used by the writer's thread only. ``now`` is its time by the database's clock (Unix seconds)."""

    now: float

    def __init__(self) -> None:
        self._named: dict[str, float] = {}

    def name_rollout(self, rollout_id: str | None, started_at: float) -> None:
        """Notes that a call or a span that began at ``started_at`` names a rollout; `write_named` gives it a row."""
        if rollout_id is not None:
            self._named[rollout_id] = min(started_at, self._named.get(rollout_id, started_at))

    def write_named(self) -> None:
        """Writes a row for each rollout that was named and has none."""
        if self._named:
            named = [(name, name, at, name, at) for name, at in sorted(self._named.items())]
            self.change_each(_NAME_ROLLOUT, named)

    @abstractmethod
    def _run(self, statement: str, values: Sequence[Any]) -> Any:
        """Runs a statement and returns the driver's cursor."""

    def execute(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        """Runs a statement and returns its rows."""
        return self._run(statement, values).fetchall()

    def change(self, statement: str, values: Sequence[Any] = ()) -> int:
        """Runs a statement and returns how many rows it changed."""
        return self._run(statement, values).rowcount

    @abstractmethod
    def change_each(self, statement: str, values: Sequence[Sequence[Any]]) -> int:
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
    def fetch(self, query: str, values: Sequence[Any] = (), *, limit_s: float | None = None) -> list[Row]:
        """All rows of a query over committed data. Raises `StoreError`.

        One that takes longer than ``limit_s`` seconds is stopped: `QueryTooSlow`.
        """

    @abstractmethod
    def describe(self, error: BaseException) -> StoreError:
        """``error`` as a `StoreError`: which database, what went wrong, and what to do."""

    @staticmethod
    def too_slow(limit_s: float) -> QueryTooSlow:
        """The error for a query that was stopped after ``limit_s`` seconds."""
        return QueryTooSlow(
            f"the store did not answer within {limit_s:g} s, and was not asked any further",
            hint="narrow the list: to a run, a task, an outcome or an agent",
        )

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
