"""``lgov eval``."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from lgov_core._util.threads import wait_without_spinning
from lgov_core.commands.group import Exit
from lgov_core.commands.options import FILE, FOLDER, PATH, base_model_option, command
from lgov_core.commands.output import write_json, write_table
from lgov_core.errors import TrainError


@command(Exit.OK, Exit.FINDING, Exit.USAGE, Exit.INTERRUPTED)
@click.argument("checkpoint", type=PATH, required=False)
@click.argument("tasks", type=FILE, required=False)
@click.option(
    "--compare",
    type=(PATH, PATH),
    metavar="A B",
    help="Compare two evaluations (their folders): what flipped from A to B.",
)
@click.option("--agent", help="Agent function: module:function or file.py:function.")
@click.option("--samples", type=click.IntRange(1), default=1, show_default=True, help="Rollouts per task.")
@click.option(
    "--nworkers", "workers", type=click.IntRange(1), default=4, show_default=True, help="Concurrent rollouts."
)
@click.option("--policy", type=FILE, help="Policy file for the agent.")
@base_model_option
@click.option("--start", is_flag=True, help="Also measure the initial model, and report the difference.")
@click.option("--max-new-tokens", type=click.IntRange(1), help="Maximum tokens per reply. [default: as in training]")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0, min_open=True),
    default=600.0,
    show_default=True,
    help="Timeout of one attempt, in seconds.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Sampling seed.")
@click.option("--folder", type=FOLDER, help="Trace store for the rollouts.")
def evaluate_command(
    checkpoint: Path | None,
    tasks: Path | None,
    compare: tuple[Path, Path] | None,
    agent: str | None,
    model: str | None,
    start: bool,
    folder: Path | None,
    as_json: bool,
    **plan: Any,
) -> None:
    """Measure the model of CHECKPOINT on TASKS (JSON lines) with an agent: rewards by channel, with 95 % intervals.

    CHECKPOINT is the folder of a checkpoint, or of a run (its newest), or RUN/best. Replies are sampled as in training. The
    checkpoint's lineage is verified first. The report is left in --folder as evaluation.json, which lgov promote and
    --compare read.
    """
    if compare is not None:
        if checkpoint or agent:
            raise click.UsageError("--compare takes two folders of lgov eval, and nothing else")
        _compare(*compare, as_json=as_json)
        return
    if checkpoint is None or tasks is None or agent is None:
        raise click.UsageError("give CHECKPOINT, TASKS and --agent, or --compare with two evaluations")
    wait_without_spinning()
    from lgov_core.client.agent_name import load_agent
    from lgov_core.client.tasks import read_tasks

    read = read_tasks(tasks)
    function = load_agent(agent)
    target = folder or Path("runs") / time.strftime("eval-%Y%m%d-%H%M%S")
    try:
        from lgov_core._util.atomic_file import atomic_write
        from lgov_core.evaluation.comparison import EVALUATION_FILE

        report = _measure(checkpoint, model, read, function, target, plan, start=start)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"interrupted without a result; the finished rollouts are in {target}") from None
    report["tasks_sha256"] = hashlib.sha256(tasks.read_bytes()).hexdigest()
    atomic_write(target / EVALUATION_FILE, (json.dumps(report, indent=2) + "\n").encode())
    if as_json:
        write_json(report)
    else:
        _write(report)
    if not report["rollouts"]:
        raise TrainError(
            "nothing was measured: every rollout was lost", hint=f"lgov view {target / 'checkpoint'} shows why"
        )


def _measure(
    checkpoint: Path,
    model: str | None,
    read: Sequence[Mapping[str, Any]],
    function: Callable[..., Any],
    target: Path,
    options: Mapping[str, Any],
    *,
    start: bool,
) -> dict[str, Any]:
    from lgov_core.evaluation.evaluation import EvaluationPlan, difference, evaluate
    from lgov_core.evaluation.model import load_trained, serve
    from lgov_core.train.loop.lineage import policy_facts

    trained = load_trained(checkpoint, base=model)
    given: dict[str, Any] = {"max_new_tokens": trained.max_new_tokens}
    given |= {name: one for name, one in options.items() if one is not None}
    plan = EvaluationPlan(**{name: one for name, one in given.items() if one is not None})
    click.echo(f"{trained.path}: {len(read) * plan.samples} rollouts, recorded in {target}", err=True)
    found = evaluate(trained.model, read, function, target / "checkpoint", plan)
    report: dict[str, Any] = {
        "checkpoint": str(trained.path),
        "step": trained.step,
        "lineage": "signed" if trained.lineage and trained.lineage.covered else "unsigned" if trained.lineage else None,
        "weights_sha256": trained.weights_sha256,
        "policy": None if plan.policy is None else policy_facts(plan.policy),
        **found.as_json(),
        "by_task": found.by_task(read),
    }
    if start:
        serve(trained.model, trained.started)
        before = evaluate(trained.model, read, function, target / "start", plan)
        channels = sorted({*found.channels, *before.channels})
        report["start"] = before.as_json()
        report["difference"] = {name: difference(found, before, name).as_json() for name in channels}
    return report


def _compare(first: Path, second: Path, *, as_json: bool) -> None:
    from lgov_core.evaluation.comparison import compare, read_evaluation

    found = compare(read_evaluation(first), read_evaluation(second))
    if as_json:
        write_json(found.as_json())
        return
    rows = [
        (what, one["number"], f"{one['before']:.2f} -> {one['after']:.2f}", json.dumps(one["task"])[:80])
        for what, flipped in (("broken", found.broken), ("fixed", found.fixed))
        for one in flipped
    ]
    if rows:
        write_table(("what", "task", "succeeded", "text"), rows)
    lost = f", {found.lost} lost in one of them" if found.lost else ""
    click.echo(f"{len(found.fixed)} fixed, {len(found.broken)} broken, {found.same} the same{lost}")
    gaps = {name: one.as_json() for name, one in found.difference.items()}
    write_table(
        ("second - first", "mean", "95 % interval", "tasks"), [(name, *_numbers(one)) for name, one in gaps.items()]
    )


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
