"""The values that every decision is made of are dataclasses in all but the way they are filled."""

from __future__ import annotations

import copy
import inspect
from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import pytest

from lgov_core.types import Action, Decision, Effect, Point, decision_of


def test_an_action_takes_and_keeps_every_field() -> None:
    names = [field.name for field in fields(Action)]
    assert list(inspect.signature(Action).parameters) == names
    values: dict[str, Any] = {name: object() for name in names} | {"point": Point.INPUT}
    for made in (Action(*values.values()), Action(**values), replace(Action(**values)), Action(**values).changed()):
        assert type(made) is Action
        assert {name: getattr(made, name) for name in names} == values


def test_a_decision_takes_and_keeps_every_field() -> None:
    names = [field.name for field in fields(Decision)]
    assert list(inspect.signature(decision_of).parameters) == names
    values: dict[str, Any] = {name: object() for name in names}
    made = decision_of(**values)
    assert type(made) is Decision
    assert {name: getattr(made, name) for name in names} == values


def test_what_is_left_out_is_as_the_fields_say() -> None:
    shown = inspect.signature(Action).parameters
    for field in fields(Action)[2:]:
        default = shown[field.name].default
        assert default == (field.default_factory() if callable(field.default_factory) else field.default)
    assert Action(Point.INPUT, "x").arguments == {}
    assert decision_of(Effect.ALLOW, "p", "", "") == Decision(Effect.ALLOW, "p")


def test_an_action_is_frozen_and_comparable() -> None:
    one = Action("pre_tool_call", "run", arguments={"a": 1}, native=object())  # type: ignore[arg-type]
    assert one.point is Point.PRE_TOOL_CALL
    assert one == Action(Point.PRE_TOOL_CALL, "run", arguments={"a": 1})
    assert copy.copy(one) == one != replace(one, name="walk")
    with pytest.raises(FrozenInstanceError):
        one.name = "walk"  # type: ignore[misc]
    with pytest.raises(ValueError, match="no_point"):
        Action("no_point", "run")  # type: ignore[arg-type]


def test_a_class_made_from_an_action_is_filled_as_well() -> None:
    class Further(Action):
        pass

    made = Further(Point.OUTPUT, "x", text="t")
    assert (type(made), made.point, made.text, made.arguments) == (Further, Point.OUTPUT, "t", {})
