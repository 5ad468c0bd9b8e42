"""The loop: collect rollouts, make transitions, assign credit, update, publish, checkpoint; and again."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lgov_core.errors import TrainError
from lgov_core.store.protocol import TraceStore
from lgov_core.train.loop.ahead import CollectedAhead
from lgov_core.train.loop.checkpoint import Seal
from lgov_core.train.loop.figures import step_figures
from lgov_core.train.loop.open_step import OpenStep
from lgov_core.train.loop.policy_model import PolicyModel
from lgov_core.train.loop.sampling import Round, Sampled, check_extra_groups, compares_groups, sample_groups
from lgov_core.train.loop.step_rollouts import Collector, StepRollouts, Task, new_rollouts
from lgov_core.train.loop.training_run import Learned, Learner, Publisher, Resumed, TrainingRun
from lgov_core.train.workers.jobs import JobResult
from lgov_core.transitions import (
    CreditRules,
    Selection,
    TransitionSet,
    build_transitions,
    rollout_returns,
)

__all__ = ["Collector", "Iteration", "Publisher", "Task", "TrainingLoop"]


@dataclass(frozen=True, slots=True)
class Iteration:
    """One turn of the loop. Durations in seconds; ``mean_return`` after the AIR bound, over usable rollouts.

    ``results`` are those of the tasks that were asked for, then those of further tasks; ``mean_return`` and ``diagnostics``
    are of the former only, for how many of the latter there are depends on what came out. ``groups`` are the figures of
    `lgov_core.train.loop.sampling.Sampled`. ``update`` are the learner's metrics. ``recovered`` rollouts were
    collected before the
    run was killed. ``collect_s`` is for how long the update waited for its rollouts. ``staleness`` is how many versions of
    weights were published between a call and the update that is made of it, the mean over the calls, and
    ``staleness_max`` the most.
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
    groups: Mapping[str, Any] = field(default_factory=dict[str, Any])

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
            **self.groups,
            **asdict(self.update),
        }


