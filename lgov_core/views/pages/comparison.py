"""Two evaluations on the same tasks: what was fixed, what broke, and the paired difference with its interval."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from lgov_core.errors import StoreError
from lgov_core.store import TraceStore
from lgov_core.store.pages import TaskGroup
from lgov_core.train.loop.intervals import mean_interval
from lgov_core.types import Outcome
from lgov_core.views.pages.timeline import as_json, text_of, text_ref

#: Rollouts of a side, at most.
_MOST: Final = 20_000
_TRAINABLE: Final = frozenset(outcome.value for outcome in Outcome if outcome.trainable)


@dataclass(frozen=True, slots=True)
class Side:
    """One half of a comparison: the rollouts of a run whose task ids begin with ``tasks``."""

    id: str
    label: str
    source: str
    run_id: str
    tasks: str
    rollouts: int


@dataclass(frozen=True, slots=True)
class _Half:
    """The rollouts of one task on one side; ``key`` is what is common to both sides."""

    task_id: str
    input: str
    rollouts: tuple[tuple[str, int, str, float], ...]

    @property
    def succeeded(self) -> float:
        return sum(outcome == Outcome.SUCCEEDED for _, _, outcome, _ in self.rollouts) / len(self.rollouts)

    @property
    def reward(self) -> float:
        return math.fsum(value for *_, value in self.rollouts) / len(self.rollouts)

    def as_json(self) -> dict[str, Any]:
        names = ("rollout_id", "attempt", "outcome", "reward")
        rollouts = [dict(zip(names, rollout, strict=True)) for rollout in self.rollouts[:64]]
        return {"task_id": self.task_id, "succeeded": self.succeeded, "reward": self.reward, "rollouts": rollouts}


def sides_of(source: str, groups: Sequence[TaskGroup]) -> list[Side]:
    """The sides of comparisons in a store: its runs, and their evaluations, which have task ids such as ``before-17``."""
    of_run: dict[str, Counter[str]] = defaultdict(Counter)
    for group in reversed(groups):  # the oldest first
        prefix, dash, number = group.task_id.rpartition("-")
        of_run[group.run_id][f"{prefix}-" if dash and number.isdecimal() else ""] += group.count
    sides: list[Side] = []
    for run_id, prefixes in of_run.items():
        evaluations = [prefix for prefix in prefixes if prefix and not prefix[:-1].lstrip("i").isdecimal()]
        name = run_id or source
        sides.append(Side(f"{source}~{run_id}~", name, source, run_id, "", prefixes.total()))
        sides += [
            Side(f"{source}~{run_id}~{prefix}", f"{name}: {prefix[:-1]}", source, run_id, prefix, prefixes[prefix])
            for prefix in evaluations[:20]
            if len(prefixes) > 1
        ]
    return sides


def proposed_pairs(sides: Sequence[Side]) -> list[dict[str, str]]:
    """Pairs worth looking at: evaluations of one run in the order of time, then runs of the same name of task."""
    pairs: list[dict[str, str]] = []
    for number, first in enumerate(sides):
        for other in sides[number + 1 :]:
            evaluations = bool(first.tasks) and bool(other.tasks)
            if (first.run_id == other.run_id and evaluations) or (
                first.tasks == other.tasks and first.run_id != other.run_id
            ):
                pairs.append({"a": first.id, "b": other.id})
    return pairs[:50]


@dataclass(frozen=True, slots=True)
class ComparedSide:
    """A side with what it is read from. ``groups`` are those of its store."""

    side: Side
    store: TraceStore
    groups: Sequence[TaskGroup]


def compare(first: ComparedSide, second: ComparedSide, channel: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The figures of a comparison and its pairs, those that changed first. Raises `StoreError` for too many rollouts."""
    channels = {channel}
    halves = [_halves(compared, channel, channels) for compared in (first, second)]
    matched_by, pairs = "task_id", _matched(*({half.task_id: half for half in side_halves} for side_halves in halves))
    if not pairs:
        matched_by, pairs = "input", _matched(*map(_by_input, halves))
    items = [_pair(before, after) for before, after in pairs]
    order = {"broken": 0, "fixed": 1, "worse": 2, "better": 3, "same": 4}
    items.sort(key=lambda item: (order[item["change"]], -abs(item["difference"])))
    counts = Counter(item["change"] for item in items)
    figures = {
        "a": asdict(first.side),
        "b": asdict(second.side),
        "channel": channel,
        "channels": sorted(channels),
        "matched_by": matched_by,
        "tasks": {"shared": len(pairs)}
        | {f"only_{name}": len(side_halves) - len(pairs) for name, side_halves in zip("ab", halves, strict=True)},
        "counts": {name: counts[name] for name in ("fixed", "broken", "better", "worse", "same")},
        "success": _estimates([(before.succeeded, after.succeeded) for before, after in pairs]),
        "reward": _estimates([(before.reward, after.reward) for before, after in pairs]),
    }
    return figures, items


