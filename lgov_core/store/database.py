"""The database as the shared store uses it: connections, transactions, errors, and group commit.

One thread writes for every caller, and writes that wait at the same time share a transaction (`GroupCommitWriter`).

Statements are written once, in PostgreSQL's SQL with ``?`` for each value. A sequence is given as a list, for ``= ANY(?)``.
Each database translates what it writes differently.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypeVar

from lgov_core.errors import StoreError
from lgov_core.store import rows
from lgov_core.store.rows import Row
from lgov_core.store.tables import insert_decisions


class DatabaseUnavailable(StoreError):
    """The database is locked or unreachable, so that trying the same write again at once is pointless."""


class OutcomeUnknown(DatabaseUnavailable):
    """The database went away during a write, which may have been made or may still be."""


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
    def ping(self) -> None:
        """Asks the database once, if no other call has the connection, whether a call could be written now.

        Raises `StoreError`; never waits for a new try.
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


T = TypeVar("T")

#: Rows of one transaction, about: it bounds how long a write waits for the others of its transaction.
ROWS_A_COMMIT: Final = 200

#: A span that exists is not written again: a sender that does not know whether a batch arrived may send it twice.
INSERT_SPAN: Final = rows.insert("spans", f"{rows.SPAN_COLUMNS}, digest") + " ON CONFLICT (digest) DO NOTHING"


@dataclass(slots=True)
class _Write:
    """A write that a caller waits for."""

    run: Callable[[Transaction], Any]
    rows: int
    alone: bool
    future: Future[Any] | asyncio.Future[Any] = field(default_factory=lambda: Future[Any]())
    #: The event loop of ``future``; None for one that a thread waits for.
    loop: asyncio.AbstractEventLoop | None = None
    result: Any = None
    error: StoreError | None = None


#: A write, or the row of a queued span.
_Item: TypeAlias = "_Write | rows.Row"


