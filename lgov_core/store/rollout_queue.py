"""The trace store with a queue of rollouts: hands them out, deletes them, counts what there is."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import ClassVar

from lgov_core.store import retention, rows, work_queue
from lgov_core.store.database import Transaction
from lgov_core.store.retention import ROLLOUTS_A_PORTION, Pruned, StoreStatistics, chosen, require_choice
from lgov_core.store.rollout_states import Claim, EndedRollouts, QueueEntry, RolloutConfig, RolloutState, require_lease
from lgov_core.store.trace_store import TraceStore
from lgov_core.types import Attempt, Rollout


class RolloutQueue(TraceStore):
    """A trace store that also hands out rollouts to workers, retries them, and deletes what is no longer needed.

    What the trace store promises of writes, threads and processes holds here too: a rollout is handed to one worker
    only, however many ask at the same time. A worker ends its attempt with `TraceStore.finish_attempt`, which moves the
    rollout on in the same transaction: to ``succeeded``, back into the queue while its configuration grants another try,
    or to ``failed``. An attempt that was closed meanwhile (it expired, or was cancelled) cannot be finished any more,
    so a worker that reconnects too late changes nothing. `TraceStore.start_attempt` refuses rollouts of the
    queue; `TraceStore.fail_open_attempts` moves them on as `expire` does, those of living workers too.

    ``now`` (Unix seconds) is the store's own clock when it is None, which for a store on a server is the server's; give
    it only where time is yours to set, as in tests. Every move of a state is one of `STATE_MOVES`, or raises `StoreError`.
    A subclass opens the connections, and names what differs between databases.
    """

    #: Tables with rows of a rollout; one is before those that it refers to.
    _tables: ClassVar = ("queue", "rewards", "spans", "calls", "attempts", "rollouts")
    #: The rollouts that ended: their place in that order, and the entry.
    _ended: ClassVar[str]
    #: Bytes that the store takes, and those of them that are free.
    _size: ClassVar[str]

    def enqueue(
        self, rollouts: Sequence[Rollout], config: RolloutConfig | None = None, *, now: float | None = None
    ) -> None:
        """Adds rollouts to the store and to the queue, behind those that are there.

        An id that exists already raises `StoreError`; then none is added.
        """
        new = [rows.rollout_row(rollout) for rollout in rollouts]
        names = [(rollout.rollout_id, rollout.run_id) for rollout in rollouts]

        def run(transaction: Transaction) -> None:
            work_queue.add_rollouts(transaction, new)
            work_queue.enqueue(transaction, names, config or RolloutConfig(), now)

        self._submit(run, len(new)).result()

    def claim(
        self, worker_id: str, limit: int = 1, *, lease_s: float, run_id: str | None = None, now: float | None = None
    ) -> list[Claim]:
        """Hands out at most ``limit`` rollouts that wait, the first enqueued first, and opens an attempt of each.

        Does what `expire` does first, so that nothing waits for a worker that is gone. ``run_id`` keeps to one run.
        Never waits: an empty list when there is nothing. Raises `StoreError` for a lease that is not above 0 seconds.
        """
        require_lease(lease_s)
        return self._submit(
            lambda transaction: work_queue.claim(transaction, worker_id, limit, lease_s, run_id, now), limit
        ).result()

    def heartbeat(
        self,
        worker_id: str,
        *,
        lease_s: float,
        attempts: Iterable[tuple[str, int]] | None = None,
        now: float | None = None,
    ) -> list[Attempt]:
        """Extends the leases of the attempts that a worker has in hand, and returns those attempts, oldest first.

        ``attempts`` (rollout id and number) keeps to these, so that one that hangs is not kept alive by the others; None:
        all of them. An attempt that is missing from the answer is no longer the worker's: it was cancelled or expired,
        or has passed its deadline, and must be stopped. A worker that was started again learns here what it had.
        """
        require_lease(lease_s)
        keys = None if attempts is None else list(attempts)
        return self._submit(
            lambda transaction: work_queue.heartbeat(transaction, worker_id, lease_s, keys, now)
        ).result()

    def expire(self, *, now: float | None = None) -> list[Attempt]:
        """Closes each attempt of the queue that has passed its deadline, as timeout, or its lease, as infrastructure.

        Their rollouts wait again while tries remain, and have failed otherwise. Returns the closed attempts, with the
        reason as their ``error``.
        """
        return self._submit(lambda transaction: work_queue.expire(transaction, now)).result()

    def cancel(self, rollout_id: str, reason: str, *, now: float | None = None) -> QueueEntry:
        """Takes a rollout out of the queue for good; an attempt that runs is closed as infrastructure.

        Raises `StoreError` for a rollout that is not in the queue or has ended.
        """
        why = rows.readable(reason)
        return self._submit(lambda transaction: work_queue.cancel(transaction, rollout_id, why, now)).result()

    def queue_entries(
        self,
        *,
        run_id: str | None = None,
        ids: Sequence[str] | None = None,
        states: Iterable[RolloutState] | None = None,
    ) -> list[QueueEntry]:
        """Rollouts as the queue sees them, in the order of enqueuing; all, or those that fit everything given."""
        where, values = work_queue.selection(run_id, ids, states)
        return [rows.entry_of(row) for row in self._read("queue", rows.ENTRY_COLUMNS, where, values)]

    def ended_since(self, cursor: int = 0, *, limit: int = 100, run_id: str | None = None) -> EndedRollouts:
        """At most ``limit`` rollouts that ended after the place ``cursor``, in the order in which they ended.

        Start with 0, then give the cursor of the last answer: every rollout that ends is returned once, however
        many end at the same time. The cursor does not move when there is nothing new.
        """
        self._check()
        of_run = "" if run_id is None else "WHERE run_id = ?"
        fetched = self._reading.fetch(
            f"SELECT place, {rows.ENTRY_COLUMNS} FROM ({self._ended}) AS ended {of_run} ORDER BY place LIMIT ?",
            (cursor, *(() if run_id is None else (run_id,)), max(limit, 0)),
        )
        entries = tuple(rows.entry_of(row[1:]) for row in fetched)
        return EndedRollouts(entries, fetched[-1][0] if fetched else cursor)

    # ------------------------------------------------------------------ retention

    def prune(
        self,
        *,
        before: float | None = None,
        run_id: str | None = None,
        keep_last: int | None = None,
        rollout_ids: Collection[str] | None = None,
        dry_run: bool = False,
    ) -> Pruned:
        """Deletes rollouts with all that belongs to them: those that fit everything given.

        ``before`` (Unix seconds): rollouts without activity since; ``run_id``: those of one run; ``rollout_ids``: these;
        ``keep_last``: all but the N most recently active of these. Rollouts that were never added, which calls, spans or
        rewards name, are rollouts too, of no run. With ``before``, no run and no ids, older calls and spans of no rollout are
        deleted as well, with the rewards that name these calls.

        A rollout is deleted whole or not at all; many are deleted in several transactions, so that others can write in
        between. One that waits in the queue or has an open attempt is spared. With ``dry_run`` nothing is deleted.
        Raises `StoreError` when nothing at all is given to choose by.
        """
        require_choice(before, run_id, keep_last, rollout_ids)
        total = Pruned()
        active = [rollout for rollout in self._last_active(run_id) if rollout_ids is None or rollout[0] in rollout_ids]
        doomed = chosen(active, before, keep_last)
        for first in range(0, len(doomed), ROLLOUTS_A_PORTION):
            ids = doomed[first : first + ROLLOUTS_A_PORTION]
            total += self._submit(
                lambda transaction, ids=ids: retention.delete_rollouts(transaction, ids, self._tables, dry_run=dry_run),
                alone=True,
            ).result()
        if before is not None and run_id is None and rollout_ids is None:
            total += self._submit(
                lambda transaction: retention.delete_unattributed(transaction, before, dry_run=dry_run), alone=True
            ).result()
        return total

    def vacuum(self) -> None:
        """Gives the space of what was deleted back to the system. Writers may have to wait for as long as it takes."""
        raise NotImplementedError

    def statistics(self) -> StoreStatistics:
        """Counts what is in the store, and how much space it takes."""
        self._check()
        ((rollouts, attempts, still_open, calls, rewards, spans),) = self._reading.fetch(retention.COUNTS)
        ((size, free),) = self._reading.fetch(self._size)
        active = self._last_active(None)
        states = self._reading.fetch("SELECT state, count(*) FROM queue GROUP BY state")
        times = sorted(at for _, at in active if at)
        return StoreStatistics(
            rollouts=rollouts,
            named_only=len(active) - rollouts,
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

    def unopened_attempts(self) -> list[Attempt]:
        """Attempts that calls and spans name and that nobody opened, in the order in which they began.

        ``started_at`` is when the first call or span began; ``ended_at`` and ``outcome`` are None. What names no attempt
        belongs to the first.
        """
        self._check()
        return [Attempt(*row) for row in self._reading.fetch(retention.UNOPENED)]

    def _last_active(self, run_id: str | None) -> list[tuple[str, float]]:
        self._check()
        where, values = ("", ()) if run_id is None else (retention.OF_RUN, (run_id,))
        return [(row[0], row[1]) for row in self._reading.fetch(retention.LAST_ACTIVE.format(where=where), values)]
