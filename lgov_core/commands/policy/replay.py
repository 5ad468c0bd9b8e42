"""``lgov policy replay``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from lgov_core.commands.group import Exit
from lgov_core.commands.options import PATH, command, limit_option
from lgov_core.commands.output import write_json, write_table
from lgov_core.commands.recorded import is_audit_record, opened_store
from lgov_core.settings import without_password

if TYPE_CHECKING:
    from lgov_core.authoring.replay import Change, Replay

#: Characters of arguments in the table.
_ARGUMENTS_SHOWN = 80


@command(Exit.OK, Exit.FINDING, Exit.USAGE)
@click.argument("file", type=PATH)
@click.argument("store")
@limit_option("Changes")
@click.pass_context
def replay(ctx: click.Context, file: Path, store: str, limit: int, as_json: bool) -> None:
    """Show which decisions in STORE (a trace store or an audit record) the policies in FILE would change.

    Judges every recorded action again and lists those that would now be blocked, or no longer are; exits 1 when there
    are any. Nothing is run and nothing is written. A trace store holds the tool calls; an audit record also the model
    calls and texts. Rules that count against the clock (rates, seconds) count at the speed of the replay.
    """
    found = _replayed(file, store)
    if as_json:
        changes = [change.as_json() for change in found.changes]
        write_json({"file": str(file), "store": without_password(store), **found.counts(), "changes": changes})
    else:
        _show(found, limit)
    ctx.exit(Exit.FINDING if found.changes else Exit.OK)


def _replayed(file: Path, place: str) -> Replay:
    from lgov_core.authoring.replay import from_audit, from_store, replay_file

    if is_audit_record(place):
        from lgov_core.audit import AuditLog

        with AuditLog(place, signer=None) as log:
            return replay_file(file, from_audit(log.entries()))
    with opened_store(place) as recorded:
        return replay_file(file, from_store(recorded))


def _show(found: Replay, limit: int) -> None:
    shown = found.changes[:limit] if limit else found.changes
    if shown:
        write_table(("rollout", "action", "then", "now", "why"), [_row(change) for change in shown])
        click.echo()
    if len(shown) < len(found.changes):
        click.echo(f"{len(found.changes) - len(shown)} more changes; --limit 0 shows all", err=True)
    click.echo(
        f"{found.judged} actions judged again: {len(found.changes)} changed;"
        f" {found.blocked_then} were blocked then, {found.blocked_now} would be now"
    )
    if found.without_decision:
        click.echo(f"{found.without_decision} have no recorded decision to compare with", err=True)
    if found.incomplete:
        click.echo(f"{found.incomplete} could not be judged: their arguments are not in the record in full", err=True)


def _row(change: Change) -> tuple[object, ...]:
    action, now = change.recorded.action, change.decision
    what = action.text if action.text is not None else str(dict(action.arguments))
    then = change.recorded
    return (
        action.rollout_id,
        f"{action.name} {what[:_ARGUMENTS_SHOWN]}",
        f"{then.effect} {then.policy}/{then.rule}" if then.effect in ("deny", "escalate") else then.effect,
        f"{now.effect.label} {now.policy}/{now.rule}" if now.blocks else now.effect.label,
        now.reason if now.blocks else then.reason,
    )
