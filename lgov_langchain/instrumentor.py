"""Governs every LangChain agent of this process without touching its code.

`instrument` does four things. Every agent made with ``create_agent`` from then on gets the middleware, outermost;
one that has no
middleware of its own gets only as much of it as it needs, because LangChain makes each hook dear. A callback handler
watches every run; where the governor only watches, it is told of nothing but what no patch sees, and the runs of graphs are
watched where ``Pregel`` streams (see `graph_runs`, `told_calls`). ``BaseTool.run``/``arun``, through which every invocation
of a tool goes, becomes a backstop: a call that no governed agent has judged (a hand-made graph, a bare ``tool.invoke``, a
reference to ``create_agent`` taken before instrumentation, middleware that rewrote the arguments) is judged there.
And so is, where
``BaseChatModel`` generates or streams, every model call that none of them has judged. What stays outside is declared in
`plugin`. This is governance of cooperating programs, not a sandbox.
"""

from __future__ import annotations

import contextvars
import functools
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lgov_core.instrumentation.instrumentor import Instrumentor, Patches

if TYPE_CHECKING:
    from lgov_core.instrumentation import Governor

#: The versions that the tests run against.
TESTED = {"langchain": ">=1.4,<1.6", "langchain-core": ">=1.7,<1.9", "langgraph": ">=1.2.11,<1.3"}

_INSTRUMENTOR = Instrumentor("LangChain", TESTED)


def acting_governor() -> Governor | None:
    """The governor that the patches ask: that of a self-test that is running, else the instrumented one, else None."""
    return _INSTRUMENTOR.governor


def instrument(governor: Governor) -> None:
    """Makes every LangChain agent, model and tool of this process governed by ``governor``, and proves it by a self-test.

    Instrumentation again with the same governor changes nothing. Warns about framework versions outside the tested range.
    Raises `InstrumentationError` if LangChain is missing, if another governor is instrumented already, or if the
    self-test finds a way
    around; then nothing stays patched and the process must not run agents.
    """

    def prove() -> None:
        from lgov_langchain.self_test import self_test

        self_test(_INSTRUMENTOR)

    def patch(patches: Patches) -> None:
        _patch(patches)
        if governor.observe_only:
            _patch_runs(patches)

    _INSTRUMENTOR.instrument(governor, patch, prove)


def uninstrument() -> None:
    """Undoes `instrument`. Agents made meanwhile keep what judges them; tools and new agents are no longer governed."""
    _INSTRUMENTOR.uninstrument()


def _patch(patches: Patches) -> None:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.tools import BaseTool

    from lgov_langchain import backstop, chat_models
    from lgov_langchain.watching import watch_process

    patches.replace(BaseTool, "run", backstop.wrap_run(BaseTool.run))
    patches.replace(BaseTool, "arun", backstop.wrap_arun(BaseTool.arun))
    patches.replace(BaseChatModel, "generate", chat_models.wrap_generate(BaseChatModel.generate))
    patches.replace(BaseChatModel, "agenerate", chat_models.wrap_agenerate(BaseChatModel.agenerate))
    patches.replace(BaseChatModel, "stream", chat_models.wrap_stream(BaseChatModel.stream))
    patches.replace(BaseChatModel, "astream", chat_models.wrap_astream(BaseChatModel.astream))
    if importlib.util.find_spec("langchain") is not None:
        import langchain.agents
        import langchain.agents.factory

        factory: Any = langchain.agents.factory
        if makes_nodes := hasattr(factory, "ToolNode"):
            patches.replace(factory, "ToolNode", _governed_tool_node(factory.ToolNode))
        governed = _governed_create_agent(factory.create_agent, makes_nodes)
        patches.replace(langchain.agents.factory, "create_agent", governed)
        patches.replace(langchain.agents, "create_agent", governed)
    watch_process()


