"""Measures a model on held-out tasks with an agent, and compares two evaluations of the same tasks.

Replies are sampled as in training. Means have 95 % intervals; a comparison says which tasks were fixed, which broke, and the
paired difference.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lgov_core.air import RuleSet
from lgov_core.client.attempts import Agent, AgentRunner
from lgov_core.client.wire import Report
from lgov_core.errors import TrainError
from lgov_core.governance import Governance
from lgov_core.train.loop.figures import Estimate, grouped_interval, mean_interval, share_interval
from lgov_core.types import Outcome, Rollout, new_id

if TYPE_CHECKING:
    from lgov_core.models import LanguageModel

EVALUATION_FILE: Final = "evaluation.json"
_NUMBER: Final = {"type": ["number", "null"]}
_MEASURED: Final = {
    "lost": {"type": "integer", "minimum": 0},
    "violation_rate": {"type": "object", "properties": {"mean": _NUMBER}},
}
_TASK: Final = {
    "type": "object",
    "required": ["task", "rollouts", "rewards", "succeeded"],
    "properties": {
        "rollouts": {"type": "integer"},
        "rewards": {"type": "object", "additionalProperties": {"type": "number"}},
        "succeeded": _NUMBER,
    },
}
#: What is read of a report here and by `lgov models promote`, as a JSON schema.
EVALUATION_SCHEMA: Final = {
    "type": "object",
    "required": ["by_task"],
    "properties": {
        **_MEASURED,
        "start": {"type": "object", "properties": _MEASURED},
        "difference": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "required": ["low", "high"],
                "properties": {"low": _NUMBER, "high": _NUMBER},
            },
        },
        "policy": {"type": ["object", "null"]},
        "by_task": {"type": "array", "items": _TASK},
    },
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """``fixed`` and ``broken`` are tasks (by number and text) whose share of successes rose or fell, with both shares.

    ``same`` counts the others, and ``lost`` the tasks that have no usable rollout in one of the two. ``difference`` is the
    second evaluation minus the first, by channel, paired by task.
    """

    fixed: tuple[Mapping[str, Any], ...]
    broken: tuple[Mapping[str, Any], ...]
    same: int
    lost: int
    difference: Mapping[str, Estimate]

    def as_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "fixed": list(self.fixed),
            "broken": list(self.broken),
            "same": self.same,
            "lost": self.lost,
            "difference": {name: interval.as_json() for name, interval in self.difference.items()},
        }


def read_evaluation(path: Path) -> dict[str, Any]:
    """The report that `lgov models eval` left in a folder, or in the file itself. Raises `TrainError`."""
    import fastjsonschema

    file = path / EVALUATION_FILE if path.is_dir() else path
    try:
        report: Any = json.loads(file.read_text("utf-8"), parse_constant=_finite, parse_float=_finite)
        fastjsonschema.compile(EVALUATION_SCHEMA)(report)
    except (OSError, ValueError, RecursionError) as error:  # fastjsonschema's errors are ValueErrors
        raise TrainError(
            f"{file} is not an evaluation: {error}", hint="name the --folder of lgov models eval"
        ) from error
    return report


def _finite(number: str) -> float:
    if not math.isfinite(float(number)):
        raise ValueError(f"{number} is not a finite number")
    return float(number)


def compare(before: Mapping[str, Any], after: Mapping[str, Any]) -> Comparison:
    """Raises `TrainError` when the two are not of the same tasks."""
    first_tasks, second_tasks = before["by_task"], after["by_task"]
    if before.get("tasks_sha256") != after.get("tasks_sha256") or len(first_tasks) != len(second_tasks):
        raise TrainError("the two evaluations are of different tasks", hint="run lgov models eval on the same file")
    flipped: dict[bool, list[Mapping[str, Any]]] = {True: [], False: []}
    gaps: dict[str, list[float]] = {}
    same = lost = 0
    for number, (first, second) in enumerate(zip(first_tasks, second_tasks, strict=True)):
        if first["succeeded"] is None or second["succeeded"] is None:
            lost += 1
            continue
        for channel in {*first["rewards"], *second["rewards"]}:
            gap = second["rewards"].get(channel, 0.0) - first["rewards"].get(channel, 0.0)
            gaps.setdefault(channel, []).append(gap)
        if first["succeeded"] == second["succeeded"]:
            same += 1
            continue
        about = {"number": number, "task": first["task"], "before": first["succeeded"], "after": second["succeeded"]}
        flipped[second["succeeded"] > first["succeeded"]].append(about)
    difference = {name: mean_interval(gaps[name]) for name in sorted(gaps)}
    return Comparison(tuple(flipped[True]), tuple(flipped[False]), same, lost, difference)


@dataclass(frozen=True, slots=True)
class Score:
    """The usable samples of one task: rewards by channel, success, violations, model calls. ``lost`` counts the others
    (infrastructure, timeout).
    """

    rewards: tuple[Mapping[str, float], ...] = ()
    succeeded: tuple[bool, ...] = ()
    violated: tuple[bool, ...] = ()
    calls: tuple[int, ...] = ()
    lost: int = 0


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """The scores of tasks, in their order, and what they come to. ``store`` holds every rollout."""

    scores: tuple[Score, ...]
    store: str

    def reward(self, channel: str) -> Estimate:
        """The mean reward of a rollout in a channel; rollouts that earned nothing there count as 0."""
        return grouped_interval(
            {
                str(n): [by_channel.get(channel, 0.0) for by_channel in score.rewards]
                for n, score in enumerate(self.scores)
            }
        )

    @property
    def channels(self) -> list[str]:
        """All channels in which anything was earned."""
        return sorted({name for score in self.scores for rewards in score.rewards for name in rewards})

    def as_json(self) -> dict[str, Any]:
        """Everything as JSON values; each number with its interval."""
        success = {str(n): score.succeeded for n, score in enumerate(self.scores)}
        violated = {str(n): score.violated for n, score in enumerate(self.scores)}
        calls = {str(n): [float(count) for count in score.calls] for n, score in enumerate(self.scores)}
        return {
            "tasks": len(self.scores),
            "rollouts": sum(len(score.rewards) for score in self.scores),
            "lost": sum(score.lost for score in self.scores),
            "rewards": {name: self.reward(name).as_json() for name in self.channels},
            "succeeded": share_interval(success).as_json(),
            "violation_rate": share_interval(violated).as_json(),
            "calls": grouped_interval(calls).as_json(),
            "store": self.store,
        }

    def by_task(self, tasks: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Of each task its text, usable rollouts, mean rewards, and the shares that succeeded and attempted a violation."""
        return [
            {
                "task": dict(task),
                "rollouts": len(score.rewards),
                "rewards": {name: _mean(score.rewards, name) for name in self.channels} if score.rewards else {},
                "succeeded": sum(score.succeeded) / len(score.succeeded) if score.succeeded else None,
                "violated": sum(score.violated) / len(score.violated) if score.violated else None,
            }
            for task, score in zip(tasks, self.scores, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class EvaluationPlan:
    """How to measure: ``samples`` rollouts of each task, ``workers`` at a time, each tried ``max_attempts`` times at most.

    ``policy`` is a policy file under which installed frameworks are governed; ``rules`` reward single calls (AIR).
    """

    samples: int = 1
    workers: int = 4
    timeout_s: float = 600.0
    max_attempts: int = 3
    max_new_tokens: int = 256
    max_batch: int = 64
    seed: int = 0
    policy: Path | None = None
    rules: RuleSet | None = field(default=None, repr=False)


def evaluate(
    model: LanguageModel,
    tasks: Sequence[Mapping[str, Any]],
    agent: Agent,
    folder: Path,
    plan: EvaluationPlan | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> EvaluationResult:
    """Runs ``agent(resource, task)`` on every task with ``model`` behind an endpoint of this process.

    ``folder`` gets the store and, under a policy, the audit record. ``progress(done, total)`` is called after each
    rollout. Raises `LgovError` for what cannot be set up; what an agent does is an outcome. On Ctrl-C attempts are
    abandoned, and KeyboardInterrupt propagates.
    """
    from lgov_core.server.local import RolloutPlan, open_rollouts
    from lgov_core.train.engines.vllm_engine import PolicyEngine

    plan = plan or EvaluationPlan()
    folder.mkdir(parents=True, exist_ok=True)
    governance = Governance.from_settings().under(plan.policy, folder / "audit.db")
    engine = PolicyEngine(model, max_batch=plan.max_batch, max_new_tokens=plan.max_new_tokens, seed=plan.seed)
    run_id = new_id("eval")
    samples = [
        Rollout(new_id("ro"), f"task-{number:06d}", run_id, {"task": dict(task), "mode": "test"})
        for number, task in enumerate(tasks)
        for _ in range(plan.samples)
    ]
    reports: dict[str, list[tuple[Report, int]]] = {rollout.task_id: [] for rollout in samples}
    with (
        open_rollouts(
            engine,
            folder,
            lambda url: AgentRunner(agent, endpoint=url, governance=governance, rules=plan.rules, content=True),
            model=model.name,
            plan=RolloutPlan(plan.workers, plan.timeout_s, plan.max_attempts),
        ) as rollouts,
        contextlib.closing(rollouts.run(samples)) as running,
    ):
        for done, (rollout, report, attempt) in enumerate(running, 1):
            calls = sum(call.attempt == attempt for call in rollouts.store.calls([rollout.rollout_id]))
            reports[rollout.task_id].append((report, calls))
            if progress is not None:
                progress(done, len(samples))
    return EvaluationResult(tuple(map(_score, reports.values())), str(folder / "store.sqlite"))


def difference(after: EvaluationResult, before: EvaluationResult, channel: str) -> Estimate:
    """The mean of after minus before in a channel, by tasks that both have, with the paired interval."""
    gaps: list[float] = []
    for new, old in zip(after.scores, before.scores, strict=True):
        if new.rewards and old.rewards:
            gaps.append(_mean(new.rewards, channel) - _mean(old.rewards, channel))
    return mean_interval(gaps)


def _score(reports: Sequence[tuple[Report, int]]) -> Score:
    usable = [(report, calls) for report, calls in reports if report.outcome.trainable]
    return Score(
        rewards=tuple(_sums(report) for report, _ in usable),
        succeeded=tuple(report.outcome is Outcome.SUCCEEDED for report, _ in usable),
        violated=tuple(report.counts.get("violations", 0) > 0 for report, _ in usable),
        calls=tuple(calls for _, calls in usable),
        lost=len(reports) - len(usable),
    )


def _sums(report: Report) -> dict[str, float]:
    sums: dict[str, float] = {}
    for reward in report.rewards:
        sums[reward.dimension] = sums.get(reward.dimension, 0.0) + reward.value
    return sums


def _mean(rewards: Sequence[Mapping[str, float]], channel: str) -> float:
    return sum(by_channel.get(channel, 0.0) for by_channel in rewards) / len(rewards)
