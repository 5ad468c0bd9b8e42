"""The proof that `instrument` works with the LangChain that is installed: a denied probe must not run."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import BaseTool

from lgov_core.errors import InstrumentationError
from lgov_core.instrumentation.framework import Instrumentor, in_fresh_thread


class _ProbeTool(BaseTool):
    name: str = "lgov_probe"
    description: str = "Must not run."
    ran: list[str]

    def _run(self, text: str) -> str:
        self.ran.append(text)
        return text


class _ProbeModel(BaseChatModel):
    asked: list[str]

    @property
    def _llm_type(self) -> str:
        return "lgov-probe"

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        self.asked.append(messages[-1].text)
        return ChatResult(generations=[ChatGeneration(message=AIMessage(""))])

    def _stream(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> Iterator[ChatGenerationChunk]:
        self.asked.append(messages[-1].text)
        yield ChatGenerationChunk(message=AIMessageChunk(content=""))


def self_test(instrumentor: Instrumentor) -> None:
    """Raises `InstrumentationError` if a probe tool runs or a probe model is asked although a governor denies everything."""

    def attempt() -> None:
        tool, model = _ProbeTool(ran=[]), _ProbeModel(asked=[])
        with instrumentor.denying_everything():
            tool.run({"text": "run"})
            tool.invoke(_call("invoke"))
            model.invoke("invoke")
            list(model.stream("stream"))
            asyncio.run(_attempt_async(tool, model))
            if "langchain" in sys.modules:
                _check_create_agent(model)
        if tool.ran:
            raise InstrumentationError(f"a denied probe tool ran all the same ({', '.join(tool.ran)})")
        if model.asked:
            raise InstrumentationError(
                f"a probe model was asked although the call was denied ({', '.join(model.asked)})"
            )

    in_fresh_thread(attempt)


async def _attempt_async(tool: _ProbeTool, model: _ProbeModel) -> None:
    await tool.arun({"text": "arun"})
    await tool.ainvoke(_call("ainvoke"))
    await model.ainvoke("ainvoke")
    async for _ in model.astream("astream"):
        pass


def _call(text: str) -> dict[str, Any]:
    return {"name": "lgov_probe", "args": {"text": text}, "id": "probe", "type": "tool_call"}


def _check_create_agent(model: _ProbeModel) -> None:
    from langchain.agents import create_agent
    from langgraph.prebuilt import ToolNode

    tools = create_agent(model, []).nodes.get("tools")
    if tools is None or not isinstance(tools.bound, ToolNode):
        raise InstrumentationError("an agent made with create_agent did not get the governing middleware")
