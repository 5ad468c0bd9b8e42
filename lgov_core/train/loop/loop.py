"""The loop: collect rollouts, make transitions, assign credit, update, publish, checkpoint."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lgov_core.errors import TrainError, counted
from lgov_core.gateway.protocol import EngineControl
from lgov_core.store import TraceStore
from lgov_core.train.loop.checkpoint import Seal
from lgov_core.train.loop.collecting import (
    CollectedAhead,
    OpenStep,
    RolloutCollector,
    RolloutTask,
    StepRollouts,
    new_rollouts,
)
from lgov_core.train.loop.figures import busy_seconds, policy_figures, reply_warnings, rollout_endings, rollout_seconds
from lgov_core.train.loop.policy_model import PolicyModel
from lgov_core.train.loop.sampling import (
    Round,
    Sampled,
    check_extra_groups,
    sample_groups,
)
from lgov_core.train.loop.training_run import Learner, Resumed, TrainingRun
from lgov_core.transitions import CreditRules, DataFinding, Selection, TransitionSet, build_transitions
from lgov_core.types import Attempt


@dataclass(frozen=True, slots=True)
class Iteration:
    """One step of the loop. Durations in seconds.

    ``results`` are those of the step's tasks, then those of further tasks, of which ``used`` rollouts are in the update;
    ``mean_return`` (bounded, over usable rollouts; None without) and ``diagnostics`` are of the former only. ``groups`` are
    `Sampled.figures`, ``update`` the learner's metrics. ``recovered`` rollouts were collected before the run was killed;
    ``collect_s`` is how long the update waited for rollouts. ``staleness`` is the mean, ``staleness_max`` the maximum number
    of versions published between a call and the update.
    """

    step: int
    results: Sequence[Attempt]
    used: int
    mean_return: float | None
    update: Any
    diagnostics: Mapping[str, int]
    collect_s: float
    update_s: float
    recovered: int = 0
    staleness: float = 0.0
    staleness_max: int = 0
    groups: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(eq=False, kw_only=True)
class TrainingLoop:
    """Runs steps of a training; each stage is a value or a function that can be used without it.

    ``folder`` gets what `TrainingRun` (at ``run``) writes, and ``open/`` with what was collected of the step in
    progress. ``selection`` says whose calls are trained on (default: everybody's). With ``max_staleness`` above 0 the
    rollouts of that many later updates are collected in a thread while the model updates: a call is at most that many
    versions older than its update, and weights are swapped during a rollout. With ``max_extra_groups`` above 0, at most
    that many groups of further tasks replace those that are alike (`lgov_core.train.loop.sampling`). The other
    parameters are those of `TrainingRun`. Call from one thread.
    """

    run_id: str
    policy: PolicyModel
    learner: Learner
    engine: EngineControl
    store: TraceStore
    pool: RolloutCollector
    folder: Path
    credit: CreditRules = field(default_factory=CreditRules)
    selection: Selection = field(default_factory=Selection)
    checkpoint_every: int = 5
    keep_weights: bool = False
    seal: Seal | None = None
    pause_updates: bool = False
    max_staleness: int = 0
    max_extra_groups: int = 0

    def __post_init__(self) -> None:
        if self.max_staleness < 0:
            raise TrainError(f"max_staleness must be at least 0, not {self.max_staleness}")
        check_extra_groups(self.max_extra_groups, self.credit)
        self.run = TrainingRun(
            run_id=self.run_id,
            policy=self.policy,
            learner=self.learner,
            engine=self.engine,
            folder=self.folder,
            checkpoint_every=self.checkpoint_every,
            keep_weights=self.keep_weights,
            seal=self.seal,
            pause_updates=self.pause_updates,
        )
        self._ahead: CollectedAhead[tuple[StepRollouts, list[Attempt]]] = CollectedAhead()
        self._versions = [self.engine.weights_version]

    @property
    def done(self) -> int:
        """Number of updates made."""
        return self.run.done

    def resume(self) -> Resumed:
        """Continues where the run was killed (see `TrainingRun.resume`)."""
        used = max((call.weights_version or 0 for call in self.store.calls()), default=0)
        resumed = self.run.resume(used_version=used)
        for number in range(1, self.done + 1):
            self._step(number).end()
        self._versions = [self.engine.weights_version]
        return resumed

    def open_rollouts(self) -> set[str]:
        """The rollouts of the updates that are being collected: a killed run's, after `resume`."""
        later = (int(path.stem.removeprefix("step-")) for path in (self.run.folder / "open").glob("step-*.jsonl"))
        return {rollout_id for number in later if number > self.done for rollout_id in self._step(number).rollout_ids()}

    def collect(
        self, tasks: Sequence[RolloutTask], group: int, progress: Callable[[int, int], None] | None = None
    ) -> list[Attempt]:
        """Runs ``group`` rollouts of every task, after what is being collected ahead; results in the order of tasks."""
        rollouts = new_rollouts(self.run.run_id, tasks, group)
        with self._ahead.collecting:
            return self.pool.collect_rollouts(rollouts, progress)

    def iterate(
        self,
        tasks: Sequence[RolloutTask],
        group: int,
        progress: Callable[[str, int, int], None] | None = None,
        figures: Callable[[Sequence[Attempt]], Mapping[str, Any]] | None = None,
        upcoming: Sequence[Sequence[RolloutTask]] = (),
        further: Sequence[RolloutTask] = (),
    ) -> Iteration:
        """Collects, updates, publishes; every ``checkpoint_every`` steps writes a checkpoint.

        Of a step in which the run was killed, only what is missing is collected, if the tasks are the same.
        ``upcoming`` are the tasks of the next steps, for ``max_staleness``: a step that is then called with other tasks
        collects again, and a failure ahead is retried at the step itself. ``further`` are tasks, in order, for groups
        in place of alike ones; they run at their step, with the weights of then. ``progress(stage, done, total)`` is
        called as stages proceed. ``figures`` makes more JSON values of results, for the step's line in
        ``metrics.jsonl``, which has those of ``tasks``, and under ``further`` those of further groups.
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
        asked_figures = self._figures(sampled.asked, figures)
        staleness, staleness_max = self._staleness(sampled.batch)
        groups = sampled.figures() if self.credit.compares_groups else {}
        line_figures = {
            "recovered": rollouts.recovered,
            "collect_s": round(collect_s, 3),
            "staleness": staleness,
            "staleness_max": staleness_max,
            **groups,
            **asked_figures,
            **({} if sampled.extra is None else {"further": self._figures(sampled.extra, figures)}),
        }
        metrics = self._learn(sampled.batch, line_figures, lambda done, total: report("update", done, total))
        self._versions.append(self.engine.weights_version)
        return Iteration(
            step=self.done,
            results=sampled.results,
            used=len({transition.rollout_id for transition in sampled.batch.transitions}),
            mean_return=asked_figures["mean_return"],
            update=metrics,
            diagnostics=asked_figures["diagnostics"],
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

    def _learn(self, data: TransitionSet, figures: Mapping[str, Any], progress: Callable[[int, int], None]) -> Any:
        step = self._step(self.done + 1)
        try:
            metrics = self.run.learn(data.transitions, figures, progress)
        except TrainError:
            step.end()  # what no update could be made of is not tried a second time
            raise
        step.end()
        return metrics

    def _step(self, number: int) -> OpenStep:
        return OpenStep(self.run.folder / "open" / f"step-{number:06d}.jsonl")

    def _collected(
        self, number: int, tasks: Sequence[RolloutTask], group: int, report: Callable[[str, int, int], None]
    ) -> tuple[StepRollouts, list[Attempt]]:
        """The rollouts that were collected ahead for a step, or are now; with the results of the tasks it was asked to take."""

        def progress(done: int, total: int) -> None:
            report("rollouts", done, total)

        ahead = self._ahead.take(number, (list(tasks), group), progress)
        if ahead is not None:
            return ahead
        with self._ahead.collecting:
            return self._collect_step(self._step(number), tasks, group, progress)

    def _sampled(
        self,
        rollouts: StepRollouts,
        first: Sequence[Attempt],
        further: Sequence[RolloutTask],
        report: Callable[[str, int, int], None],
    ) -> Sampled:
        def run_next() -> list[Attempt]:
            with self._ahead.collecting:
                return rollouts.run_next(lambda done, total: report("rollouts", done, total))

        def read(results: Sequence[Attempt]) -> Round:
            data = build_transitions(self.store, [result.rollout_id for result in results], self.selection)
            return Round(results, data, self._credited(data))

        return sample_groups(
            rollouts, read(first), lambda: read(run_next()), self._credited, further, self.max_extra_groups
        )

    def _credited(self, data: TransitionSet) -> TransitionSet:
        return self.learner.credit(data, self.credit)

    def _figures(
        self, collected: Round, more: Callable[[Sequence[Attempt]], Mapping[str, Any]] | None
    ) -> dict[str, Any]:
        """Returns what rollouts say about the policy."""
        data, results, dropped = collected.credited, collected.results, self.store.dropped_spans
        endings, warnings = rollout_endings(results, data.transitions, self.store.calls)
        warnings |= reply_warnings(data.transitions, self.store.calls)
        if unknown := data.counts().get(DataFinding.UNKNOWN_CHOICE, 0):
            endings["unknown-choice"] = unknown
            warnings["unknown-choice"] = (
                f"of {counted(unknown, 'reply', 'replies')} with several choices nothing says which one the agent went on with,"
                " so the first is paid: ask for one (n=1), or name the choice in the reward"
            )
        return {
            "rollouts": len(results),
            "endings": endings,
            **policy_figures(data, results, self.credit, dropped_spans=dropped),
            **({"warnings": warnings} if warnings else {}),
            **self._seconds([result.rollout_id for result in results]),
            **(more(results) if more is not None else {}),
        }

    def _seconds(self, ids: Sequence[str]) -> dict[str, Any]:
        """How long rollouts took, by part, and how many tokens were sampled for them."""
        if not ids:
            return {"rollout_s": rollout_seconds((), (), ()), "busy_s": 0.0, "sampled_tokens": 0}
        calls, attempts = list(self.store.calls(ids)), list(self.store.attempts(ids))
        seconds = rollout_seconds(attempts, calls, self.store.spans(ids))
        tokens = sum(len(call.response_ids or ()) for call in calls)
        parts = {part: round(value, 3) for part, value in seconds.items()}
        return {"rollout_s": parts, "busy_s": round(busy_seconds(attempts), 3), "sampled_tokens": tokens}

    def _collect_ahead(self, upcoming: Sequence[Sequence[RolloutTask]], group: int) -> None:
        """Begins the rollouts of the steps after this one, as many as may be made with the weights of now."""
        for number, tasks in enumerate(upcoming[: self.max_staleness], self.done + 2):
            step = self._step(number)
            collect = functools.partial(self._collect_step, step, list(tasks), group)
            self._ahead.begin(number, (list(tasks), group), collect)

    def _staleness(self, data: TransitionSet) -> tuple[float, int]:
        """Of the calls: how many versions of weights came after the one they were made with; mean and most."""
        versions = [
            transition.weights_version for transition in data.transitions if transition.weights_version is not None
        ]
        ages = [sum(version > used for version in self._versions) for used in versions]
        return (sum(ages) / len(ages), max(ages)) if ages else (0.0, 0)

    def _collect_step(
        self, step: OpenStep, tasks: Sequence[RolloutTask], group: int, progress: Callable[[int, int], None]
    ) -> tuple[StepRollouts, list[Attempt]]:
        rollouts = StepRollouts(step, self.pool, self.run.run_id, tasks, group)
        return rollouts, rollouts.run_next(progress)
