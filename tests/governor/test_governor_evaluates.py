"""`Governor.evaluates`: whether any policy or plugin is asked at a point."""

from __future__ import annotations

from typing import Any

from lgov_core.governor import Governor
from lgov_core.hookspecs import hookimpl
from lgov_core.plugins import make_plugin_manager
from lgov_core.policies import PolicySet
from lgov_core.types import Action, Point


class AfterModelCalls:
    @hookimpl
    def lgov_post_model_call(self, action: Action) -> Any:
        return None


def points(*args: Any, **options: Any) -> set[Point]:
    manager = make_plugin_manager(builtin=(), third_party=False)
    governor = Governor(*args, manager=manager, **options)
    return {point for point in Point if governor.evaluates(point)}


def test_a_policy_is_asked_at_every_point() -> None:
    assert points(PolicySet(default="allow")) == set(Point)


def test_a_plugin_is_asked_where_it_has_a_hook() -> None:
    assert points(plugins=[AfterModelCalls()]) == {Point.POST_MODEL_CALL, Point.PRE_TOOL_CALL}


def test_without_any_policy_a_tool_call_is_still_denied() -> None:
    assert points() == {Point.PRE_TOOL_CALL}


def test_observe_only_evaluates_nothing() -> None:
    assert points(observe_only=True) == set()
