"""The part of a SQL store that hands out rollouts, deletes them, and counts what there is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from lgov_core.store import encoding, rows
from lgov_core.store.retention import ROLLOUTS_A_PORTION, Pruned, StoreStatistics, chosen, require_choice
from lgov_core.store.rollout_states import Claim, EndedRollouts, QueueEntry, RolloutConfig, RolloutState, require_lease
from lgov_core.store.sql import deletion, queue
from lgov_core.store.sql.database import Transaction
from lgov_core.store.sql.traces import SqlTraces
from lgov_core.types import Attempt, Rollout


class SqlStore(SqlTraces):
    """A `RolloutQueue`. A subclass opens the connections, and names what differs."""

    #: Tables with rows of a rollout; one is before those that it refers to.
    _tables: ClassVar = ("queue", "rewards", "spans", "calls", "attempts", "rollouts")
    #: The rollouts that ended: their place in that order, and the entry.
    _ended: ClassVar[str]
    #: Bytes that the store takes, and those of them that are free.
    _size: ClassVar[str]

    def enqueue(
        self, rollouts: Sequence[Rollout], config: RolloutConfig | None = None, *, now: float | None = None
    ) -> None:
        """Adds rollouts to the store and to the queue. An id that exists raises `StoreError`; then none is added."""
        new = [rows.rollout_row(rollout) for rollout in rollouts]
        names = [(rollout.rollout_id, rollout.run_id) for rollout in rollouts]

        def run(transaction: Transaction) -> None:
            transaction.insert("rollouts", new)
            queue.enqueue(transaction, names, config or RolloutConfig(), now)

        self._submit(run, len(new)).result()

    def claim(
        self, worker_id: str, limit: int = 1, *, lease_s: float, run_id: str | None = None, now: float | None = None
    ) -> list[Claim]:
        """Hands out at most ``limit`` rollouts that wait, and opens an attempt of each. See `RolloutQueue.claim`."""
        require_lease(lease_s)
        return self._submit(
            lambda transaction: queue.claim(transaction, worker_id, limit, lease_s, run_id, now), limit
        ).result()

    def heartbeat(
        self,
        worker_id: str,
        *,
        lease_s: float,
        attempts: Iterable[tuple[str, int]] | None = None,
        now: float | None = None,
    ) -> list[Attempt]:
        """Extends leases, and returns the attempts that the worker still holds. See `RolloutQueue.heartbeat`."""
        require_lease(lease_s)
        asked = None if attempts is None else list(attempts)
        return self._submit(lambda transaction: queue.heartbeat(transaction, worker_id, lease_s, asked, now)).result()

    def expire(self, *, now: float | None = None) -> list[Attempt]:
        """Closes each attempt of the queue past its deadline or lease. See `RolloutQueue.expire`."""
        return self._submit(lambda transaction: queue.expire(transaction, now)).result()

    def cancel(self, rollout_id: str, reason: str, *, now: float | None = None) -> QueueEntry:
        """Takes a rollout out of the queue for good. See `RolloutQueue.cancel`."""
        why = encoding.readable(reason)
        return self._submit(lambda transaction: queue.cancel(transaction, rollout_id, why, now)).result()

    def queue_entries(
        self,
        *,
        run_id: str | None = None,
        ids: Sequence[str] | None = None,
        states: Iterable[RolloutState] | None = None,
    ) -> list[QueueEntry]:
        """Rollouts as the queue sees them, in the order of enqueuing; all, or those that fit everything given."""
        where, given = queue.selection(run_id, ids, states)
        return [rows.entry_of(row) for row in self._read("queue", rows.ENTRY_COLUMNS, where, given)]

    def ended_since(self, cursor: int = 0, *, limit: int = 100, run_id: str | None = None) -> EndedRollouts:
        """Rollouts that ended after the place ``cursor``. See `RolloutQueue.ended_since`."""
        self._check()
        of_run = "" if run_id is None else "WHERE run_id = ?"
        found = self._reading.fetch(
            f"SELECT place, {rows.ENTRY_COLUMNS} FROM ({self._ended}) AS ended {of_run} ORDER BY place LIMIT ?",
            (cursor, *(() if run_id is None else (run_id,)), max(limit, 0)),
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
        """Deletes rollouts with all that belongs to them: those that fit everything given. See `RolloutQueue.prune`.

        While a portion is deleted, nothing else writes to the store.
        """
        require_choice(before, run_id, keep_last)
        total = Pruned()
        found = chosen(self._last_active(run_id), before, keep_last)
        for first in range(0, len(found), ROLLOUTS_A_PORTION):
            ids = found[first : first + ROLLOUTS_A_PORTION]
            total += self._submit(
                lambda transaction, ids=ids: deletion.delete_rollouts(transaction, ids, self._tables, dry_run=dry_run),
                alone=True,
            ).result()
        if before is not None and run_id is None:
            total += self._submit(
                lambda transaction: deletion.delete_unattributed(transaction, before, dry_run=dry_run), alone=True
            ).result()
        return total

    def statistics(self) -> StoreStatistics:
        """What is in the store, and how large it is, as far as the database tells."""
        self._check()
        ((rollouts, attempts, still_open, calls, rewards, spans),) = self._reading.fetch(deletion.COUNTS)
        ((size, free),) = self._reading.fetch(self._size)
        active = self._last_active(None)
        states = self._reading.fetch("SELECT state, count(*) FROM queue GROUP BY state")
        times = sorted(at for _, at in active if at)
        return StoreStatistics(
            rollouts=rollouts,
            unannounced=len(active) - rollouts,
            attempts=attempts,
            open_attempts=still_open,
            calls=calls,
            rewards=rewards,
            spans=spans,
            size_bytes=size,
            free_bytes=free,
            oldest=times[0] if times else None,
            newest=times[-1] if times else None,
            queue={RolloutState(state): count for state, count in states},
        )

    def unannounced(self) -> list[Attempt]:
        """Attempts that calls and spans name and that were never opened. See `RolloutQueue.unannounced`."""
        self._check()
        return [Attempt(*row) for row in self._reading.fetch(deletion.UNANNOUNCED)]

    def _last_active(self, run_id: str | None) -> list[tuple[str, float]]:
        self._check()
        where, given = ("", ()) if run_id is None else (deletion.OF_RUN, (run_id,))
        return [(row[0], row[1]) for row in self._reading.fetch(deletion.LAST_ACTIVE.format(where=where), given)]