class GroupCommitWriter:
    """The writing side of a store: a queue, a thread and a connection. Any thread may call the methods.

    No write waits on purpose: an idle writer commits the first write at once, and what arrives during a commit goes into
    the next. A transaction that fails is split in two, so that in the end only the writes at fault fail.
    ``on_rollback`` is called when a write that was done may not have been committed.
    """

    def __init__(self, database: Database, *, shown: str, span_limit: int, on_rollback: Callable[[], None]) -> None:
        self._database = database
        self._shown = shown
        self._span_limit = span_limit
        self._on_rollback = on_rollback
        self._waiting: deque[_Item] = deque()
        self._waiting_spans = 0
        self._uncommitted = False
        self._closing = False
        self._changed = threading.Condition()
        self._lost_spans: StoreError | None = None
        self.dropped_spans = 0
        self._thread = threading.Thread(target=self._work, name="lgov-store-writer", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------ any thread

    def submit(self, run: Callable[[Transaction], T], count: int = 1, *, alone: bool = False) -> Future[T]:
        """Queues ``run``, called with an open transaction; the future is done after its commit.

        ``run`` may be called again after a rollback. The future cannot be cancelled: what was submitted is written.
        ``count`` is how many rows it writes. ``alone`` excludes every other writer.
        """
        future = Future[T]()
        future.set_running_or_notify_cancel()
        self._queue(_Write(run, count, alone, future))
        return future

    def submit_async(self, run: Callable[[Transaction], T], count: int = 1) -> asyncio.Future[T]:
        """As `submit`, for a task: the running event loop is woken once for all its writes of a transaction."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._queue(_Write(run, count, False, future, loop))
        return future

    def _queue(self, write: _Write) -> None:
        with self._changed:
            self._refuse_when_closed()
            self._waiting.append(write)
            self._changed.notify()

    def submit_span(self, row: rows.Row) -> None:
        """Queues a row of ``SPAN_COLUMNS``; drops and counts it when too many wait."""
        with self._changed:
            self._refuse_when_closed()
            if self._waiting_spans >= self._span_limit:
                self.dropped_spans += 1
                return
            self._waiting_spans += 1
            self._waiting.append(row)
            self._changed.notify()

    def flush(self) -> None:
        """Returns when everything queued before is committed. Raises `StoreError` if spans were lost since the last call."""
        self.submit(lambda _: None, 0).result()
        with self._changed:
            lost, self._lost_spans = self._lost_spans, None
        if lost is not None:
            raise lost

    def close(self) -> None:
        """Writes what waits, closes the connection and ends the thread."""
        with self._changed:
            self._closing = True
            self._database.begin_close()
            self._changed.notify()
        if threading.current_thread() is not self._thread:  # the store may be collected in any thread
            self._thread.join()

    def _refuse_when_closed(self) -> None:
        if self._closing:
            raise StoreError(f"trace store {self._shown} is closed", hint="open it again to go on")

    # ------------------------------------------------------------------ the writer's thread

    def _work(self) -> None:
        try:
            while batch := self._take():
                try:
                    self._write(batch)
                except BaseException as error:
                    self._fail(batch, error)
                    raise
                finally:
                    _settle(batch)
        finally:  # whatever ended the thread, no caller may wait any longer
            with self._changed:
                self._closing = True
                unwritten = list(self._waiting)
                self._waiting.clear()
            self._fail(unwritten, StoreError(f"trace store {self._shown}: the writer thread has ended"))
            _settle(unwritten)
            self._database.close()

    def _take(self) -> list[_Item]:
        """The next batch; empty when the writer is closed and nothing waits."""
        with self._changed:
            while not self._waiting and not self._closing:
                self._changed.wait()
            batch: list[_Item] = []
            count = 0
            while self._waiting and count < ROWS_A_COMMIT:
                item = self._waiting[0]
                alone = isinstance(item, _Write) and item.alone
                if alone and batch:
                    break
                batch.append(self._waiting.popleft())
                if isinstance(item, _Write):
                    count += item.rows
                else:
                    count += 1
                    self._waiting_spans -= 1
                if alone:
                    break
            return batch

    def _write(self, batch: Sequence[_Item]) -> None:
        """Writes ``batch``, and sets the result or the error of each write."""
        alone = isinstance(batch[0], _Write) and batch[0].alone
        try:
            self._database.run(lambda transaction: self._apply(batch, transaction), alone=alone)
            self._uncommitted = False
        except DatabaseUnavailable as error:
            self._fail(batch, error)
        except Exception as error:  # noqa: BLE001 - the callers that wait get it
            if len(batch) == 1:
                self._fail(batch, error)
            else:
                middle = len(batch) // 2
                self._write(batch[:middle])
                self._write(batch[middle:])

    def _apply(self, batch: Sequence[_Item], transaction: Transaction) -> None:
        if self._uncommitted:  # by an earlier transaction, which was rolled back
            self._on_rollback()
        self._uncommitted = True
        spans: list[rows.Row] = []
        for item in batch:
            if isinstance(item, _Write):
                item.error = None
                item.result = item.run(transaction)
            else:
                spans.append(item)
        insert_spans(transaction, spans)
        transaction.write_named()

    def _fail(self, items: Iterable[_Item], error: BaseException) -> None:
        described = self._database.describe(error)
        if described is not error:
            described.__cause__ = error
        for item in items:
            if isinstance(item, _Write):
                item.error = described
            else:
                with self._changed:
                    self.dropped_spans += 1
                    self._lost_spans = described


def insert_spans(transaction: Transaction, new: Sequence[rows.Row]) -> int:
    """Writes rows of ``SPAN_COLUMNS`` that do not exist yet, and the decisions among them; returns how many spans were new."""
    if not new:
        return 0
    digests = [rows.span_digest(row) for row in new]
    count = transaction.change_each(INSERT_SPAN, [(*row, digest) for row, digest in zip(new, digests, strict=True)])
    insert_decisions(transaction.change_each, zip(new, digests, strict=True))
    for row in new:
        transaction.name_rollout(row[rows.SPAN_ROLLOUT], row[rows.SPAN_STARTED])
    return count


def _settle(batch: Iterable[_Item]) -> None:
    """Tells those who wait for the writes of ``batch`` how they ended."""
    of_loop: dict[asyncio.AbstractEventLoop | None, list[_Write]] = {}
    for item in batch:
        if isinstance(item, _Write):
            of_loop.setdefault(item.loop, []).append(item)
    for loop, writes in of_loop.items():
        if loop is None:
            _answer(writes)
        else:
            with suppress(RuntimeError):  # a loop that was closed, where nobody waits any more
                loop.call_soon_threadsafe(_answer, writes)


def _answer(writes: Iterable[_Write]) -> None:
    for write in writes:
        if write.future.done():  # its task was cancelled
            continue
        if write.error is not None:
            write.future.set_exception(write.error)
        else:
            write.future.set_result(write.result)
