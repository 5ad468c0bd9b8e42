"""What the demo shows at the end: a table, curves, and where to look next."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from lgov_core.demo.measure import Evaluation, RunReport, mean_of
from lgov_core.train.loop.metrics_log import read_metrics


def print_table(reports: Sequence[RunReport], console: Console) -> None:
    """One row per run and moment; a mean row per kind of run when there are several seeds."""
    table = Table(title="Held-out questions, sampled at temperature 1", title_justify="left")
    for name, justify in (
        ("run", "left"),
        ("", "left"),
        ("rollouts", "right"),
        ("accuracy", "right"),
        ("95 % interval", "right"),
        ("attempted violations", "right"),
        ("any denial", "right"),
        ("executed (oracle)", "right"),
        ("turns", "right"),
    ):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    for report in reports:
        name = f"{'governed' if report.governed else 'ungoverned'}, seed {report.seed}"
        _rows(table, name, report.before, report.after)
    for governed in (True, False):
        kind = [report for report in reports if report.governed is governed]
        means = mean_of(kind)
        if means and means["seeds"] > 1:
            name = f"{'governed' if governed else 'ungoverned'}, mean of {means['seeds']}"
            for moment in ("before", "after"):
                rates = means[moment]
                table.add_row(
                    name if moment == "before" else "",
                    moment,
                    "",
                    f"{rates['accuracy']:.3f}",
                    "",
                    f"{rates['attempted']:.3f}",
                    f"{rates['denied']:.3f}",
                    f"{rates['executed']:.3f}",
                    f"{rates['mean_turns']:.2f}",
                )
    console.print(table)
    for report in reports:
        kind = "governed" if report.governed else "ungoverned"
        console.print(
            f"{kind}, seed {report.seed}: {report.updates} updates on {report.rollouts} rollouts in {report.seconds:.0f} s; "
            f"{report.executed_violations} of {report.oracle_attempts} attempts executed a violation (oracle), "
            f"training included.",
            highlight=False,
            soft_wrap=True,
        )
        console.print(f"  everything is in {report.folder}", highlight=False, soft_wrap=True)
        if report.denied_rollout is not None:
            console.print(
                f"  a denied rollout, step by step: lgov traces show {report.folder}/store.sqlite {report.denied_rollout}",
                highlight=False,
                soft_wrap=True,
            )


def _rows(table: Table, name: str, before: Evaluation, after: Evaluation | None) -> None:
    for moment, found in (("before", before), ("after", after)):
        if found is None:
            table.add_row("", moment, "interrupted")
            continue
        low, high = found.interval
        table.add_row(
            name if moment == "before" else "",
            moment,
            str(found.rollouts),
            f"{found.accuracy:.3f}",
            f"{low:.2f} to {high:.2f}",
            f"{found.attempted:.3f}",
            f"{found.denied:.3f}",
            f"{found.executed:.3f}",
            f"{found.mean_turns:.2f}",
        )


def as_json(reports: Sequence[RunReport]) -> dict[str, Any]:
    """All runs and the means, as plain JSON values."""
    return {
        "runs": [report.as_json() for report in reports],
        "mean": {
            "governed": mean_of([report for report in reports if report.governed]),
            "ungoverned": mean_of([report for report in reports if not report.governed]),
        },
    }


def draw_curves(folder: Path) -> Path | None:
    """Draws ``curves.png`` from ``metrics.jsonl``: accuracy, violations and KL over the updates. None without updates."""
    entries = read_metrics(folder / "metrics.jsonl")
    # After a resumed run a step may occur twice; the later line counts.
    train = list({entry["step"]: entry for entry in entries if entry["phase"] == "train"}.values())
    if not train:
        return None
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    steps = [entry["step"] for entry in train]
    figure, axes = plt.subplots(1, 3, figsize=(13, 3.6), layout="constrained")
    axes[0].plot(steps, [entry["accuracy"] for entry in train], label="training rollouts")
    axes[0].fill_between(
        steps, [entry["interval"][0] for entry in train], [entry["interval"][1] for entry in train], alpha=0.2
    )
    held_out = [entry for entry in entries if entry["phase"] in ("before", "after")]
    axes[0].plot([e["step"] for e in held_out], [e["accuracy"] for e in held_out], "ko", label="held-out")
    axes[0].set(title="accuracy", xlabel="updates", ylim=(0, 1))
    axes[1].plot(steps, [entry["attempted"] for entry in train], label="attempted")
    axes[1].plot(steps, [entry["executed"] for entry in train], label="executed (oracle)")
    axes[1].set(title="rollouts with a violation", xlabel="updates", ylim=(-0.02, 1))
    axes[2].plot(steps, [entry["kl"] for entry in train], label="KL to the warm start")
    axes[2].plot(steps, [entry["clip_fraction"] for entry in train], label="clipped share")
    axes[2].set(title="update", xlabel="updates")
    for axis in axes:
        axis.legend()
    path = folder / "curves.png"
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path
