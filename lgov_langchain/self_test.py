"""The proof that `instrument` holds with the LangChain that is installed: a probe that is denied must not get through."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import StructuredTool
from pydantic import PrivateAttr

from lgov_core.errors import InstrumentationError
from lgov_core.instrumentation.instrumentor import Instrumentor, in_fresh_thread


class _ProbeModel(BaseChatModel):
    """A model that notes that it was asked."""

    _asked: list[str] = PrivateAttr(default_factory=list[str])
    _by: str = PrivateAttr(default="")

    @property
    def _llm_type(self) -> str:
        return "lgov-probe"

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        self._asked.append(self._by)
        return ChatResult(generations=[ChatGeneration(message=AIMessage(""))])

    def _stream(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> Iterator[ChatGenerationChunk]:
        self._asked.append(self._by)
        yield ChatGenerationChunk(message=AIMessageChunk(content=""))


def self_test(instrumentation: Instrumentor) -> None:
    """Raises `InstrumentationError` if a probe tool runs or a probe model is asked although a probe governor denies
    everything.
    """

    def attempt() -> None:
        with instrumentation.denying_everything():
            ran = [*_tools_that_ran(), *asyncio.run(_atools_that_ran())]
            asked = [*_models_asked(), *asyncio.run(_amodels_asked())]
            if "langchain" in sys.modules:
                _check_create_agent()
        if ran:
            raise InstrumentationError(f"a denied probe tool ran all the same ({', '.join(ran)})")
        if asked:
            raise InstrumentationError(f"a probe model was asked although the call was denied ({', '.join(asked)})")

    in_fresh_thread(attempt)


def _probe_tool(ran: list[str]) -> StructuredTool:
    def probe(text: str) -> str:
        ran.append(text)
        return text

    return StructuredTool.from_function(probe, name="lgov_probe", description="Must not run.")


def _call(text: str) -> dict[str, Any]:
    return {"name": "lgov_probe", "args": {"text": text}, "id": "probe", "type": "tool_call"}


def _tools_that_ran() -> list[str]:
    ran: list[str] = []
    tool = _probe_tool(ran)
    tool.run({"text": "run"})
    tool.invoke(_call("invoke"))
    return ran


async def _atools_that_ran() -> list[str]:
    ran: list[str] = []
    tool = _probe_tool(ran)
    await tool.arun({"text": "arun"})
    await tool.ainvoke(_call("ainvoke"))
    return ran


def _models_asked() -> list[str]:
    model = _ProbeModel()
    model._by = "invoke"
    model.invoke("")
    model._by = "stream"
    list(model.stream(""))
    return model._asked


async def _amodels_asked() -> list[str]:
    model = _ProbeModel()
    model._by = "ainvoke"
    await model.ainvoke("")
    model._by = "astream"
    async for _ in model.astream(""):
        pass
    return model._asked


def _check_create_agent() -> None:
    from langchain.agents import create_agent
    from langgraph.prebuilt import ToolNode

    agent = create_agent(_ProbeModel(), [])
    tools = agent.nodes.get("tools")
    if tools is None or not isinstance(tools.bound, ToolNode):
        raise InstrumentationError("an agent made with create_agent did not get the governing middleware")
