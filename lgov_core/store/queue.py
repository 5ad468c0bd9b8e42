"""The contract of a store with a queue of rollouts; every database passes the same tests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from lgov_core.store.protocol import TraceStore
from lgov_core.store.retention import Pruned, StoreStatistics
from lgov_core.store.rollout_states import Claim, EndedRollouts, QueueEntry, RolloutConfig, RolloutState
from lgov_core.types import Attempt, Rollout


class RolloutQueue(TraceStore, Protocol):
    """A trace store that also hands out rollouts to workers, retries them, and deletes what is no longer needed.

    What the trace store promises of writes, threads and processes holds here too: a rollout is handed to one worker
    only, however many ask at the same time. A worker ends its attempt with `TraceStore.finish_attempt`, which moves the
    rollout on in the same transaction: to ``succeeded``, back into the queue while its configuration grants another try,
    or to ``failed``. An attempt that was closed meanwhile (it expired, or was cancelled) cannot be finished any more,
    so a worker that reconnects too late changes nothing. `TraceStore.start_attempt` refuses rollouts of the
    queue; `TraceStore.fail_open_attempts` moves them on as `expire` does, those of living workers too.

    ``now`` (Unix seconds) is the store's own clock when it is None, which for a store on a server is the server's; give
    it only where time is yours to set, as in tests. Every move of a state is one of `STATE_MOVES`, or raises `StoreError`.
    """

    def enqueue(
        self, rollouts: Sequence[Rollout], config: RolloutConfig | None = None, *, now: float | None = None
    ) -> None:
        """Adds rollouts to the store and to the queue, behind those that are there.

        An id that exists already raises `StoreError`; then none is added.
        """
        ...

    def claim(
        self, worker_id: str, limit: int = 1, *, lease_s: float, run_id: str | None = None, now: float | None = None
    ) -> list[Claim]:
        """Hands out at most ``limit`` rollouts that wait, the first enqueued first, and opens an attempt of each.

        Does what `expire` does first, so that nothing waits for a worker that is gone. ``run_id`` keeps to one run.
        Never waits: an empty list when there is nothing. Raises `StoreError` for a lease that is not above 0 seconds.
        """
        ...

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
        ...

    def expire(self, *, now: float | None = None) -> list[Attempt]:
        """Closes each attempt of the queue that has passed its deadline, as timeout, or its lease, as infrastructure.

        Their rollouts wait again while tries remain, and have failed otherwise. Returns the closed attempts, with the
        reason as their ``error``.
        """
        ...

    def cancel(self, rollout_id: str, reason: str, *, now: float | None = None) -> QueueEntry:
        """Takes a rollout out of the queue for good; an attempt that runs is closed as infrastructure.

        Raises `StoreError` for a rollout that is not in the queue or has ended.
        """
        ...

    def queue_entries(
        self,
        *,
        run_id: str | None = None,
        ids: Sequence[str] | None = None,
        states: Iterable[RolloutState] | None = None,
    ) -> list[QueueEntry]:
        """Rollouts as the queue sees them, in the order of enqueuing; all, or those that fit everything given."""
        ...

    def ended_since(self, cursor: int = 0, *, limit: int = 100, run_id: str | None = None) -> EndedRollouts:
        """At most ``limit`` rollouts that ended after the place ``cursor``, in the order in which they ended.

        Start with 0, then give the cursor of the last answer: every rollout that ends is returned once, however
        many end at the same time. The cursor does not move when there is nothing new.
        """
        ...

    def prune(
        self,
        *,
        before: float | None = None,
        run_id: str | None = None,
        keep_last: int | None = None,
        dry_run: bool = False,
    ) -> Pruned:
        """Deletes rollouts with all that belongs to them: those that fit everything given.

        ``before`` (Unix seconds): rollouts without activity since; ``run_id``: those of one run; ``keep_last``: all but the
        N most recently active of these. Rollouts that were never added, which calls, spans or rewards name, are rollouts
        too, of no run. With ``before`` and no run, older calls and spans of no rollout are deleted as well, with the
        rewards that name these calls.

        A rollout is deleted whole or not at all; many are deleted in several transactions, so that others can write in
        between. One that waits in the queue or has an open attempt is spared. With ``dry_run`` nothing is deleted.
        Raises `StoreError` when nothing at all is given to choose by.
        """
        ...

    def vacuum(self) -> None:
        """Gives the space of what was deleted back to the system. Writers may have to wait for as long as it takes."""
        ...

    def statistics(self) -> StoreStatistics:
        """What is in the store, and how much space it takes."""
        ...

    def unannounced(self) -> list[Attempt]:
        """Attempts that calls and spans name and that were never opened, in the order in which they began.

        ``started_at`` is when the first call or span began; ``ended_at`` and ``outcome`` are None. What names no attempt
        belongs to the first.
        """
        ...