def _halves(compared: ComparedSide, channel: str, channels: set[str]) -> list[_Half]:
    """The tasks of a side; adds the channels in which anything was earned to ``channels``."""
    side, store = compared.side, compared.store
    if side.rollouts > _MOST:
        raise StoreError(f"{side.label} has {side.rollouts} rollouts, more than {_MOST}", hint="compare a part of it")
    groups = [
        group for group in compared.groups if group.run_id == side.run_id and group.task_id.startswith(side.tasks)
    ]
    ids = [head.rollout_id for head in store.pages.rollouts_of_groups(groups)]
    attempts = {row[0]: (row[1], row[4] or "running") for row in store.pages.attempts_of(ids)}
    earned: dict[str, list[float]] = defaultdict(list)
    for reward in store.rewards(ids):
        channels.add(reward.dimension)
        number = attempts.get(reward.rollout_id or "", (1, ""))[0]
        if reward.dimension == channel and reward.attempt in (None, number):
            earned[reward.rollout_id or ""].append(reward.value)
    rollouts_of: dict[str, list[tuple[str, int, str, float]]] = defaultdict(list)
    inputs: dict[str, str] = {}
    for rollout in store.rollouts(ids=ids):
        number, outcome = attempts.get(rollout.rollout_id, (1, "unknown"))
        if outcome in _TRAINABLE:
            value = math.fsum(earned[rollout.rollout_id])
            rollouts_of[rollout.task_id].append((rollout.rollout_id, number, outcome, value))
            inputs[rollout.task_id] = as_json(rollout.input)
    return [_Half(task, inputs[task], tuple(rollouts)) for task, rollouts in rollouts_of.items()]


def _by_input(halves: Sequence[_Half]) -> dict[str, _Half]:
    """The halves by what their tasks ask; those that ask the same become one."""
    by_input: dict[str, _Half] = {}
    for half in halves:
        same = by_input.get(half.input)
        by_input[half.input] = half if same is None else replace(same, rollouts=same.rollouts + half.rollouts)
    return by_input


def _matched(first: Mapping[str, _Half], second: Mapping[str, _Half]) -> list[tuple[_Half, _Half]]:
    return [(half, second[key]) for key, half in first.items() if key in second]


def _pair(first: _Half, second: _Half) -> dict[str, Any]:
    difference = second.reward - first.reward
    good, better = first.succeeded >= 0.5, second.succeeded >= 0.5
    if good != better:
        change = "fixed" if better else "broken"
    else:
        change = "same" if abs(difference) < 1e-12 else "better" if difference > 0 else "worse"
    return {
        "input": text_of(first.input, text_ref(first.rollouts[0][0], None, "input")),
        "change": change,
        "difference": difference,
        "a": first.as_json(),
        "b": second.as_json(),
    }


def _estimates(pairs: Sequence[tuple[float, float]]) -> Mapping[str, Any]:
    values = {"a": [before for before, _ in pairs], "b": [after for _, after in pairs]}
    values["difference"] = [after - before for before, after in pairs]
    return {name: mean_interval(value).as_json() for name, value in values.items()}
