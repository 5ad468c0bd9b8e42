"""Deletion of rollouts from a store, and what there is in it: the values, the rules and the statements."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from lgov_core.errors import StoreError
from lgov_core.store.database import Transaction
from lgov_core.store.rollout_states import RolloutState

#: Rollouts deleted in one transaction, so that other writers do not wait long.
ROLLOUTS_A_PORTION: Final = 100


@dataclass(frozen=True, slots=True)
class Pruned:
    """How many rows were deleted (or would be), and how many rollouts were spared because they have not ended."""

    rollouts: int = 0
    attempts: int = 0
    calls: int = 0
    rewards: int = 0
    spans: int = 0
    spared: int = 0

    def __add__(self, other: Pruned) -> Pruned:
        return Pruned(*(getattr(self, counted.name) + getattr(other, counted.name) for counted in fields(self)))


@dataclass(frozen=True, slots=True)
class StoreStatistics:
    """Counts of what is in a store. ``rollouts`` were added; ``named_only`` ones are only named by calls, spans or rewards.

    ``queue`` counts the rollouts of the queue by state. ``size_bytes`` is what the store takes, of which ``free_bytes``
    are not in use and given back by a vacuum. ``oldest`` and ``newest`` (Unix seconds) are the times of last activity of the
    least and the most recently active rollout; None when there is none.
    """

    rollouts: int
    named_only: int
    attempts: int
    open_attempts: int
    calls: int
    rewards: int
    spans: int
    size_bytes: int
    free_bytes: int
    oldest: float | None
    newest: float | None
    queue: Mapping[RolloutState, int] = field(default_factory=dict[RolloutState, int])


def require_choice(
    before: float | None, run_id: str | None, keep_last: int | None, rollout_ids: Collection[str] | None
) -> None:
    """Raises `StoreError` unless this chooses something on purpose."""
    if before is None and run_id is None and keep_last is None and rollout_ids is None:
        raise StoreError("no condition says what to delete", hint="give a time, a run or how many rollouts to keep")
    if keep_last is not None and keep_last < 0:
        raise StoreError(f"keep_last is {keep_last}", hint="give how many rollouts to keep, 0 or more")
    if before is not None and not math.isfinite(before):
        raise StoreError(f"before is {before}", hint="give Unix seconds")


def chosen(active: Iterable[tuple[str, float]], before: float | None, keep_last: int | None) -> list[str]:
    """The rollouts to delete. ``known``: ids of those that may be, with the time of last activity of each (Unix seconds)."""
    by_age = sorted(active, key=lambda rollout: (-rollout[1], rollout[0]))[keep_last or 0 :]
    return [rollout_id for rollout_id, last in reversed(by_age) if before is None or last < before]


#: Every rollout that anything names, with when it was last active.
LAST_ACTIVE: Final = (
    "SELECT rollout_id, max(at) FROM ("
    " SELECT rollout_id, created_at AS at FROM rollouts"
    " UNION ALL SELECT rollout_id, max(coalesce(ended_at, started_at)) FROM attempts GROUP BY rollout_id"
    " UNION ALL SELECT rollout_id, max(ended_at) FROM calls WHERE rollout_id IS NOT NULL GROUP BY rollout_id"
    " UNION ALL SELECT rollout_id, max(coalesce(ended_at, started_at)) FROM spans WHERE rollout_id IS NOT NULL"
    " GROUP BY rollout_id"
    " UNION ALL SELECT DISTINCT rollout_id, 0.0 FROM rewards WHERE rollout_id IS NOT NULL"
    ") AS active {where} GROUP BY rollout_id"
)
OF_RUN: Final = "WHERE rollout_id IN (SELECT rollout_id FROM rollouts WHERE run_id = ? AND added = 1)"

COUNTS: Final = (
    "SELECT (SELECT count(*) FROM rollouts WHERE added = 1), (SELECT count(*) FROM attempts),"
    " (SELECT count(*) FROM attempts WHERE ended_at IS NULL), (SELECT count(*) FROM calls),"
    " (SELECT count(*) FROM rewards), (SELECT count(*) FROM spans)"
)

#: Attempts that calls and spans name and that nobody opened, with when each began.
UNOPENED: Final = (
    "SELECT rollout_id, attempt, min(at) FROM ("
    " SELECT rollout_id, coalesce(attempt, 1) AS attempt, started_at AS at FROM calls WHERE rollout_id IS NOT NULL"
    " UNION ALL SELECT rollout_id, coalesce(attempt, 1), started_at FROM spans WHERE rollout_id IS NOT NULL"
    ") AS named WHERE NOT EXISTS (SELECT 1 FROM attempts"
    " WHERE attempts.rollout_id = named.rollout_id AND attempts.attempt = named.attempt)"
    " GROUP BY rollout_id, attempt ORDER BY 3, 1, 2"
)

_UNFINISHED: Final = (
    "SELECT rollout_id FROM attempts WHERE ended_at IS NULL AND rollout_id = ANY(?)"
    " UNION SELECT rollout_id FROM queue WHERE state IN ('queued', 'requeued', 'running') AND rollout_id = ANY(?)"
)
_OLD_CALLS: Final = "rollout_id IS NULL AND ended_at < ?"
_OLD_SPANS: Final = "rollout_id IS NULL AND coalesce(ended_at, started_at) < ?"
_OLD_REWARDS: Final = f"rollout_id IS NULL AND response_id IN (SELECT response_id FROM calls WHERE {_OLD_CALLS})"


def delete_rollouts(transaction: Transaction, ids: list[str], tables: tuple[str, ...], *, dry_run: bool) -> Pruned:
    """Deletes rollouts, except unfinished ones, from all ``tables``: a table is before those that it refers to."""
    spared = {rollout_id for (rollout_id,) in transaction.execute(_UNFINISHED, (ids, ids))}
    going = [rollout_id for rollout_id in ids if rollout_id not in spared]
    counts = {table: _delete(transaction, table, "rollout_id = ANY(?)", going, dry_run=dry_run) for table in tables}
    return Pruned(len(going), counts["attempts"], counts["calls"], counts["rewards"], counts["spans"], len(spared))


def delete_unattributed(transaction: Transaction, before: float, *, dry_run: bool) -> Pruned:
    """Deletes older calls and spans of no rollout, and the rewards that name such a call."""
    rewards = _delete(transaction, "rewards", _OLD_REWARDS, before, dry_run=dry_run)
    calls = _delete(transaction, "calls", _OLD_CALLS, before, dry_run=dry_run)
    spans = _delete(transaction, "spans", _OLD_SPANS, before, dry_run=dry_run)
    return Pruned(calls=calls, rewards=rewards, spans=spans)


def _delete(transaction: Transaction, table: str, where: str, values: Any, *, dry_run: bool) -> int:
    if dry_run:
        return transaction.execute(f"SELECT count(*) FROM {table} WHERE {where}", (values,))[0][0]
    return transaction.change(f"DELETE FROM {table} WHERE {where}", (values,))
