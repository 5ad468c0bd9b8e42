"""The list of rollouts: pages of it, and what a row shows."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from lgov_core.store import TraceStore
from lgov_core.store.sql.pages import CallFigures, RolloutHead
from lgov_core.trace.rollout_spans import attempt_of
from lgov_core.types import BLOCKING, Attempt
from lgov_core.views.pages.filters import RUNNING, UNKNOWN, Filters, decisions_by_rollout, matching
from lgov_core.views.pages.unannounced import FIRST, Unannounced

#: Seconds after which a search answers with what it has, and rollouts that it looks at together.
SEARCH_S: Final = 0.1
_PORTION: Final = 100
#: Beyond every place.
END: Final = 2**62


def rollout_page(
    store: TraceStore, unannounced: Unannounced, filters: Filters, before: int, limit: int
) -> dict[str, Any]:
    """At most ``limit`` rollouts whose place is before ``before``, the newest first; see docs/reference/window-api.md, "Pages".

    Those without a row of their own come last. The cursor is the place from which to go on. Raises `StoreError`.
    """
    pages, until = store.pages, time.monotonic() + SEARCH_S
    found: list[RolloutHead] = []
    place: int | None = before
    others = unannounced.newest_first(pages)
    while place is not None and len(found) <= limit and (time.monotonic() < until or place == before):
        wanted = _PORTION if filters.need_search else limit - len(found) + 1
        if FIRST <= place < END:
            heads = [one for one in others if one.seq < place and _is_meant(one, filters)][:wanted]
            place = heads[-1].seq if len(heads) == wanted else None if unannounced.complete else place
        else:
            heads = pages.rollouts_before(place, wanted, run_id=filters.run, task_id=filters.task)
            place = heads[-1].seq if len(heads) == wanted else END - 1
        found += matching(pages, heads, filters)
        if place == before:  # what there is besides is still looked for
            break
    if len(found) > limit:
        found = found[:limit]
        place = found[-1].seq
    total = pages.marks()["rollouts"] + len(others)
    left = 0 if place is None else sum(one.seq < place for one in others)
    if place is not None and place < FIRST:
        left = place - 1 + len(others)
    return {
        "items": rollout_rows(store, found),
        "cursor": None if place is None else str(place),
        "searched": {"done": max(total - left, 0), "total": total},
    }


def _is_meant(head: RolloutHead, filters: Filters) -> bool:
    return filters.run in (None, head.run_id) and filters.task in (None, head.task_id)


def rollout_rows(store: TraceStore, heads: Sequence[RolloutHead]) -> list[dict[str, Any]]:
    """What a list shows of these rollouts, in their order: of each its last attempt."""
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
    for one in ids:  # known from their calls only
        for number in sorted({figures.attempt for figures in calls[one]} - {tried.attempt for tried in attempts[one]}):
            attempts[one].append(Attempt(one, number, 0.0))
    chats = pages.chats_of([one for one in ids if not calls[one]])
    decided = decisions_by_rollout(pages, ids)
    earned = _rewards(store, ids, attempts)
    rows: list[dict[str, Any]] = []
    for head in heads:
        tried = attempts[head.rollout_id]
        last = max(tried, key=lambda one: one.attempt, default=Attempt(head.rollout_id, 1, head.created_at))
        own = [one for one in calls[head.rollout_id] if one.attempt == last.attempt]
        decisions = [one for number, one in decided[head.rollout_id] if number in (None, last.attempt)]
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
                "turns": sum(one.calls for one in own) or chats.get((head.rollout_id, last.attempt), 0),
                "denials": sum(one.blocked for one in decisions),
                "would": sum(one.would in BLOCKING for one in decisions),
                "rewards": rewards,
                "return": math.fsum(rewards.values()) if rewards else None,
                "advantage": None,
            }
        )
    return rows


def _figures(calls: Sequence[CallFigures]) -> dict[str, Any]:
    """The figures of an attempt's calls."""
    versions = [version for one in calls for version in (one.oldest_weights, one.newest_weights) if version is not None]
    prompts, replies = [one.prompt_tokens for one in calls], [one.response_tokens for one in calls]
    return {
        "agents": [one.agent for one in calls if one.agent is not None],
        "prompt_tokens": _sum(prompts),
        "response_tokens": _sum(replies),
        "truncated": sum(one.truncated for one in calls),
        "weights_version": [min(versions), max(versions)] if versions else None,
    }


def _sum(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None


def _rewards(
    store: TraceStore, ids: Sequence[str], attempts: Mapping[str, Sequence[Attempt]]
) -> dict[tuple[str, int], dict[str, float]]:
    """The sums of rewards by rollout, attempt and dimension."""
    rewards = store.rewards(ids)
    unsure = {one.rollout_id for one in rewards if one.attempt is None and len(attempts[one.rollout_id or ""]) > 1}
    calls = list(store.calls([one for one in unsure if one is not None])) if unsure else []
    values: dict[tuple[str, int], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for one in rewards:
        rollout_id = one.rollout_id or ""
        own = [call for call in calls if call.rollout_id == rollout_id]
        number = attempt_of(one, attempts[rollout_id], own)
        values[rollout_id, number][one.dimension].append(one.value)
    return {key: {name: math.fsum(found) for name, found in earned.items()} for key, earned in values.items()}
