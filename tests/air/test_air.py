"""Intermediate rewards out of tool outcomes: how much, in which dimension, and on which call."""

from __future__ import annotations

import math
from dataclasses import fields

import pytest

from lgov_core.governor import Governor
from lgov_core.plugins import make_plugin_manager
from lgov_core.reward import AirPlugin, AirRules
from lgov_core.scope import RolloutScope, enter_scope
from lgov_core.transitions import CreditRules
from lgov_core.types import Action, Decision, Effect, Point, ToolOutcome, ToolStatus

DEFAULTS = AirRules()


def outcome(status: ToolStatus) -> ToolOutcome:
    return ToolOutcome(Action(Point.PRE_TOOL_CALL, "run_sql", call_id="call-1"), status)


@pytest.mark.parametrize(
    ("status", "earned"),
    [
        ("ok", [(DEFAULTS.tool_success, "air")]),
        ("error", [(DEFAULTS.tool_error, "air")]),
        ("invalid_args", [(DEFAULTS.tool_error, "air")]),
        ("unknown_tool", [(DEFAULTS.tool_error, "air")]),
        ("denied", [(DEFAULTS.denied, "compliance")]),
        ("timeout", []),
    ],
)
def test_each_outcome_earns_its_rule_in_its_dimension(status: ToolStatus, earned: list[tuple[float, str]]) -> None:
    rewards = AirPlugin().lgov_reward(outcome(status))
    assert [(reward.value, reward.dimension) for reward in rewards] == earned
    assert [reward.source for reward in rewards] == [f"air:{status}"] * len(earned)


def test_a_denial_that_is_no_doing_of_the_agents_earns_nothing() -> None:
    def broken(action: Action) -> Decision:
        raise RuntimeError

    class Breaks:
        name = "breaks"
        judge = staticmethod(broken)

    class Denies:
        name = "denies"

        def judge(self, action: Action) -> Decision:
            return Decision(Effect.DENY, "denies", "no", "not this")

    action = Action(Point.PRE_TOOL_CALL, "run_sql", call_id="call-1")
    for policies, earned in (
        ([Breaks()], []),
        ([Denies()], [DEFAULTS.denied]),
        ([Breaks(), Denies()], [DEFAULTS.denied]),
    ):
        governor = Governor(policies, plugins=[AirPlugin()], manager=make_plugin_manager(builtin=(), third_party=False))
        decision = governor.decide(action)
        assert decision.blocks
        rewards = governor.record(ToolOutcome(action, "denied", decision=decision))
        assert [reward.value for reward in rewards] == earned
        governor.close()


def test_the_defaults_have_the_signs_they_must_have() -> None:
    assert DEFAULTS.denied < DEFAULTS.tool_error < 0 < DEFAULTS.tool_success
    # One tool reward may not outweigh a task reward of 1, which the bound on their sum then guarantees for all of them.
    assert DEFAULTS.tool_success < 1
    assert CreditRules().air_cap is not None


def test_rules_are_what_is_paid_and_a_rule_worth_nothing_pays_nothing() -> None:
    plugin = AirPlugin(AirRules(tool_success=0.25, tool_error=0.0, denied=-2.0))
    assert [reward.value for reward in plugin.lgov_reward(outcome("ok"))] == [0.25]
    assert plugin.lgov_reward(outcome("error")) == []
    assert [reward.value for reward in plugin.lgov_reward(outcome("denied"))] == [-2.0]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", [field.name for field in fields(AirRules)])
def test_a_rule_that_is_not_finite_is_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        AirRules(**{name: value})


def test_the_governor_addresses_the_reward_to_the_call_and_its_attempt() -> None:
    governor = Governor(plugins=[AirPlugin()])
    denial = Decision(Effect.DENY, policy="p")
    with enter_scope(RolloutScope("r1", 2)):
        (paid,) = governor.record(outcome("ok"))
        (fined,) = governor.record(ToolOutcome(outcome("denied").action, "denied", decision=denial))
    for reward in (paid, fined):
        assert (reward.rollout_id, reward.attempt, reward.tool_call_id) == ("r1", 2, "call-1")
        assert reward.response_id is None
    assert paid.reward_id != fined.reward_id
