"""``lgov traces export``: everything that was recorded, for other programs."""

from __future__ import annotations

from pathlib import Path

import click

from lgov_core.commands.group import Exit
from lgov_core.commands.options import PATH, command, rollouts_option, run_option
from lgov_core.commands.output import write_result
from lgov_core.commands.recorded import opened_store
from lgov_core.errors import ExportError, StoreError


@command(Exit.OK, Exit.FINDING, Exit.USAGE, Exit.INTERRUPTED)
@click.argument("store")
@click.option("--format", "form", type=click.Choice(["jsonl", "parquet"]), default="jsonl", show_default=True)
@click.option(
    "--output",
    type=PATH,
    help="Output file (for parquet a folder). [default: standard output]",
)
@run_option
@rollouts_option
def export(
    store: str, form: str, output: Path | None, run_id: str | None, rollout_ids: tuple[str, ...], as_json: bool
) -> None:
    """Write the rollouts, attempts, calls, rewards and spans in STORE as JSON lines, or as a folder of Parquet files.

    A JSON line has the fields of one of them, and kind. Each file is written whole or not at all. With --json the summary
    about --output is JSON; standard output always is. For training data: lgov transitions.
    """
    from lgov_core._util.atomic_file import write_lines
    from lgov_core.store.export import KINDS, json_lines, values_of, write_parquet

    if form == "parquet" and output is None:
        raise click.UsageError("parquet needs --output FOLDER")
    ids = list(rollout_ids) or None
    with opened_store(store) as recorded:
        for rollout_id in rollout_ids:
            if not any(True for kind in KINDS for _ in values_of(recorded, kind, rollout_ids=[rollout_id])):
                raise StoreError(f"nothing is recorded of rollout {rollout_id}", hint="lgov traces list shows the ids")
        if output is None:
            for line in json_lines(recorded, run_id=run_id, rollout_ids=ids):
                click.echo(line)
            return
        if form == "parquet":
            count = write_parquet(output, recorded, run_id=run_id, rollout_ids=ids)
        else:
            count = write_lines(output, json_lines(recorded, run_id=run_id, rollout_ids=ids), ExportError)
    about = {"output": str(output), "format": form, "rows": count}
    write_result(about, f"wrote {count} rows to {output}", as_json=as_json)
