"""One thread that writes to PostgreSQL for everyone: what waits is committed together, and nothing is written twice."""

from __future__ import annotations

import contextlib
import math
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import psycopg

from lgov_core.errors import StoreError
from lgov_core.store.postgres.address import PostgresAddress, describe
from lgov_core.store.postgres.calls import FoldingCalls
from lgov_core.store.postgres.connection import Connection, connect, is_conflict, is_lost
from lgov_core.store.postgres.transaction import Transaction, forget_writer, last_number
from lgov_core.store.rows import Row
from lgov_core.store.sqlite.held_connection import HeldConnection

T = TypeVar("T")

#: A transaction takes what waits, up to so many rows: the cost of a commit is shared and its latency stays bounded.
ROWS_A_COMMIT: Final = 200

#: Another transaction may get in the way of ours so many times before its writes are made one by one.
_CONFLICTS: Final = 5

#: A server that cannot be reached is tried again after so many seconds, then after twice as many, up to the longest pause.
_FIRST_PAUSE_S: Final = 0.01
_LONGEST_PAUSE_S: Final = 0.5

#: A store that is being closed waits no longer for a server that cannot be reached.
_CLOSING_S: Final = 5.0


@dataclass(slots=True)
class _Write:
    """A write that someone waits for."""

    run: Callable[[Transaction], Any]
    rows: int
    alone: bool
    future: Future[Any] = field(default_factory=lambda: Future[Any]())
    result: Any = None
    error: BaseException | None = None


class _ConnectionLost(Exception):
    """The connection went before the transaction was committed: nothing of it was written."""


class _OutcomeUnknown(Exception):
    """The connection went during the commit, and the server could not be asked since."""


