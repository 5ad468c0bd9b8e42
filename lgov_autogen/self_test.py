"""Proves that an instrumented process governs AutoGen: probes of every path must not get through a governor that denies all."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.base import TaskResult
from autogen_agentchat.messages import BaseChatMessage
from autogen_core import CancellationToken, FunctionCall
from autogen_core.code_executor import CodeBlock, CodeExecutor, CodeResult
from autogen_core.models import ChatCompletionClient, CreateResult, RequestUsage, SystemMessage
from autogen_core.tools import BaseStreamTool, FunctionTool, StaticStreamWorkbench, StaticWorkbench
from opentelemetry import context, trace
from pydantic import BaseModel

from lgov_autogen.code_executor import GovernedCodeExecutor
from lgov_autogen.model_client import GovernedChatCompletionClient
from lgov_core.errors import InstrumentationError
from lgov_core.instrumentation import Governor
from lgov_core.instrumentation.framework import Instrumentor
from lgov_core.instrumentation.live_span import LiveSpan

_NAME = "lgov_probe"


def check_all_paths(instrumentation: Instrumentor) -> None:
    """Raises `InstrumentationError` if a probe tool, model or code block runs although everything is denied.

    Not to be called from a running event loop.
    """
    with instrumentation.denying_everything() as governor, _outside_traces():
        probes = _Probes(governor)
        asyncio.run(probes.try_everything())
    if probes.ran:
        raise InstrumentationError(f"denied probes ran all the same ({', '.join(dict.fromkeys(probes.ran))})")


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
            raise InstrumentationError("an agent did not read that its tool call was denied")

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
