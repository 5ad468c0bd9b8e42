"""``lgov curves``."""

from __future__ import annotations

from pathlib import Path

import click

from lgov_core.commands.group import Exit
from lgov_core.commands.options import FILE, FOLDER, PATH, command
from lgov_core.commands.output import write_json, write_table


@command(Exit.OK, Exit.FINDING, Exit.USAGE)
@click.argument("run", type=PATH)
@click.option("--last", type=click.IntRange(1), default=20, show_default=True, help="Number of updates in the table.")
@click.option("--png", type=FILE, help="Plot all metrics to this PNG file.")
@click.option("--tensorboard", type=FOLDER, help="Write TensorBoard scalars to this folder.")
def curves(run: Path, last: int, png: Path | None, tensorboard: Path | None, as_json: bool) -> None:
    """Show the metrics of the training in the folder RUN, update by update.

    RUN may be a metrics.jsonl too. Rewards by channel, violations, KL, entropy, clipped share, lengths, staleness, tokens
    saved and what was left out; intervals are in the picture and in the JSON.
    """
    from lgov_core.train.loop.curves import draw, read_run, table, write_tensorboard

    lines = read_run(run)
    if png is not None:
        click.echo(f"drawn into {draw(lines, png)}", err=True)
    if tensorboard is not None:
        count = write_tensorboard(lines, tensorboard)
        click.echo(f"{count} scalars in {tensorboard}: tensorboard --logdir {tensorboard}", err=True)
    if as_json:
        write_json(lines)
        return
    headings, rows = table(lines)
    if rows:
        write_table(headings, rows[-last:])
    else:
        click.echo("no update yet", err=True)
