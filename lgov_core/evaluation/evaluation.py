"""Measures a model on held-out tasks with an agent: sampled as in training, with 95 % intervals."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lgov_core.air import RuleSet
from lgov_core.client.attempts import Agent, AgentRunner
from lgov_core.client.wire import Report
from lgov_core.governance import Governance
from lgov_core.models import LanguageModel
from lgov_core.server.rollouts import RolloutPlan, open_rollouts
from lgov_core.train.engines.policy_engine import PolicyEngine
from lgov_core.train.loop.intervals import Estimate, grouped_interval, mean_interval, share_interval
from lgov_core.types import Outcome, Rollout, new_id


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
