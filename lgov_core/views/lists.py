"""Rollouts side by side: lists of them, of groups (those of one task in one run), and of two evaluations on the same tasks.

A comparison says what was fixed, what broke, and the paired difference with its interval.
"""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from lgov_core.errors import StoreError
from lgov_core.store import TraceStore
from lgov_core.store.pages import RUNNING, UNKNOWN, CallFigures, Filters, RolloutHead, StorePages, TaskGroup
from lgov_core.trace.rollout_spans import attempt_of
from lgov_core.train.loop.figures import mean_interval
from lgov_core.types import Attempt, Outcome
from lgov_core.views.timeline import as_json, text_of, text_ref

#: Seconds after which a list that has to be looked through row by row answers with what it has, and where to go on.
SEARCH_S: Final = 0.5
#: Rollouts, and groups, that are looked through together.
_ROLLOUTS_A_PORTION: Final = 200
_GROUPS_A_PORTION: Final = 20
#: Rollouts of a group that are listed.
_LISTED: Final = 64
_TRAINABLE: Final = frozenset(outcome.value for outcome in Outcome if outcome.trainable)


def rollout_page(store: TraceStore, filters: Filters, before: int | None, limit: int) -> dict[str, Any]:
    """At most ``limit`` rollouts whose place is before ``before``, the newest first; see web/API.md, "Pages".

    The cursor is the place from which to go on. Raises `StoreError`.
    """
    pages, until = store.pages, time.monotonic() + SEARCH_S
    heads: list[RolloutHead] = []
    seq, is_more = before, True
    while is_more and len(heads) <= limit and (seq == before or time.monotonic() < until):
        size = _ROLLOUTS_A_PORTION if filters.text else limit + 1
        portion = pages.rollouts_before(seq, size, filters)
        seq, is_more = portion[-1].seq if portion else seq, len(portion) == size
        if filters.text:
            containing = pages.containing([head.rollout_id for head in portion], filters.text)
            portion = [head for head in portion if head.rollout_id in containing]
        heads += portion
    if len(heads) > limit:
        heads, seq, is_more = heads[:limit], heads[limit - 1].seq, True
    return {"items": rollout_rows(store, heads), "cursor": str(seq) if is_more else None}


def group_page(
    store: TraceStore, filters: Filters, teaches: str | None, before: int | None, limit: int
) -> dict[str, Any]:
    """At most ``limit`` groups after the one whose last rollout is at the place ``before``; the cursor is such a place.

    ``teaches`` is ``nothing`` or ``something``: groups of several rollouts that do. Raises `StoreError`.
    """
    pages, until = store.pages, time.monotonic() + SEARCH_S
    is_search = bool(filters.text or teaches)
    items: list[dict[str, Any]] = []
    seq, is_more = before, True
    while is_more and len(items) < limit and (seq == before or time.monotonic() < until):
        size = _GROUPS_A_PORTION if is_search else limit + 1
        groups = pages.groups_before(seq, size, filters)
        is_more = len(groups) == size
        members = _members(pages, groups, filters)
        for at, group in enumerate(groups):
            if len(items) == limit or (is_search and at and time.monotonic() > until):
                is_more = True
                break
            seq = group.last
            heads = members.get((group.run_id, group.task_id), [])
            if heads and (teaches is None or len(heads) > 1):
                item = group_of(store, heads)
                if teaches is None or item["teaches_nothing"] == (teaches == "nothing"):
                    items.append(item)
    return {"items": items, "cursor": str(seq) if is_more else None}


def _members(
    pages: StorePages, groups: Sequence[TaskGroup], filters: Filters
) -> Mapping[tuple[str, str], list[RolloutHead]]:
    """The rollouts of each group; with a text in the filters, of those in which a rollout contains it."""
    heads = pages.rollouts_of_groups(groups)
    members: dict[tuple[str, str], list[RolloutHead]] = defaultdict(list)
    for head in heads:
        members[head.run_id, head.task_id].append(head)
    if filters.text:
        fit = pages.fitting([head.rollout_id for head in heads], filters)
        return {key: own for key, own in members.items() if any(head.rollout_id in fit for head in own)}
    return members


