"""``lgov policy suggest``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lgov_core._util.plurals import counted
from lgov_core.commands.group import Exit
from lgov_core.commands.options import FILE, command, limit_option
from lgov_core.commands.output import write_json, write_table
from lgov_core.commands.recorded import is_audit_record, opened_store
from lgov_core.errors import PolicyError
from lgov_core.settings import without_password

if TYPE_CHECKING:
    from lgov_core.authoring import Suggestion
    from lgov_core.authoring.replay import RecordedAction
    from lgov_core.types import Decision

#: Characters of arguments in the table.
_ARGUMENTS_SHOWN = 80


@command(Exit.OK, Exit.FINDING, Exit.USAGE)
@click.argument("store")
@click.option("-o", "--output", type=FILE, help="Write the policy file here instead of to standard output.")
@click.option("--force", is_flag=True, help="Overwrite the file if it exists.")
@click.option("--dialect", help="SQL dialect of the tools. [default: the first of the common ones that fits]")
@limit_option("Other calls")
@click.pass_context
def suggest(
    ctx: click.Context, store: str, output: Path | None, force: bool, dialect: str | None, limit: int, as_json: bool
) -> None:
    """Propose the least-privilege policy that the tool calls in STORE (a trace store or an audit record) need.

    It allows the calls that ran, did not fail and broke no rule. A call that ran in shadow mode because no rule allowed it
    counts; one that a rule denies does not. The policy names their tools, the form of their arguments, SQL tables and
    statements, folders, hosts, addresses and calls a rollout, each with how often it was seen. Then all recorded calls are
    judged by it: it denies none of those (exits 1 if it does), and what it decides about the others is listed. It is a
    proposal: read it and edit it.
    """
    from lgov_core._util.atomic_file import atomic_write

    if output is not None and output.exists() and not force:
        raise PolicyError(f"{output} already exists", hint="choose another name, or replace it with --force")
    found = suggestion(store, output, dialect)
    if output is not None:
        atomic_write(output, found.text.encode())
    if as_json:
        write_json(
            {
                "policy": found.text,
                "file": None if output is None else str(output),
                "needed": found.needed,
                "incomplete": found.incomplete,
                "denied": [_fields(*one) for one in found.denied],
                "rest": [_fields(*one) for one in found.rest],
            }
        )
    else:
        _show(found, output, limit)
    ctx.exit(Exit.FINDING if found.denied else Exit.OK)


def suggestion(place: str, output: Path | None, dialect: str | None) -> Suggestion:
    """The policy for the tool calls in ``place``, to be written to ``output``. Raises `LgovError`."""
    from lgov_core.authoring import suggest as propose
    from lgov_core.authoring.replay import from_audit, from_store
    from lgov_core.policies.sql.policy import COMMON_DIALECTS

    options: dict[str, Any] = {
        "source": without_password(place),
        "folder": None if output is None else output.absolute().parent,
        "dialects": COMMON_DIALECTS if dialect is None else (dialect,),
    }
    if is_audit_record(place):
        from lgov_core.audit import AuditLog

        with AuditLog(place, signer=None) as log:
            return propose(from_audit(log.entries()), **options)
    with opened_store(place) as store:
        return propose(from_store(store), **options)


def _fields(recorded: RecordedAction, decision: Decision) -> dict[str, Any]:
    action = recorded.action
    return {
        "rollout_id": action.rollout_id,
        "attempt": action.attempt,
        "call_id": action.call_id,
        "name": action.name,
        "arguments": dict(action.arguments),
        "then": recorded.verdict,
        "status": recorded.status,
        "now": decision.effect.label,
        "now_policy": decision.policy,
        "now_rule": decision.rule,
        "reason": decision.reason,
    }


def _show(found: Suggestion, output: Path | None, limit: int) -> None:
    click.echo(found.text if output is None else f"wrote {output}")
    listed = [*found.denied, *found.rest]
    shown = listed[:limit] if limit else listed
    denied = sum(decision.blocks for _, decision in found.rest)
    proof = (
        f"replayed: it denies {len(found.denied)} of the {counted(found.needed, 'call')} that it is made from,"
        f" and {denied} of {counted(len(found.rest), 'other')} (denied then, or failed)"
    )
    on_error = output is None  # standard output is the policy
    if shown and not on_error:
        write_table(("rollout", "call", "then", "now", "why"), [_row(*one) for one in shown])
        if len(shown) < len(listed):
            click.echo(f"{len(listed) - len(shown)} more; --limit 0 shows all", err=True)
    click.echo(proof, err=on_error)
    if found.incomplete:
        click.echo(f"{found.incomplete} calls were left out: their arguments are not in the record in full", err=True)


def _row(recorded: RecordedAction, decision: Decision) -> tuple[object, ...]:
    action = recorded.action
    return (
        action.rollout_id,
        f"{action.name} {str(dict(action.arguments))[:_ARGUMENTS_SHOWN]}",
        recorded.verdict if recorded.status in (None, "ok", "denied") else recorded.status,
        f"{decision.effect.label} {decision.policy}/{decision.rule}" if decision.blocks else decision.effect.label,
        decision.reason,
    )
