"""``lgov traces prune`` and ``lgov traces stats``."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from lgov_core._util.plurals import counted
from lgov_core.commands.group import Exit
from lgov_core.commands.options import command, moment_option, rollouts_option, yes_option
from lgov_core.commands.output import write_json
from lgov_core.commands.recorded import opened_store

if TYPE_CHECKING:
    from lgov_core.store import Pruned


@command(Exit.OK, Exit.FINDING, Exit.USAGE, Exit.INTERRUPTED)
@click.argument("store")
@moment_option("--before", "Rollouts last active before")
@click.option("--run", "run_id", help="Rollouts of this run.")
@rollouts_option
@click.option("--keep-last", type=click.IntRange(min=0), help="Keep the N most recently active rollouts.")
@click.option("--dry-run", is_flag=True, help="List what would be deleted, and delete nothing.")
@click.option("--vacuum", is_flag=True, help="Return free space to the file system; blocks other writers meanwhile.")
@yes_option
def prune(
    store: str,
    before: float | None,
    run_id: str | None,
    rollout_ids: tuple[str, ...],
    keep_last: int | None,
    dry_run: bool,
    vacuum: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Delete rollouts in STORE that fit every option given, with their calls, rewards and spans.

    Rollouts that wait or run are kept. With --before, and no --run or --rollout, calls and spans of no rollout are deleted
    too. --vacuum alone deletes nothing. lgov traces export keeps a copy.
    """
    choice: dict[str, Any] = {
        "before": before, "run_id": run_id, "keep_last": keep_last, "rollout_ids": set(rollout_ids) or None,
    }  # fmt: skip
    chosen = any(value is not None for value in choice.values())
    if not chosen and not vacuum:
        raise click.UsageError("give --before, --run, --rollout or --keep-last")
    if as_json and not (yes or dry_run):
        raise click.UsageError("--json does not prompt: give --yes or --dry-run with it")
    from lgov_core.store import Pruned

    pruned = Pruned()
    with opened_store(store) as recorded:
        if chosen:
            pruned = recorded.prune(**choice, dry_run=True)
            if not dry_run:
                if not yes:
                    click.confirm(f"Delete {_summary(pruned)} for good?", abort=True, err=True)
                pruned = recorded.prune(**choice)
        if vacuum and not dry_run:
            recorded.vacuum()
    if as_json:
        write_json({"store": store, "dry_run": dry_run, "vacuum": vacuum and not dry_run, **asdict(pruned)})
        return
    click.echo(f"{'would delete' if dry_run else 'deleted'} {_summary(pruned)}")
    if pruned.spared:
        click.echo(f"spared because they wait or run: {counted(pruned.spared, 'rollout')}")


@command(Exit.OK, Exit.FINDING, Exit.USAGE, Exit.INTERRUPTED)
@click.argument("store")
def stats(store: str, as_json: bool) -> None:
    """Count what is in STORE, and show its size."""
    with opened_store(store) as recorded:
        found = recorded.statistics()
    if as_json:
        write_json({**asdict(found), "queue": {state.value: count for state, count in found.queue.items()}})
        return
    click.echo(f"{counted(found.rollouts, 'rollout')}, and {found.named_only} that only calls, spans or rewards name")
    click.echo(f"{counted(found.attempts, 'attempt')}, {found.open_attempts} of them open")
    click.echo(", ".join(counted(getattr(found, f"{name}s"), name) for name in ("call", "reward", "span")))
    for state, count in sorted(found.queue.items()):
        click.echo(f"queue: {count} {state.value}")
    if found.oldest is not None and found.newest is not None:
        click.echo(f"last active: {_date(found.oldest)} to {_date(found.newest)}")
    click.echo(f"{found.size_bytes / 1e6:.1f} MB, {found.free_bytes / 1e6:.1f} MB of it free")


def _summary(pruned: Pruned) -> str:
    names = ("rollout", "attempt", "call", "reward", "span")
    return ", ".join(counted(getattr(pruned, f"{name}s"), name) for name in names)


def _date(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")