class TrainingLoop:
    """Owns the order of things; every stage is a value or a function that can be used without it.

    ``folder`` gets what `TrainingRun` writes, and ``open/`` with what was collected of the step in progress.
    ``learner``, ``checkpoint_every``, ``keep_weights`` and ``seal`` are those of `TrainingRun`, which is at ``run``.
    ``selection`` says whose calls are trained on: those of some agents, say, while others stay as they are (everything,
    unless given).

    With ``max_staleness`` above 0, rollouts continue while the model updates: those of at most that many later updates are
    collected ahead, in a thread. A call is then at most that many weights versions older than the update that uses
    it; 0 is strictly one after the other. Weights are swapped in without waiting for a rollout's end.

    With ``max_extra_groups`` above 0, groups of further tasks are collected in place of those that are alike, at most so
    many for an update (`lgov_core.train.loop.sampling`).

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
        max_extra_groups: int = 0,
    ) -> None:
        if max_staleness < 0:
            raise TrainError(f"max_staleness must be at least 0, not {max_staleness}")
        check_extra_groups(max_extra_groups, credit or CreditRules())
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
        self.max_extra_groups = max_extra_groups
        self._ahead: CollectedAhead[tuple[StepRollouts, list[JobResult]]] = CollectedAhead()
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
        rollouts = new_rollouts(self.run.run_id, tasks, group)
        with self._ahead.collecting:
            return self.pool.collect_rollouts(rollouts, progress)

    def iterate(
        self,
        tasks: Sequence[Task],
        group: int,
        progress: Callable[[str, int, int], None] | None = None,
        figures: Callable[[Sequence[JobResult]], Mapping[str, Any]] | None = None,
        upcoming: Sequence[Sequence[Task]] = (),
        further: Sequence[Task] = (),
    ) -> Iteration:
        """Collects, updates, publishes. A checkpoint is written every ``checkpoint_every`` steps.

        When the run was killed while it collected this step, and the tasks are the same, only what is missing is collected.
        ``upcoming`` are the tasks of the steps after this one, as far as they are known: with ``max_staleness`` above 0 their
        rollouts are begun before the update is made. Those of a step that is then called with other tasks are collected for
        nothing, and what fails ahead is tried again when its step has come. ``further`` are the tasks, in order, of which
        groups are collected in place of those that are alike; it happens when the step's turn has come, with the weights of
        then, and before anything is collected ahead. ``progress(stage, done, total)`` is called as the stages proceed.
        ``figures`` makes more JSON values of the results, for the step's line in ``metrics.jsonl``. The line's figures are of
        ``tasks``; those of further groups are in it under ``further``.
        """
        report = progress or (lambda stage, done, total: None)
        began = time.monotonic()
        self.run.begin()
        rollouts, first = self._collected(self.done + 1, tasks, group, report)
        if not (self.max_extra_groups or rollouts.pending):
            self._collect_ahead(upcoming, group)
        sampled = self._sampled(rollouts, first, further, report)
        self._collect_ahead(upcoming, group)
        collect_s = time.monotonic() - began
        asked = self._figures(sampled.asked, figures)
        staleness, staleness_max = self._staleness(sampled.batch)
        groups = sampled.figures() if compares_groups(self.credit) else {}
        known = {
            "recovered": rollouts.recovered,
            "collect_s": round(collect_s, 3),
            "staleness": staleness,
            "staleness_max": staleness_max,
            **groups,
            **asked,
            **({} if sampled.extra is None else {"further": self._figures(sampled.extra, figures)}),
        }
        learned = self._learn(sampled.batch, known, lambda done, total: report("update", done, total))
        self._versions.append(self.engine.weights_version)
        return Iteration(
            step=self.done,
            results=sampled.results,
            mean_return=asked["mean_return"],
            update=learned.update,
            diagnostics=asked["diagnostics"],
            collect_s=collect_s,
            update_s=time.monotonic() - began - collect_s,
            recovered=rollouts.recovered,
            staleness=staleness,
            staleness_max=staleness_max,
            groups=groups,
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
    ) -> tuple[StepRollouts, list[JobResult]]:
        """What was collected ahead for a step, or is now; with the results of the tasks it was asked to take."""

        def progress(done: int, total: int) -> None:
            report("rollouts", done, total)

        found = self._ahead.take(number, (list(tasks), group), progress)
        if found is not None:
            return found
        with self._ahead.collecting:
            return self._collect_step(self._step(number), tasks, group, progress)

    def _sampled(
        self,
        rollouts: StepRollouts,
        first: Sequence[JobResult],
        further: Sequence[Task],
        report: Callable[[str, int, int], None],
    ) -> Sampled:
        def run_next() -> list[JobResult]:
            with self._ahead.collecting:
                return rollouts.run_next(lambda done, total: report("rollouts", done, total))

        def read(results: Sequence[JobResult]) -> Round:
            data = build_transitions(self.store, [result.job.rollout_id for result in results], self.selection)
            return Round(results, data, self._credited(data))

        return sample_groups(
            rollouts, read(first), lambda: read(run_next()), self._credited, further, self.max_extra_groups
        )

    def _credited(self, data: TransitionSet) -> TransitionSet:
        return self.learner.credit(data, self.credit)

    def _figures(
        self, collected: Round, more: Callable[[Sequence[JobResult]], Mapping[str, Any]] | None
    ) -> dict[str, Any]:
        """What rollouts say about the policy."""
        data, results = collected.credited, collected.results
        returns = rollout_returns(data.transitions, self.credit)
        return {
            "rollouts": len(results),
            "mean_return": sum(returns.values()) / len(returns) if returns else 0.0,
            "diagnostics": data.counts(),
            **step_figures(data, results, returns=returns, dropped_spans=self.store.dropped_spans),
            **(more(results) if more is not None else {}),
        }

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
    ) -> tuple[StepRollouts, list[JobResult]]:
        rollouts = StepRollouts(step, self.pool, self.run.run_id, tasks, group)
        return rollouts, rollouts.run_next(progress)
