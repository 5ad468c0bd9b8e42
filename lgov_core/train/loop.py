"""The loop: collect rollouts, make transitions, assign credit, update, publish, checkpoint; and again."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from lgov_core.errors import TrainError
from lgov_core.store.protocol import TraceStore
from lgov_core.train.ahead import CollectedAhead
from lgov_core.train.checkpoint import Seal
from lgov_core.train.figures import step_figures
from lgov_core.train.jobs import JobResult
from lgov_core.train.open_step import OpenStep
from lgov_core.train.policy_model import PolicyModel
from lgov_core.train.training_run import Learned, Learner, Publisher, Resumed, TrainingRun
from lgov_core.transitions import (
    CreditRules,
    Selection,
    TransitionSet,
    build_transitions,
    rollout_returns,
)
from lgov_core.types import Rollout, new_id

__all__ = ["Collector", "Iteration", "Publisher", "Task", "TrainingLoop"]


class Collector(Protocol):
    """Has rollouts run by agents: worker processes here (`WorkerPool`), or workers elsewhere that ask for work."""

    def gone(self, rollout_ids: Sequence[str]) -> set[str]:
        """Those of the rollouts of a run that was killed that can neither be gone on with nor be trained on."""
        ...

    def collect_rollouts(
        self,
        rollouts: Sequence[Rollout],
        progress: Callable[[int, int], None] | None = None,
        keep: Callable[[JobResult], None] | None = None,
    ) -> list[JobResult]:
        """Adds the rollouts to the store, waits until all have ended, and returns a result for each, in their order.

        Rollouts that the store has already, from a run that was killed, are gone on with. ``progress(done, total)`` is
        called as they end, and ``keep`` with each result once it is final. Raises `TrainError` when they cannot be run.
        """
        ...


@dataclass(frozen=True, slots=True)
class Task:
    """One task: ``task_id`` names the group, ``payload`` is what the episode runner gets (JSON values)."""

    task_id: str
    payload: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Iteration:
    """One turn of the loop. Durations in seconds; ``mean_return`` after the AIR bound, over usable rollouts.

    ``update`` are the learner's metrics. ``recovered`` rollouts were collected before the run was killed. ``collect_s`` is for
    how long the update waited for its rollouts. ``staleness`` is how many versions of weights were published between a
    call and the update that is made of it, the mean over the calls, and ``staleness_max`` the most.
    """

    step: int
    results: Sequence[JobResult]
    mean_return: float
    update: Any
    diagnostics: Mapping[str, int]
    collect_s: float
    update_s: float
    recovered: int = 0
    staleness: float = 0.0
    staleness_max: int = 0

    def metrics(self) -> dict[str, Any]:
        """All numbers of this iteration as plain JSON values."""
        return {
            "step": self.step,
            "rollouts": len(self.results),
            "mean_return": self.mean_return,
            "collect_s": round(self.collect_s, 3),
            "update_s": round(self.update_s, 3),
            "diagnostics": dict(self.diagnostics),
            "staleness": self.staleness,
            "staleness_max": self.staleness_max,
            **asdict(self.update),
        }


class TrainingLoop:
    """Owns the order of things; every stage is a value or a function that can be used without it.

    ``folder`` gets what `TrainingRun` writes, and ``open/`` with what was collected of the step in progress.
    ``learner``, ``checkpoint_every``, ``keep_weights`` and ``seal`` are those of `TrainingRun`, which is at ``run``.
    ``selection`` says whose calls are trained on: those of some agents, say, while others stay as they are (everything,
    unless given).

    With ``max_staleness`` above 0, rollouts go on while the model updates: those of at most so many later updates are
    collected ahead, in a thread. A call is then made with weights that are at most so many updates older than those that
    are updated from it; 0 is strictly one after the other. Weights are swapped in without waiting for a rollout's end.

    Call from one thread.
    """

    def __init__(
        self,
        *,
        run_id: str,
        policy: PolicyModel,
        learner: Learner,
        engine: Publisher,
        store: TraceStore,
        pool: Collector,
        folder: Path,
        credit: CreditRules | None = None,
        selection: Selection | None = None,
        checkpoint_every: int = 5,
        keep_weights: bool = False,
        seal: Seal | None = None,
        max_staleness: int = 0,
    ) -> None:
        if max_staleness < 0:
            raise TrainError(f"max_staleness must be at least 0, not {max_staleness}")
        self.run = TrainingRun(
            run_id=run_id,
            policy=policy,
            learner=learner,
            engine=engine,
            folder=folder,
            checkpoint_every=checkpoint_every,
            keep_weights=keep_weights,
            seal=seal,
        )
        self.policy = policy
        self.learner = learner
        self.engine = engine
        self.store = store
        self.pool = pool
        self.credit = credit or CreditRules()
        self.selection = selection or Selection()
        self.max_staleness = max_staleness
        self._ahead: CollectedAhead[tuple[list[JobResult], int]] = CollectedAhead()
        self._versions = [engine.weights_version]

    @property
    def done(self) -> int:
        """How many updates are done."""
        return self.run.done

    def resume(self) -> Resumed:
        """Goes on where the run was when it was killed (see `TrainingRun.resume`)."""
        used = max((call.weights_version or 0 for call in self.store.calls()), default=0)
        resumed = self.run.resume(used_version=used)
        for number in range(1, self.done + 1):
            self._step(number).end()
        self._versions = [self.engine.weights_version]
        return resumed

    def open_rollouts(self) -> set[str]:
        """The rollouts of the updates that are being collected: a killed run's, after `resume`."""
        later = (int(path.stem.removeprefix("step-")) for path in (self.run.folder / "open").glob("step-*.jsonl"))
        return {one for number in later if number > self.done for one in self._step(number).rollout_ids()}

    def collect(
        self, tasks: Sequence[Task], group: int, progress: Callable[[int, int], None] | None = None
    ) -> list[JobResult]:
        """Runs ``group`` rollouts of every task; results in the order of tasks.

        What is being collected ahead is finished first.
        """
        rollouts = self._rollouts(tasks, group)
        with self._ahead.collecting:
            return self.pool.collect_rollouts(rollouts, progress)

    def iterate(
        self,
        tasks: Sequence[Task],
        group: int,
        progress: Callable[[str, int, int], None] | None = None,
        figures: Callable[[Sequence[JobResult]], Mapping[str, Any]] | None = None,
        upcoming: Sequence[Sequence[Task]] = (),
    ) -> Iteration:
        """Collects, updates, publishes. A checkpoint is written every ``checkpoint_every`` steps.

        When the run was killed while it collected this step, and the tasks are the same, only what is missing is collected.
        ``upcoming`` are the tasks of the steps after this one, as far as they are known: with ``max_staleness`` above 0 their
        rollouts are begun before the update is made. Those of a step that is then called with other tasks are collected for
        nothing, and what fails ahead is tried again when its step has come. ``progress(stage, done, total)`` is called as the
        stages go on. ``figures`` makes more JSON values of the results, for the step's line in ``metrics.jsonl``.
        """
        report = progress or (lambda stage, done, total: None)
        began = time.monotonic()
        self.run.begin()
        results, recovered = self._collected(self.done + 1, tasks, group, report)
        self._collect_ahead(upcoming, group)
        collect_s = time.monotonic() - began
        data = build_transitions(self.store, [result.job.rollout_id for result in results], self.selection)
        data = self.learner.credit(data, self.credit)
        returns = rollout_returns(data.transitions, self.credit)
        mean_return = sum(returns.values()) / len(returns) if returns else 0.0
        staleness, staleness_max = self._staleness(data)
        known = {
            "rollouts": len(results),
            "recovered": recovered,
            "mean_return": mean_return,
            "collect_s": round(collect_s, 3),
            "diagnostics": data.counts(),
            "staleness": staleness,
            "staleness_max": staleness_max,
            **step_figures(data, results, returns=returns, dropped_spans=self.store.dropped_spans),
            **(figures(results) if figures is not None else {}),
        }
        learned = self._learn(data, known, lambda done, total: report("update", done, total))
        self._versions.append(self.engine.weights_version)
        return Iteration(
            step=self.done,
            results=results,
            mean_return=mean_return,
            update=learned.update,
            diagnostics=data.counts(),
            collect_s=collect_s,
            update_s=time.monotonic() - began - collect_s,
            recovered=recovered,
            staleness=staleness,
            staleness_max=staleness_max,
        )

    def checkpoint(self) -> Path | None:
        """Writes the state as it is after the last whole update (see `TrainingRun.checkpoint`)."""
        return self.run.checkpoint()

    def _learn(self, data: TransitionSet, known: Mapping[str, Any], progress: Callable[[int, int], None]) -> Learned:
        step = self._step(self.done + 1)
        try:
            learned = self.run.learn(data.transitions, known, progress)
        except TrainError:
            step.end()  # what no update could be made of is not tried a second time
            raise
        step.end()
        return learned

    def _step(self, number: int) -> OpenStep:
        return OpenStep(self.run.folder / "open" / f"step-{number:06d}.jsonl")

    def _collected(
        self, number: int, tasks: Sequence[Task], group: int, report: Callable[[str, int, int], None]
    ) -> tuple[list[JobResult], int]:
        """What was collected ahead for a step, or is now."""

        def progress(done: int, total: int) -> None:
            report("rollouts", done, total)

        found = self._ahead.take(number, (list(tasks), group), progress)
        if found is not None:
            return found
        with self._ahead.collecting:
            return self._collect_step(self._step(number), tasks, group, progress)

    def _collect_ahead(self, upcoming: Sequence[Sequence[Task]], group: int) -> None:
        """Begins the rollouts of the steps after this one, as many as may be made with the weights of now."""
        for number, tasks in enumerate(upcoming[: self.max_staleness], self.done + 2):
            step = self._step(number)
            collect = functools.partial(self._collect_step, step, list(tasks), group)
            self._ahead.begin(number, (list(tasks), group), collect)

    def _staleness(self, data: TransitionSet) -> tuple[float, int]:
        """Of the calls: how many versions of weights came after the one they were made with; mean and most."""
        made = [one.weights_version for one in data.transitions if one.weights_version is not None]
        ages = [sum(version > used for version in self._versions) for used in made]
        return (sum(ages) / len(ages), max(ages)) if ages else (0.0, 0)

    def _collect_step(
        self, step: OpenStep, tasks: Sequence[Task], group: int, progress: Callable[[int, int], None]
    ) -> tuple[list[JobResult], int]:
        """The results of a step, and how many of them a killed run had collected."""
        found = step.recover([(task.task_id, task.payload) for task in tasks for _ in range(group)])
        if found is None:
            rollouts, known = self._rollouts(tasks, group), {}
            step.begin(rollouts)
        else:
            rollouts, known = found
            gone = self.pool.gone([one.rollout_id for one in rollouts if one.rollout_id not in known])
            if gone:
                rollouts = [
                    replace(one, rollout_id=new_id("ro")) if one.rollout_id in gone else one for one in rollouts
                ]
                step.begin(rollouts)
                for result in known.values():
                    step.add(result)
        missing = [rollout for rollout in rollouts if rollout.rollout_id not in known]
        made = self.pool.collect_rollouts(missing, lambda done, _: progress(len(known) + done, len(rollouts)), step.add)
        results = {**known, **{result.job.rollout_id: result for result in made}}
        return [results[rollout.rollout_id] for rollout in rollouts], len(known)

    def _rollouts(self, tasks: Sequence[Task], group: int) -> list[Rollout]:
        return [
            Rollout(new_id("ro"), task.task_id, self.run.run_id, dict(task.payload))
            for task in tasks
            for _ in range(group)
        ]
