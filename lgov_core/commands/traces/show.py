"""``lgov traces show``."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from lgov_core._util.plurals import counted
from lgov_core.commands.group import Exit
from lgov_core.commands.options import command
from lgov_core.commands.output import console, write_json
from lgov_core.commands.recorded import opened_store

if TYPE_CHECKING:
    from lgov_core.store import RolloutQueue


@command(Exit.OK, Exit.FINDING, Exit.USAGE)
@click.argument("store")
@click.argument("rollout_id", required=False)
@click.option("--attempt", type=click.IntRange(min=1), help="Attempt number. [default: the last]")
@click.option("--denied", is_flag=True, help="Show the first rollout with a denial.")
@click.option(
    "--tail",
    type=click.IntRange(min=0),
    default=600,
    show_default=True,
    help="Characters to show of each text; 0 shows all.",
)
@click.option("--all-decisions", is_flag=True, help="Also show decisions that allowed a model call or a text.")
def show(
    store: str,
    rollout_id: str | None,
    attempt: int | None,
    denied: bool,
    tail: int,
    all_decisions: bool,
    as_json: bool,
) -> None:
    """Show one attempt in STORE: what the model saw and wrote, each decision, what each tool answered, each reward.

    The beginning of ROLLOUT_ID is enough. It may be left out when STORE holds one rollout.
    """
    if rollout_id is not None and denied:
        raise click.UsageError("give a rollout id or --denied, not both")
    from lgov_core.views.attempt_builder import first_denied, read_attempt

    with opened_store(store) as recorded:
        if denied:
            rollout_id, first = first_denied(recorded)
            attempt = attempt or first
        view = read_attempt(recorded, _named(recorded, rollout_id or ""), attempt)
    if as_json:
        write_json(asdict(view))
        return
    from lgov_core.views.show import show_attempt

    show_attempt(view, console(), tail=tail, everything=all_decisions)


def _named(recorded: RolloutQueue, beginning: str) -> str:
    """The rollout whose id begins so. Raises `click.UsageError` where that is not one; a whole id is returned in any case."""
    known = {one.rollout_id for one in (*recorded.attempts(), *recorded.unopened_attempts())}
    found = {one for one in known if one.startswith(beginning)}
    if beginning and (beginning in known or not found):
        return beginning
    if len(found) != 1:
        what = counted(len(found), "rollout") + (f" whose id begins with {beginning}" if beginning else "")
        hint = "give an id from lgov traces list, or --denied" if found else "nothing is recorded there"
        raise click.UsageError(f"the store holds {what}: {hint}")
    return found.pop()
