"""The self-test of `instrument`: a probe tool and a probe model of the real SDK, under a governor that denies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from agents import Agent, Model, ModelResponse, RunConfig, Runner, Usage, function_tool
from agents.mcp import MCPServer
from agents.tool_context import ToolContext
from openai.types.responses import ResponseFunctionToolCall

from lgov_core.errors import InstrumentationError
from lgov_core.instrumentation.framework import Instrumentor
from lgov_core.types import Point
from lgov_openai_agents.items import events_of, message

_ARGUMENTS: tuple[Any, ...] = (None, "probe", None, [], None, [], None)


class _ProbeModel(Model):
    """Calls the probe tool once, then repeats the result."""

    def __init__(self, asked: list[str]) -> None:
        self.asked = asked

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        """The next reply."""
        input_items = kwargs.get("input", args[1] if len(args) > 1 else "")
        return self._reply(input_items)

    async def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        """The next reply, in events."""
        input_items = kwargs.get("input", args[1] if len(args) > 1 else "")
        for event in events_of(self._reply(input_items), (), "probe"):
            yield event

    def _reply(self, input_items: Any) -> ModelResponse:
        self.asked.append("asked")
        answered = [item["output"] for item in input_items if isinstance(item, dict) and "output" in item]
        if answered:
            output: list[Any] = [message(str(answered[-1]))]
        else:
            output = [
                ResponseFunctionToolCall(type="function_call", call_id="probe", name="lgov_probe", arguments="{}")
            ]
        return ModelResponse(output=output, usage=Usage(), response_id=None)


class _ProbeServer(MCPServer):
    """Has one tool, which must not run."""

    def __init__(self, ran: list[str]) -> None:
        super().__init__()
        self.ran = ran

    async def call_tool(self, tool_name: str, arguments: Any, meta: Any = None) -> Any:
        """Runs."""
        self.ran.append("MCP server")

    @property
    def name(self) -> str:
        """Its name."""
        return "lgov probe"

    async def _nothing(self, *args: Any, **kwargs: Any) -> Any: ...

    connect: Any = _nothing
    cleanup: Any = _nothing
    list_tools: Any = _nothing
    list_prompts: Any = _nothing
    get_prompt: Any = _nothing


def attempt(instrumentation: Instrumentor, ran: list[str]) -> None:
    """Tries every way; adds to ``ran`` the names of those on which a denied probe ran. For a fresh thread."""

    @function_tool(name_override="lgov_probe")
    def probe() -> str:
        """Must not run."""
        ran.append("tool")
        return "ran"

    models_asked: list[str] = []
    agent = Agent(name="lgov probe", model=_ProbeModel(models_asked), tools=[probe])
    config = RunConfig(tracing_disabled=True)
    with instrumentation.denying_everything():
        asyncio.run(_ask_directly(agent, probe, _ProbeServer(ran)))
    if models_asked:
        ran.append("model")
    with instrumentation.denying_everything(only=frozenset({Point.PRE_TOOL_CALL})):
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        try:
            answers = [Runner.run_sync(agent, "probe", run_config=config).final_output]
        finally:
            loop.close()
        answers += asyncio.run(_run_both(agent, config))
    if any("DENIED" not in str(answer) for answer in answers):
        raise InstrumentationError(f"an agent did not read the denial of a probe tool: {answers}")


async def _ask_directly(agent: Agent[Any], probe: Any, server: Any) -> None:
    context: Any = ToolContext(None, tool_name="lgov_probe", tool_call_id="probe", tool_arguments="{}")
    await probe.on_invoke_tool(context, "{}")
    await server.call_tool("lgov_probe", {})
    model: Any = agent.model
    await model.get_response(*_ARGUMENTS)
    async for _ in model.stream_response(*_ARGUMENTS):
        pass


async def _run_both(agent: Agent[Any], config: RunConfig) -> list[Any]:
    result = await Runner.run(agent, "probe", run_config=config)
    streamed = Runner.run_streamed(agent, "probe", run_config=config)
    async for _ in streamed.stream_events():
        pass
    return [result.final_output, streamed.final_output]
