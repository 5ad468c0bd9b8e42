"""The demo's figures, from what a run left in its folder: rates with intervals."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lgov_core.store import TraceStore
from lgov_core.train.loop.intervals import wilson_interval
from lgov_core.train.loop.metrics_log import read_metrics
from lgov_core.types import Attempt, Rollout


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


def evaluate(results: Sequence[Attempt], violated: Mapping[str, bool]) -> Evaluation:
    """Sums up results; ``violated`` says by rollout id what the oracle saw (in any attempt)."""
    usable = [result for result in results if result.trainable]
    count = len(usable)
    if count == 0:
        return Evaluation(0, math.nan, (0.0, 1.0), math.nan, math.nan, math.nan, math.nan, len(results))
    correct = sum(bool(kept(result).get("correct")) for result in usable)

    def share(name: str) -> float:
        return sum(result.counts.get(name, 0) > 0 for result in usable) / count

    return Evaluation(
        rollouts=count,
        accuracy=correct / count,
        interval=wilson_interval(correct, count),
        attempted=share("violations"),
        denied=share("denied"),
        executed=sum(violated.get(result.rollout_id, False) for result in usable) / count,
        mean_turns=sum(result.counts.get("model_calls", 0) for result in usable) / count,
        infrastructure=len(results) - count,
    )


def kept(attempt: Attempt) -> Mapping[str, Any]:
    """What an attempt's report kept of it; empty for one that was given up."""
    return attempt.result if isinstance(attempt.result, Mapping) else {}


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
                    before = self.violated.get(entry["rollout_id"], False)
                    self.violated[entry["rollout_id"]] = before or entry["violated"]
        return self


class Recorded:
    """What store, oracle and batches have of a run. ``evaluations`` are the complete ones, each of ``evaluated`` rollouts."""

    def __init__(self, folder: Path, store: TraceStore, *, evaluated: int) -> None:
        self.folder, self.store = folder, store
        self.oracle = OracleRecord(folder / "oracle.jsonl").refresh()
        self._last: dict[str, Attempt] = {}
        for attempt in store.attempts():
            if attempt.rollout_id not in self._last or attempt.attempt > self._last[attempt.rollout_id].attempt:
                self._last[attempt.rollout_id] = attempt
        tests = sorted((one for one in store.rollouts() if one.mode == "test"), key=lambda rollout: rollout.created_at)
        # Each evaluation puts all its rollouts into the queue at once; of one that was stopped some were never run.
        parts = [tests[start : start + evaluated] for start in range(0, len(tests), evaluated)]
        self.evaluations = [
            part for part in ([self._attempt(one) for one in part] for part in parts) if None not in part
        ]

    def _attempt(self, rollout: Rollout) -> Attempt | None:
        attempt = self._last.get(rollout.rollout_id)
        stopped = attempt is None or (attempt.error or "").startswith("cancelled: ")
        return None if stopped or attempt is None else replace(attempt, task_id=rollout.task_id)

    def evaluation(self, number: int) -> Evaluation | None:
        """An evaluation of the held-out questions; None where it was not made."""
        if not -len(self.evaluations) <= number < len(self.evaluations):
            return None
        attempts = [attempt for attempt in self.evaluations[number] if attempt is not None]
        return evaluate(attempts, self.oracle.violated)

    def training(self) -> list[dict[str, Any]]:
        """The line of each update in ``metrics.jsonl``, with the fields of the `Evaluation` of its batch's rollouts."""
        # After a resumed run a step may occur twice; the later line counts.
        lines = {line["step"]: line for line in read_metrics(self.folder / "metrics.jsonl") if line["phase"] == "train"}
        return [
            {**line, **asdict(evaluate(self.batch(step), self.oracle.violated))} for step, line in sorted(lines.items())
        ]

    def batch(self, step: int) -> list[Attempt]:
        """The attempts that an update was made of."""
        from pyarrow import parquet

        path = self.folder / "transitions" / f"step-{step:06d}.parquet"
        rows = parquet.read_table(path, columns=["rollout_id", "task_id"]).to_pylist()
        tasks = {row["rollout_id"]: row["task_id"] for row in rows}
        return [replace(self._last[rollout_id], task_id=task_id) for rollout_id, task_id in tasks.items()]

    def denied_rollout(self) -> str | None:
        """A rollout in which something was denied, for the reader to look at."""
        return next((reward.rollout_id for reward in self.store.rewards() if reward.dimension == "compliance"), None)


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
