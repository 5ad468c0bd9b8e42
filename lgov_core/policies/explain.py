"""Explains a policy set's decision: every rule and its verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from lgov_core.governor.combine import fold
from lgov_core.policies.policy_set import PolicySet, ask
from lgov_core.types import Action, Decision, new_id


@dataclass(frozen=True, slots=True)
class RuleVerdict:
    """The verdict of one rule. ``covers`` is false when it was not asked; then ``decision`` is None.

    A rule that covers the action and has no ``decision`` had no opinion. ``arguments`` and ``text`` are what it was
    asked about, as the transforms of the rules before it left them.
    """

    rule: str
    covers: bool
    decision: Decision | None
    arguments: Mapping[str, Any]
    text: str | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """The verdicts of all rules in order, and the answer of the set as a whole."""

    verdicts: tuple[RuleVerdict, ...]
    decision: Decision


def explain(policies: PolicySet, action: Action) -> Explanation:
    """Asks every rule about ``action``, and then the set.

    Policies that keep count (budgets, rates, loops) count it: use a set of its own.
    """
    if action.operation_id is None:
        # By it they know that both times it is one action.
        action = replace(action, operation_id=new_id("op"))
    verdicts: list[RuleVerdict] = []
    current = action
    for rule in policies.rules:
        covers = rule.covers(current)
        decision = ask(rule, current) if covers else None
        verdicts.append(RuleVerdict(rule.name, covers, decision, current.arguments, current.text))
        if decision is not None:
            current = fold(current, decision)
    return Explanation(tuple(verdicts), policies.judge(action))
