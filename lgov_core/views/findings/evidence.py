"""The values that the checks look at. Read by `lgov_core.views.findings.reading`; the checks are functions of these."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

#: The channel of the task's own reward.
TASK = "task"


@dataclass(frozen=True, slots=True)
class TrainedRollout:
    """A rollout with what it earned. ``group`` is its update (0: unknown) and task.

    ``rewards`` are totals by channel, ``air`` the tool rewards in order. ``credited`` says whether any of its turns has
    an advantage, None where that was not recorded. ``truncated`` of its ``calls`` were cut off by the limit of tokens.
    """

    rollout_id: str
    group: tuple[int, str]
    rewards: Mapping[str, float]
    air: tuple[float, ...]
    credited: bool | None
    calls: int
    truncated: int


@dataclass(frozen=True, slots=True)
class RecordedRollout:
    """What the store holds of a rollout beside its rewards.

    Of ``tool_calls``, ``malformed`` could not be read or had arguments that the tool cannot take. ``drifted`` of its
    ``calls`` went on in other tokens. ``violated`` is true when an act that the policies object to was executed;
    ``repeats`` counts tool calls that were rewarded although an earlier one was the same.
    """

    calls: int
    tool_calls: int
    malformed: int
    drifted: int
    violated: bool
    repeats: int


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is on record of a run.

    ``updates`` are the lines of ``metrics.jsonl`` about updates, ``failed`` those about updates that failed. ``early``
    and ``late`` are rollouts of the first and the last quarter, ``recent`` of the last updates; ``early`` is empty in a
    run too short to compare. ``recorded`` has rollouts of these, by id; it is empty where there is no store.
    """

    updates: Sequence[Mapping[str, Any]] = ()
    failed: Sequence[Mapping[str, Any]] = ()
    early: Sequence[TrainedRollout] = ()
    late: Sequence[TrainedRollout] = ()
    recent: Sequence[TrainedRollout] = ()
    recorded: Mapping[str, RecordedRollout] = field(default_factory=dict[str, RecordedRollout])

    def recorded_of(self, rollouts: Iterable[TrainedRollout]) -> list[tuple[TrainedRollout, RecordedRollout]]:
        """Those of ``rollouts`` that the store was read for."""
        return [(one, self.recorded[one.rollout_id]) for one in rollouts if one.rollout_id in self.recorded]


def groups_of(rollouts: Iterable[TrainedRollout]) -> dict[tuple[int, str], list[TrainedRollout]]:
    """The rollouts that are compared with each other: groups of two or more."""
    found: dict[tuple[int, str], list[TrainedRollout]] = {}
    for one in rollouts:
        found.setdefault(one.group, []).append(one)
    return {key: group for key, group in found.items() if len(group) > 1}
