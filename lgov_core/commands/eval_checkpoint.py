"""``lgov eval``."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lgov_core.commands.group import Exit
from lgov_core.commands.options import FILE, FOLDER, PATH, base_model_option, command
from lgov_core.commands.output import write_json, write_table

if TYPE_CHECKING:
    from lgov_core.evaluation.evaluation import EvaluationPlan


@command(Exit.OK, Exit.FINDING, Exit.USAGE, Exit.INTERRUPTED)
@click.argument("checkpoint", type=PATH)
@click.argument("tasks", type=FILE)
@click.option("--agent", required=True, help="Agent function: module:function or file.py:function.")
@click.option("--samples", type=click.IntRange(1), default=1, show_default=True, help="Rollouts per task.")
@click.option(
    "--nworkers", "workers", type=click.IntRange(1), default=4, show_default=True, help="Concurrent rollouts."
)
@click.option("--policy", type=FILE, help="Policy file for the agent.")
@base_model_option
@click.option("--start", is_flag=True, help="Also measure the initial model, and report the difference.")
@click.option(
    "--max-new-tokens", type=click.IntRange(1), default=256, show_default=True, help="Maximum tokens per reply."
)
@click.option("--timeout", "timeout_s", default=600.0, show_default=True, help="Timeout of one attempt, in seconds.")
@click.option("--seed", type=int, default=0, show_default=True, help="Sampling seed.")
@click.option("--folder", type=FOLDER, help="Trace store for the rollouts.")
def evaluate_command(
    checkpoint: Path,
    tasks: Path,
    agent: str,
    model: str | None,
    start: bool,
    folder: Path | None,
    as_json: bool,
    **plan: Any,
) -> None:
    """Measure the model of CHECKPOINT on TASKS (JSON lines) with an agent: rewards by channel, with 95 % intervals.

    CHECKPOINT is the folder of a checkpoint, or of a run (its newest), or RUN/best. Replies are sampled as in training. The
    checkpoint's lineage is verified first.
    """
    from lgov_core.client.agent_name import load_agent
    from lgov_core.client.tasks import read_tasks

    read = read_tasks(tasks)
    function = load_agent(agent)
    target = folder or Path("runs") / time.strftime("eval-%Y%m%d-%H%M%S")
    try:
        from lgov_core.evaluation.evaluation import EvaluationPlan

        report = _measure(checkpoint, model, read, function, target, EvaluationPlan(**plan), start=start)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"interrupted without a result; the finished rollouts are in {target}") from None
    if as_json:
        write_json(report)
    else:
        _write(report)


def _measure(
    checkpoint: Path,
    model: str | None,
    read: Sequence[Mapping[str, Any]],
    function: Callable[..., Any],
    target: Path,
    plan: EvaluationPlan,
    *,
    start: bool,
) -> dict[str, Any]:
    from lgov_core.evaluation.evaluation import difference, evaluate
    from lgov_core.evaluation.model import load_trained, serve

    trained = load_trained(checkpoint, base=model)
    click.echo(f"{trained.path}: {len(read) * plan.samples} rollouts, recorded in {target}", err=True)
    found = evaluate(trained.model, read, function, target / "checkpoint", plan)
    report: dict[str, Any] = {
        "checkpoint": str(trained.path),
        "step": trained.step,
        "lineage": "signed" if trained.lineage and trained.lineage.covered else "unsigned" if trained.lineage else None,
        **found.as_json(),
    }
    if start:
        serve(trained.model, trained.started)
        before = evaluate(trained.model, read, function, target / "start", plan)
        channels = sorted({*found.channels, *before.channels})
        report["start"] = before.as_json()
        report["difference"] = {name: difference(found, before, name).as_json() for name in channels}
    return report


def _write(report: dict[str, Any]) -> None:
    parts = [("checkpoint", report), *([("start", report["start"])] if "start" in report else [])]
    rows: list[tuple[str, ...]] = []
    for name, part in parts:
        measures = {f"reward {channel}": one for channel, one in part["rewards"].items()}
        measures |= {label: part[label.replace(" ", "_")] for label in ("succeeded", "violation rate", "calls")}
        rows += [(name, label, *_numbers(one)) for label, one in measures.items()]
        rows.append((name, "lost rollouts", str(part["lost"]), "", ""))
    rows += [("difference", f"reward {name}", *_numbers(one)) for name, one in report.get("difference", {}).items()]
    write_table(("of", "what", "mean", "95 % interval", "tasks"), rows)


def _numbers(one: dict[str, Any]) -> tuple[str, str, str]:
    if one["mean"] is None:
        return "", "", "0"
    interval = "" if one["low"] is None else f"{one['low']:.3f} to {one['high']:.3f}"
    return f"{one['mean']:.3f}", interval, str(one["count"])