class PostgresWriter(HeldConnection[Connection]):
    """The writing side of a store: a queue, a thread and a connection. All methods may be called from any thread.

    Nothing waits on purpose: an idle writer commits the first write at once, and what arrives during a commit goes into
    the next. The writes of a batch share a transaction; when one of them fails, the batch is made again with
    a savepoint for each, so that it fails alone.

    When the connection is lost, the batch is made again on another one, for ``reconnect_s`` seconds at most. If that
    happened during the commit, the server is asked first whether the transaction took place: each one leaves its number
    in the writer's row of the table ``writers``. That row is locked until the old transaction has ended either
    way, so the answer is final.
    """

    def __init__(
        self, address: PostgresAddress, schema: str, connection: Connection, *, reconnect_s: float, span_limit: int
    ) -> None:
        super().__init__()
        self._address = address
        self._schema = schema
        self._connection = connection
        self._reconnect_s = reconnect_s
        self._span_limit = span_limit
        self._writer = secrets.randbits(63)
        self._number = 0
        self._calls = FoldingCalls()
        self._waiting: deque[_Write | Row] = deque()
        self._waiting_spans = 0
        self._closing = False
        self._give_up_at = math.inf
        self._changed = threading.Condition()
        self._lost_spans: StoreError | None = None
        self.dropped_spans = 0
        self._thread = threading.Thread(target=self._work, name="lgov-store-writer", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------ any thread

    def submit(self, run: Callable[[Transaction], T], rows: int = 1, *, alone: bool = False) -> Future[T]:
        """Queues ``run``, called with an open transaction; the future is done after its commit.

        ``run`` may be called more than once, each time in a transaction that knows nothing of the time before. The future
        cannot be cancelled: what was submitted is written, whether or not somebody still waits. ``alone``: nobody else
        writes to the store meanwhile.
        """
        write = _Write(run, rows, alone)
        write.future.set_running_or_notify_cancel()
        with self._changed:
            self._refuse_when_closed()
            self._waiting.append(write)
            self._changed.notify()
        return write.future

    def submit_span(self, row: Row) -> None:
        """Queues a row for the spans; drops and counts it when too many wait."""
        with self._changed:
            self._refuse_when_closed()
            if self._waiting_spans >= self._span_limit:
                self.dropped_spans += 1
                return
            self._waiting_spans += 1
            self._waiting.append(row)
            self._changed.notify()

    def flush(self) -> None:
        """Returns when all that was queued before is committed.

        Raises `StoreError` if spans could not be written since the last call.
        """
        self.submit(lambda _: None, rows=0).result()
        with self._changed:
            lost, self._lost_spans = self._lost_spans, None
        if lost is not None:
            raise lost

    def close(self) -> None:
        """Writes what waits, closes the connection and ends the thread."""
        with self._changed:
            self._closing = True
            self._give_up_at = min(self._give_up_at, time.monotonic() + _CLOSING_S)
            self._changed.notify()
        if threading.current_thread() is not self._thread:  # the store may be collected in any thread
            self._thread.join()

    def _refuse_when_closed(self) -> None:
        if self._closing:
            raise StoreError(f"trace store {self._address.shown} is closed", hint="open it again to go on")

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
                    _tell(batch)
        finally:  # whatever ended the thread, nobody may wait for it any more
            with self._changed:
                self._closing = True
                left = list(self._waiting)
                self._waiting.clear()
            self._fail(left, StoreError(f"trace store {self._address.shown}: the writer has ended"))
            _tell(left)
            with self._lock:
                self._sign_off()

    def _take(self) -> list[_Write | Row]:
        """What is next to be written; empty when the writer is closed and nothing waits."""
        with self._changed:
            while not self._waiting and not self._closing:
                self._changed.wait()
            batch: list[_Write | Row] = []
            rows = 0
            while self._waiting and rows < ROWS_A_COMMIT:
                alone = isinstance(self._waiting[0], _Write) and self._waiting[0].alone
                if alone and batch:
                    break
                item = self._waiting.popleft()
                if isinstance(item, _Write):
                    rows += item.rows
                else:
                    rows += 1
                    self._waiting_spans -= 1
                batch.append(item)
                if alone:
                    break
            return batch

    def _write(self, batch: Sequence[_Write | Row]) -> None:
        """Writes ``batch``, and notes for each write what became of it."""
        until = time.monotonic() + self._reconnect_s
        pause, conflicts, apart = _FIRST_PAUSE_S, 0, False
        while True:
            try:
                with self._lock:
                    self._transact(batch, apart=apart, until=until)
                return
            except _ConnectionLost as lost:
                if time.monotonic() > min(until, self._give_up_at):
                    self._fail(batch, lost.__cause__ or lost)
                    return
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_S)
            except _OutcomeUnknown as unknown:
                self._fail(batch, self._unknown(unknown))
                return
            except Exception as error:  # noqa: BLE001 - whatever it is, those who wait must hear of it
                if is_conflict(error) and conflicts < _CONFLICTS:
                    conflicts += 1
                elif apart or (len(batch) == 1 and isinstance(error, StoreError)):
                    self._fail(batch, error)
                    return
                else:  # it may be the fault of one of them, and which one shows only when each is made alone
                    apart = True

    def _transact(self, batch: Sequence[_Write | Row], *, apart: bool, until: float) -> None:
        """Writes ``batch`` in one transaction. Raises when none of it was written."""
        connection = self._open()
        self._number += 1
        committing = False
        transaction = Transaction(connection, self._calls, one_by_one=apart)
        try:
            transaction.begin(self._writer, self._number, alone=isinstance(batch[0], _Write) and batch[0].alone)
            if apart:
                for item in batch:
                    self._run_apart(transaction, item)
            else:
                self._run_together(transaction, batch)
            transaction.prepare_commit()
            committing = True
            transaction.commit()
        except BaseException as error:
            if is_lost(connection, error):
                self._let_go()
                if committing and self._was_committed(until):
                    return
                self._calls.forget()
                raise _ConnectionLost from error
            self._calls.forget()
            self._roll_back(connection)
            raise

    def _run_together(self, transaction: Transaction, batch: Sequence[_Write | Row]) -> None:
        for item in batch:
            if isinstance(item, _Write):
                item.error = None
                item.result = item.run(transaction)
            else:
                transaction.put_spans((item,))

    def _run_apart(self, transaction: Transaction, item: _Write | Row) -> None:
        """Runs one write in a savepoint of its own. Raises only when the whole transaction is lost."""
        try:
            with transaction.savepoint():
                self._run_together(transaction, (item,))
        except Exception as error:
            if is_lost(transaction.connection, error) or is_conflict(error):
                raise
            self._calls.forget()
            self._fail((item,), error)

    def _was_committed(self, until: float) -> bool:
        """Whether the last transaction took place, although nobody heard of its commit."""
        pause = _FIRST_PAUSE_S
        while True:
            try:
                return last_number(self._open(), self._writer) == self._number
            except (psycopg.Error, _ConnectionLost) as error:
                self._let_go()
                if time.monotonic() > min(until, self._give_up_at):
                    raise _OutcomeUnknown from (error.__cause__ or error)
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _open(self) -> Connection:
        if self._connection is None or self._connection.closed:
            try:
                self._connection = connect(self._address, self._schema)
            except psycopg.Error as error:
                raise _ConnectionLost from error
        return self._connection

    def _roll_back(self, connection: Connection) -> None:
        try:
            connection.execute("ROLLBACK")
        except psycopg.Error:
            self._let_go()  # closing rolls back; the next transaction begins on a fresh connection

    def _sign_off(self) -> None:
        """Removes the writer's row, when the server is there, and closes the connection."""
        with contextlib.suppress(psycopg.Error):  # rows that are left behind are removed by later writers
            if self._connection is not None:
                forget_writer(self._connection, self._writer)
        self._let_go()

    # ------------------------------------------------------------------ what became of it

    def _fail(self, items: Iterable[_Write | Row], error: BaseException) -> None:
        described = describe(self._address, error)
        if described is not error:
            described.__cause__ = error
        for item in items:
            if isinstance(item, _Write):
                item.error = described
            else:
                with self._changed:
                    self.dropped_spans += 1
                    self._lost_spans = described

    def _unknown(self, error: BaseException) -> StoreError:
        return StoreError(
            f"trace store {self._address.shown}: the server went away during a commit, and has not come back:"
            f" {describe(self._address, error.__cause__ or error).message}",
            hint="nobody knows whether it was written: look for it by its id before it is written again",
        )


def _tell(batch: Sequence[_Write | Row]) -> None:
    """Tells everyone who waits what became of their write."""
    for item in batch:
        if isinstance(item, _Write):
            if item.error is not None:
                item.future.set_exception(item.error)
            else:
                item.future.set_result(item.result)
