"""``lgov export``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from lgov_core.commands.group import Exit
from lgov_core.commands.options import PATH, base_model_option, command
from lgov_core.commands.output import write_json


@command(Exit.OK, Exit.FINDING, Exit.USAGE, Exit.INTERRUPTED)
@click.argument("checkpoint", type=PATH)
@click.argument("folder", type=PATH)
@click.option(
    "--format", "form", type=click.Choice(["transformers", "peft"]), default="transformers", show_default=True,
    help="A full model with its tokenizer, or the LoRA adapter only.",
)  # fmt: skip
@base_model_option
def export_command(
    checkpoint: Path, folder: Path, form: Literal["transformers", "peft"], model: str | None, as_json: bool
) -> None:
    """Export the model of CHECKPOINT to a new FOLDER that transformers or PEFT can load.

    CHECKPOINT is a checkpoint's folder, or a run's (its newest), or RUN/best. The lineage goes with it: lgov audit verify
    checks the folder too.
    """
    from lgov_core.evaluation.export import export
    from lgov_core.evaluation.model import load_trained

    try:
        trained = load_trained(checkpoint, base=model)
        target = export(trained, folder, form)
    except KeyboardInterrupt:
        kept = f"{folder} is whole" if folder.exists() else f"there is no {folder}, run the same command again"
        raise KeyboardInterrupt(f"interrupted; {kept}") from None
    if as_json:
        write_json({"folder": str(target), "format": form, "step": trained.step, "checkpoint": str(trained.path)})
    else:
        click.echo(target)
