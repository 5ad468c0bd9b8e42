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

    ROLLOUT_ID may be left out when STORE holds one rollout.
    """
    if rollout_id is not None and denied:
        raise click.UsageError("give a rollout id or --denied, not both")
    from lgov_core.views.attempt_builder import first_denied, read_attempt

    with opened_store(store) as recorded:
        if denied:
            rollout_id, first = first_denied(recorded)
            attempt = attempt or first
        rollout_id = rollout_id or _only_rollout(recorded)
        view = read_attempt(recorded, rollout_id, attempt)
    if as_json:
        write_json(asdict(view))
        return
    from lgov_core.views.show import show_attempt

    show_attempt(view, console(), tail=tail, everything=all_decisions)


def _only_rollout(recorded: RolloutQueue) -> str:
    """The rollout of a store with one. Raises `click.UsageError` for none or several."""
    found = {one.rollout_id for one in (*recorded.attempts(), *recorded.unannounced())}
    if len(found) != 1:
        hint = "give an id from lgov traces list, or --denied" if found else "nothing is recorded there"
        raise click.UsageError(f"the store holds {counted(len(found), 'rollout')}: {hint}")
    return found.pop()
