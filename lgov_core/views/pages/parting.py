"""Where two attempts at one task part."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any, Final

from lgov_core.views.attempt_view import AttemptView, ModelStep, ToolStep

_PARTS: Final = ("messages", "wrote", "tools", "decisions", "results")


def parting(first: AttemptView, second: AttemptView) -> dict[str, Any]:
    """The first step at which two attempts differ, and in what; ``part`` is None where they are alike.

    Ids, times and weights do not count.
    """
    return {"part": _part(first, second), "steps": {"a": len(first.steps), "b": len(second.steps)}}


def _part(first: AttemptView, second: AttemptView) -> dict[str, Any] | None:
    for at, (one, other) in enumerate(zip_longest(first.steps, second.steps)):
        if one is None or other is None:
            return {"step": at, "where": "end", "tool": None}
        for name in _PARTS:
            mine, theirs = _values(one, name), _values(other, name)
            if mine != theirs:
                places = (place for place, (a, b) in enumerate(zip_longest(mine, theirs)) if a != b)
                return {"step": at, "where": name, "tool": next(places) if name in _PARTS[2:] else None}
    return None


def _values(step: ModelStep, name: str) -> list[Any]:
    if name == "messages":
        return [(one.role, one.text) for one in step.seen]
    if name == "wrote":
        return [(step.wrote, step.agent)]
    return [_of_tool(tool, name) for tool in step.tools]


def _of_tool(tool: ToolStep, name: str) -> Any:
    if name == "tools":
        return tool.name, tool.arguments
    if name == "decisions":
        return [(one.point, one.effect, one.policy, one.rule) for one in tool.decisions]
    return tool.status, tool.result, tool.error
