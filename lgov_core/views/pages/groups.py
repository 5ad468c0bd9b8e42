"""The groups: the rollouts of one task in one run, side by side."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from lgov_core.store import TraceStore
from lgov_core.store.sql.pages import RolloutHead, StorePages, TaskGroup
from lgov_core.train.loop.intervals import mean_interval
from lgov_core.types import Outcome
from lgov_core.views.pages.filters import Filters, matching
from lgov_core.views.pages.rollouts import END, SEARCH_S, rollout_rows
from lgov_core.views.pages.texts import text_of, text_ref
from lgov_core.views.pages.unannounced import FIRST, Unannounced

#: Rollouts of a group that are listed.
_SHOWN: Final = 64
_PORTION: Final = 20
_TRAINABLE: Final = frozenset(outcome.value for outcome in Outcome if outcome.trainable)


class GroupIndex:
    """The groups of a store, kept up to date by reading the rollouts that were added. Callable from any thread.

    It takes about 200 bytes a group.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read = 0
        self._groups: dict[tuple[str, str], TaskGroup] = {}
        self._newest: list[TaskGroup] = []

    def newest_first(self, pages: StorePages) -> Sequence[TaskGroup]:
        """All groups, by the place of their last rollout. Raises `StoreError`."""
        with self._lock:
            added = pages.groups_after(self._read)
            for one in added:
                key = (one.run_id, one.task_id)
                if (known := self._groups.get(key)) is not None:
                    one = replace(one, count=known.count + one.count, first=known.first)
                self._groups[key] = one
                self._read = max(self._read, one.last)
            if added:
                self._newest = sorted(self._groups.values(), key=lambda one: -one.last)
            return self._newest

    def find(self, pages: StorePages, run_id: str, task_id: str) -> TaskGroup | None:
        """One group, None where there is no such. Raises `StoreError`."""
        self.newest_first(pages)
        return self._groups.get((run_id, task_id))


def group_page(
    store: TraceStore,
    index: GroupIndex,
    unannounced: Unannounced,
    filters: Filters,
    teaches: str | None,
    before: int,
    limit: int,
) -> dict[str, Any]:
    """At most ``limit`` groups after the one whose last rollout is at the place ``before``; the cursor is such a place.

    Rollouts without a row of their own come last, each as a group. Raises `StoreError`.
    """
    pages, until = store.pages, time.monotonic() + SEARCH_S
    found = unannounced.newest_first(pages)
    alone = {one.seq: one for one in (found if unannounced.complete else ())}
    every = [
        one
        for one in (*index.newest_first(pages), *map(_group_of_one, alone.values()))
        if filters.run in (None, one.run_id)
        and filters.task in (None, one.task_id)
        and (teaches is None or one.count > 1)
    ]
    left = [one for one in every if before == END or _order(one.last) > _order(before)]
    place, items = 0, list[dict[str, Any]]()
    while place < len(left) and len(items) < limit and (time.monotonic() < until or place == 0):
        for heads in _members(pages, left[place : place + min(_PORTION, limit)], alone, filters):
            place += 1
            if heads and _fits(shown := group_of(store, heads), teaches):
                items.append(shown)
            if len(items) == limit or time.monotonic() > until:
                break
    rest = None if unannounced.complete else str(END - 1)  # where those without a row begin
    return {
        "items": items,
        "cursor": str(left[place - 1].last) if place < len(left) else rest,
        "searched": {"done": len(every) - len(left) + place, "total": len(every)},
    }


def _group_of_one(head: RolloutHead) -> TaskGroup:
    return TaskGroup(head.run_id, head.task_id, 1, head.seq, head.seq)


def _order(place: int) -> tuple[bool, int]:
    """Sorts places: the newest first, those of rollouts without a row last."""
    return place >= FIRST, -place


def _members(
    pages: StorePages, groups: Sequence[TaskGroup], alone: Mapping[int, RolloutHead], filters: Filters
) -> list[list[RolloutHead]]:
    """The rollouts of each group; none where none of them fits. ``alone``: those without a row, by place."""
    of: dict[tuple[str, str], list[RolloutHead]] = defaultdict(list)
    heads = [alone[one.last] for one in groups if one.last in alone]
    if own := [one for one in groups if one.last not in alone]:
        first, last = min(one.first for one in own), max(one.last for one in own)
        heads += pages.rollouts_of_tasks([one.task_id for one in own], first, last)
    for head in heads:
        of[head.run_id, head.task_id].append(head)
    wanted = {(one.run_id, one.task_id) for one in groups}
    if filters.need_search:
        fit = matching(pages, [head for head in heads if (head.run_id, head.task_id) in wanted], filters)
        wanted = {(head.run_id, head.task_id) for head in fit}
    return [of[key] if (key := (one.run_id, one.task_id)) in wanted else [] for one in groups]


def group_of(store: TraceStore, heads: Sequence[RolloutHead]) -> dict[str, Any]:
    """One group as a page shows it."""
    rows = rollout_rows(store, heads[:_SHOWN])
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
        "rewards": {name: _spread(found) for name, found in values.items()},
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
    return "all rewards are alike" if all(min(found) == max(found) for found in values.values()) else None


def _fits(group: Mapping[str, Any], teaches: str | None) -> bool:
    return teaches is None or (group["count"] > 1 and group["teaches_nothing"] == (teaches == "nothing"))


def _spread(values: Sequence[float]) -> dict[str, Any]:
    found = mean_interval(values).as_json()
    return {name: found[name] for name in ("mean", "low", "high")} | _ends(values)


def _ends(values: Sequence[float]) -> dict[str, float]:
    return {"least": min(values), "most": max(values)}
