"""How AutoGen is patched in an instrumented process, and the proof: probes of every path must not get through a denial."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from autogen_agentchat.agents import AssistantAgent, BaseChatAgent
from autogen_agentchat.base import TaskResult
from autogen_agentchat.messages import BaseChatMessage
from autogen_agentchat.teams import BaseGroupChat
from autogen_core import CancellationToken, FunctionCall
from autogen_core.code_executor import CodeBlock, CodeExecutor, CodeResult
from autogen_core.models import ChatCompletionClient, CreateResult, RequestUsage, SystemMessage
from autogen_core.tools import BaseStreamTool, BaseTool, FunctionTool, StaticStreamWorkbench, StaticWorkbench, Workbench
from opentelemetry import context, trace
from pydantic import BaseModel

from lgov_autogen import _internals, components, runs
from lgov_autogen import tools as tool_calls
from lgov_autogen.components import GovernedChatCompletionClient, GovernedCodeExecutor
from lgov_autogen.instrumentor import INSTRUMENTOR
from lgov_core.instrumentation import Governor
from lgov_core.instrumentation.framework import Instrumentor, Patches, governed_method, governed_stream, wrap_methods
from lgov_core.instrumentation.live_span import LiveSpan

_NAME = "lgov_probe"


def patch(patches: Patches) -> None:
    """Wraps the methods of every class that defines one."""
    # Whatever an agent of this process runs is evaluated when it runs, whether it was offered or not.
    calls = components.ModelCalls(lambda governor, tool: True)

    def create(client: Any, own: Any, messages: Any, **options: Any) -> Any:
        return calls.create(INSTRUMENTOR.governor, client, own, messages, options)

    def create_stream(client: Any, own: Any, messages: Any, **options: Any) -> Any:
        return calls.create_stream(INSTRUMENTOR.governor, client, own, messages, options)

    methods: dict[type, dict[str, Callable[..., Any]]] = {
        ChatCompletionClient: {"create": create},
        Workbench: {"call_tool": tool_calls.call_tool},
        BaseTool: {"run_json": tool_calls.run_json},
        CodeExecutor: {"execute_code_blocks": components.execute_code_blocks},
        BaseChatAgent: {"on_messages": runs.on_messages},
    }
    streams: dict[type, dict[str, Callable[..., Any]]] = {
        ChatCompletionClient: {"create_stream": create_stream},
        Workbench: {"call_tool_stream": tool_calls.call_tool_stream},
        BaseTool: {"run_json_stream": tool_calls.run_json_stream},
        BaseChatAgent: {"on_messages_stream": runs.on_messages_stream},
        BaseGroupChat: {"run_stream": runs.run_team_stream},
    }
    for wrap, by_class in ((governed_method, methods), (governed_stream, streams)):
        for base, governed in by_class.items():
            wrap_methods(patches, base, {name: wrap(govern) for name, govern in governed.items()})
    patches.replace(FunctionTool, "run", _internals.wrap_function_run(FunctionTool.run))


def self_test(instrumentor: Instrumentor) -> list[str]:
    """Tries probes of every path; returns the names of those that got through. Not for a running event loop."""
    with instrumentor.denying_everything() as governor, _outside_traces():
        probes = _Probes(governor)
        asyncio.run(probes.try_everything())
    return probes.ran


@contextmanager
def _outside_traces() -> Generator[None]:
    """Keeps the spans that AutoGen itself opens out of the program's traces: they hang below one that is not recorded."""
    trace_id, span_id = secrets.randbits(128) | 1, secrets.randbits(64) | 1
    unsampled = trace.SpanContext(trace_id, span_id, is_remote=False, trace_flags=trace.TraceFlags(0))
    token = context.attach(trace.set_span_in_context(trace.NonRecordingSpan(unsampled)))
    try:
        yield
    finally:
        context.detach(token)


class _NoArguments(BaseModel):
    pass


