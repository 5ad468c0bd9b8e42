"""Governs every LangChain agent of this process without touching its code.

Every agent made with ``create_agent`` from then on gets the middleware, outermost. ``BaseTool.run`` and ``arun``, which every
invocation of a tool passes, evaluate the calls that no middleware has evaluated (a hand-made graph, a bare ``tool.invoke``, a
reference to ``create_agent`` taken before, middleware that changed the arguments); where ``BaseChatModel`` generates or
streams, the same is done for model calls. A callback handler observes every run, for the spans of agents. With a governor
that has no evaluators (``observe_only``) all of it works the same and allows everything. What is not governed is declared here.
This is governance of cooperating programs, not a sandbox.

`lgov_langchain.patching` does it; this module imports no framework.
"""

from __future__ import annotations

from lgov_core.instrumentation.framework import Gap, Instrumentor, can_be_imported, whole_surface
from lgov_core.types import Point

INSTRUMENTOR = Instrumentor(
    name="langchain",
    title="LangChain",
    modules=("langchain", "langchain_core", "langgraph"),
    tested={"langchain": ">=1.4,<1.6", "langchain-core": ">=1.7,<1.9", "langgraph": ">=1.2.11,<1.3"},
    installed=lambda: can_be_imported("langchain_core"),
    patching="lgov_langchain.patching",
    self_test_in_thread=True,
    # ``input`` is evaluated with the first model call and ``output`` with the last one. Tokens of a streamed reply reach the
    # reader before the whole reply can be evaluated; no tool that the reply asks for runs before.
    surface=whole_surface(not_streamed=(Point.POST_MODEL_CALL, Point.OUTPUT)),
    # Every cell of the table of denials is supported, so none is listed here.
    gaps=(
        Gap(
            "tool.func",
            "the function behind a tool (tool.func, tool.coroutine, tool._run) is not governed when the program calls it"
            " itself",
            calls=("func", "coroutine"),
        ),
        Gap(
            "a tool class with its own run",
            "a subclass of BaseTool that overrides run, arun, invoke or ainvoke and does not call BaseTool's is governed only"
            " in agents with the middleware and in governed tool nodes",
        ),
        Gap(
            "a model class with its own generate",
            "a subclass of BaseChatModel that overrides generate or stream and does not call BaseChatModel's is governed only"
            " in agents with the middleware",
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
    ),
)

instrument = INSTRUMENTOR.instrument
"""Puts every LangChain agent, model and tool in this process under its governor, and proves it by a self-test.

Raises `InstrumentationError` where that cannot be done: then the process must not run agents.
"""

uninstrument = INSTRUMENTOR.uninstrument
"""Undoes `instrument`. Agents made meanwhile stay governed; tools, models and new agents are not governed any more."""

lgov_framework = INSTRUMENTOR.lgov_framework
