"""The demo's report: a table, curves, and where to look next."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from lgov_core.demo.measure import Evaluation, Recorded, RunReport, mean_of
from lgov_core.store import open_store
from lgov_core.train.loop.metrics_log import read_metrics
from lgov_core.train.loop.time_spent import time_spent


def print_table(reports: Sequence[RunReport], console: Console) -> None:
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


def _kind(report: RunReport) -> str:
    return "governed" if report.governed else "ungoverned"


def _cells(found: Evaluation) -> list[str]:
    low, high = found.interval
    return [str(found.rollouts), *_rates(asdict(found), f"{low:.2f} to {high:.2f}")]


def _rates(rates: Mapping[str, Any], interval: str = "") -> list[str]:
    others = [f"{rates[name]:.3f}" for name in ("attempted", "denied", "executed")]
    return [f"{rates['accuracy']:.3f}", interval, *others, f"{rates['mean_turns']:.2f}"]


def as_json(reports: Sequence[RunReport]) -> dict[str, Any]:
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
    points = [(step, one.accuracy) for step, one in zip((0, steps[-1]), held_out, strict=False) if one is not None]
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
