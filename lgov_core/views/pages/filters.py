"""What a list is narrowed to, and which rollouts fit."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from lgov_core.store.sql.pages import RolloutHead, StorePages
from lgov_core.trace import semconv
from lgov_core.types import BLOCKING

#: Outcomes of attempts that have none: those that run, and those that are known from their calls only.
RUNNING: Final = "running"
UNKNOWN: Final = "unknown"


@dataclass(frozen=True, slots=True)
class Filters:
    """Narrows a list; None does not.

    ``denied``: ``1`` something was blocked, ``would`` shadow mode kept something from being, ``0`` neither.
    """

    run: str | None = None
    task: str | None = None
    agent: str | None = None
    outcome: str | None = None
    denied: str | None = None
    policy: str | None = None
    rule: str | None = None
    text: str | None = None

    @property
    def need_search(self) -> bool:
        """Whether rollouts must be looked at one by one."""
        return any((self.agent, self.outcome, self.denied, self.policy, self.rule, self.text))


@dataclass(frozen=True, slots=True)
class BriefDecision:
    """A decision in a list, from the JSON text of its span's attributes."""

    attributes: dict[str, Any]

    @property
    def effect(self) -> str:
        """What was done."""
        return str(self.attributes.get(semconv.DECISION_EFFECT) or "")

    @property
    def would(self) -> str:
        """What shadow mode kept from being done, or ""."""
        return str(self.attributes.get(semconv.DECISION_WOULD) or "")

    def of(self, name: str) -> str:
        """An attribute as text, "" where it is missing."""
        return str(self.attributes.get(name) or "")

    @property
    def blocked(self) -> bool:
        """Whether it kept something from being done."""
        return self.effect in BLOCKING


def decisions_by_rollout(pages: StorePages, ids: Sequence[str]) -> dict[str, list[tuple[int | None, BriefDecision]]]:
    """The decisions on these rollouts that did more than allow, each with its attempt."""
    found: dict[str, list[tuple[int | None, BriefDecision]]] = defaultdict(list)
    for rollout_id, attempt, attributes in pages.decisions_of(ids):
        found[rollout_id].append((attempt, BriefDecision(json.loads(attributes))))
    return found


def matching(pages: StorePages, heads: Sequence[RolloutHead], filters: Filters) -> list[RolloutHead]:
    """Those of ``heads`` that fit. Cheap filters go first, so that few rollouts are searched for a text."""
    if not filters.need_search:
        return list(heads)
    left = [head.rollout_id for head in heads]
    if filters.outcome is not None:
        outcomes = dict.fromkeys(left, UNKNOWN)
        outcomes |= {row[0]: row[4] or RUNNING for row in pages.attempts_of(left)}  # by attempt: the last one stays
        left = [one for one in left if outcomes[one] == filters.outcome]
    if filters.agent is not None and left:
        agents = {one.rollout_id for one in pages.call_figures(left) if one.agent == filters.agent}
        left = [one for one in left if one in agents]
    if (filters.denied is not None or filters.policy or filters.rule) and left:
        decided = decisions_by_rollout(pages, left)
        left = [one for one in left if _decided([found for _, found in decided.get(one, ())], filters)]
    if filters.text and left:
        containing = pages.containing(left, filters.text)
        left = [one for one in left if one in containing]
    kept = set(left)
    return [head for head in heads if head.rollout_id in kept]


def _decided(decisions: Sequence[BriefDecision], filters: Filters) -> bool:
    blocked, would = any(one.blocked for one in decisions), any(one.would in BLOCKING for one in decisions)
    fits = {None: True, "1": blocked, "would": would, "0": not (blocked or would)}[filters.denied]
    wanted = {semconv.DECISION_POLICY: filters.policy, semconv.DECISION_RULE: filters.rule}
    named = {name: value for name, value in wanted.items() if value}
    return fits and (not named or any(all(one.of(name) == value for name, value in named.items()) for one in decisions))
