"""How the SDK is patched in an instrumented process, and the proof: a probe tool, model and server under a denial."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

from agents import (
    Agent,
    ApplyPatchTool,
    FunctionTool,
    Handoff,
    LocalShellTool,
    Model,
    ModelResponse,
    RunConfig,
    Runner,
    ShellTool,
    Usage,
    function_tool,
)
from agents.mcp import MCPServer
from agents.tool_context import ToolContext
from openai.types.responses import ResponseFunctionToolCall

from lgov_core.instrumentation import Governor
from lgov_core.instrumentation.framework import (
    Instrumentor,
    Patches,
    alive,
    bound,
    governed_method,
    governed_stream,
    on_subclass,
    subclasses_of,
    wrap_methods,
)
from lgov_core.types import Point
from lgov_openai_agents import tools as servers
from lgov_openai_agents._internals import kind_of
from lgov_openai_agents.guardrails import keep_traces_here
from lgov_openai_agents.instrumentor import INSTRUMENTOR
from lgov_openai_agents.items import events_of, message
from lgov_openai_agents.models import govern_response, govern_stream
from lgov_openai_agents.proposals import hosted_action
from lgov_openai_agents.runner import RUN_METHODS, wrap_run_method
from lgov_openai_agents.runs import RunMemory
from lgov_openai_agents.tools import FIELDS

#: Set to ``1``, the SDK's own exporter goes on sending traces (prompts among them) to the vendor.
_PROBE = "lgov probe"
TRACES_VARIABLE = "LGOV_OPENAI_TRACES"


def patch(patches: Patches) -> None:
    """Does the five things that `lgov_openai_agents.instrumentor` names."""

    def acting() -> Governor | None:
        return INSTRUMENTOR.governor

    for tool_class, wraps in FIELDS.items():
        _govern_fields(patches, tool_class, wraps, acting)

    def get_response(model: Any, own: Any, *args: Any, **kwargs: Any) -> Any:
        return govern_response(acting(), model, own, args, kwargs)

    def stream_response(model: Any, own: Any, *args: Any, **kwargs: Any) -> Any:
        return govern_stream(acting(), model, own, args, kwargs)

    def call_tool(server: Any, own: Any, *args: Any, **kwargs: Any) -> Any:
        return servers.call_tool(acting(), server, own, *args, **kwargs)

    replies = {"get_response": governed_method(get_response), "stream_response": governed_stream(stream_response)}
    wrap_methods(patches, Model, replies)
    wrap_methods(patches, MCPServer, {"call_tool": governed_method(call_tool)})
    memory = RunMemory()
    for name in RUN_METHODS:
        wrapped = wrap_run_method(getattr(Runner, name), acting, memory)
        patches.replace(Runner, name, classmethod(wrapped))
    if os.environ.get(TRACES_VARIABLE, "").strip().lower() not in ("1", "true", "yes", "send"):
        patches.undo_by(keep_traces_here())


def offers() -> Iterator[Mapping[str, Any]]:
    """See `Adapter.offers`: of every agent its tools, its hand-offs, and the agents behind both, which are alive as well."""
    for agent in alive(Agent):
        if agent.name == _PROBE:
            continue
        for tool in agent.tools:
            if isinstance(tool, FunctionTool):
                yield {"name": tool.qualified_name, "kind": kind_of(tool), "parameters": tool.params_json_schema}
            elif isinstance(tool, ShellTool | LocalShellTool) and getattr(tool, "executor", None) is not None:
                yield {"name": tool.name, "kind": "shell", "arguments": ["command"]}
            elif isinstance(tool, ApplyPatchTool):
                yield {"name": tool.name, "arguments": ["path", "move_to"]}
            else:
                hosted = hosted_action(tool)
                yield {"name": tool.name, "kind": "function" if hosted is None else hosted.kind}
        for handoff in agent.handoffs:
            name = handoff.tool_name if isinstance(handoff, Handoff) else Handoff.default_tool_name(handoff)
            yield {"name": name, "kind": "handoff", "parameters": getattr(handoff, "input_json_schema", None)}


# ---------------------------------------------------------------------- fields that hold a callable

GovernorOf = Callable[[], Governor | None]

#: Makes the governed callable, from the tool, its own callable, and what gives the governor.
Govern = Callable[[Any, Any, GovernorOf], Any]

_NOTHING: Any = object()


def _govern_fields(patches: Patches, base: type, wraps: Mapping[str, Govern], acting: GovernorOf) -> None:
    """Governs these fields of ``base`` and of the classes below it, which may have a property or a method instead."""

    def treat(cls: type) -> None:
        for name, govern in wraps.items():
            own = vars(cls).get(name, _NOTHING)
            if isinstance(own, dataclasses.Field):
                # A dataclass that is being defined: it will put the default in the place of this declaration.
                if own.default is not dataclasses.MISSING:
                    own.default = _GovernedField(name, govern, own.default, acting)
            elif not isinstance(own, _GovernedField) and (cls is base or own is not _NOTHING):
                patches.replace(cls, name, _GovernedField(name, govern, own, acting))

    for cls in subclasses_of(base):
        treat(cls)
    on_subclass(patches, base, treat)


class _GovernedField:
    """A field that gives the governed callable; the instance keeps what was stored.

    ``own`` is what the class has in its place: nothing, a default, a method or a property.
    """

    def __init__(self, name: str, govern: Govern, own: Any, acting: GovernorOf) -> None:
        self._name = name
        self._made = f"_lgov_{name}"
        self._govern = govern
        self._own = own
        self._acting = acting

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None or self._name not in vars(instance) or hasattr(type(self._own), "__set__"):
            stored = self._of_class(instance, owner)
        else:
            stored = vars(instance)[self._name]
        if instance is None or stored is None or self._acting() is None:
            return stored
        # The same object each time: the SDK compares what it approved with what it runs. Bound methods are only equal.
        governed = vars(instance).get(self._made)
        if governed is None or governed[0] != stored or governed[1] is not instance:
            governed = (stored, instance, self._govern(instance, stored, self._acting))
            if governed[2] is not stored:
                vars(instance)[self._made] = governed
        return governed[2]

    def _of_class(self, instance: Any, owner: type | None) -> Any:
        if self._own is _NOTHING:
            raise AttributeError(self._name)
        return bound(self._own, instance, owner)

    def __set__(self, instance: Any, value: Any) -> None:
        if hasattr(type(self._own), "__set__"):
            type(self._own).__set__(self._own, instance, value)
            return
        governed = vars(instance).get(self._made)
        if governed is not None and value is governed[2]:  # stored as it was read
            value = governed[0]
        vars(instance)[self._name] = self._own if value is self else value


# ---------------------------------------------------------------------- the self-test

_ARGUMENTS: tuple[Any, ...] = (None, "probe", None, [], None, [], None)


class _ProbeModel(Model):
    """Calls the probe tool once, then repeats the result."""

    def __init__(self, requests: list[str]) -> None:
        self.requests = requests

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
        self.requests.append("probe")
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


def self_test(instrumentor: Instrumentor) -> list[str]:
    """Tries a probe tool, model and server on each way of the SDK; returns the names of those on which one ran."""
    ran: list[str] = []

    @function_tool(name_override="lgov_probe")
    def probe() -> str:
        """Must not run."""
        ran.append("tool")
        return "ran"

    requests: list[str] = []
    agent = Agent(name=_PROBE, model=_ProbeModel(requests), tools=[probe])
    config = RunConfig(tracing_disabled=True)
    with instrumentor.denying_everything():
        asyncio.run(_ask_directly(agent, probe, _ProbeServer(ran)))
    if requests:
        ran.append("model")
    with instrumentor.denying_everything(only=frozenset({Point.PRE_TOOL_CALL})):
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        try:
            answers = [Runner.run_sync(agent, "probe", run_config=config).final_output]
        finally:
            loop.close()
        answers += asyncio.run(_run_both(agent, config))
    if any("DENIED" not in str(answer) for answer in answers):
        ran.append(f"the denial of a tool call, which an agent did not read: {answers}")
    return ran


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
