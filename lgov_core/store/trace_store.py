"""The trace store: records what happened and reads it back. Every database passes the same tests."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, Final, Self, TypeVar

from lgov_core._util.containers import BoundedDict
from lgov_core._util.sqlite_file import keep_quiet_across_fork
from lgov_core.errors import StoreError
from lgov_core.store import rows, work_queue
from lgov_core.store.database import Database, GroupCommitWriter, Transaction, insert_spans
from lgov_core.store.folding import CHAIN, FOLDED_ROW, FoldingWriter, Unfolding
from lgov_core.store.pages import StorePages
from lgov_core.types import Attempt, CapturedCall, JSONValue, Outcome, Reward, Rollout, Span

T = TypeVar("T")
F = TypeVar("F", bound="Future[Any] | asyncio.Future[Any]")

#: Rows fetched at a time, so that a long reading neither blocks the others nor fills the memory.
_ROWS_A_PORTION: Final = 500


class TraceStore:
    """Rollouts, attempts, captured calls, spans and rewards, on two connections: the writer's and one for reading.

    Every write is durable against the death of the process when the method returns, unless it says otherwise; a write
    that cannot be made so raises `StoreError` and leaves nothing half-written. Writes that wait at the same time are
    committed together (up to 200 rows). All methods may be called from any thread, and several processes may hold stores
    on the same place. Readers see committed rows only, in the order in which they were written.

    In a forked child the object refuses to work: open another there. What is queued when the object is collected, or the
    program ends without closing it, is still written.
    """

    #: Gets each call, reward and span that was added, a call once it is durable. Must return at once.
    on_added: Callable[[CapturedCall | Reward | Span], None] | None = None

    def __init__(self, shown: str, writing: Database, reading: Database, *, span_queue: int) -> None:
        self._shown = shown
        self._reading = reading
        self._connections = {writing, reading}
        self._calls = FoldingWriter()
        self._ended_here: BoundedDict[tuple[str, int | None], bool] = BoundedDict(10_000)
        self._writer = GroupCommitWriter(writing, shown=shown, span_limit=span_queue, on_rollback=self._calls.forget)
        self._pid = os.getpid()
        self._closed = False
        self._close_lock = threading.Lock()
        keep_quiet_across_fork(self)
        weakref.finalize(self, _close_writer, self._writer, self._pid)

    # ------------------------------------------------------------------ writing

    def add_rollouts(self, rollouts: Sequence[Rollout]) -> None:
        """Adds rollouts. An id that exists already raises `StoreError`; then none is added."""
        new = [rows.rollout_row(rollout) for rollout in rollouts]
        self._submit(lambda transaction: work_queue.add_rollouts(transaction, new), len(new)).result()

    def start_attempt(self, rollout_id: str, attempt: int) -> Attempt:
        """Opens an attempt (numbered from 1), which starts now by the database's clock.

        Raises `StoreError` for an unknown rollout, one of the queue, or an attempt that exists.
        """
        if attempt < 1:
            raise StoreError(f"attempt {attempt} of rollout {rollout_id}: attempts are numbered from 1")

        def run(transaction: Transaction) -> Attempt:
            ((exists, queued),) = transaction.execute(
                "SELECT EXISTS (SELECT 1 FROM rollouts WHERE rollout_id = ? AND added = 1),"
                " EXISTS (SELECT 1 FROM queue WHERE rollout_id = ?)",
                (rollout_id, rollout_id),
            )
            if not exists:
                raise StoreError(f"there is no rollout {rollout_id}", hint="add the rollout before its first attempt")
            if queued:
                raise StoreError(f"rollout {rollout_id} is handed out by the queue", hint="claim it instead")
            opened = Attempt(rollout_id, attempt, transaction.now)
            transaction.insert("attempts", [(rollout_id, attempt, opened.started_at, None, None, None, None)])
            return opened

        return self._submit(run).result()

    def finish_attempt(
        self,
        rollout_id: str,
        attempt: int,
        outcome: Outcome,
        *,
        error: str | None = None,
        result: JSONValue = None,
        rewards: Iterable[Reward] = (),
    ) -> Attempt:
        """Closes an attempt and adds its final rewards in the same transaction.

        Rewards that name no rollout get this one and this attempt; one that names another raises `StoreError`. Closing the
        attempt again raises `StoreError`: the first outcome stays.
        """
        outcome = Outcome(outcome)
        text = None if result is None else rows.stored_text(result, f"result of rollout {rollout_id}")
        final = [rows.reward_row(rows.own_reward(reward, rollout_id, attempt)) for reward in rewards]
        why = None if error is None else rows.readable(error)

        def run(transaction: Transaction) -> Attempt:
            closed = work_queue.close(transaction, rollout_id, attempt, outcome, None, error=why, result=text)
            transaction.insert("rewards", final)
            return closed

        closed = self._submit(run, 1 + len(final)).result()
        self._ended_here.put((rollout_id, attempt), True)
        return closed

    def has_ended(self, rollout_id: str, attempt: int | None) -> bool:
        """True for an attempt that this object has ended, of the last 10,000; asks no database."""
        return (rollout_id, attempt) in self._ended_here

    def submit_call(self, call: CapturedCall) -> Future[None]:
        """As `add_call`, but returns at once; the future is done when the call is durable. It cannot be cancelled."""
        return self._told(self._submit(self._call_write(call)), [call])

    def add_call(self, call: CapturedCall) -> None:
        """Adds a captured model call. One with its ``response_id`` and ``choice`` raises `StoreError`, one of an attempt that
        has ended `AttemptEnded`.
        """
        self.submit_call(call).result()

    def add_call_async(self, call: CapturedCall) -> Awaitable[None]:
        """As `add_call`, for a running event loop. The call is written even if the awaiting task is cancelled."""
        write = self._call_write(call)
        self._check()
        return self._told(self._writer.submit_async(write), [call])

    def _call_write(self, call: CapturedCall) -> Callable[[Transaction], None]:
        row, request = rows.call_parts(call)
        return lambda transaction: self._calls.write(transaction, row, request)

    def add_rewards(self, rewards: Iterable[Reward]) -> None:
        """Adds rewards. A value that is not finite raises `StoreError`; then none is added."""
        added = list(rewards)
        new = [rows.reward_row(reward) for reward in added]
        self._told(self._submit(lambda transaction: transaction.insert("rewards", new), len(new)), added).result()

    def add_span(self, span: Span) -> None:
        """Queues a span and returns at once. A full queue drops it and counts it in `dropped_spans`.

        Attributes that JSON cannot hold raise `StoreError`.
        """
        row = rows.span_row(span)
        self._check()
        self._writer.submit_span(row)
        if self.on_added is not None:
            self.on_added(span)

    def add_spans(self, spans: Iterable[Span]) -> int:
        """Adds spans, all of them or none, and returns how many were new.

        A span that is there already, equal in every field, is not written again, so a batch may be sent twice. One that has
        the id of another and different contents is kept beside it; readers decide which of them is right. The same
        holds for `add_span`.
        """
        added = list(spans)
        new = [rows.span_row(span) for span in added]
        return self._told(self._submit(lambda transaction: insert_spans(transaction, new), len(new)), added).result()

    def _told(self, write: F, added: Sequence[CapturedCall | Reward | Span]) -> F:
        """Returns ``write``, after which `on_added` gets what it added."""
        if (tell := self.on_added) is not None:

            def done(future: Any) -> None:
                if future.cancelled() or future.exception() is None:  # what nobody awaits any more is written, too
                    for value in added:
                        tell(value)

            write.add_done_callback(done)
        return write

    def flush(self) -> None:
        """Returns when everything queued before is durable. Raises `StoreError` when spans were lost since the last call."""
        self._check()
        self._writer.flush()

    @property
    def dropped_spans(self) -> int:
        """How many spans this store object did not keep: its queue was full, or the database could not be written."""
        return self._writer.dropped_spans

    def fail_open_attempts(self, reason: str) -> int:
        """Closes every open attempt as infrastructure (after a crash). Returns how many."""
        outcome, why = Outcome.INFRASTRUCTURE, rows.readable(reason)
        return self._submit(lambda transaction: work_queue.close_all(transaction, outcome, why, None)).result()

    def ping(self) -> None:
        """Asks the database once, without waiting for one that is away. Raises `StoreError`."""
        self._check()
        self._reading.ping()

    def _submit(self, run: Callable[[Transaction], T], count: int = 1, *, alone: bool = False) -> Future[T]:
        self._check()
        return self._writer.submit(run, count, alone=alone)

    # ------------------------------------------------------------------ reading

    @property
    def pages(self) -> StorePages:
        """Reads page by page. Raises `StoreError` when the store is closed."""
        self._check()
        return StorePages(self._reading)

    def rollouts(self, *, run_id: str | None = None, ids: Sequence[str] | None = None) -> list[Rollout]:
        """The rollouts that were added: all, or those of a run, or those with the given ids."""
        where, values = "WHERE added = 1", list[Any]()
        if run_id is not None:
            where, values = f"{where} AND run_id = ?", [run_id]
        if ids is not None:
            where, values = f"{where} AND rollout_id = ANY(?)", [*values, list(ids)]
        return list(map(rows.rollout_of, self._read("rollouts", rows.ROLLOUT_COLUMNS, where, values)))

    def attempts(self, rollout_ids: Sequence[str] | None = None) -> list[Attempt]:
        """Attempts, all or those of the given rollouts."""
        return [rows.attempt_of(row) for row in self._read_of("attempts", rows.ATTEMPT_COLUMNS, rollout_ids)]

    def calls(self, rollout_ids: Sequence[str] | None = None) -> Iterator[CapturedCall]:
        """Captured calls, all or those of the given rollouts, as they are when the iteration begins."""
        folded = self._read_of("calls", FOLDED_ROW, rollout_ids)
        return Unfolding(lambda seq: self._reading.fetch(CHAIN, (seq,))).calls(folded)

    def has_calls(self, rollout_id: str, attempt: int) -> bool:
        """Returns whether a call of the attempt was captured; reads none."""
        self._check()
        query = "SELECT 1 FROM calls WHERE rollout_id = ? AND attempt = ? LIMIT 1"
        return bool(self._reading.fetch(query, (rollout_id, attempt)))

    def rewards(self, rollout_ids: Sequence[str] | None = None) -> list[Reward]:
        """Rewards, all or those of the given rollouts."""
        return [rows.reward_of(row) for row in self._read_of("rewards", rows.REWARD_COLUMNS, rollout_ids)]

    def spans(self, rollout_ids: Sequence[str] | None = None) -> list[Span]:
        """Spans, all or those of the given rollouts."""
        return [rows.span_of(row) for row in self._read_of("spans", rows.SPAN_COLUMNS, rollout_ids)]

    def _read_of(self, table: str, columns: str, rollout_ids: Sequence[str] | None) -> Iterator[rows.Row]:
        if rollout_ids is None:
            return self._read(table, columns)
        return self._read(table, columns, "WHERE rollout_id = ANY(?)", (list(rollout_ids),))

    def _read(self, table: str, columns: str, where: str = "", values: Sequence[Any] = ()) -> Iterator[rows.Row]:
        """The rows of ``table`` that exist when the iteration begins, in the order in which they were written.

        Between two portions no lock is held and no transaction is open.
        """
        self._check()
        return self._portions(table, columns, where, values)

    def _portions(self, table: str, columns: str, where: str, values: Sequence[Any]) -> Iterator[rows.Row]:
        # The sign keeps SQLite from walking the whole table in order where an index finds the few rows asked for.
        seqs = [seq for (seq,) in self._reading.fetch(f"SELECT seq FROM {table} {where} ORDER BY +seq", values)]
        for first in range(0, len(seqs), _ROWS_A_PORTION):
            portion = seqs[first : first + _ROWS_A_PORTION]
            yield from self._reading.fetch(f"SELECT {columns} FROM {table} WHERE seq = ANY(?) ORDER BY seq", (portion,))

    # ------------------------------------------------------------------ closing and forks

    def close(self) -> None:
        """Flushes and closes. Calling it again does nothing; any other call after it raises `StoreError`."""
        if self._pid == os.getpid():
            with self._close_lock:
                self._writer.close()
                self._reading.close()
                self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def before_fork(self) -> None:
        """Closes the connections, so that a child inherits none. Called by the interpreter."""
        if self._pid == os.getpid():
            for connection in self._connections:
                connection.hold()

    def after_fork_in_parent(self) -> None:
        """Allows work again, on new connections. Called by the interpreter."""
        if self._pid == os.getpid():
            for connection in self._connections:
                connection.release()

    def after_fork_in_child(self) -> None:
        """Does nothing: the writer's thread does not exist in the child, so every method refuses there."""

    def _check(self) -> None:
        if self._pid != os.getpid():
            raise StoreError(
                f"trace store {self._shown} was opened by the parent process", hint="open it again after the fork"
            )
        if self._closed:
            raise StoreError(f"trace store {self._shown} is closed", hint="open it again to go on")


def _close_writer(writer: GroupCommitWriter, pid: int) -> None:
    if pid == os.getpid():
        writer.close()
