"""The store for several machines: tables in a PostgreSQL database with what happened and what is to be done."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import psycopg

from lgov_core.errors import StoreError
from lgov_core.store import rows
from lgov_core.store.postgres import queue as postgres_queue
from lgov_core.store.postgres import retention as postgres_retention
from lgov_core.store.postgres.address import describe
from lgov_core.store.postgres.connection import opened
from lgov_core.store.postgres.traces import PostgresTraces, _readable
from lgov_core.store.postgres.transaction import Transaction
from lgov_core.store.retention import Pruned, StoreStatistics, chosen, portions, require_choice
from lgov_core.store.work import Claim, EndedRollouts, QueueEntry, RolloutConfig, RolloutState, require_lease
from lgov_core.types import Attempt, Rollout


class PostgresStore(PostgresTraces):
    """A `RolloutQueue` in a PostgreSQL database; see `PostgresTraces` for how it is opened, who may call it and how it fails.

    Any number of workers, on any number of machines, may claim at the same time; none waits for another
    (``FOR UPDATE SKIP LOCKED``). Leases, deadlines and delays are measured by the server's clock.
    """

    def enqueue(
        self, rollouts: Sequence[Rollout], config: RolloutConfig | None = None, *, now: float | None = None
    ) -> None:
        """Adds rollouts to the store and to the queue. An id that exists raises `StoreError`; then none is added."""
        new = [rows.rollout_row(rollout) for rollout in rollouts]
        names = [(rollout.rollout_id, rollout.run_id) for rollout in rollouts]

        def run(transaction: Transaction) -> None:
            transaction.insert("rollouts", new)
            postgres_queue.enqueue(transaction, names, config or RolloutConfig(), now)

        self._submit(run, len(new)).result()

    def claim(
        self, worker_id: str, limit: int = 1, *, lease_s: float, run_id: str | None = None, now: float | None = None
    ) -> list[Claim]:
        """Hands out at most ``limit`` rollouts that wait, and opens an attempt of each. See `RolloutQueue.claim`."""
        require_lease(lease_s)

        def run(transaction: Transaction) -> list[Claim]:
            return postgres_queue.claim(transaction, worker_id, limit, lease_s, run_id, now)

        return self._submit(run, limit).result()

    def heartbeat(
        self,
        worker_id: str,
        *,
        lease_s: float,
        attempts: Iterable[tuple[str, int]] | None = None,
        now: float | None = None,
    ) -> list[Attempt]:
        """Extends leases, and returns what the worker still has in hand. See `RolloutQueue.heartbeat`."""
        require_lease(lease_s)
        asked = None if attempts is None else list(attempts)

        def run(transaction: Transaction) -> list[Attempt]:
            return postgres_queue.heartbeat(transaction, worker_id, lease_s, asked, now)

        return self._submit(run).result()

    def expire(self, *, now: float | None = None) -> list[Attempt]:
        """Closes each attempt of the queue whose time or lease has run out. See `RolloutQueue.expire`."""
        return self._submit(lambda transaction: postgres_queue.expire(transaction, now)).result()

    def cancel(self, rollout_id: str, reason: str, *, now: float | None = None) -> QueueEntry:
        """Takes a rollout out of the queue for good. See `RolloutQueue.cancel`."""
        why = _readable(reason)
        return self._submit(lambda transaction: postgres_queue.cancel(transaction, rollout_id, why, now)).result()

    def queue_entries(
        self,
        *,
        run_id: str | None = None,
        ids: Sequence[str] | None = None,
        states: Iterable[RolloutState] | None = None,
    ) -> list[QueueEntry]:
        """Rollouts as the queue sees them, in the order of enqueuing; all, or those that fit everything given."""
        self._check()
        where, given = postgres_queue.selection(run_id, ids, states)
        return [rows.entry_of(row) for row in self._reader.read("queue", rows.ENTRY_COLUMNS, where, given)]

    def ended_since(self, cursor: int = 0, *, limit: int = 100, run_id: str | None = None) -> EndedRollouts:
        """Rollouts that ended after the place ``cursor``. See `RolloutQueue.ended_since`."""
        self._check()
        of_run = "" if run_id is None else "AND run_id = %s"
        given = (cursor,) if run_id is None else (cursor, run_id)
        found = self._reader.fetch(
            f"SELECT ended_seq, {rows.ENTRY_COLUMNS} FROM queue"
            f" WHERE ended_seq > %s {of_run} ORDER BY ended_seq LIMIT %s",
            (*given, max(limit, 0)),
        )
        entries = tuple(rows.entry_of(row[1:]) for row in found)
        return EndedRollouts(entries, found[-1][0] if found else cursor)

    # ------------------------------------------------------------------ retention

    def prune(
        self,
        *,
        before: float | None = None,
        run_id: str | None = None,
        keep_last: int | None = None,
        dry_run: bool = False,
    ) -> Pruned:
        """Deletes rollouts with all that belongs to them: those that fit everything given. See `Retention.prune`.

        While a portion is deleted, nobody writes to the store, on whatever machine.
        """
        require_choice(before, run_id, keep_last)
        total = Pruned()
        for ids in portions(chosen(self._last_heard(run_id), before, keep_last)):
            total += self._submit_alone(
                lambda transaction, ids=ids: postgres_retention.delete_rollouts(transaction, ids, dry_run=dry_run)
            ).result()
        if before is not None and run_id is None:
            total += self._submit_alone(
                lambda transaction: postgres_retention.delete_unattributed(transaction, before, dry_run=dry_run)
            ).result()
        return total

    def vacuum(self) -> None:
        """Writes the tables anew, without what was deleted. Each is locked meanwhile; only their owner may do it."""
        self._check()
        refused: list[str] = []
        connection = opened(self._address, self._schema)
        try:
            # Of a table that is not the user's the server says so, and goes on.
            connection.add_notice_handler(lambda notice: refused.append(notice.message_primary or ""))
            for table in postgres_retention.TABLES:
                connection.execute(f"VACUUM (FULL, ANALYZE) {table}".encode())
        except psycopg.Error as error:
            raise describe(self._address, error) from error
        finally:
            connection.close()
        if refused:
            raise StoreError(
                f"trace store {self._address.shown}: {refused[0]}", hint="do it as the owner of the tables"
            )

    def statistics(self) -> StoreStatistics:
        """What is in the store. ``free_bytes`` is 0: PostgreSQL uses free space again and does not say how much it is."""
        self._check()
        ((rollouts, attempts, still_open, calls, rewards, spans, size),) = self._reader.fetch(postgres_retention.COUNTS)
        heard = self._last_heard(None)
        states = self._reader.fetch("SELECT state, count(*) FROM queue GROUP BY state")
        times = sorted(at for _, at in heard if at)
        return StoreStatistics(
            rollouts=rollouts,
            unannounced=len(heard) - rollouts,
            attempts=attempts,
            open_attempts=still_open,
            calls=calls,
            rewards=rewards,
            spans=spans,
            size_bytes=size,
            free_bytes=0,
            oldest=times[0] if times else None,
            newest=times[-1] if times else None,
            queue={RolloutState(state): count for state, count in states},
        )

    def unannounced(self) -> list[Attempt]:
        """Attempts that calls and spans name and nobody opened. See `Retention.unannounced`."""
        self._check()
        return [Attempt(*row) for row in self._reader.fetch(postgres_retention.UNANNOUNCED)]

    def _last_heard(self, run_id: str | None) -> list[tuple[str, float]]:
        self._check()
        where, given = ("", ()) if run_id is None else (postgres_retention.OF_RUN, (run_id,))
        found = self._reader.fetch(postgres_retention.LAST_HEARD.format(where=where), given)
        return [(rollout_id, at) for rollout_id, at in found]
