"""`Governor.evaluates`: whether a decision is taken at a point."""

from __future__ import annotations

import pytest

from lgov_core.governor import Governor
from lgov_core.hookspecs import hookimpl
from lgov_core.plugins import make_plugin_manager
from lgov_core.types import Action, Point
from tests.cells import NoErasing


class InputHook:
    @hookimpl
    def lgov_input(self, action: Action) -> None: ...


def governor(**options: object) -> Governor:
    return Governor(manager=make_plugin_manager(builtin=(), third_party=False), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("made", "points"),
    [
        (governor(observe_only=True), set()),
        (governor(), {Point.PRE_TOOL_CALL}),  # without a policy every act is denied
        (governor(plugins=[InputHook()]), {Point.INPUT, Point.PRE_TOOL_CALL}),
        (governor(policies=[NoErasing([])]), set(Point)),
    ],
    ids=["observe only", "nothing", "a hook", "a policy"],
)
def test_a_decision_is_taken_where_something_can_deny(made: Governor, points: set[Point]) -> None:
    assert {point for point in Point if made.evaluates(point)} == points
