"""What the cells of the Agents SDK share: a model over real HTTP, the three ways of running, and the two of governing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from agents import (
    Agent,
    FunctionTool,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    function_tool,
)
from cells import Cell
from openai import AsyncOpenAI

from lgov_openai_agents import arm, disarm

MODES = ("sync", "async", "streaming")


def chat_model(cell: Cell) -> OpenAIChatCompletionsModel:
    return OpenAIChatCompletionsModel("scripted", client_of(cell))


def responses_model(cell: Cell) -> OpenAIResponsesModel:
    return OpenAIResponsesModel("scripted", client_of(cell))


def client_of(cell: Cell) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=cell.base_url, api_key="none", max_retries=0)


#: The two kinds of model that the SDK ships.
MODELS = {"chat": chat_model, "responses": responses_model}


def eraser(cell: Cell) -> FunctionTool:
    @function_tool
    def erase_file(path: str) -> str:
        """Erases a file."""
        return cell.erase(path)

    return erase_file


@function_tool
async def read_clock() -> str:
    """Says what time it is."""
    return "noon"


@contextmanager
def armed(governor: Any) -> Iterator[None]:
    arm(governor)
    try:
        yield
    finally:
        disarm()


def run_with(runner: Any, mode: str, agent: Agent[Any], text: Any, **kwargs: Any) -> Any:
    """The run's result, by one of the three ways; ``runner`` is the SDK's or ours."""
    kwargs.setdefault("run_config", RunConfig(tracing_disabled=True))
    if mode == "sync":
        return runner.run_sync(agent, text, **kwargs)
    if mode == "async":
        return asyncio.run(runner.run(agent, text, **kwargs))

    async def stream() -> Any:
        result = runner.run_streamed(agent, text, **kwargs)
        async for _ in result.stream_events():
            pass
        return result

    return asyncio.run(stream())


def run(mode: str, agent: Agent[Any], text: Any, **kwargs: Any) -> Any:
    return run_with(Runner, mode, agent, text, **kwargs)
