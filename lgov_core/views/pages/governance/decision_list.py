"""The decisions on record that did more than allow, the newest first."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, Final

from lgov_core.store.sql.pages import StorePages
from lgov_core.trace import semconv
from lgov_core.types import BLOCKING
from lgov_core.views.pages.filters import BriefDecision
from lgov_core.views.pages.governance.decision_counts import COLUMNS

_SLICE_S: Final = 0.1
_ROWS: Final = 2_000


def decision_page(
    pages: StorePages, effect: str | None, wanted: Mapping[str, str], before: int, limit: int
) -> dict[str, Any]:
    """At most ``limit`` decisions before the place ``before``; the cursor is such a place.

    ``effect`` is an effect, ``blocked`` or ``would``; None: all but allow. ``wanted`` has values for `COLUMNS`.
    """
    total, until = pages.marks()["spans"], time.monotonic() + _SLICE_S
    place, items = min(before, total + 1), list[dict[str, Any]]()
    while place > 1 and len(items) < limit and time.monotonic() < until:
        first = max(place - 1 - _ROWS, 0)
        rows = pages.decisions_between(first, place - 1, allowed=effect == "allow")
        for seq, at, rollout_id, attempt, attributes in reversed(rows):
            decision = BriefDecision(json.loads(attributes))
            place = seq
            if _fits(decision, effect, wanted):
                items.append(_item(decision, at, rollout_id, attempt))
            if len(items) == limit:
                break
        else:
            place = first + 1
    return {
        "items": items,
        "cursor": str(place) if place > 1 else None,
        "searched": {"done": total - place + 1, "total": total},
    }


def _fits(decision: BriefDecision, effect: str | None, wanted: Mapping[str, str]) -> bool:
    if any(decision.of(COLUMNS[column]) != value for column, value in wanted.items()):
        return False
    if effect == "blocked":
        return decision.blocked
    return decision.would in BLOCKING if effect == "would" else effect in (None, decision.effect)


def _item(decision: BriefDecision, at: float, rollout_id: str | None, attempt: int | None) -> dict[str, Any]:
    return {
        "rollout_id": rollout_id,
        "attempt": attempt,
        "at": at,
        "point": decision.of(semconv.POINT),
        "action": decision.of(semconv.ACTION_NAME),
        "tool": decision.of(semconv.ACTION_NAME),
        "agent": decision.of(semconv.AGENT_NAME) or None,
        "effect": decision.effect,
        "would": decision.would,
        "blocks": decision.blocked,
        "policy": decision.of(semconv.DECISION_POLICY),
        "rule": decision.of(semconv.DECISION_RULE),
        "reason": decision.of(semconv.DECISION_REASON),
        "severity": decision.of(semconv.DECISION_SEVERITY),
        "decision_id": decision.of(semconv.DECISION_ID) or None,
        "tool_call_id": decision.of(semconv.TOOL_CALL_ID) or None,
    }