class _Probes:
    """The events that must not happen, and those that did."""

    def __init__(self, governor: Governor) -> None:
        self.governor = governor
        self.ran: list[str] = []
        self.by = ""

    def act(self) -> str:
        self.ran.append(self.by)
        return "ran"

    async def try_everything(self) -> None:
        tool, streaming = self._tool(), self._stream_tool()
        token = CancellationToken()
        messages = [SystemMessage(content="x")]  # a denied text of a user would be looked for in every later call
        ways: dict[str, Callable[[], Awaitable[Any]]] = {
            "run_json": lambda: tool.run_json({}, token),
            "run_json of a streaming tool": lambda: streaming.run_json({}, token),
            "run_json_stream": lambda: _drain(streaming.run_json_stream({}, token)),
            "call_tool": lambda: StaticWorkbench([tool]).call_tool(_NAME, {}),
            "call_tool_stream": lambda: _drain(StaticStreamWorkbench([tool]).call_tool_stream(_NAME, {})),
            "execute_code_blocks": lambda: self._executor().execute_code_blocks([CodeBlock("x", "sh")], token),
            "create": lambda: self._client().create(messages),
            "create_stream": lambda: _drain(self._client().create_stream(messages)),
            "an agent": lambda: self._run_agent(tool, False),
            "a streaming agent": lambda: self._run_agent(tool, True),
        }
        for name, way in ways.items():
            self.by = name
            await way()

    async def _run_agent(self, tool: Any, stream: bool) -> None:
        """An assistant whose model asks for the probe; the model itself is let through for this."""
        agent = AssistantAgent("lgov_probe_agent", self._client(calls=True), tools=[tool], model_client_stream=stream)
        with LiveSpan(self.governor, _NAME).active(model=self.governor):
            if stream:
                events = [event async for event in agent.run_stream(task="x")]
                result = events[-1]
            else:
                result = await agent.run(task="x")
        last = result.messages[-1] if isinstance(result, TaskResult) else None
        if not isinstance(last, BaseChatMessage) or "DENIED" not in last.to_text():
            self.ran.append(f"the denial of a tool call, which {self.by} did not read")

    # ------------------------------------------------------------------ probes: real subclasses, made after the patching

    def _tool(self) -> FunctionTool:
        probes = self

        def probe() -> str:
            return probes.act()

        return FunctionTool(probe, name=_NAME, description="Must not run.")

    def _stream_tool(self) -> BaseStreamTool[Any, Any, Any]:
        probes = self

        class ProbeStreamTool(BaseStreamTool[_NoArguments, BaseModel, _NoArguments]):
            async def run(self, args: _NoArguments, cancellation_token: CancellationToken) -> _NoArguments:
                probes.act()
                return args

            async def run_stream(
                self, args: _NoArguments, cancellation_token: CancellationToken
            ) -> AsyncGenerator[BaseModel, None]:
                probes.act()
                yield args

        return ProbeStreamTool(_NoArguments, _NoArguments, _NAME, "Must not run.")

    def _executor(self) -> CodeExecutor:
        probes = self

        class ProbeExecutor(GovernedCodeExecutor):
            async def execute_code_blocks(
                self, code_blocks: list[CodeBlock], cancellation_token: CancellationToken
            ) -> CodeResult:
                return CodeResult(exit_code=0, output=probes.act())

        return ProbeExecutor(cast("Any", None))

    def _client(self, *, calls: bool = False) -> ChatCompletionClient:
        probes = self
        content: Any = [FunctionCall(id="probe", name=_NAME, arguments="{}")] if calls else "ran"

        def reply() -> CreateResult:
            if not calls:
                probes.act()
            return CreateResult(finish_reason="unknown", content=content, usage=RequestUsage(0, 0), cached=False)

        class ProbeClient(GovernedChatCompletionClient):
            async def create(self, messages: Sequence[Any], **options: Any) -> CreateResult:
                return reply()

            async def create_stream(
                self, messages: Sequence[Any], **options: Any
            ) -> AsyncGenerator[str | CreateResult, None]:
                yield reply()

            @property
            def model_info(self) -> Any:
                return {"vision": False, "function_calling": True, "json_output": False, "family": "unknown"}

        return ProbeClient(cast("Any", None))


async def _drain(events: AsyncGenerator[Any, None]) -> None:
    async for _event in events:
        pass
