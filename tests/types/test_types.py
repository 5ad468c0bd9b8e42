"""Actions and decisions: their fields, defaults and variants."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace

import pytest

from lgov_core.types import Action, Decision, Effect, Point, Severity


def test_an_action_turns_its_point_into_the_member() -> None:
    assert Action("pre_tool_call", "run").point is Point.PRE_TOOL_CALL  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no_point"):
        Action("no_point", "run")  # type: ignore[arg-type]


def test_actions_compare_without_native_object_and_span() -> None:
    one = Action(Point.PRE_TOOL_CALL, "run", arguments={"a": 1}, native=object(), span_id="1")
    assert one == Action(Point.PRE_TOOL_CALL, "run", arguments={"a": 1})
    assert copy.copy(one) == one != replace(one, name="walk")


def test_a_subclass_of_action_is_constructed_alike() -> None:
    class Further(Action):
        pass

    made = Further(Point.OUTPUT, "x", text="t")
    assert (type(made), made.point, made.text, made.arguments) == (Further, Point.OUTPUT, "t", {})


def test_changed_replaces_what_is_given_and_keeps_the_rest() -> None:
    action = Action(Point.INPUT, "x", text="a", agent="b")
    assert action.changed(text="c", agent=None) == Action(Point.INPUT, "x", text="c", agent="b")
    decision = Decision(Effect.DENY, "p", "r", "why", Severity.HIGH, abort=True, latency_us=1.5)
    assert decision.changed(rule="other", reason=None) == replace(decision, rule="other")


def test_values_have_no_other_fields_than_declared() -> None:
    with pytest.raises(AttributeError):
        Decision(Effect.ALLOW, "p").colour = "red"  # type: ignore[attr-defined]


def test_a_decision_survives_pickling() -> None:
    decision = Decision(Effect.DENY, "p", "r", parts=(Decision(Effect.WARN, "q"),))
    assert pickle.loads(pickle.dumps(decision)) == decision
