"""The rollouts of one step: those of its tasks, then rounds of further tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from lgov_core.errors import TrainError
from lgov_core.train.loop.open_step import OpenStep
from lgov_core.types import Attempt, Rollout, new_id

Progress = Callable[[int, int], None]

#: Number of consecutive steps without a usable rollout after which a run has failed.
_MOST_USELESS: Final = 2


class Collector(Protocol):
    """Has rollouts run by agents: by clients that ask for work (`lgov_core.server.collect.QueueCollector`)."""

    def gone(self, rollout_ids: Sequence[str]) -> set[str]:
        """Those of the rollouts of a run that was killed that can neither be resumed nor be trained on."""
        ...

    def collect_rollouts(
        self,
        rollouts: Sequence[Rollout],
        progress: Callable[[int, int], None] | None = None,
        keep: Callable[[Attempt], None] | None = None,
    ) -> list[Attempt]:
        """Adds the rollouts to the store, waits until all have ended, and returns a result for each, in their order.

        Rollouts already in the store, from a killed run, are resumed. ``progress(done, total)`` is called as they end,
        ``keep`` with each final result. Raises `TrainError` when they cannot be run.
        """
        ...


@dataclass(frozen=True, slots=True)
class Task:
    """One task: ``task_id`` names the group, ``payload`` is what the episode runner gets (JSON values)."""

    task_id: str
    payload: Mapping[str, Any]


def new_rollouts(run_id: str, tasks: Sequence[Task], group: int) -> list[Rollout]:
    """``group`` rollouts of every task, in the order of tasks."""
    return [Rollout(new_id("ro"), task.task_id, run_id, dict(task.payload)) for task in tasks for _ in range(group)]


class StepRollouts:
    """The rollouts of a step and their results. A round is written to ``step`` before it is run.

    After a kill, with the same tasks, the rounds on record are resumed: only what is missing is run; ``recovered``
    counts the rest. For one thread at a time; nothing else may use ``pool`` meanwhile. Raises `TrainError`.
    """

    def __init__(self, step: OpenStep, pool: Collector, run_id: str, tasks: Sequence[Task], group: int) -> None:
        self._step, self._pool, self._run_id, self._group = step, pool, run_id, group
        self._run = 0
        self._results: dict[str, Attempt] = {}
        found = step.recover([(task.task_id, task.payload) for task in tasks for _ in range(group)])
        if found is None:
            self._rounds = [new_rollouts(run_id, tasks, group)]
            step.begin(self._rounds)
        else:
            self._rounds, self._results = found.rounds, found.results
            self._replace_gone()
        self.recovered = len(self._results)

    @property
    def pending(self) -> bool:
        """Whether a round is on record that was not run since this was made."""
        return self._run < len(self._rounds)

    @property
    def task_ids(self) -> set[str]:
        """The tasks of all rounds on record."""
        return {one.task_id for rollouts in self._rounds for one in rollouts}

    def run_next(self, progress: Progress) -> list[Attempt]:
        """Runs the next round on record; results in the order of its tasks. ``progress(done, total)`` counts that round."""
        rollouts = self._rounds[self._run]
        missing = [one for one in rollouts if one.rollout_id not in self._results]
        known = len(rollouts) - len(missing)
        made = (
            self._pool.collect_rollouts(missing, lambda done, _: progress(known + done, len(rollouts)), self._step.add)
            if missing or not known
            else ()
        )
        self._results |= {result.rollout_id: result for result in made}
        self._run += 1
        return [self._results[one.rollout_id] for one in rollouts]

    def add_round(self, tasks: Sequence[Task]) -> None:
        """Puts a round of further tasks on record, to be run next."""
        rollouts = new_rollouts(self._run_id, tasks, self._group)
        self._step.extend(rollouts)
        self._rounds.append(rollouts)

    def _replace_gone(self) -> None:
        """New rollouts for those that can neither be resumed nor be trained on."""
        ids = [one.rollout_id for rollouts in self._rounds for one in rollouts]
        gone = self._pool.gone([one for one in ids if one not in self._results])
        if gone:
            self._rounds = [
                [replace(one, rollout_id=new_id("ro")) if one.rollout_id in gone else one for one in rollouts]
                for rollouts in self._rounds
            ]
            self._step.begin(self._rounds, self._results.values())


class UsableSteps:
    """Looks at one step after the other: raises when several steps in a row have no usable rollout."""

    def __init__(self) -> None:
        self._useless = 0

    def check(self, results: Sequence[Attempt]) -> None:
        """Raises `TrainError`, with what most rollouts ended with, once no rollout of two steps in a row could be used."""
        self._useless = 0 if any(result.trainable for result in results) else self._useless + 1
        if self._useless >= _MOST_USELESS:
            errors = Counter(result.error or str(result.outcome) for result in results)
            common, count = next(iter(errors.most_common(1)), ("there were none", 0))
            raise TrainError(f"none of the last {len(results)} rollouts could be used; {count} times: {common}")
