"""Group commit: one thread writes for every caller, and writes that wait at the same time share a transaction."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypeVar

from lgov_core.errors import StoreError
from lgov_core.store import rows
from lgov_core.store.database import Database, DatabaseUnavailable, Transaction
from lgov_core.store.decisions import insert_decisions

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
    future: Future[Any] = field(default_factory=lambda: Future[Any]())
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
        write = _Write(run, count, alone)
        write.future.set_running_or_notify_cancel()
        with self._changed:
            self._refuse_when_closed()
            self._waiting.append(write)
            self._changed.notify()
        return write.future

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
    insert_decisions(transaction, zip(new, digests, strict=True))
    for row in new:
        transaction.name_rollout(row[rows.SPAN_ROLLOUT], row[rows.SPAN_STARTED])
    return count


def _settle(batch: Iterable[_Item]) -> None:
    for item in batch:
        if isinstance(item, _Write):
            if item.error is not None:
                item.future.set_exception(item.error)
            else:
                item.future.set_result(item.result)
