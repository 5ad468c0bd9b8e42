"""One thread that writes for everyone: what waits is committed together, and each write learns its own fate."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Final, TypeVar

from lgov_core._util.sqlite_file import FileKind
from lgov_core.errors import StoreError
from lgov_core.store.rows import Row
from lgov_core.store.sqlite.loop_commits import LoopCommits
from lgov_core.store.sqlite.pending_write import PendingWrite, settle
from lgov_core.store.sqlite.writing_connection import WritingConnection

T = TypeVar("T")

#: A transaction takes what waits, up to so many rows: the cost of a commit is shared and its latency stays bounded.
ROWS_A_COMMIT: Final = 200

#: Seconds that spans wait for more of their kind: a transaction for each would cost several times what the row does.
SPAN_WAIT_S: Final = 0.01


class GroupCommitWriter:
    """The writing side of a store on one file: a queue, a thread and a connection.

    No write waits on purpose: an idle writer commits the first at once, and what arrives during a commit goes into the
    next. Only spans, for which nobody waits, are gathered for `SPAN_WAIT_S`. How writes fail, and ``on_loss``, see
    `WritingConnection`. `submit` and `submit_span` are callable from any thread.

    What tasks of an event loop `submit_in_loop` is written by the loop, at the end of its turn, unless that means to wait
    (for the thread, for what was submitted before, for another process): then it takes the thread's way.
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
        self._span_limit = span_limit
        self._connection = WritingConnection(
            kind, path, busy_timeout_s=busy_timeout_s, on_loss=on_loss, on_lost_span=self._lose_span
        )
        self.identity = self._connection.identity
        self._in_loops = LoopCommits(self._commit_at_once, self._enqueue)
        self._waiting: deque[PendingWrite | Row] = deque()
        self._waiting_spans = 0
        self._gathering = False
        self._closing = False
        self._changed = threading.Condition()
        self._lost_spans: StoreError | None = None
        self.dropped_spans = 0
        self._thread = threading.Thread(target=self._work, name="lgov-store-writer", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------ any thread

    def submit(self, run: Callable[[sqlite3.Connection], T], rows: int = 1) -> Future[T]:
        """Queues ``run``, called with the connection inside a transaction; the future is done after its commit.

        The future cannot be cancelled: what was submitted is written, whether or not somebody still waits.
        """
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()
        with self._changed:
            self._refuse_when_closed()
            self._waiting.append(PendingWrite(run, rows, future))
            self._changed.notify()
        return future

    def submit_in_loop(self, run: Callable[[sqlite3.Connection], T], rows: int = 1) -> asyncio.Future[T]:
        """As `submit`, for a task of the running event loop; cancelling the future does not stop the write."""
        self._refuse_when_closed()
        return self._in_loops.submit(run, rows)

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
        self._enqueue(self._in_loops.take())
        self.submit(lambda _: None, rows=0).result()
        with self._changed:
            lost, self._lost_spans = self._lost_spans, None
        if lost is not None:
            raise lost

    def close(self) -> None:
        """Writes what waits, closes the connection and ends the thread."""
        self._enqueue(self._in_loops.take())
        with self._changed:
            self._closing = True
            self._changed.notify()
        if threading.current_thread() is not self._thread:  # the store may be collected in any thread
            self._thread.join()

    def hold(self) -> None:
        """Waits for the transaction in progress and keeps the writer from beginning another until `release`."""
        self._connection.hold()

    def release(self) -> None:
        """Ends `hold`."""
        self._connection.release()

    def _enqueue(self, batch: Sequence[PendingWrite]) -> None:
        """Leaves ``batch`` to the thread; when that has ended, whoever waits gets an error."""
        with self._changed:
            if not self._closing:
                self._waiting.extend(batch)
                self._changed.notify()
                return
        self._connection.fail(batch, self._closed())
        settle(batch)

    def _commit_at_once(self, batch: Sequence[PendingWrite]) -> bool:
        """Commits ``batch`` in the calling thread, if nobody has to be waited for. False: nothing of it was written."""
        with self._changed:
            if self._closing or len(self._waiting) > self._waiting_spans:
                return False
        written = self._connection.write_at_once(batch)
        if written and self._connection.checkpoint_is_due:
            with self._changed:
                self._changed.notify()
        return written

    def _lose_span(self, error: StoreError) -> None:
        with self._changed:
            self.dropped_spans += 1
            self._lost_spans = error

    def _refuse_when_closed(self) -> None:
        if self._closing:
            raise self._closed()

    def _closed(self) -> StoreError:
        return StoreError(f"{self._kind.what} {self._path} is closed", hint="open it again to go on")

    # ------------------------------------------------------------------ the writer's thread

    def _work(self) -> None:
        try:
            while (batch := self._take()) is not None:
                try:
                    self._connection.write(batch)
                except BaseException as error:
                    self._connection.fail(batch, error)
                    raise
                finally:
                    _settle(batch)
                if self._connection.checkpoint_is_due:
                    self._connection.checkpoint()
        finally:  # whatever ended the thread, nobody may wait for it any more
            with self._changed:
                self._closing = True
                left = list(self._waiting)
                self._waiting.clear()
            self._connection.fail(left, StoreError(f"{self._kind.what} {self._path}: the writer has ended"))
            _settle(left)
            self._connection.close()

    def _take(self) -> list[PendingWrite | Row] | None:
        """What is next to be written, nothing when the log is to be written back; None at the end."""
        with self._changed:
            while not self._waiting and not self._closing and not self._connection.checkpoint_is_due:
                self._changed.wait()
            if self._closing and not self._waiting:
                return None
            self._gather_spans()
            batch: list[PendingWrite | Row] = []
            rows = 0
            while self._waiting and rows < ROWS_A_COMMIT:
                item = self._waiting.popleft()
                if isinstance(item, PendingWrite):
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
        while 0 < self._waiting_spans == len(self._waiting) < ROWS_A_COMMIT and not self._closing:
            left = until - time.monotonic()
            if left <= 0 or not self._changed.wait(left):
                break
        self._gathering = False


def _settle(batch: Sequence[PendingWrite | Row]) -> None:
    settle(item for item in batch if isinstance(item, PendingWrite))
