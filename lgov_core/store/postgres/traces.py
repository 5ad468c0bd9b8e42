"""Traces in PostgreSQL: the part of the store for several machines that writes down and reads what happened."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import TypeVar

from lgov_core.errors import StoreError
from lgov_core.store import encoding, rows
from lgov_core.store.lifetime import OpenStore
from lgov_core.store.postgres import queue as postgres_queue
from lgov_core.store.postgres.address import read_address
from lgov_core.store.postgres.calls import CHAIN, FOLDED_ROW, CallParts
from lgov_core.store.postgres.connection import opened
from lgov_core.store.postgres.reader import PostgresReader
from lgov_core.store.postgres.schema import prepare
from lgov_core.store.postgres.transaction import Transaction
from lgov_core.store.postgres.writer import PostgresWriter
from lgov_core.store.unfold import Unfolding
from lgov_core.types import Attempt, CapturedCall, JSONValue, Outcome, Reward, Rollout, Span

T = TypeVar("T")

_INSERT_ATTEMPT = (
    f"INSERT INTO attempts ({rows.ATTEMPT_COLUMNS}) VALUES (%s, %s, %s, NULL, NULL, NULL, NULL) ON CONFLICT DO NOTHING"
)


class PostgresTraces(OpenStore[PostgresWriter, PostgresReader]):
    """A `TraceStore` in the PostgreSQL database at ``address``, in tables of its own in the schema ``schema``.

    ``address`` is ``postgresql://user@host:port/database``; what it leaves out libpq finds where it always looks (PGHOST,
    PGPASSWORD, ~/.pgpass, ...). The tables are made when they are not there, unless ``make`` is false. Writes go through
    one thread that commits together what waits together (up to 200 rows); a write returns after its commit, which
    survives the death of this process and of the server. Any number of stores, on any number of machines, may be open on
    one database. ``span_queue`` is how many spans may wait before more are dropped.

    When the connection is lost, writes and readings wait for the server for ``reconnect_s`` seconds at most; none is made twice
    and none that returned is lost. All methods may be called from any thread. In a forked child the object refuses
    to work: open another there. Fails closed: `StoreError` names the database (never its password) and says what to
    do, and nothing is half-written. Raises `StoreError` when the database cannot be used.
    """

    def __init__(
        self,
        address: str,
        *,
        schema: str = "lgov",
        make: bool = True,
        reconnect_s: float = 15.0,
        span_queue: int = 10_000,
    ) -> None:
        if not schema or '"' in schema or "\x00" in schema:
            raise StoreError(f"{schema!r} cannot be the name of a schema", hint="use letters, digits and _")
        self._address = read_address(address)
        self._schema = schema
        connection = opened(self._address, schema)
        try:
            prepare(connection, self._address, schema, make=make)
        except BaseException:
            connection.close()
            raise
        writer = PostgresWriter(self._address, schema, connection, reconnect_s=reconnect_s, span_limit=span_queue)
        super().__init__(self._address.shown, writer, PostgresReader(self._address, schema, reconnect_s=reconnect_s))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._address.shown!r})"

    # ------------------------------------------------------------------ writing

    def add_rollouts(self, rollouts: Sequence[Rollout]) -> None:
        """Adds rollouts. An id that exists already raises `StoreError`; then none is added."""
        new = [rows.rollout_row(rollout) for rollout in rollouts]
        self._submit(lambda transaction: transaction.insert("rollouts", new), len(new)).result()

    def start_attempt(self, rollout_id: str, attempt: int) -> Attempt:
        """Opens an attempt (numbered from 1); it starts now by the server's clock.

        Raises `StoreError` for an unknown rollout, an attempt that exists, or a rollout of the queue.
        """
        if attempt < 1:
            raise StoreError(f"attempt {attempt} of rollout {rollout_id}: attempts are numbered from 1")

        def run(transaction: Transaction) -> Attempt:
            known, queued = transaction.execute(
                "SELECT EXISTS (SELECT 1 FROM rollouts WHERE rollout_id = %s),"
                " EXISTS (SELECT 1 FROM queue WHERE rollout_id = %s)",
                (rollout_id, rollout_id),
            )[0]
            if not known:
                raise StoreError(f"there is no rollout {rollout_id}", hint="add the rollout before its first attempt")
            if queued:
                raise StoreError(f"rollout {rollout_id} is handed out by the queue", hint="claim it instead")
            opened = Attempt(rollout_id, attempt, transaction.now)
            if not transaction.change(_INSERT_ATTEMPT, (rollout_id, attempt, opened.started_at)):
                raise StoreError(
                    f"attempt {attempt} of rollout {rollout_id} exists already",
                    hint="ids are written once; use a fresh one",
                )
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
        outcome = Outcome(outcome)
        text = None if result is None else encoding.json_text(result, f"result of rollout {rollout_id}")
        final = [rows.reward_row(rows.own_reward(reward, rollout_id, attempt)) for reward in rewards]
        why = None if error is None else _readable(error)

        def run(transaction: Transaction) -> Attempt:
            closed = postgres_queue.close(transaction, rollout_id, attempt, outcome, None, error=why, result=text)
            transaction.put_rewards(final)
            return closed

        return self._submit(run, 1 + len(final)).result()

    def submit_call(self, call: CapturedCall) -> Future[None]:
        """As `add_call`, but returns at once; the future is done when the call is durable. It cannot be cancelled."""
        parts = CallParts(*rows.call_parts(call))
        return self._submit(lambda transaction: transaction.put_call(parts))

    def add_call(self, call: CapturedCall) -> None:
        """Adds a captured model call. One with its ``response_id`` and ``choice`` raises `StoreError`."""
        self.submit_call(call).result()

    def add_call_async(self, call: CapturedCall) -> Awaitable[None]:
        """As `add_call`, for a running event loop. The call is written even if the awaiting task is cancelled."""
        return asyncio.wrap_future(self.submit_call(call))

    def submit_rewards(self, rewards: Iterable[Reward]) -> Future[None]:
        """As `add_rewards`, but returns at once; the future is done when they are durable. It cannot be cancelled."""
        new = [rows.reward_row(reward) for reward in rewards]
        return self._submit(lambda transaction: transaction.put_rewards(new), len(new))

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
        return self._submit(lambda transaction: transaction.add_spans(new), len(new))

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
        """How many spans this store object did not keep: its queue was full, or the server did not take them."""
        return self._writer.dropped_spans

    def fail_open_attempts(self, reason: str) -> int:
        """Closes every open attempt as infrastructure (after a crash). Returns how many."""
        why = _readable(reason)
        return self._submit(
            lambda transaction: postgres_queue.close_all(transaction, Outcome.INFRASTRUCTURE, why, None)
        ).result()

    def _submit(self, run: Callable[[Transaction], T], count: int = 1) -> Future[T]:
        self._check()
        return self._writer.submit(run, count)

    def _submit_alone(self, run: Callable[[Transaction], T]) -> Future[T]:
        """As `_submit`, in a transaction during which nobody else writes to the store."""
        self._check()
        return self._writer.submit(run, alone=True)

    # ------------------------------------------------------------------ reading

    def rollouts(self, *, run_id: str | None = None, ids: Sequence[str] | None = None) -> list[Rollout]:
        """Rollouts, all or those of a run, or those with the given ids."""
        if ids is None and run_id is not None:
            self._check()
            found = self._reader.read("rollouts", rows.ROLLOUT_COLUMNS, "WHERE run_id = %s", (run_id,))
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
        return self._reader.read(table, columns, "WHERE rollout_id = ANY(%s)", (list(rollout_ids),))


def _readable(text: str) -> str:
    """``text`` as PostgreSQL can hold it, which has no place for the character of number 0."""
    return encoding.readable(text).replace("\x00", "\\x00")
