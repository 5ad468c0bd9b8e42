"""The store for tests: in memory, with everything that the others do."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

from lgov_core.errors import StoreError
from lgov_core.store import encoding, rows
from lgov_core.store.memory_traces import MemoryPlace, MemoryTraces, close_attempt, move
from lgov_core.store.retention import Pruned, StoreStatistics, chosen, require_choice
from lgov_core.store.work import (
    Claim,
    EndedRollouts,
    QueueEntry,
    RolloutConfig,
    RolloutState,
    require_lease,
    require_move,
)
from lgov_core.types import Attempt, Outcome, Rollout

_WAITS = (RolloutState.QUEUED, RolloutState.REQUEUED)


class MemoryStore(MemoryTraces):
    """A `RolloutQueue` in the memory of this process; see `MemoryTraces`. ``open_store("memory://")`` makes one."""

    # ------------------------------------------------------------------ the queue

    def enqueue(
        self, rollouts: Sequence[Rollout], config: RolloutConfig | None = None, *, now: float | None = None
    ) -> None:
        """Adds rollouts to the store and to the queue. An id that exists raises `StoreError`; then none is added."""
        at, config = _clock(now), config or RolloutConfig()
        with self._open() as place:
            self.add_rollouts(rollouts)
            for one in rollouts:
                place.queue[one.rollout_id] = QueueEntry(
                    one.rollout_id, one.run_id, RolloutState.QUEUED, config, at, at
                )

    def claim(
        self, worker_id: str, limit: int = 1, *, lease_s: float, run_id: str | None = None, now: float | None = None
    ) -> list[Claim]:
        """Hands out at most ``limit`` rollouts that wait, and opens an attempt of each. See `RolloutQueue.claim`."""
        require_lease(lease_s)
        at = _clock(now)
        with self._open() as place:
            self.expire(now=at)
            waiting = [
                one
                for one in place.queue.values()
                if one.state in _WAITS and one.available_at <= at and run_id in (None, one.run_id)
            ]
            return [_hand_out(place, one, worker_id, lease_s, at) for one in waiting[: max(limit, 0)]]

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
        asked, at = None if attempts is None else set(attempts), _clock(now)
        held: list[Attempt] = []
        with self._open() as place:
            for one in list(place.queue.values()):
                mine = one.state is RolloutState.RUNNING and one.worker_id == worker_id
                late = one.deadline is not None and at > one.deadline
                if mine and not late and (asked is None or (one.rollout_id, one.attempt) in asked):
                    place.queue[one.rollout_id] = replace(one, lease_until=one.config.lease_until(at, lease_s))
                    held.append(place.attempts[one.rollout_id, one.attempt])
        return held

    def expire(self, *, now: float | None = None) -> list[Attempt]:
        """Closes each attempt of the queue whose time or lease has run out. See `RolloutQueue.expire`."""
        at = _clock(now)
        closed: list[Attempt] = []
        with self._open() as place:
            for one in list(place.queue.values()):
                ends = [end for end in (one.lease_until, one.deadline) if end is not None]
                if one.state is RolloutState.RUNNING and min(ends) < at:
                    outcome, reason = one.lapse(at)
                    closed.append(close_attempt(place, one.rollout_id, one.attempt, outcome, at, reason))
        return closed

    def cancel(self, rollout_id: str, reason: str, *, now: float | None = None) -> QueueEntry:
        """Takes a rollout out of the queue for good. See `RolloutQueue.cancel`."""
        at, why = _clock(now), encoding.readable(reason)
        with self._open() as place:
            found = place.queue.get(rollout_id)
            if found is None:
                raise StoreError(
                    f"there is no rollout {rollout_id} in the queue", hint="only what was enqueued can be cancelled"
                )
            require_move(rollout_id, found.state, RolloutState.CANCELLED)
            if found.state is RolloutState.RUNNING:
                outcome, said = Outcome.INFRASTRUCTURE, f"cancelled: {why}"
                close_attempt(place, rollout_id, found.attempt, outcome, at, said, then=RolloutState.CANCELLED)
                place.queue[rollout_id] = replace(place.queue[rollout_id], reason=why)
            else:
                move(place, found, RolloutState.CANCELLED, at, why)
            return place.queue[rollout_id]

    def queue_entries(
        self,
        *,
        run_id: str | None = None,
        ids: Sequence[str] | None = None,
        states: Iterable[RolloutState] | None = None,
    ) -> list[QueueEntry]:
        """Rollouts as the queue sees them, in the order of enqueuing; all, or those that fit everything given."""
        wanted = None if states is None else set(states)
        with self._open() as place:
            return [
                one
                for one in place.queue.values()
                if run_id in (None, one.run_id)
                and (ids is None or one.rollout_id in ids)
                and (wanted is None or one.state in wanted)
            ]

    def ended_since(self, cursor: int = 0, *, limit: int = 100, run_id: str | None = None) -> EndedRollouts:
        """Rollouts that ended after the place ``cursor``. See `RolloutQueue.ended_since`."""
        with self._open() as place:
            found = [
                (at, place.queue[rollout_id])
                for at, rollout_id in place.ended.items()
                if at > cursor and run_id in (None, place.queue[rollout_id].run_id)
            ][: max(limit, 0)]
        return EndedRollouts(tuple(entry for _, entry in found), found[-1][0] if found else cursor)

    # ------------------------------------------------------------------ retention

    def prune(
        self,
        *,
        before: float | None = None,
        run_id: str | None = None,
        keep_last: int | None = None,
        dry_run: bool = False,
    ) -> Pruned:
        """Deletes rollouts with all that belongs to them: those that fit everything given. See `Retention.prune`."""
        require_choice(before, run_id, keep_last)
        with self._open() as place:
            picked = set(chosen(_last_heard(place, run_id).items(), before, keep_last))
            runs = {one.rollout_id for one in place.attempts.values() if one.ended_at is None}
            runs |= {one.rollout_id for one in place.queue.values() if not one.state.ended}
            going, spared = picked - runs, picked & runs
            old = before if before is not None and run_id is None else None

            def goes(rollout_id: str | None, at: float | None) -> bool:
                return rollout_id in going or (rollout_id is None and old is not None and at is not None and at < old)

            kept = MemoryPlace(
                rollouts={key: row for key, row in place.rollouts.items() if key not in going},
                attempts={key: one for key, one in place.attempts.items() if key[0] not in going},
                calls={
                    key: row
                    for key, row in place.calls.items()
                    if not goes(row[rows.ROLLOUT_ID], rows.call_of(row).ended_at)
                },
                spans={
                    key: row
                    for key, row in place.spans.items()
                    if not goes(row[5], row[2] if row[3] is None else row[3])
                },
            )
            deleted_calls = {key[0] for key in place.calls.keys() - kept.calls.keys()}
            kept.rewards = {
                key: row
                for key, row in place.rewards.items()
                if row[3] not in going and not (row[3] is None and row[5] in deleted_calls)
            }
            pruned = Pruned(
                len(going),
                len(place.attempts) - len(kept.attempts),
                len(place.calls) - len(kept.calls),
                len(place.rewards) - len(kept.rewards),
                len(place.spans) - len(kept.spans),
                len(spared),
            )
            if not dry_run:
                place.rollouts, place.attempts, place.calls = kept.rollouts, kept.attempts, kept.calls
                place.rewards, place.spans = kept.rewards, kept.spans
                place.queue = {key: one for key, one in place.queue.items() if key not in going}
                place.ended = {at: rollout_id for at, rollout_id in place.ended.items() if rollout_id not in going}
            return pruned

    def vacuum(self) -> None:
        """Does nothing: what was deleted takes no room."""
        self._check()

    def statistics(self) -> StoreStatistics:
        """What is in the store; the room that it takes is not known, and said to be 0."""
        with self._open() as place:
            heard = _last_heard(place, None)
            times = sorted(at for at in heard.values() if at)
            states = [one.state for one in place.queue.values()]
            return StoreStatistics(
                rollouts=len(place.rollouts),
                unannounced=len(heard) - len(place.rollouts),
                attempts=len(place.attempts),
                open_attempts=sum(one.ended_at is None for one in place.attempts.values()),
                calls=len(place.calls),
                rewards=len(place.rewards),
                spans=len(place.spans),
                size_bytes=0,
                free_bytes=0,
                oldest=times[0] if times else None,
                newest=times[-1] if times else None,
                queue={state: states.count(state) for state in dict.fromkeys(states)},
            )

    def unannounced(self) -> list[Attempt]:
        """Attempts that calls and spans name and nobody opened. See `Retention.unannounced`."""
        began: dict[tuple[str, int], float] = {}
        for one in (*self.calls(), *self.spans()):
            if one.rollout_id is not None:
                key = one.rollout_id, one.attempt or 1
                began[key] = min(one.started_at, began.get(key, one.started_at))
        with self._open() as place:
            new = [Attempt(*key, at) for key, at in began.items() if key not in place.attempts]
        return sorted(new, key=lambda one: (one.started_at, one.rollout_id, one.attempt))


def _hand_out(place: MemoryPlace, waiting: QueueEntry, worker_id: str, lease_s: float, now: float) -> Claim:
    require_move(waiting.rollout_id, waiting.state, RolloutState.RUNNING)
    attempt = Attempt(waiting.rollout_id, waiting.attempt + 1, now)
    config = waiting.config
    lease_until, deadline = config.lease_until(now, lease_s), config.deadline(now)
    place.attempts[attempt.rollout_id, attempt.attempt] = attempt
    place.queue[attempt.rollout_id] = replace(
        waiting,
        state=RolloutState.RUNNING,
        attempt=attempt.attempt,
        outcome=None,
        worker_id=worker_id,
        lease_until=lease_until,
        deadline=deadline,
        reason=None,
    )
    return Claim(rows.rollout_of(place.rollouts[attempt.rollout_id]), attempt, config, lease_until, deadline)


def _last_heard(place: MemoryPlace, run_id: str | None) -> dict[str, float]:
    """When each rollout that anything names was last heard of; with ``run_id`` only those of the run."""
    heard: dict[str, float] = {}

    def hear(rollout_id: str | None, at: float) -> None:
        if rollout_id is not None:
            heard[rollout_id] = max(at, heard.get(rollout_id, at))

    announced = {key: rows.rollout_of(row) for key, row in place.rollouts.items()}
    for one in announced.values():
        hear(one.rollout_id, one.created_at)
    for one in place.attempts.values():
        hear(one.rollout_id, one.started_at if one.ended_at is None else one.ended_at)
    for row in place.calls.values():
        hear(row[rows.ROLLOUT_ID], rows.call_of(row).ended_at)
    for row in place.spans.values():
        hear(row[5], row[2] if row[3] is None else row[3])
    for row in place.rewards.values():
        hear(row[3], 0.0)
    if run_id is None:
        return heard
    return {key: at for key, at in heard.items() if key in announced and announced[key].run_id == run_id}


def _clock(now: float | None) -> float:
    return time.time() if now is None else now
