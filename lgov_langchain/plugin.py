"""The abilities of lgov with LangChain. Imports no framework until it is instrumented."""

from __future__ import annotations

import importlib.util

from lgov_core.hookspecs import hookimpl
from lgov_core.instrumentation.framework import Adapter, Gap, whole_surface
from lgov_core.types import Point
from lgov_langchain.current_governor import TESTED
from lgov_langchain.instrumentor import instrument, uninstrument

#: ``input`` is evaluated with the first model call and ``output`` with the last one. Tokens of a streamed reply reach the
#: reader before the whole reply can be evaluated; no tool that the reply asks for runs before.
SURFACE = whole_surface(not_streamed=(Point.POST_MODEL_CALL, Point.OUTPUT))

#: Every cell of the table of denials is supported, so none is listed here.
GAPS = (
    Gap(
        "tool.func",
        "the function behind a tool (tool.func, tool.coroutine, tool._run) is not governed when the program calls it itself",
        calls=("func", "coroutine"),
    ),
    Gap(
        "a tool class with its own run",
        "a subclass of BaseTool that overrides run, arun, invoke or ainvoke and does not call BaseTool's is governed only in"
        " agents with the middleware and in governed tool nodes",
    ),
    Gap(
        "a model class with its own generate",
        "a subclass of BaseChatModel that overrides generate or stream and does not call BaseChatModel's is governed only in"
        " agents with the middleware",
    ),
    Gap(
        "event streams of a bare model",
        "model.stream_events(version='v3') and its asynchronous twin become spans and are not governed; the tools that the"
        " reply asks for are",
    ),
    Gap("plain text models", "models that are not chat models (BaseLLM) become spans and are not governed"),
    Gap(
        "streamed text",
        "the tokens of a streamed reply reach the reader before the whole reply can be evaluated; the tool calls in it are"
        " withheld, or evaluated before they run",
    ),
    Gap("other processes", "processes that a tool starts are not governed"),
)


def installed() -> bool:
    """Returns whether LangChain can be imported; does not import it."""
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
