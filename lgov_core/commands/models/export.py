"""``lgov export``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from lgov_core.commands.group import Exit
from lgov_core.commands.options import PATH, base_model_option, command
from lgov_core.commands.output import write_result


@command(Exit.OK, Exit.FINDING, Exit.USAGE, Exit.INTERRUPTED)
@click.argument("checkpoint", type=PATH)
@click.argument("folder", type=PATH)
@click.option(
    "--format", "form", type=click.Choice(["transformers", "peft"]), default="transformers", show_default=True,
    help="A full model with its tokenizer, or the LoRA adapter only.",
)  # fmt: skip
@base_model_option
@click.option("--adapter", help="The policy to export, of a training with several (training.policies).")
def export_command(
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
    from lgov_core.evaluation.export import export
    from lgov_core.evaluation.model import load_trained

    try:
        trained = load_trained(checkpoint, base=model, policy=adapter)
        target = export(trained, folder, form)
    except KeyboardInterrupt:
        kept = f"{folder} is complete" if folder.exists() else f"{folder} was not made, run the same command again"
        raise KeyboardInterrupt(f"interrupted; {kept}") from None
    about = {"folder": str(target), "format": form, "step": trained.step, "checkpoint": str(trained.path)}
    write_result(about, str(target), as_json=as_json)
