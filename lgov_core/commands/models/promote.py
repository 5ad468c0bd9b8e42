"""``lgov promote``."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from lgov_core.commands.group import Exit
from lgov_core.commands.options import PATH, base_model_option, command
from lgov_core.commands.output import write_result


@command(Exit.OK, Exit.FINDING, Exit.USAGE, Exit.INTERRUPTED)
@click.argument("checkpoint")
@click.option("--to", "name", required=True, metavar="NAME", help="Name under which the model is served.")
@click.option("--evaluation", type=PATH, help="Folder of lgov eval --start, or its evaluation.json.")
@click.option("--force", is_flag=True, help="Promote although the checks fail; that is recorded.")
@click.option("--models", type=PATH, help="Folder of promoted models. [default: models]")
@base_model_option
def promote_command(
    checkpoint: str,
    name: str,
    evaluation: Path | None,
    force: bool,
    models: Path | None,
    model: str | None,
    as_json: bool,
) -> None:
    """Serve the model of CHECKPOINT under NAME from now on: lgov serve --model NAME.

    CHECKPOINT is the folder of a checkpoint, or of a run (its newest), or RUN/best. Refused without a lineage or an
    evaluation of it under the training's policy, when its interval reaches below the initial model, when it lost rollouts,
    and when more violations were attempted. NAME@VERSION as CHECKPOINT serves an earlier version again, if its files are
    still those that were promoted.
    """
    from lgov_core.evaluation.comparison import read_evaluation
    from lgov_core.evaluation.model import load_trained
    from lgov_core.evaluation.promotion import promote, roll_back
    from lgov_core.models.promoted import promoted_folder, promoted_root

    root = promoted_root(models)
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
        done = promote(trained, root, name, report, force=force)
    about = {"name": name, "version": done.version, "folder": str(done.folder), "forced": list(done.forced)}
    where = "" if models is None else f"LGOV_MODELS={shlex.quote(str(models))} "
    text = f"{name} is version {done.version} now: {where}lgov serve --model {name}"
    write_result(about, "\n".join([text, *(f"  forced: {one}" for one in done.forced)]), as_json=as_json)
