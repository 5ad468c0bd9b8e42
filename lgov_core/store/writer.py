"""One thread that writes for everyone: what waits is committed together, and each write learns its own fate."""

from __future__ import annotations

import itertools
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from lgov_core.errors import StoreError
from lgov_core.sqlite_file import FileKind, describe, file_identity, is_busy, open_database, require_same_file
from lgov_core.store.rows import SPAN_COLUMNS, Row, insert, span_digest

T = TypeVar("T")

#: A transaction takes what waits, up to so many rows: the cost of a commit is shared and its latency stays bounded.
ROWS_A_COMMIT: Final = 200

#: Seconds that spans wait for more of their kind: a transaction for each would cost several times what the row does.
SPAN_WAIT_S: Final = 0.01

#: What is there already is not written again: whoever does not know whether a batch arrived may send it twice.
_INSERT_SPAN = insert("spans", f"{SPAN_COLUMNS}, digest") + " ON CONFLICT (digest) DO NOTHING"


@dataclass(slots=True)
class _Write:
    """A write that someone waits for."""

    run: Callable[[sqlite3.Connection], Any]
    rows: int
    future: Future[Any] = field(default_factory=lambda: Future[Any]())
    result: Any = None
    error: BaseException | None = None


class GroupCommitWriter:
    """The writing side of a store on one file: a queue, a thread and a connection.

    No write waits on purpose: an idle writer commits the first at once, and what arrives during a commit goes into the
    next. Only spans, for which nobody waits, are gathered for `SPAN_WAIT_S`. Each write has its own savepoint, so one
    that fails takes no other with it. When a whole transaction is lost (a full disk), ``on_loss`` is called, and its
    writes are tried again one by one. `submit` and `submit_span` are callable from any thread.
    """

    def __init__(
        self,
        kind: FileKind,
        path: Path,
        *,
        busy_timeout_s: float,
        span_limit: int,
        on_loss: Callable[[], None] = lambda: None,
    ) -> None:
        self._kind = kind
        self._path = path
        self._busy_timeout_s = busy_timeout_s
        self._span_limit = span_limit
        self._on_loss = on_loss
        self._connection: sqlite3.Connection | None = open_database(kind, path, busy_timeout_s=busy_timeout_s)
        self.identity = file_identity(path)
        self._waiting: deque[_Write | Row] = deque()
        self._waiting_spans = 0
        self._gathering = False
        self._closing = False
        self._changed = threading.Condition()
        #: Held while the connection is in use; whoever holds it may close the connection, which is then opened again.
        self._connection_lock = threading.Lock()
        self._lost_spans: StoreError | None = None
        self.dropped_spans = 0
        self._thread = threading.Thread(target=self._work, name="lgov-store-writer", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------ any thread

    def submit(self, run: Callable[[sqlite3.Connection], T], rows: int = 1) -> Future[T]:
        """Queues ``run``, called with the connection inside a transaction; the future is done after its commit.

        The future cannot be cancelled: what was submitted is written, whether or not somebody still waits.
        """
        write = _Write(run, rows)
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
            if not self._gathering or self._waiting_spans >= ROWS_A_COMMIT:
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
            self._changed.notify()
        if threading.current_thread() is not self._thread:  # the store may be collected in any thread
            self._thread.join()

    def hold(self) -> None:
        """Waits for the transaction in progress and keeps the writer from beginning another until `release`."""
        self._connection_lock.acquire()
        self._let_go()

    def release(self) -> None:
        """Ends `hold`."""
        self._connection_lock.release()

    def _let_go(self) -> None:
        """Closes the connection; the caller holds the connection. The next transaction opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _refuse_when_closed(self) -> None:
        if self._closing:
            raise StoreError(f"{self._kind.what} {self._path} is closed", hint="open it again to go on")

    # ------------------------------------------------------------------ the writer's thread

    def _work(self) -> None:
        try:
            while batch := self._take():
                try:
                    with self._connection_lock:
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
            self._fail(left, StoreError(f"{self._kind.what} {self._path}: the writer has ended"))
            _tell(left)
            with self._connection_lock:
                self._let_go()

    def _take(self) -> list[_Write | Row]:
        """What is next to be written; empty when the writer is closed and nothing waits."""
        with self._changed:
            while not self._waiting and not self._closing:
                self._changed.wait()
            self._gather_spans()
            batch: list[_Write | Row] = []
            rows = 0
            while self._waiting and rows < ROWS_A_COMMIT:
                item = self._waiting.popleft()
                if isinstance(item, _Write):
                    rows += item.rows
                else:
                    rows += 1
                    self._waiting_spans -= 1
                batch.append(item)
            return batch

    def _gather_spans(self) -> None:
        """Waits for more while nothing but a few spans waits; the caller holds the condition."""
        until = time.monotonic() + SPAN_WAIT_S
        self._gathering = True
        while self._waiting_spans == len(self._waiting) < ROWS_A_COMMIT and not self._closing:
            left = until - time.monotonic()
            if left <= 0 or not self._changed.wait(left):
                break
        self._gathering = False

    def _write(self, batch: Sequence[_Write | Row]) -> None:
        try:
            self._transact(batch)
        except Exception as error:  # noqa: BLE001 - whatever it is, those who wait must hear of it
            if len(batch) == 1 or is_busy(error) or isinstance(error, StoreError):
                self._fail(batch, error)
                return
            for item in batch:
                try:
                    self._transact((item,))
                except Exception as alone:  # noqa: BLE001
                    self._fail((item,), alone)

    def _transact(self, batch: Sequence[_Write | Row]) -> None:
        """Writes ``batch`` in one transaction. Raises when none of it was written."""
        connection = self._open()
        try:
            connection.execute("BEGIN IMMEDIATE")
            for spans, items in itertools.groupby(batch, key=lambda item: not isinstance(item, _Write)):
                if spans:
                    self._insert_spans(connection, list(items))  # type: ignore[arg-type]
                else:
                    for write in items:
                        self._run_alone(connection, write)  # type: ignore[arg-type]
            connection.execute("COMMIT")
        except BaseException:
            self._on_loss()
            self._roll_back(connection)
            raise

    def _run_alone(self, connection: sqlite3.Connection, write: _Write) -> None:
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
                self._fail(rows, error)
            else:
                for row in rows:
                    self._insert_spans(connection, (row,))
        connection.execute("RELEASE spans")

    def _fail(self, items: Sequence[_Write | Row], error: BaseException) -> None:
        described = self._described(error)
        for item in items:
            if isinstance(item, _Write):
                item.error = described
            else:
                with self._changed:
                    self.dropped_spans += 1
                    self._lost_spans = described

    def _described(self, error: BaseException) -> StoreError:
        described = describe(self._kind, self._path, error)
        described.__cause__ = error if described is not error else error.__cause__
        return described if isinstance(described, StoreError) else StoreError(str(described))

    def _open(self) -> sqlite3.Connection:
        require_same_file(self._kind, self._path, self.identity)
        if self._connection is None:
            self._connection = open_database(
                self._kind, self._path, busy_timeout_s=self._busy_timeout_s, expected=self.identity
            )
        return self._connection

    def _roll_back(self, connection: sqlite3.Connection) -> None:
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error:
            self._let_go()  # closing rolls back; the next transaction begins on a fresh connection


def insert_spans(connection: sqlite3.Connection, rows: Sequence[Row]) -> int:
    """Writes rows of ``SPAN_COLUMNS`` that are not there yet; returns how many those were."""
    return connection.executemany(_INSERT_SPAN, [(*row, span_digest(row)) for row in rows]).rowcount


def _tell(batch: Sequence[_Write | Row]) -> None:
    """Tells everyone who waits what became of their write."""
    for item in batch:
        if isinstance(item, _Write):
            if item.error is not None:
                item.future.set_exception(item.error)
            else:
                item.future.set_result(item.result)