def rollout_rows(store: TraceStore, heads: Sequence[RolloutHead]) -> list[dict[str, Any]]:
    """The rows of these rollouts in a list, in their order: of each its last attempt."""
    pages, ids = store.pages, [head.rollout_id for head in heads]
    if not ids:
        return []
    attempts: dict[str, list[Attempt]] = defaultdict(list)
    outcomes: dict[str, str] = {}
    for rollout_id, number, started_at, ended_at, outcome, error in pages.attempts_of(ids):
        attempts[rollout_id].append(Attempt(rollout_id, number, started_at, ended_at, error=error))
        outcomes[rollout_id] = outcome or RUNNING
    calls: dict[str, list[CallFigures]] = defaultdict(list)
    for figures in pages.call_figures(ids):
        calls[figures.rollout_id].append(figures)
    for rollout_id in ids:  # attempts that are known from their calls only
        opened = {attempt.attempt for attempt in attempts[rollout_id]}
        for number in sorted({figures.attempt for figures in calls[rollout_id]} - opened):
            attempts[rollout_id].append(Attempt(rollout_id, number, 0.0))
    chats = pages.chats_of([rollout_id for rollout_id in ids if not calls[rollout_id]])
    decided = defaultdict(list)
    for rollout_id, number, kind in pages.decisions_of(ids):
        decided[rollout_id].append((number, kind))
    earned = _rewards(store, ids, attempts)
    rows: list[dict[str, Any]] = []
    for head in heads:
        tried = attempts[head.rollout_id]
        last = max(tried, key=lambda tried: tried.attempt, default=Attempt(head.rollout_id, 1, head.created_at))
        own = [figures for figures in calls[head.rollout_id] if figures.attempt == last.attempt]
        kinds = [kind for number, kind in decided[head.rollout_id] if number in (None, last.attempt)]
        rewards = earned.get((head.rollout_id, last.attempt), {})
        rows.append(
            {
                **{name: getattr(head, name) for name in ("rollout_id", "task_id", "run_id", "created_at")},
                "attempt": last.attempt,
                "attempts": len(tried),
                "outcome": outcomes.get(head.rollout_id, UNKNOWN),
                "error": last.error,
                "seconds": None if last.ended_at is None else last.ended_at - last.started_at,
                **_figures(own),
                "turns": sum(figures.calls for figures in own) or chats.get((head.rollout_id, last.attempt), 0),
                "denials": sum(kind.blocks for kind in kinds),
                "would": sum(kind.would_block for kind in kinds),
                "rewards": rewards,
                "return": math.fsum(rewards.values()) if rewards else None,
                "advantage": None,
            }
        )
    return rows


def _figures(calls: Sequence[CallFigures]) -> dict[str, Any]:
    """The figures of an attempt's calls."""
    versions = [
        version for call in calls for version in (call.oldest_weights, call.newest_weights) if version is not None
    ]
    return {
        "agents": [call.agent for call in calls if call.agent is not None],
        "prompt_tokens": _sum([call.prompt_tokens for call in calls]),
        "response_tokens": _sum([call.response_tokens for call in calls]),
        "truncated": sum(call.truncated for call in calls),
        "weights_version": [min(versions), max(versions)] if versions else None,
    }


def _sum(counts: Sequence[int | None]) -> int | None:
    numbers = [count for count in counts if count is not None]
    return sum(numbers) if numbers and len(numbers) == len(counts) else None


