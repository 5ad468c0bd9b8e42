"""Real AutoGen agents against a scripted model, governed in both ways."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pluggy
from autogen_agentchat.agents import AssistantAgent
from autogen_core.models import ChatCompletionClient
from autogen_core.tools import BaseTool, FunctionTool, StaticStreamWorkbench, Workbench
from autogen_ext.models.openai import OpenAIChatCompletionClient

from lgov_autogen import GovernedChatCompletionClient, GovernedWorkbench, instrument, uninstrument
from lgov_core import hookspecs
from lgov_core.governor import Governor
from lgov_core.testing import ScriptedModelServer, ScriptedReply
from lgov_core.types import Action, Decision, Effect, Point
from tests.cells import Seen

#: The two ways: lgov's classes written into the program, and the whole process instrumented.
WAYS = ("explicit", "instrumented")

MODEL_INFO: Any = {
    "vision": False,
    "function_calling": True,
    "json_output": True,
    "family": "unknown",
    "structured_output": True,
}


class Way:
    """Makes the parts of an agent, governed as ``name`` says."""

    def __init__(self, name: str, governor: Governor, base_url: str) -> None:
        self.name = name
        self.governor = governor
        self.base_url = base_url

    @property
    def instrumented(self) -> bool:
        return self.name == "instrumented"

    def bare_client(self, **options: Any) -> OpenAIChatCompletionClient:
        return OpenAIChatCompletionClient(
            model="scripted", base_url=self.base_url, api_key="none", model_info=MODEL_INFO, max_retries=0, **options
        )

    def client(self, agent: str | None = None, **options: Any) -> ChatCompletionClient:
        bare = self.bare_client(**options)
        return bare if self.instrumented else GovernedChatCompletionClient(bare, self.governor, agent=agent)

    def workbench(self, tools: Sequence[Any] | Workbench, agent: str | None = None) -> Workbench:
        inner = tools if isinstance(tools, Workbench) else StaticStreamWorkbench([as_tool(one) for one in tools])
        return inner if self.instrumented else GovernedWorkbench(inner, self.governor, agent=agent)

    def agent(self, name: str, tools: Sequence[Any] | Workbench = (), *, stream: bool = False, **options: Any) -> Any:
        options.setdefault("max_tool_iterations", 5)
        if tools or isinstance(tools, Workbench):
            options["workbench"] = self.workbench(tools, name)
        return AssistantAgent(name, self.client(name), model_client_stream=stream, **options)


def as_tool(one: Any) -> BaseTool[Any, Any]:
    if isinstance(one, BaseTool):
        return one
    function: Callable[..., Any] = one
    return FunctionTool(function, description=function.__doc__ or "")


@contextmanager
def governed(name: str, governor: Governor, base_url: str) -> Iterator[Way]:
    """The way of this name; the process is instrumented inside the block where the way is."""
    if name == "instrumented":
        instrument(governor)
    try:
        yield Way(name, governor, base_url)
    finally:
        uninstrument()


async def answer_of(agent: Any, task: str, *, stream: bool) -> str:
    """Runs an agent or team to its end and returns the text of its last message."""
    if stream:
        result = [event async for event in agent.run_stream(task=task)][-1]
    else:
        result = await agent.run(task=task)
    return result.messages[-1].to_text()


class Judging:
    """A policy out of a function."""

    bounded = True

    def __init__(self, judge: Callable[[Action], Decision | None], name: str = "test") -> None:
        self.name = name
        self.judge = judge


def deny(reason: str, *, abort: bool = False) -> Decision:
    return Decision(Effect.DENY, policy="test", rule="no", reason=reason, abort=abort)


def rewrite(*, text: str | None = None, arguments: Any = None) -> Decision:
    return Decision(Effect.TRANSFORM, policy="test", text=text, arguments=arguments)


def at(point: Point, judge: Callable[[Action], Decision | None]) -> Judging:
    """Judges one point by ``judge`` and allows every act that it says nothing about."""

    def both(action: Action) -> Decision | None:
        decision = judge(action) if action.point is point else None
        if decision is None and action.point is Point.PRE_TOOL_CALL:
            return Decision(Effect.ALLOW, policy="test")
        return decision

    return Judging(both)


@contextmanager
def playing(
    way: str, policy: Any, *replies: ScriptedReply | Any, content: bool = True, timeout_s: float = 2.0
) -> Iterator[tuple[Way, Seen, ScriptedModelServer]]:
    """A scripted model and the parts of agents governed by ``policy``. One callable reply is the whole script."""
    seen = Seen()
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    governor = Governor([policy], plugins=[seen], manager=manager, capture_content=content, timeout_s=timeout_s)
    script: Any = replies[0] if len(replies) == 1 and callable(replies[0]) else list(replies)
    try:
        with ScriptedModelServer(script) as server, governed(way, governor, server.base_url) as parts:
            yield parts, seen, server
    finally:
        governor.close()


def results_read(server: ScriptedModelServer, number: int = -1) -> dict[str, str]:
    """What the model read as tool results in a prompt, by call id."""
    return {m["tool_call_id"]: m["content"] for m in server.requests[number].body["messages"] if m["role"] == "tool"}
