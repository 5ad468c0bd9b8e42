"""The rule set in use in the running context (a context variable), and decorators that add rules to it.

It is the set that `scope` or `use` set, else one that is made when it is first needed. A `RuleSet` has the same decorators
and needs no context.
"""

from __future__ import annotations

import contextvars
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from lgov_core.air.outcome_rewards import AirPlugin
from lgov_core.air.rules import RuleSet
from lgov_core.errors import RewardError

_CURRENT: contextvars.ContextVar[RuleSet | None] = contextvars.ContextVar("lgov_air", default=None)


def current() -> RuleSet:
    """The rule set in use in this context; an empty one is made if there is none."""
    rules = _CURRENT.get()
    return use(RuleSet()) if rules is None else rules


def use(rules: RuleSet) -> RuleSet:
    """Makes ``rules`` the set in use from here on in this context, and returns it. See `scope` to undo it."""
    _CURRENT.set(rules)
    return rules


@contextmanager
def scope(rules: RuleSet | None = None) -> Generator[RuleSet]:
    """A rule set (a new one, unless given) that is in use inside the block, in this task or thread only."""
    chosen = RuleSet() if rules is None else rules
    token = _CURRENT.set(chosen)
    try:
        yield chosen
    finally:
        _CURRENT.reset(token)


def plugin() -> AirPlugin:
    """The plugin of the rule set in use; rules that are added later count too.

    Raises `RewardError` when the set has no rule: most likely they were registered in another thread or context.
    """
    rules = current()
    if not rules.rules and rules.base is None:
        raise RewardError(
            "no AIR rule is registered in this context",
            hint="register rules before air.plugin(), in the same thread, or pass a RuleSet to AirPlugin",
        )
    return AirPlugin(rules)


def on_tool_success(*tools: Any, **options: Any) -> Any:
    """`RuleSet.on_tool_success` of the set in use."""
    return current().on_tool_success(*tools, **options)


def on_tool_failure(*tools: Any, **options: Any) -> Any:
    """`RuleSet.on_tool_failure` of the set in use."""
    return current().on_tool_failure(*tools, **options)


def on_denied(*tools: Any, **options: Any) -> Any:
    """`RuleSet.on_denied` of the set in use."""
    return current().on_denied(*tools, **options)


def on_model_call(*tools: Any, **options: Any) -> Any:
    """`RuleSet.on_model_call` of the set in use."""
    return current().on_model_call(*tools, **options)
