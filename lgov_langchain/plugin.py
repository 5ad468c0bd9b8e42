"""What lgov can do with LangChain. Imports no framework until it is instrumented."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from lgov_core.hookspecs import hookimpl
from lgov_core.instrumentation.adapter import Adapter, Gap, Surface
from lgov_core.types import Point
from lgov_langchain.instrumentor import TESTED, instrument, uninstrument

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


#: Every cell of the table of denials is there, so nothing is listed as unsupported.
GAPS = (
    Gap(
        "tool.func",
        "the function behind a tool (tool.func, tool.coroutine, tool._run), called by the program itself, is not seen",
        calls=("func", "coroutine"),
    ),
    Gap(
        "a tool class with its own run",
        "a subclass of BaseTool that overrides run, arun, invoke or ainvoke and does not call BaseTool's is judged only in"
        " agents with the middleware and in governed tool nodes; where nobody judges, it is shown when"
        " BaseTool's invoke runs it, and not otherwise",
    ),
    Gap(
        "a model class with its own generate",
        "a subclass of BaseChatModel that overrides generate or stream and does not call BaseChatModel's is judged only in"
        " agents with the middleware; where nobody judges, it is shown when BaseChatModel's invoke asks it, and not otherwise",
    ),
    Gap(
        "event streams of a bare model",
        "model.stream_events(version='v3') and its asynchronous twin are shown as spans and not judged; the tools that the"
        " reply asks for are",
    ),
    Gap(
        "plain text models",
        "models that are no chat models (BaseLLM) are shown as spans and not judged",
    ),
    Gap(
        "streamed text",
        "the tokens of a streamed reply reach who streams before the whole reply can be judged; the tool calls in it are held"
        " back, or judged before they run",
    ),
    Gap("other processes", "what a tool starts as a process of its own is not governed"),
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
        instrument=instrument,
        uninstrument=uninstrument,
        gaps=GAPS,
    )
