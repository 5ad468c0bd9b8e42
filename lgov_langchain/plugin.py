"""What lgov can do with LangChain. Imports no framework until it is armed."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from lgov_core.adapter import Adapter, Gap, Surface
from lgov_core.hookspecs import hookimpl
from lgov_core.types import Point
from lgov_langchain.arming import TESTED, arm, disarm

if TYPE_CHECKING:
    from collections.abc import Mapping

#: ``input`` is judged with the first model call and ``output`` with the last one. Tokens of a streamed reply reach a
#: streaming caller before the whole reply can be judged; nothing that the reply asks for is done before.
SURFACE: Mapping[Point, Surface] = {
    Point.INPUT: Surface(observe=True, block=True, transform=True, stream=True, sync=True),
    Point.PRE_MODEL_CALL: Surface(observe=True, block=True, transform=True, stream=True, sync=True),
    Point.POST_MODEL_CALL: Surface(observe=True, block=True, transform=True, sync=True),
    Point.PRE_TOOL_CALL: Surface(observe=True, block=True, tell=True, transform=True, stream=True, sync=True),
    Point.POST_TOOL_CALL: Surface(observe=True, block=True, tell=True, transform=True, stream=True, sync=True),
    Point.OUTPUT: Surface(observe=True, block=True, transform=True, sync=True),
}

GAPS = (
    Gap("tool.func", "calling a tool's own function goes around the tool, and so around lgov", ("func", "coroutine")),
)


def installed() -> bool:
    """Whether LangChain can be imported, found out without importing it."""
    return importlib.util.find_spec("langchain_core") is not None


@hookimpl
def lgov_framework() -> Adapter:
    """The LangChain adapter."""
    return Adapter(
        name="langchain",
        modules=("langchain", "langchain_core", "langgraph"),
        tested=TESTED,
        surface=SURFACE,
        installed=installed,
        arm=arm,
        disarm=disarm,
        gaps=GAPS,
    )
