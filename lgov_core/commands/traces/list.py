"""``lgov traces list``: the attempts in a store."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from lgov_core._util.plurals import counted
from lgov_core.commands.group import Exit
from lgov_core.commands.options import command, limit_option, run_option
from lgov_core.commands.output import rewards_text, write_json, write_table
from lgov_core.commands.recorded import opened_store
from lgov_core.trace.rollout_spans import attempt_of
from lgov_core.trace.semconv import TASK_ID
from lgov_core.types import Attempt, CapturedCall, Outcome, Rollout

if TYPE_CHECKING:
    from lgov_core.store import TraceStore

#: Outcome shown for attempts without a row of their own.
_UNKNOWN = "unknown"
#: The rewards of each attempt, by rollout and attempt number, by dimension.
_Earned: TypeAlias = Mapping[tuple[str | None, int], Mapping[str, list[float]]]


@command(Exit.OK, Exit.FINDING, Exit.USAGE)
@click.argument("store")
@run_option
@click.option(
    "--outcome",
    type=click.Choice([*(outcome.value for outcome in Outcome), "running", _UNKNOWN]),
    help="Only attempts with this outcome.",
)
@limit_option("Newest entries")
def list_rollouts(store: str, run_id: str | None, outcome: str | None, limit: int, as_json: bool) -> None:
    """List the attempts in STORE (a path, an address or the folder of a run), in the order in which they began.

    Attempts known only from recorded calls and spans have the outcome unknown and belong to no run.
    """
    with opened_store(store) as recorded:
        rollouts = {rollout.rollout_id: rollout for rollout in recorded.rollouts(run_id=run_id)}
        every = [(one, _outcome(one)) for one in recorded.attempts(None if run_id is None else list(rollouts))]
        named = recorded.unopened_attempts()
        every += [(one, _UNKNOWN) for one in named if run_id is None or one.rollout_id in rollouts]
        every.sort(key=lambda one: one[0].started_at)
        found = [one for one in every if outcome in (None, one[1])]
        shown = found[-limit:] if limit else found
        earned = _earned(recorded, every, {attempt.rollout_id for attempt, _ in shown})
        tasks = {one.rollout_id: one.task_id for one in rollouts.values()}
        unannounced = [attempt.rollout_id for attempt, _ in shown if attempt.rollout_id not in tasks]
        for span in recorded.spans(unannounced) if unannounced else ():
            if span.rollout_id is not None and (task_id := span.attributes.get(TASK_ID)):
                tasks.setdefault(span.rollout_id, str(task_id))
    entries = [
        _entry(one, ended, rollouts.get(one.rollout_id), tasks.get(one.rollout_id), earned) for one, ended in shown
    ]
    if as_json:
        write_json(entries)
        return
    named = ("rollout_id", "attempt", "task_id", "outcome", "seconds")
    rows = [(*(entry[name] for name in named), rewards_text(entry["rewards"])) for entry in entries]
    write_table(("rollout", "attempt", "task", "outcome", "seconds", "rewards"), rows)
    click.echo(f"{len(shown)} of {counted(len(found), 'attempt')}", err=True)


def _entry(
    attempt: Attempt, outcome: str, rollout: Rollout | None, task_id: str | None, earned: _Earned
) -> dict[str, Any]:
    rewards = earned.get((attempt.rollout_id, attempt.attempt), {})
    return {
        "rollout_id": attempt.rollout_id,
        "attempt": attempt.attempt,
        "task_id": task_id,
        "run_id": None if rollout is None else rollout.run_id,
        "outcome": outcome,
        "seconds": None if attempt.ended_at is None else round(attempt.ended_at - attempt.started_at, 3),
        "rewards": {dimension: _total(values) for dimension, values in rewards.items()},
    }


def _earned(recorded: TraceStore, every: Sequence[tuple[Attempt, str]], rollouts: Set[str]) -> _Earned:
    """The rewards of each attempt of ``rollouts``; ``every`` are all attempts."""
    attempts_of: dict[str | None, list[Attempt]] = defaultdict(list)
    for attempt, _ in every:
        attempts_of[attempt.rollout_id].append(attempt)
    rewards = recorded.rewards(list(rollouts))
    unsure = {name for name in rollouts if len(attempts_of[name]) > 1}
    unsure &= {one.rollout_id for one in rewards if one.attempt is None}
    calls_of: dict[str | None, list[CapturedCall]] = defaultdict(list)
    for call in recorded.calls(list(unsure)) if unsure else ():
        calls_of[call.rollout_id].append(call)
    earned: dict[tuple[str | None, int], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for one in rewards:
        number = attempt_of(one, attempts_of[one.rollout_id], calls_of[one.rollout_id])
        earned[one.rollout_id, number][one.dimension].append(one.value)
    return earned


def _outcome(attempt: Attempt) -> str:
    return "running" if attempt.outcome is None else attempt.outcome.value


def _total(values: Sequence[float]) -> float:
    """The sum; 0 where only rounding errors are left."""
    total = math.fsum(values)
    return 0.0 if abs(total) <= 1e-12 * math.fsum(map(abs, values)) else total