def _patch_runs(patches: Patches) -> None:
    """What sees the runs of graphs, and calls that pass no other patch, without a handler that is told of everything."""
    from langchain_core.language_models import BaseChatModel, BaseLLM
    from langchain_core.tools import BaseTool
    from langgraph.pregel import Pregel

    from lgov_langchain import graph_runs, told_calls
    from lgov_langchain.watching import told

    patches.replace(Pregel, "stream", graph_runs.wrap_stream(Pregel.stream, told))
    patches.replace(Pregel, "astream", graph_runs.wrap_astream(Pregel.astream, told))
    for kind in (BaseChatModel, BaseLLM, BaseTool):
        patches.replace(kind, "invoke", told_calls.wrap_invoke(kind.invoke, kind))
        patches.replace(kind, "ainvoke", told_calls.wrap_ainvoke(kind.ainvoke, kind))
    for name in ("stream_events", "astream_events"):
        patches.replace(BaseChatModel, name, told_calls.wrap_taking_config(getattr(BaseChatModel, name)))
    for name in ("stream", "astream"):
        patches.replace(BaseLLM, name, told_calls.wrap_taking_config(getattr(BaseLLM, name)))
    for name in ("generate", "agenerate"):
        patches.replace(BaseLLM, name, told_calls.wrap_taking_callbacks(getattr(BaseLLM, name)))


#: The governor of the agent that is being made, where its tool node is to ask it and not the middleware.
_NODE_ASKS: contextvars.ContextVar[Governor | None] = contextvars.ContextVar("lgov_langchain_node_asks", default=None)


def _governed_tool_node(tool_node: Callable[..., Any]) -> Callable[..., Any]:
    from lgov_langchain.tool_calls import wrap_tool_node

    @functools.wraps(tool_node, updated=())
    def make_tool_node(*args: Any, **kwargs: Any) -> Any:
        governor = _NODE_ASKS.get()
        return tool_node(*args, **kwargs) if governor is None else wrap_tool_node(governor, *args, **kwargs)

    return make_tool_node


def _governed_create_agent(create_agent: Callable[..., Any], makes_nodes: bool) -> Callable[..., Any]:
    from langchain.agents.middleware import AgentMiddleware

    from lgov_langchain.middleware import InnermostMiddleware, LgovMiddleware

    class InstrumentedLgovMiddleware(LgovMiddleware):
        """The middleware of the instrumented process; its own name lets it stand beside one that a program adds itself."""

    class InstrumentedLgovModelMiddleware(LgovMiddleware):
        """The same for an agent whose tool node asks the governor itself."""

        wrap_tool_call = AgentMiddleware.wrap_tool_call
        awrap_tool_call = AgentMiddleware.awrap_tool_call

    @functools.wraps(create_agent)
    def create_governed_agent(*args: Any, middleware: Any = (), **kwargs: Any) -> Any:
        governor = acting_governor()
        if governor is None:
            return create_agent(*args, middleware=middleware, **kwargs)
        # One that asks the same governor would judge everything twice; one that asks another has its own say.
        others = [one for one in middleware if not (isinstance(one, LgovMiddleware) and one.governor is governor)]
        if others or not makes_nodes or not _has_tools(args, kwargs):
            last = [InnermostMiddleware(governor)] if any(map(_wraps_models, others)) else []
            return create_agent(*args, middleware=[InstrumentedLgovMiddleware(governor), *others, *last], **kwargs)
        # Around each hook of a middleware LangChain does things for LangSmith, on or off, that cost more than a span: the
        # tool node of an agent without middleware asks by itself, and where nobody judges its model calls are seen anyway.
        seen = governor.observe_only and _is_seen(args[0] if args else kwargs.get("model"))
        token = _NODE_ASKS.set(governor)
        try:
            return create_agent(*args, middleware=[] if seen else [InstrumentedLgovModelMiddleware(governor)], **kwargs)
        finally:
            _NODE_ASKS.reset(token)

    return create_governed_agent


def _wraps_models(middleware: Any) -> bool:
    """Whether ``middleware`` stands around model calls, and so may change them."""
    from langchain.agents.middleware import AgentMiddleware

    names = ("wrap_model_call", "awrap_model_call")
    return any(getattr(type(middleware), name, None) is not getattr(AgentMiddleware, name) for name in names)


def _has_tools(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether an agent is to have tools that run in this process, and so a tool node."""
    tools: Any = args[1] if len(args) > 1 else kwargs.get("tools")
    return isinstance(tools, (list, tuple)) and not all(isinstance(tool, dict) for tool in tools)


def _is_seen(model: Any) -> bool:
    """Whether every call that an agent makes of ``model`` goes through ``BaseChatModel``, where it is patched."""
    from langchain_core.language_models import BaseChatModel

    names = ("invoke", "ainvoke", "generate_prompt", "agenerate_prompt", "generate", "agenerate")
    kind = type(model)
    return issubclass(kind, BaseChatModel) and all(
        getattr(kind, name) is getattr(BaseChatModel, name) for name in names
    )
