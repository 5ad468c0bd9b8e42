"""The declaration of a framework package, and the table of what its denials are tested in."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from lgov_core.types import Adapter as Adapter
from lgov_core.types import Conflict as Conflict
from lgov_core.types import Gap as Gap
from lgov_core.types import Point, Surface

#: How an agent is run, and what it does: the cells of the table of what a denial is tested in.
MODES = ("sync", "async", "streaming")
SHAPES = ("tool", "parallel tools", "hand-off", "agent-as-tool", "MCP tool", "hand-made loop")


def whole_surface(*, sync: bool = True, not_streamed: Collection[Point] = ()) -> Mapping[Point, Surface]:
    """The surface of an adapter that observes, blocks and transforms at every point of a call.

    The model reads why a tool call or its result was denied. ``not_streamed`` are the points at which streamed replies
    are only observed.
    """
    tool_points = (Point.PRE_TOOL_CALL, Point.POST_TOOL_CALL)
    points = (Point.INPUT, Point.PRE_MODEL_CALL, Point.POST_MODEL_CALL, *tool_points, Point.OUTPUT)
    return {
        point: Surface(
            observe=True,
            block=True,
            tell=point in tool_points,
            transform=True,
            stream=point not in not_streamed,
            sync=sync,
        )
        for point in points
    }
