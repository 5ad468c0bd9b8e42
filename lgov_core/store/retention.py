"""What goes out of a store again, and what is in it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Final, Protocol, runtime_checkable

from lgov_core.errors import StoreError
from lgov_core.store.work import RolloutState
from lgov_core.types import Attempt

#: So many rollouts are deleted in one transaction, so that whoever writes meanwhile does not wait for long.
ROLLOUTS_A_PORTION: Final = 100


@dataclass(frozen=True, slots=True)
class Pruned:
    """How many rows were deleted (or would be), and how many rollouts were spared because they are not over yet."""

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
    """What is in a store. ``rollouts`` were announced; ``unannounced`` ones are only named by calls, spans or rewards.

    ``queue`` counts the rollouts of the queue by state. ``size_bytes`` is what the store takes, of which ``free_bytes``
    are not in use and given back by a vacuum. ``oldest`` and ``newest`` (Unix seconds) are when the first and the last rollout
    was last heard of; None when there is none.
    """

    rollouts: int
    unannounced: int
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


@runtime_checkable
class Retention(Protocol):
    """The part of a store that deletes, and knows what is there.

    All methods may be called from any thread, while others write and read.
    """

    def prune(
        self,
        *,
        before: float | None = None,
        run_id: str | None = None,
        keep_last: int | None = None,
        dry_run: bool = False,
    ) -> Pruned:
        """Deletes rollouts with all that belongs to them: those that fit everything given.

        ``before`` (Unix seconds): rollouts of which nothing was heard since; ``run_id``: those of one run; ``keep_last``:
        all but so many of these (of the run, or of all) that were heard of last. Rollouts that nobody announced, which
        calls, spans or rewards name, are rollouts too, of no run. With ``before`` and no run, calls and spans of no
        rollout that are older go as well, with the rewards that name these calls.

        A rollout is deleted whole or not at all; many are deleted in several transactions, so that others can write in
        between. One that waits in the queue or has an open attempt is spared. With ``dry_run`` nothing is deleted.
        Raises `StoreError` when nothing at all is given to choose by.
        """
        ...

    def vacuum(self) -> None:
        """Gives the space of what was deleted back to the system.

        Whoever writes meanwhile may have to wait for as long as it takes: do it while nothing runs.
        """
        ...

    def statistics(self) -> StoreStatistics:
        """What is in the store, and how much room it takes."""
        ...

    def unannounced(self) -> list[Attempt]:
        """Attempts that calls and spans name and nobody opened, in the order of their beginning, as far as known.

        ``started_at`` is when the first of them began; ``ended_at`` and ``outcome`` are None, because nobody said how
        they ended. What names no attempt belongs to the first.
        """
        ...


def require_choice(before: float | None, run_id: str | None, keep_last: int | None) -> None:
    """Raises `StoreError` unless this chooses something on purpose."""
    if before is None and run_id is None and keep_last is None:
        raise StoreError("nothing says what to delete", hint="give a time, a run or how many rollouts to keep")
    if keep_last is not None and keep_last < 0:
        raise StoreError(f"keep_last is {keep_last}", hint="give how many rollouts to keep, 0 or more")
    if before is not None and not math.isfinite(before):
        raise StoreError(f"before is {before}", hint="give Unix seconds")


def chosen(known: Iterable[tuple[str, float]], before: float | None, keep_last: int | None) -> list[str]:
    """The rollouts to delete. ``known``: ids of those that may be, with when each was last heard of (Unix seconds)."""
    by_age = sorted(known, key=lambda one: (-one[1], one[0]))[keep_last or 0 :]
    return [rollout_id for rollout_id, last in reversed(by_age) if before is None or last < before]


def portions(ids: Sequence[str]) -> Iterable[list[str]]:
    """``ids`` in portions of `ROLLOUTS_A_PORTION`."""
    for first in range(0, len(ids), ROLLOUTS_A_PORTION):
        yield list(ids[first : first + ROLLOUTS_A_PORTION])
