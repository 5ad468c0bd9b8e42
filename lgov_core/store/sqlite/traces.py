"""Traces in one SQLite file: the part of the default store that writes down and reads what happened."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

from lgov_core.errors import StoreError
from lgov_core.store import encoding, rows
from lgov_core.store.lifetime import OpenStore
from lgov_core.store.sqlite import queue as sqlite_queue
from lgov_core.store.sqlite.calls import CHAIN, FOLDED_ROW, FoldingWriter
from lgov_core.store.sqlite.reader import TableReader
from lgov_core.store.sqlite.schema import TRACE_STORE
from lgov_core.store.sqlite.writer import GroupCommitWriter
from lgov_core.store.sqlite.writing_connection import insert_spans
from lgov_core.store.unfold import Unfolding
from lgov_core.types import Attempt, CapturedCall, JSONValue, Outcome, Reward, Rollout, Span

T = TypeVar("T")

_INSERT_ROLLOUT = rows.insert("rollouts", rows.ROLLOUT_COLUMNS)
_INSERT_ATTEMPT = rows.insert("attempts", rows.ATTEMPT_COLUMNS)
_INSERT_REWARD = rows.insert("rewards", rows.REWARD_COLUMNS)


class SQLiteTraces(OpenStore[GroupCommitWriter, TableReader]):
    """A `TraceStore` on the SQLite file at ``path``, which is made (mode 0600) when it does not exist.

    Writes go through one thread that commits together what waits together (up to 200 rows); a write returns after its
    commit, which survives the death of the process. Several processes may write to one file: each waits for the others,
    ``busy_timeout_s`` seconds at most. ``span_queue`` is how many spans may wait before more are dropped.

    All methods may be called from any thread. In a forked child the object refuses to work: open another there. Fails
    closed: `StoreError` names the file and what to do, nothing is half-written, and after a full disk has space again
    the same object goes on. Raises `StoreError` when the file cannot be opened.
    """

    def __init__(self, path: str | os.PathLike[str], *, busy_timeout_s: float = 10.0, span_queue: int = 10_000) -> None:
        self.path = Path(path).absolute()  # opened again by each thread, wherever the program is by then
        self._busy_timeout_s = busy_timeout_s
        self._calls = FoldingWriter()
        writer = GroupCommitWriter(
            TRACE_STORE,
            self.path,
            busy_timeout_s=busy_timeout_s,
            span_limit=span_queue,
            on_loss=self._calls.forget,
        )
        reader = TableReader(TRACE_STORE, self.path, writer.identity, busy_timeout_s=busy_timeout_s)
        super().__init__(str(self.path), writer, reader)

    # ------------------------------------------------------------------ writing

    def add_rollouts(self, rollouts: Sequence[Rollout]) -> None:
        """Adds rollouts. An id that exists already raises `StoreError`; then none is added."""
        new = [rows.rollout_row(rollout) for rollout in rollouts]

        self._submit(lambda connection: self._insert_rollouts(connection, new), len(new)).result()

    def start_attempt(self, rollout_id: str, attempt: int) -> Attempt:
        """Opens an attempt (numbered from 1).

        Raises `StoreError` for an unknown rollout, an attempt that exists, or a rollout of the queue.
        """
        if attempt < 1:
            raise StoreError(f"attempt {attempt} of rollout {rollout_id}: attempts are numbered from 1")
        opened = Attempt(rollout_id, attempt, time.time())

        def run(connection: sqlite3.Connection) -> Attempt:
            if not connection.execute("SELECT 1 FROM rollouts WHERE rollout_id = ?", (rollout_id,)).fetchone():
                raise StoreError(f"there is no rollout {rollout_id}", hint="add the rollout before its first attempt")
            if connection.execute("SELECT 1 FROM queue WHERE rollout_id = ?", (rollout_id,)).fetchone():
                raise StoreError(f"rollout {rollout_id} is handed out by the queue", hint="claim it instead")
            row = (rollout_id, attempt, opened.started_at, None, None, None, None)
            _insert(connection, _INSERT_ATTEMPT, row, f"attempt {attempt} of rollout {rollout_id} exists already")
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

        Rewards that name no rollout get this one and this attempt; one that names another raises `StoreError`. Closing
        the attempt again raises `StoreError`: the first outcome stands.
        """
        outcome, ended_at = Outcome(outcome), time.time()
        text = None if result is None else encoding.json_text(result, f"result of rollout {rollout_id}")
        final = [rows.reward_row(rows.own_reward(reward, rollout_id, attempt)) for reward in rewards]
        readable = None if error is None else encoding.readable(error)

        def run(connection: sqlite3.Connection) -> Attempt:
            closed = sqlite_queue.close(connection, rollout_id, attempt, outcome, ended_at, error=readable, result=text)
            _insert_rewards(connection, final)
            return closed

        return self._submit(run, 1 + len(final)).result()

    def submit_call(self, call: CapturedCall) -> Future[None]:
        """As `add_call`, but returns at once; the future is done when the call is durable. It cannot be cancelled."""
        return self._submit(self._writing(call))

    def _writing(self, call: CapturedCall) -> Callable[[sqlite3.Connection], None]:
        row, request = rows.call_parts(call)

        def run(connection: sqlite3.Connection) -> None:
            try:
                self._calls.write(connection, row, request)
            except sqlite3.IntegrityError as error:
                _require_new(error, _call_exists(call))
                raise

        return run

    def add_call(self, call: CapturedCall) -> None:
        """Adds a captured model call. One with its ``response_id`` and ``choice`` raises `StoreError`."""
        self.submit_call(call).result()

    def add_call_async(self, call: CapturedCall) -> Awaitable[None]:
        """As `add_call`, for a running event loop. The call is written even if the awaiting task is cancelled.

        Calls of one turn of the loop are committed together, by the loop itself where nobody has to be waited for.
        """
        run = self._writing(call)
        self._check()
        return self._writer.submit_in_loop(run)

    def submit_rewards(self, rewards: Iterable[Reward]) -> Future[None]:
        """As `add_rewards`, but returns at once; the future is done when they are durable. It cannot be cancelled."""
        new = [rows.reward_row(reward) for reward in rewards]
        return self._submit(lambda connection: _insert_rewards(connection, new), len(new))

    def add_rewards(self, rewards: Iterable[Reward]) -> None:
        """Adds rewards. A value that is not finite, or an id that exists, raises `StoreError`; then none is added."""
        self.submit_rewards(rewards).result()

    def add_span(self, span: Span) -> None:
        """Queues a span and returns at once. A full queue drops it and counts it in `dropped_spans`.

        Attributes that JSON cannot hold raise `StoreError`.
        """
        row = rows.span_row(span)
        self._check()
        self._writer.submit_span(row)

    def submit_spans(self, spans: Iterable[Span]) -> Future[int]:
        """As `add_spans`, but returns at once; the future is done when they are durable. It cannot be cancelled."""
        new = [rows.span_row(span) for span in spans]
        return self._submit(lambda connection: insert_spans(connection, new), len(new))

    def add_spans(self, spans: Iterable[Span]) -> int:
        """Adds spans, all of them or none, and returns how many were new: what is there already is not written again."""
        return self.submit_spans(spans).result()

    def flush(self) -> None:
        """Returns when everything queued before the call is durable.

        Raises `StoreError` when spans could not be written since the last call; they count in `dropped_spans` too.
        """
        self._check()
        self._writer.flush()

    @property
    def dropped_spans(self) -> int:
        """How many spans this store object did not keep: its queue was full, or the file could not be written."""
        return self._writer.dropped_spans

    def fail_open_attempts(self, reason: str) -> int:
        """Closes every open attempt as infrastructure (after a crash). Returns how many."""
        closing, why, now = Outcome.INFRASTRUCTURE, encoding.readable(reason), time.time()
        return self._submit(lambda connection: sqlite_queue.close_all(connection, closing, why, now)).result()

    def _insert_rollouts(self, connection: sqlite3.Connection, new: Sequence[rows.Row]) -> None:
        for row in new:
            _insert(connection, _INSERT_ROLLOUT, row, f"rollout {row[0]} exists already")

    def _submit(self, run: Callable[[sqlite3.Connection], T], count: int = 1) -> Future[T]:
        self._check()
        return self._writer.submit(run, count)

    # ------------------------------------------------------------------ reading

    def rollouts(self, *, run_id: str | None = None, ids: Sequence[str] | None = None) -> list[Rollout]:
        """Rollouts, all or those of a run, or those with the given ids."""
        if ids is None and run_id is not None:
            self._check()
            found = self._reader.read("rollouts", rows.ROLLOUT_COLUMNS, "WHERE run_id = ?", (run_id,))
        else:
            found = self._read("rollouts", rows.ROLLOUT_COLUMNS, ids)
        return [one for one in map(rows.rollout_of, found) if run_id is None or one.run_id == run_id]

    def attempts(self, rollout_ids: Sequence[str] | None = None) -> list[Attempt]:
        """Attempts, all or those of the given rollouts."""
        return [rows.attempt_of(row) for row in self._read("attempts", rows.ATTEMPT_COLUMNS, rollout_ids)]

    def calls(self, rollout_ids: Sequence[str] | None = None) -> Iterator[CapturedCall]:
        """Captured calls, all or those of the given rollouts, as they are when the iteration begins."""
        folded = self._read("calls", FOLDED_ROW, rollout_ids)
        return Unfolding(lambda seq: self._reader.fetch(CHAIN, (seq,))).calls(folded)

    def rewards(self, rollout_ids: Sequence[str] | None = None) -> list[Reward]:
        """Rewards, all or those of the given rollouts."""
        return [rows.reward_of(row) for row in self._read("rewards", rows.REWARD_COLUMNS, rollout_ids)]

    def spans(self, rollout_ids: Sequence[str] | None = None) -> list[Span]:
        """Spans, all or those of the given rollouts."""
        return [rows.span_of(row) for row in self._read("spans", rows.SPAN_COLUMNS, rollout_ids)]

    def _read(self, table: str, columns: str, rollout_ids: Sequence[str] | None) -> Iterator[rows.Row]:
        self._check()
        if rollout_ids is None:
            return self._reader.read(table, columns)
        where = "WHERE rollout_id IN (SELECT value FROM json_each(?))"
        return self._reader.read(table, columns, where, (json.dumps(list(rollout_ids)),))


def _insert(connection: sqlite3.Connection, statement: str, row: rows.Row, duplicate: str) -> None:
    try:
        connection.execute(statement, row)
    except sqlite3.IntegrityError as error:
        _require_new(error, duplicate)
        raise


def _require_new(error: sqlite3.IntegrityError, duplicate: str) -> None:
    """Raises a `StoreError` that says ``duplicate`` where ``error`` means that something was written for the second time."""
    if error.sqlite_errorcode == sqlite3.SQLITE_CONSTRAINT_UNIQUE:
        raise StoreError(duplicate, hint="ids are written once; use a fresh one") from error


def _call_exists(call: CapturedCall) -> str:
    which = f", choice {call.choice}" if call.choice else ""
    return f"call {call.response_id}{which} exists already"


def _insert_rewards(connection: sqlite3.Connection, new: Sequence[rows.Row]) -> None:
    for row in new:
        _insert(connection, _INSERT_REWARD, row, f"reward {row[0]} exists already")
