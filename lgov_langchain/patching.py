"""How LangChain is patched in an instrumented process, and the proof that it works with the version that is installed."""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import RunnableBinding
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.prebuilt import ToolNode
from pydantic import BaseModel

from lgov_core.instrumentation.framework import Instrumentor, Patches, alive, can_be_imported
from lgov_langchain import model_calls
from lgov_langchain import tools as base_tools
from lgov_langchain.instrumentor import INSTRUMENTOR
from lgov_langchain.messages import kind_of
from lgov_langchain.process_handler import process_handler


def patch(patches: Patches) -> None:
    """Replaces what every run of a tool, of a model and of an agent passes."""
    process_handler()
    for name in ("run", "arun"):
        patches.replace(BaseTool, name, base_tools.wrap_run(getattr(BaseTool, name)))
    for name in ("generate", "agenerate"):
        patches.replace(BaseChatModel, name, model_calls.wrap_generate(getattr(BaseChatModel, name)))
    for name in ("stream", "astream"):
        patches.replace(BaseChatModel, name, model_calls.wrap_stream(getattr(BaseChatModel, name)))
    if can_be_imported("langchain"):
        import langchain.agents
        import langchain.agents.factory

        governed = _governed_create_agent(langchain.agents.factory.create_agent)
        patches.replace(langchain.agents.factory, "create_agent", governed)
        patches.replace(langchain.agents, "create_agent", governed)


def _governed_create_agent(create_agent: Callable[..., Any]) -> Callable[..., Any]:
    from lgov_langchain.middleware import InnermostMiddleware, InstrumentedLgovMiddleware, LgovMiddleware

    @functools.wraps(create_agent)
    def create_governed_agent(*args: Any, middleware: Any = (), **kwargs: Any) -> Any:
        governor = INSTRUMENTOR.governor
        if governor is not None:
            # One of the same governor would evaluate everything twice; one of another governor evaluates on its own.
            others = [
                other for other in middleware if not (isinstance(other, LgovMiddleware) and other.governor is governor)
            ]
            last = [InnermostMiddleware(governor)] if any(map(_wraps_models, others)) else []
            middleware = [InstrumentedLgovMiddleware(governor), *others, *last]
        return create_agent(*args, middleware=middleware, **kwargs)

    return create_governed_agent


def _wraps_models(middleware: Any) -> bool:
    """Returns whether ``middleware`` is around model calls, and so may change them."""
    from langchain.agents.middleware import AgentMiddleware

    names = ("wrap_model_call", "awrap_model_call")
    return any(getattr(type(middleware), name, None) is not getattr(AgentMiddleware, name) for name in names)


def offers() -> Iterator[Mapping[str, Any]]:
    """See `Adapter.offers`: the tools of every node, and those that are bound to a model."""
    for node in alive(ToolNode):
        for tool in node.tools_by_name.values():
            function = convert_to_openai_tool(tool)["function"]
            shown, schema = tool.tool_call_schema, function.get("parameters")
            if isinstance(shown, type) and issubclass(shown, BaseModel):  # policies see the names of fields
                schema = shown.model_json_schema(by_alias=False)
            yield {**function, "name": tool.name, "kind": kind_of(tool.name, tool), "parameters": schema}
    for bound in alive(RunnableBinding):
        yield from (tool for tool in bound.kwargs.get("tools") or () if isinstance(tool, Mapping))


class _ProbeTool(BaseTool):
    name: str = "lgov_probe"
    description: str = "Must not run."
    ran: list[str]

    def _run(self, text: str) -> str:
        self.ran.append(text)
        return text


class _ProbeModel(BaseChatModel):
    requests: list[str]

    @property
    def _llm_type(self) -> str:
        return "lgov-probe"

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        self.requests.append(messages[-1].text)
        return ChatResult(generations=[ChatGeneration(message=AIMessage(""))])

    def _stream(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> Iterator[ChatGenerationChunk]:
        self.requests.append(messages[-1].text)
        yield ChatGenerationChunk(message=AIMessageChunk(content=""))


def self_test(instrumentor: Instrumentor) -> list[str]:
    """Runs a probe tool and asks a probe model in each way; returns those that got through, and an agent left out."""
    tool, model = _ProbeTool(ran=[]), _ProbeModel(requests=[])
    with instrumentor.denying_everything():
        tool.run({"text": "tool.run"})
        tool.invoke(_call("tool.invoke"))
        model.invoke("model.invoke")
        list(model.stream("model.stream"))
        asyncio.run(_attempt_async(tool, model))
        governed = "langchain" not in sys.modules or _is_governed_agent(model)
    agent = [] if governed else ["create_agent, which did not get the governing middleware"]
    return [*tool.ran, *model.requests, *agent]


async def _attempt_async(tool: _ProbeTool, model: _ProbeModel) -> None:
    await tool.arun({"text": "tool.arun"})
    await tool.ainvoke(_call("tool.ainvoke"))
    await model.ainvoke("model.ainvoke")
    async for _ in model.astream("model.astream"):
        pass


def _call(text: str) -> dict[str, Any]:
    return {"name": "lgov_probe", "args": {"text": text}, "id": "probe", "type": "tool_call"}


def _is_governed_agent(model: _ProbeModel) -> bool:
    """Returns whether ``create_agent`` puts in the governing middleware, which brings a tool node."""
    from langchain.agents import create_agent

    tools = create_agent(model, []).nodes.get("tools")
    return tools is not None and isinstance(tools.bound, ToolNode)