def _rewards(
    store: TraceStore, ids: Sequence[str], attempts: Mapping[str, Sequence[Attempt]]
) -> dict[tuple[str, int], dict[str, float]]:
    """The sums of rewards by rollout, attempt and dimension."""
    rewards = store.rewards(ids)
    unsure = {
        reward.rollout_id for reward in rewards if reward.attempt is None and len(attempts[reward.rollout_id or ""]) > 1
    }
    calls = list(store.calls([rollout_id for rollout_id in unsure if rollout_id is not None])) if unsure else []
    values: dict[tuple[str, int], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for reward in rewards:
        rollout_id = reward.rollout_id or ""
        own = [call for call in calls if call.rollout_id == rollout_id]
        number = attempt_of(reward, attempts[rollout_id], own)
        values[rollout_id, number][reward.dimension].append(reward.value)
    return {key: {name: math.fsum(each) for name, each in earned.items()} for key, earned in values.items()}


def group_of(store: TraceStore, heads: Sequence[RolloutHead]) -> dict[str, Any]:
    """One group as a page shows it."""
    rows = rollout_rows(store, heads[:_LISTED])
    trainable = [row for row in rows if row["outcome"] in _TRAINABLE]
    channels = sorted({name for row in trainable for name in row["rewards"]})
    values = {name: [row["rewards"].get(name, 0.0) for row in trainable] for name in channels}
    returns = [math.fsum(row["rewards"].values()) for row in trainable]
    rollout = store.rollouts(ids=[heads[0].rollout_id])
    why = _why(rows, values)
    return {
        "run_id": heads[0].run_id,
        "task_id": heads[0].task_id,
        "input": text_of(rollout[0].input, text_ref(heads[0].rollout_id, None, "input")) if rollout else None,
        "count": len(heads),
        "rollouts": rows,
        "rewards": {
            name: {"mean": interval["mean"], "low": interval["low"], "high": interval["high"], **_ends(each)}
            for name, each in values.items()
            for interval in (mean_interval(each).as_json(),)
        },
        "return": {"mean": math.fsum(returns) / len(returns), **_ends(returns), "spread": max(returns) - min(returns)}
        if returns
        else None,
        "outcomes": dict(Counter(row["outcome"] for row in rows)),
        "denials": sum(row["denials"] for row in rows),
        "teaches_nothing": why is not None and len(rows) > 1,
        "why": why,
    }


def _why(rows: Sequence[Mapping[str, Any]], values: Mapping[str, Sequence[float]]) -> str | None:
    """Why a group teaches nothing, None when it may teach something."""
    if len(rows) < 2:
        return "one rollout"
    compared = sum(row["outcome"] in _TRAINABLE for row in rows)
    if compared == 0:
        return "no trainable outcome"
    if compared == 1:
        return "one trainable rollout"
    return "all rewards are alike" if all(min(each) == max(each) for each in values.values()) else None


def _ends(values: Sequence[float]) -> dict[str, float]:
    return {"least": min(values), "most": max(values)}


#: Rollouts of a side, at most.
_MOST: Final = 20_000


@dataclass(frozen=True, slots=True)
class Side:
    """One half of a comparison: the rollouts of a run whose task ids begin with ``tasks``, of one version of the ``weights``
    where there are several.
    """

    id: str
    label: str
    source: str
    run_id: str
    tasks: str
    rollouts: int
    weights: int | None = None


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


def sides_of(source: str, pages: StorePages) -> list[Side]:
    """The sides of comparisons in a store: its runs, and their evaluations, which have task ids such as ``test-17``."""
    groups = pages.added_groups()
    of_run: dict[str, Counter[str]] = defaultdict(Counter)
    for group in reversed(groups):  # the oldest first
        prefix, dash, number = group.task_id.rpartition("-")
        of_run[group.run_id][f"{prefix}-" if dash and number.isdecimal() else ""] += group.count
    sides: list[Side] = []
    for run_id, prefixes in of_run.items():
        evaluations = [
            prefix for prefix in prefixes if prefix not in ("", "train-") and not prefix[:-1].lstrip("i").isdecimal()
        ]
        whole = Side(f"{source}~{run_id}~", run_id or source, source, run_id, "", prefixes.total())
        sides.append(whole)
        for prefix in evaluations[:20] if len(prefixes) > 1 else ():
            label = f"{whole.label}: {prefix[:-1]}"
            side = replace(whole, id=whole.id + prefix, label=label, tasks=prefix, rollouts=prefixes[prefix])
            versions = Counter(_weights(pages, _of_side(side, groups)).values() if prefix == "test-" else ())
            of_versions = [
                replace(
                    side,
                    id=f"{side.id}@{version}",
                    label=f"{label}, weights {version}",
                    rollouts=count,
                    weights=version,
                )
                for version, count in sorted(versions.items())
            ]
            sides += of_versions[:20] if len(versions) > 1 else [side]
    return sides


def _of_side(side: Side, groups: Sequence[TaskGroup]) -> list[TaskGroup]:
    return [group for group in groups if group.run_id == side.run_id and group.task_id.startswith(side.tasks)]


def _weights(pages: StorePages, groups: Sequence[TaskGroup]) -> Mapping[str, int]:
    """The newest version of the weights in each rollout of the groups; empty for too many rollouts."""
    ids = [head.rollout_id for head in pages.rollouts_of_groups(groups)]
    calls = pages.call_figures(ids) if len(ids) <= _MOST else ()
    return {call.rollout_id: call.newest_weights for call in calls if call.newest_weights is not None}


def proposed_pairs(sides: Sequence[Side]) -> list[dict[str, str]]:
    """Pairs worth looking at, the first and the last before all others: evaluations of a run, runs with the same tasks."""
    pairs: list[dict[str, str]] = []
    for number, first in enumerate(sides):
        for other in reversed(sides[number + 1 :]):
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
    groups = _of_side(side, compared.groups)
    ids = [head.rollout_id for head in store.pages.rollouts_of_groups(groups)]
    if side.weights is not None:
        weights = _weights(store.pages, groups)
        ids = [rollout_id for rollout_id in ids if weights.get(rollout_id) == side.weights]
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
