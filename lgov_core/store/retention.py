"""Deletion from a store, and statistics: values and rules that every database shares."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Final

from lgov_core.errors import StoreError
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
        return Pruned(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(self)))


@dataclass(frozen=True, slots=True)
class StoreStatistics:
    """What is in a store. ``rollouts`` were added; ``named_only`` ones are only named by calls, spans or rewards.

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


def chosen(known: Iterable[tuple[str, float]], before: float | None, keep_last: int | None) -> list[str]:
    """The rollouts to delete. ``known``: ids of those that may be, with the time of last activity of each (Unix seconds)."""
    by_age = sorted(known, key=lambda one: (-one[1], one[0]))[keep_last or 0 :]
    return [rollout_id for rollout_id, last in reversed(by_age) if before is None or last < before]
