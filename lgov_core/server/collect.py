"""Has rollouts run by clients: puts them into the store's queue and waits until they have ended."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Final

from lgov_core.errors import StoreError
from lgov_core.store import QueueEntry, RolloutConfig, RolloutQueue, RolloutState
from lgov_core.types import Attempt, Outcome, Rollout

#: Seconds between two polls of the queue when no attempt is reported.
_LOOK_S: Final = 0.5


class Stopped(Exception):
    """The run was asked to end; nothing is wrong."""


class QueueCollector:
    """A `Collector` over the queue of ``store``.

    When ``stopped`` says so while it waits, what has not ended is cancelled and `Stopped` is raised. `wake` may be
    called from any thread, the others from the thread of the loop.
    """

    def __init__(self, store: RolloutQueue, config: RolloutConfig, stopped: Callable[[], bool]) -> None:
        self._store, self._config, self._stopped = store, config, stopped
        self._woken = threading.Event()
        #: Grows with everything that is put into the queue: clients that wait for work then claim again.
        self.enqueued = 0

    def wake(self) -> None:
        """Something ended, or a stop was asked for."""
        self._woken.set()

    def gone(self, rollout_ids: Sequence[str]) -> set[str]:
        """Those that ended without anything to train on, and cannot be begun again. See `Collector`."""
        ended = {entry.rollout_id for entry in self._entries(rollout_ids) if entry.state.ended}
        attempts = self._store.attempts(sorted(ended)) if ended else ()
        return ended - {attempt.rollout_id for attempt in attempts if attempt.trainable}

    def collect_rollouts(
        self,
        rollouts: Sequence[Rollout],
        progress: Callable[[int, int], None] | None = None,
        keep: Callable[[Attempt], None] | None = None,
    ) -> list[Attempt]:
        """See `Collector`. Those that the queue has already, from a process that was killed, are waited for."""
        there = {entry.rollout_id for entry in self._entries([rollout.rollout_id for rollout in rollouts])}
        self._store.enqueue([rollout for rollout in rollouts if rollout.rollout_id not in there], self._config)
        self.enqueued += 1
        open_ones = {rollout.rollout_id for rollout in rollouts}
        if progress is not None:
            progress(0, len(rollouts))
        while open_ones:
            self._woken.clear()
            self._store.expire()
            entries = self._store.queue_entries(ids=sorted(open_ones))
            ended = {entry.rollout_id for entry in entries if entry.state.ended}
            open_ones -= ended
            if ended and keep is not None:
                for result in self._results([rollout for rollout in rollouts if rollout.rollout_id in ended]):
                    keep(result)
            if ended and progress is not None:
                progress(len(rollouts) - len(open_ones), len(rollouts))
            if self._stopped():
                self._cancel(open_ones)
                raise Stopped
            if open_ones:
                self._woken.wait(_LOOK_S)
        return self._results(rollouts)

    def cancel_left(self, run_id: str, but: Collection[str] = ()) -> None:
        """Cancels what an earlier process of the same run left in the queue, ``but`` for these."""
        waiting = (RolloutState.QUEUED, RolloutState.REQUEUED, RolloutState.RUNNING)
        ids = {entry.rollout_id for entry in self._store.queue_entries(run_id=run_id, states=waiting)} - set(but)
        self._cancel(ids)

    def _entries(self, rollout_ids: Sequence[str]) -> list[QueueEntry]:
        return self._store.queue_entries(ids=list(rollout_ids)) if rollout_ids else []

    def _cancel(self, rollout_ids: set[str]) -> None:
        for rollout_id in rollout_ids:
            try:
                self._store.cancel(rollout_id, "the training was stopped")
            except StoreError:  # it ended in the meantime
                continue

    def _results(self, rollouts: Sequence[Rollout]) -> list[Attempt]:
        last: dict[str, Attempt] = {}
        for attempt in self._store.attempts([rollout.rollout_id for rollout in rollouts]):
            if attempt.rollout_id not in last or attempt.attempt > last[attempt.rollout_id].attempt:
                last[attempt.rollout_id] = attempt
        return [_result(rollout, last.get(rollout.rollout_id)) for rollout in rollouts]


def _result(rollout: Rollout, attempt: Attempt | None) -> Attempt:
    """The last attempt at a rollout, with its task and an outcome."""
    if attempt is None:
        attempt = Attempt(rollout.rollout_id, 1, rollout.created_at, error="it was never begun")
    return replace(attempt, task_id=rollout.task_id, outcome=attempt.outcome or Outcome.INFRASTRUCTURE)
