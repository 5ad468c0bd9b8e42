"""What the cells of the Agents SDK share: a model over real HTTP, the three ways of running, and the two of governing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pluggy
from agents import (
    Agent,
    FunctionTool,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    function_tool,
)
from cells import Cell, Seen
from openai import AsyncOpenAI

from lgov_core import hookspecs
from lgov_core.governor import Governor
from lgov_core.policies.base import BoundedPolicy
from lgov_core.testing import ScriptedReply
from lgov_core.types import Action, Decision, Effect, Point, new_id
from lgov_openai_agents import LgovRunner, instrument, uninstrument

MODES = ("sync", "async", "streaming")


def chat_model(cell: Any) -> OpenAIChatCompletionsModel:
    return OpenAIChatCompletionsModel("scripted", client_of(cell))


def responses_model(cell: Any) -> OpenAIResponsesModel:
    return OpenAIResponsesModel("scripted", client_of(cell))


def client_of(cell: Any) -> AsyncOpenAI:
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
def instrumented(governor: Any) -> Iterator[None]:
    instrument(governor)
    try:
        yield
    finally:
        uninstrument()


class Judging(BoundedPolicy):
    """Answers what a function says."""

    name = "judging"

    def __init__(self, judge: Callable[[Action], Decision | None]) -> None:
        self._judge = judge

    def judge(self, action: Action) -> Decision | None:
        decision = self._judge(action)
        return self.allow("fine") if decision is None else decision


def deny(reason: str, **fields: Any) -> Decision:
    return Decision(Effect.DENY, policy="judging", rule="no", reason=reason, **fields)


def transform(**fields: Any) -> Decision:
    return Decision(Effect.TRANSFORM, policy="judging", rule="change", **fields)


def denying(*names: str, point: Point = Point.PRE_TOOL_CALL) -> Callable[[Action], Decision | None]:
    return lambda action: deny("forbidden") if action.point is point and action.name in names else None


def make_governor(judge: Any, seen: Seen | None = None, **options: Any) -> Governor:
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    policy = judge if hasattr(judge, "judge") else Judging(judge)
    options.setdefault("capture_content", True)
    return Governor([policy], plugins=[seen] if seen is not None else [], manager=manager, **options)


def as_response(*output: dict[str, Any]) -> ScriptedReply:
    """A whole reply of the Responses API with items that the script knows no words for."""
    body = {
        "id": new_id("resp"),
        "object": "response",
        "created_at": 0,
        "model": "scripted",
        "status": "completed",
        "output": list(output),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": 3,
            "output_tokens": 2,
            "total_tokens": 5,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        },
    }
    return ScriptedReply(body=json.dumps(body).encode(), headers={"connection": "close"})


class Way:
    """One of the ways of governing: the process is instrumented, or the program uses our runner in one line."""

    def __init__(self, name: str, cell: Cell) -> None:
        self.name = name
        self.runner: Any = Runner if name == "instrumented" else LgovRunner(cell.governor)

    def govern(self, agent: Agent[Any]) -> Agent[Any]:
        """An agent that is to be another one's tool."""
        return agent if self.name == "instrumented" else self.runner.govern(agent)

    def run(self, mode: str, agent: Agent[Any], text: Any, **kwargs: Any) -> Any:
        return run_with(self.runner, mode, agent, text, **kwargs)


@contextmanager
def governed(way: str, cell: Cell) -> Iterator[Way]:
    with instrumented(cell.governor) if way == "instrumented" else nullcontext():
        yield Way(way, cell)


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
