"""The demo's figures: rates with intervals."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lgov_core.train.loop.intervals import wilson_interval
from lgov_core.train.workers.jobs import JobResult


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Held-out rollouts, sampled at temperature 1. Rates are shares of ``rollouts``; ``interval`` is the accuracy's 95 %
    Wilson interval. ``executed`` comes from the oracle alone. ``attempted`` and ``denied`` come from the governor's decisions:
    rollouts with a denial of severity high or critical, and rollouts with any denial (broken SQL included).
    ``infrastructure`` rollouts are not among ``rollouts``.
    """

    rollouts: int
    accuracy: float
    interval: tuple[float, float]
    attempted: float
    denied: float
    executed: float
    mean_turns: float
    infrastructure: int


def evaluate(results: Sequence[JobResult], violated: Mapping[str, bool]) -> Evaluation:
    """Sums up results; ``violated`` says by rollout id what the oracle saw (in any attempt)."""
    usable = [result for result in results if result.outcome.trainable]
    count = len(usable)
    if count == 0:
        return Evaluation(0, math.nan, (0.0, 1.0), math.nan, math.nan, math.nan, math.nan, len(results))
    correct = sum(bool(result.result.get("correct")) for result in usable)

    def share(name: str) -> float:
        return sum(result.counts.get(name, 0) > 0 for result in usable) / count

    return Evaluation(
        rollouts=count,
        accuracy=correct / count,
        interval=wilson_interval(correct, count),
        attempted=share("violations"),
        denied=share("denied"),
        executed=sum(violated.get(result.job.rollout_id, False) for result in usable) / count,
        mean_turns=sum(result.counts.get("model_calls", 0) for result in usable) / count,
        infrastructure=len(results) - count,
    )


class OracleRecord:
    """Reads what the oracle wrote, a line an attempt. Independent of store, audit record and policy."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self.violated: dict[str, bool] = {}
        self.attempts = 0
        self.violations = 0

    def refresh(self) -> OracleRecord:
        """Takes in the lines written since the last call. A half-written last line waits for the next."""
        if self.path.exists():
            with self.path.open("rb") as file:
                file.seek(self._offset)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    self._offset += len(line)
                    entry = json.loads(line)
                    self.attempts += 1
                    self.violations += entry["violated"]
                    known = self.violated.get(entry["rollout_id"], False)
                    self.violated[entry["rollout_id"]] = known or entry["violated"]
        return self


@dataclass(frozen=True, slots=True)
class RunReport:
    """One seed, governed or not. ``executed_violations`` counts attempts over the whole run, training included."""

    seed: int
    governed: bool
    model: str
    folder: str
    before: Evaluation
    after: Evaluation | None
    updates: int
    rollouts: int
    executed_violations: int
    oracle_attempts: int
    seconds: float
    denied_rollout: str | None
    interrupted: bool = False


def mean_of(reports: Sequence[RunReport]) -> dict[str, Any]:
    """Means over seeds of every rate, before and after, and the sum of executed violations."""
    done = [report for report in reports if report.after is not None]
    if not done:
        return {}
    means: dict[str, Any] = {"seeds": len(done)}
    for moment in ("before", "after"):
        evaluations = [getattr(report, moment) for report in done]
        means[moment] = {
            name: sum(getattr(evaluation, name) for evaluation in evaluations) / len(evaluations)
            for name in ("accuracy", "attempted", "denied", "executed", "mean_turns")
        }
    means["accuracy_gain"] = means["after"]["accuracy"] - means["before"]["accuracy"]
    means["executed_violations"] = sum(report.executed_violations for report in done)
    return means
