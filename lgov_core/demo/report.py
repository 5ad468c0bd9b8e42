"""The demo's report: figures with intervals from what a run left in its folder, as a table, curves and JSON."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from lgov_core.store import TraceStore, open_store
from lgov_core.train.loop.figures import time_spent, wilson_interval
from lgov_core.train.loop.run_files import read_metrics
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
    """The record of an attempt in its report; empty for one that was given up."""
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
    """The records of a run in store, oracle and batches. ``evaluations`` are complete ones of ``evaluated`` rollouts each."""

    def __init__(self, folder: Path, store: TraceStore, *, evaluated: int) -> None:
        self.folder, self.store = folder, store
        self.oracle = OracleRecord(folder / "oracle.jsonl").refresh()
        self._last: dict[str, Attempt] = {}
        for attempt in store.attempts():
            if attempt.rollout_id not in self._last or attempt.attempt > self._last[attempt.rollout_id].attempt:
                self._last[attempt.rollout_id] = attempt
        tests = sorted(
            (test for test in store.rollouts() if test.mode == "test"), key=lambda rollout: rollout.created_at
        )
        # Each evaluation puts all its rollouts into the queue at once; of one that goes on, or was stopped, some never ended.
        parts = [tests[start : start + evaluated] for start in range(0, len(tests), evaluated)]
        self.evaluations = [
            group for group in ([self._attempt(test) for test in group] for group in parts) if None not in group
        ]

    def _attempt(self, rollout: Rollout) -> Attempt | None:
        attempt = self._last.get(rollout.rollout_id)
        if attempt is None or attempt.outcome is None or (attempt.error or "").startswith("cancelled: "):
            return None
        return replace(attempt, task_id=rollout.task_id)

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
class DemoReport:
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


def mean_of(reports: Sequence[DemoReport]) -> dict[str, Any]:
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


def print_table(reports: Sequence[DemoReport], console: Console) -> None:
    """One row per run and moment; a mean row per kind of run when there are several seeds."""
    table = Table(title="Held-out questions, sampled at temperature 1", title_justify="left")
    for name in ("run", ""):
        table.add_column(name)
    measures = (
        "rollouts",
        "accuracy",
        "95 % interval",
        "attempted violations",
        "any denial",
        "executed (oracle)",
        "turns",
    )
    for name in measures:
        table.add_column(name, justify="right")
    for report in reports:
        table.add_row(f"{_kind(report)}, seed {report.seed}", "before", *_cells(report.before))
        table.add_row("", "after", *(["interrupted"] if report.after is None else _cells(report.after)))
    for kind in ("governed", "ungoverned"):
        means = mean_of([report for report in reports if _kind(report) == kind])
        if means and means["seeds"] > 1:
            table.add_row(f"{kind}, mean of {means['seeds']}", "before", "", *_rates(means["before"]))
            table.add_row("", "after", "", *_rates(means["after"]))
    console.print(table)
    for report in reports:
        lines = [
            f"{_kind(report)}, seed {report.seed}: {report.updates} updates on {report.rollouts} rollouts "
            f"in {report.seconds:.0f} s; {report.executed_violations} of {report.oracle_attempts} attempts executed a "
            "violation (oracle), training included.",
            f"  everything is in {report.folder}",
        ]
        if (spent := time_spent(read_metrics(Path(report.folder, "metrics.jsonl")))) is not None:
            lines.insert(1, f"  {spent}")
        if report.denied_rollout is not None:
            show = f"lgov traces show {report.folder}/store.sqlite {report.denied_rollout}"
            lines.append(f"  a denied rollout, step by step: {show}")
        console.print("\n".join(lines), highlight=False, soft_wrap=True)


def _kind(report: DemoReport) -> str:
    return "governed" if report.governed else "ungoverned"


def _cells(evaluation: Evaluation) -> list[str]:
    low, high = evaluation.interval
    return [str(evaluation.rollouts), *_rates(asdict(evaluation), f"{low:.2f} to {high:.2f}")]


def _rates(rates: Mapping[str, Any], interval: str = "") -> list[str]:
    others = [f"{rates[name]:.3f}" for name in ("attempted", "denied", "executed")]
    return [f"{rates['accuracy']:.3f}", interval, *others, f"{rates['mean_turns']:.2f}"]


def as_json(reports: Sequence[DemoReport]) -> dict[str, Any]:
    """All runs and the means, as plain JSON values."""
    return {
        "runs": [asdict(report) for report in reports],
        "mean": {
            kind: mean_of([report for report in reports if _kind(report) == kind])
            for kind in ("governed", "ungoverned")
        },
    }


def draw_curves(folder: Path, *, evaluated: int) -> Path | None:
    """Draws ``curves.png``: accuracy, violations and KL over the updates. None without updates."""
    with contextlib.closing(open_store(str(folder / "store.sqlite"))) as store:
        recorded = Recorded(folder, store, evaluated=evaluated)
        train = recorded.training()
        held_out = [recorded.evaluation(number) for number in range(len(recorded.evaluations))]
    if not train:
        return None
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    steps = [line["step"] for line in train]
    figure, axes = plt.subplots(1, 3, figsize=(13, 3.6), layout="constrained")
    axes[0].plot(steps, [line["accuracy"] for line in train], label="training rollouts")
    low, high = zip(*(line["interval"] for line in train), strict=True)
    axes[0].fill_between(steps, low, high, alpha=0.2)
    points = [
        (step, evaluation.accuracy)
        for step, evaluation in zip((0, steps[-1]), held_out, strict=False)
        if evaluation is not None
    ]
    axes[0].plot(*zip(*points, strict=True), "ko", label="held-out")
    axes[0].set(title="accuracy", xlabel="updates", ylim=(0, 1))
    for number, name, label in (
        (1, "attempted", "attempted"),
        (1, "executed", "executed (oracle)"),
        (2, "kl", "KL to the warm start"),
        (2, "clip_fraction", "clipped share"),
    ):
        axes[number].plot(steps, [line[name] for line in train], label=label)
    axes[1].set(title="rollouts with a violation", xlabel="updates", ylim=(-0.02, 1))
    axes[2].set(title="update", xlabel="updates")
    for axis in axes:
        axis.legend()
    path = folder / "curves.png"
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path
