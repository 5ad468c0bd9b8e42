"""The lists of rollouts and of groups (the rollouts of one task in one run, side by side): pages of them, and their rows."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from lgov_core.store import TraceStore
from lgov_core.store.pages import RUNNING, UNKNOWN, CallFigures, Filters, RolloutHead, StorePages, TaskGroup
from lgov_core.trace.rollout_spans import attempt_of
from lgov_core.train.loop.intervals import mean_interval
from lgov_core.types import Attempt, Outcome
from lgov_core.views.pages.timeline import text_of, text_ref

#: Seconds after which a list that has to be looked through row by row answers with what it has, and where to go on.
SEARCH_S: Final = 0.5
#: Rollouts, and groups, that are looked through together.
_ROLLOUTS_A_PORTION: Final = 200
_GROUPS_A_PORTION: Final = 20
#: Rollouts of a group that are listed.
_LISTED: Final = 64
_TRAINABLE: Final = frozenset(outcome.value for outcome in Outcome if outcome.trainable)


def rollout_page(store: TraceStore, filters: Filters, before: int | None, limit: int) -> dict[str, Any]:
    """At most ``limit`` rollouts whose place is before ``before``, the newest first; see docs/reference/window-api.md, "Pages".

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
        "rewards": {name: _spread(each) for name, each in values.items()},
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


def _spread(values: Sequence[float]) -> dict[str, Any]:
    interval = mean_interval(values).as_json()
    return {name: interval[name] for name in ("mean", "low", "high")} | _ends(values)


def _ends(values: Sequence[float]) -> dict[str, float]:
    return {"least": min(values), "most": max(values)}
