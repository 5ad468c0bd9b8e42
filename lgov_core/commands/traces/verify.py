"""``lgov traces verify``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from lgov_core.commands.group import Exit
from lgov_core.commands.options import command
from lgov_core.commands.output import write_json, write_table
from lgov_core.errors import ModelError

if TYPE_CHECKING:
    from lgov_core.evaluation.verification import Verification

#: Problems that are written out; the rest is only counted.
_FINDINGS_SHOWN = 5


@command(Exit.OK, Exit.FINDING, Exit.USAGE, Exit.INTERRUPTED)
@click.argument("run_folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Number of calls to check, evenly spread; 0 checks all.",
)
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0),
    default=1e-3,
    show_default=True,
    help="Largest accepted difference in log-probability.",
)
def verify(run_folder: Path, limit: int, tolerance: float, as_json: bool) -> None:
    """Recompute what the training in RUN_FOLDER captured, and compare.

    The recorded tokens of every call must decode to exactly the text that the model was given and the agent got, and
    the recorded log-probabilities must be those of the weights that were served. Calls whose weights were not kept
    (training.keep_weights) are counted as unchecked. When nothing could be
    checked, nothing is proved, and the exit status is 1.
    """
    from importlib.util import find_spec

    missing = [name for name in ("torch", "transformers", "peft", "safetensors") if find_spec(name) is None]
    if missing:
        raise ModelError(f"verifying needs {', '.join(missing)}", hint="pip install 'lgov[train]'")
    from lgov_core.evaluation.verification import verify_run

    result = verify_run(run_folder, tolerance=tolerance, limit=limit or None)
    if as_json:
        write_json(result.as_json())
    else:
        _write_verification(result)
    if not result.passed:
        click.get_current_context().exit(Exit.FINDING)


def _write_verification(result: Verification) -> None:
    rows = [
        (
            "unknown" if one.version is None else one.version,
            *(one.calls, one.checked, one.unchecked, one.mismatched),
            f"{one.max_logprob_diff:.1e}" if one.checked else "",
        )
        for one in result.versions
    ]
    write_table(("weights", "calls", "checked", "unchecked", "mismatched", "max difference"), rows)
    for found in result.findings[:_FINDINGS_SHOWN]:
        click.echo(
            f"rollout {found.rollout_id} attempt {found.attempt} call {found.response_id}"
            f" (weights {found.weights_version}): {found.problem}"
        )
    total = result.total
    bad = result.decoded_bad + total.mismatched
    if bad > _FINDINGS_SHOWN:
        click.echo("and more; --json shows the first 20")
    click.echo(
        f"{result.calls} of {result.recorded} calls: {result.decoded_ok} decode to their text, {result.decoded_bad} do not; "
        f"log-probabilities of {total.checked} checked, {total.mismatched} mismatched, {total.unchecked} unchecked; "
        f"largest difference {total.max_logprob_diff:.1e}, tolerance {result.tolerance:g}"
    )
    if not total.checked:
        click.echo("nothing could be checked, so nothing is proved")
