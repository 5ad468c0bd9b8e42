"""The methods that are patched in an instrumented process, and the proof: no probe of any path gets through a denial."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

from autogen_agentchat.agents import AssistantAgent, BaseChatAgent
from autogen_agentchat.base import TaskResult
from autogen_agentchat.messages import BaseChatMessage
from autogen_agentchat.teams import BaseGroupChat
from autogen_core import CancellationToken, FunctionCall
from autogen_core.code_executor import CodeBlock, CodeExecutor, CodeResult
from autogen_core.models import ChatCompletionClient, CreateResult, RequestUsage, SystemMessage
from autogen_core.tools import (
    BaseStreamTool,
    BaseTool,
    FunctionTool,
    StaticStreamWorkbench,
    StaticWorkbench,
    ToolResult,
    Workbench,
)
from pydantic import BaseModel

from lgov_autogen import _internals, components
from lgov_autogen.components import GovernedChatCompletionClient, GovernedCodeExecutor
from lgov_autogen.instrumentor import INSTRUMENTOR
from lgov_autogen.messages import FRAMEWORK
from lgov_autogen.runs import RUN, Run
from lgov_autogen.tool_models import ToolModel, kind_of, running_model
from lgov_autogen.tools import Emit, GovernedCall, RunTool, WorkbenchCall, note_abort, tool_action
from lgov_core.errors import PolicyDenied
from lgov_core.instrumentation import Governor, arun_flow, semconv
from lgov_core.instrumentation.framework import (
    Instrumentor,
    Patches,
    alive,
    governed_method,
    governed_stream,
    wrap_methods,
)
from lgov_core.instrumentation.live_span import LiveSpan, covered_call
from lgov_core.instrumentation.tool_call import GovernedToolCall, ToolReading, tool_flow
from lgov_core.scope import inherited
from lgov_core.types import Decision

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
        Workbench: {"call_tool": call_tool},
        BaseTool: {"run_json": run_json},
        CodeExecutor: {"execute_code_blocks": components.execute_code_blocks},
        BaseChatAgent: {"on_messages": on_messages},
    }
    streams: dict[type, dict[str, Callable[..., Any]]] = {
        ChatCompletionClient: {"create_stream": create_stream},
        Workbench: {"call_tool_stream": call_tool_stream},
        BaseTool: {"run_json_stream": run_json_stream},
        BaseChatAgent: {"on_messages_stream": on_messages_stream},
        BaseGroupChat: {"run_stream": run_team_stream},
    }
    for wrap, by_class in ((governed_method, methods), (governed_stream, streams)):
        for base, governed in by_class.items():
            wrap_methods(patches, base, {name: wrap(govern) for name, govern in governed.items()})
    patches.replace(FunctionTool, "run", _internals.wrap_function_run(FunctionTool.run))


def offers() -> Iterator[Mapping[str, Any]]:
    """See `Adapter.offers`: tools of workbenches, hand-offs of agents, and what runs code. Members of teams are agents."""
    for workbench in alive(Workbench):
        for tool in _internals.tools_of(workbench):
            yield {**tool.schema, "kind": kind_of(tool, workbench)}
    for agent in alive(BaseChatAgent):
        for handoff in _internals.handoffs_of(agent):
            yield {**handoff.handoff_tool.schema, "kind": "handoff"}
    if any(not type(executor).__module__.startswith(__name__) for executor in alive(CodeExecutor)):
        yield {"name": "run_shell", "kind": "shell", "arguments": ["command", "language"]}
        yield {"name": "run_code", "arguments": ["code", "language"]}


# ---------------------------------------------------------------------- tools


def _call_of(
    workbench: Any, name: str, arguments: Any = None, cancellation_token: Any = None, call_id: str | None = None
) -> WorkbenchCall:
    return WorkbenchCall.of(INSTRUMENTOR.governor, workbench, name, arguments, cancellation_token, call_id)


async def call_tool(workbench: Any, own: Callable[..., Any], *call: Any, **options: Any) -> ToolResult:
    """``Workbench.call_tool`` in an instrumented process; ``own`` is the workbench's own method."""
    return await _call_of(workbench, *call, **options).result(own)


def call_tool_stream(workbench: Any, own: Callable[..., Any], *call: Any, **options: Any) -> AsyncGenerator[Any]:
    """``StreamWorkbench.call_tool_stream`` in an instrumented process."""
    return _call_of(workbench, *call, **options).events(own)


class _ToolCall(GovernedCall):
    """One call of a tool, with the arguments of ``BaseTool.run_json``."""

    __slots__ = ()

    @classmethod
    def of(cls, tool: Any, own: Any, arguments: Any, token: Any, call_id: str | None) -> _ToolCall:
        """A call of ``own``, a method of ``tool``, in an instrumented process."""
        governor = INSTRUMENTOR.governor
        validated = None if governor is None else ToolModel.of(tool, own, arguments)
        return cls(governor, tool, tool.name, arguments, token, call_id, validated=validated)

    def passes(self, governor: Governor) -> bool:
        """Also a hand-off, which is evaluated with the model's reply.

        A tool that a workbench shows to the model under another name is evaluated under both.
        """
        return GovernedCall.passes(self, governor) or _internals.is_handoff(self.owner)

    def parameters(self, arguments: Any) -> tuple[Any, ...]:
        """Those of ``BaseTool.run_json``."""
        if (model := running_model(self.owner)) is not None:
            model.is_due = True
        return arguments, self.token, self.call_id

    async def last_of(self, events: AsyncIterator[Any], emit: Emit) -> Any:
        """The last event; None if there is none."""
        waiting: list[Any] = []
        async for event in events:
            if waiting:
                emit(waiting.pop())
            waiting.append(event)
        return waiting.pop() if waiting else None

    async def govern(self, governor: Governor, run: RunTool) -> Any:
        """Raises `PolicyDenied` where the tool's caller cannot read a denial."""
        tool = self.owner
        action = tool_action(self.name, kind_of(tool), self.judged, tool, call_id=self.call_id)

        def read(value: Any) -> ToolReading:
            return ToolReading(_text_of(tool, value))

        call = GovernedToolCall(governor, action, validated=self.validated)
        governed = await arun_flow(tool_flow(call, run, read, raise_abort=False))
        note_abort(governed.decision, action.call_id)
        text = governed.denial if governed.denial is not None else governed.text
        return governed.result if text is None else _as_value(tool, text, governed.decision)


def _text_of(tool: Any, value: Any) -> str:
    try:
        return str(tool.return_value_as_string(value))
    except Exception:  # noqa: BLE001 - a value that the tool cannot show is evaluated as Python shows it
        return str(value)


def _as_value(tool: Any, text: str, decision: Decision) -> Any:
    """``text`` as a return value that the caller of ``tool`` can read. Raises `PolicyDenied` where there is none."""
    for value in _candidates(tool, text):
        try:
            if text in str(tool.return_value_as_string(value)):
                return value
        except Exception:  # noqa: BLE001 - the tool cannot read this form; the next one may do
            continue
    raise PolicyDenied(decision)


def _candidates(tool: Any, text: str) -> list[Any]:
    kind = kind_of(tool)
    if kind == "agent":
        from autogen_agentchat.base import TaskResult
        from autogen_agentchat.messages import TextMessage

        return [TaskResult(messages=[TextMessage(content=text, source=tool.name)])]
    if kind == "mcp":
        from mcp.types import TextContent

        return [[TextContent(type="text", text=text)], text]
    return [text]


async def run_json(
    tool: Any, own: Callable[..., Any], args: Any, cancellation_token: Any, call_id: str | None = None
) -> Any:
    """``BaseTool.run_json`` in an instrumented process; ``own`` is the tool's own method."""
    return await _ToolCall.of(tool, own, args, cancellation_token, call_id).result(own)


def run_json_stream(
    tool: Any, own: Callable[..., Any], args: Any, cancellation_token: Any, call_id: str | None = None
) -> AsyncGenerator[Any]:
    """``BaseStreamTool.run_json_stream`` in an instrumented process."""
    return _ToolCall.of(tool, own, args, cancellation_token, call_id).events(own)


# ---------------------------------------------------------------------- runs of agents and teams


_END: Any = object()


@contextmanager
def _inside(run: Run, span: LiveSpan) -> Generator[None]:
    token = RUN.set(run)
    try:
        with span.active():
            yield
    finally:
        RUN.reset(token)


@contextmanager
def _step(run: Run, span: LiveSpan) -> Generator[None]:
    """A step of the run. Raises `PolicyDenied` at the end of an aborted one, also for another error of the framework."""
    try:
        with _inside(run, span):
            yield
    except Exception as error:
        if run.aborted is None or isinstance(error, PolicyDenied):
            raise
        raise PolicyDenied(run.aborted) from error
    if run.aborted is not None:
        raise PolicyDenied(run.aborted)


def _is_own_method(agent: Any) -> bool:
    """Returns whether the agent calls its own method, inside its own run."""
    run = RUN.get()
    return run is not None and run.owner is agent and run.inside is covered_call()


def _run_of(governor: Governor, name: str, owner: object, team: Any = None) -> tuple[Run, LiveSpan]:
    """A run and its span. A team has no ``owner`` and no agent: what its members do is theirs."""
    attributes: dict[str, Any] = {semconv.AGENT_NAME: name, semconv.FRAMEWORK: FRAMEWORK}
    attributes[semconv.CONVERSATION_ID] = _internals.team_id(team)
    above = inherited(RUN)
    of_team = team is not None or (above is not None and above.of_team)
    run = Run(None if owner is None else name, owner, above, covered_call(), of_team)
    return run, LiveSpan(governor, semconv.INVOKE_AGENT, name, attributes)


async def on_messages(agent: Any, own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """``BaseChatAgent.on_messages`` inside a run; ``own`` is the agent's own method."""
    governor = INSTRUMENTOR.governor
    if governor is None or _is_own_method(agent):
        return await own(*args, **kwargs)
    run, span = _run_of(governor, str(agent.name), agent)
    try:
        with _step(run, span):
            response = await own(*args, **kwargs)
    except BaseException as error:
        span.end(error)
        raise
    span.end()
    return response


def on_messages_stream(agent: Any, own: Callable[..., Any], *args: Any, **kwargs: Any) -> AsyncGenerator[Any]:
    """``BaseChatAgent.on_messages_stream`` inside a run; an aborted run ends at the next event."""
    governor = INSTRUMENTOR.governor
    events: AsyncGenerator[Any] = own(*args, **kwargs)
    if governor is None or _is_own_method(agent):
        return events
    return _events_in(*_run_of(governor, str(agent.name), agent), events)


def run_team_stream(team: Any, own: Callable[..., Any], *args: Any, **kwargs: Any) -> AsyncGenerator[Any]:
    """``BaseGroupChat.run_stream`` inside a run; the members' runs are below it."""
    governor = INSTRUMENTOR.governor
    events: AsyncGenerator[Any] = own(*args, **kwargs)
    return events if governor is None else _events_in(*_run_of(governor, str(team.name), None, team), events)


async def _events_in(run: Run, span: LiveSpan, events: AsyncGenerator[Any]) -> AsyncGenerator[Any]:
    """The events of a run, each fetched inside the run; ends the span with the last of them."""
    problem: BaseException | None = None
    try:
        while True:
            with _step(run, span):
                event = await anext(events, _END)
            if event is _END:
                break
            yield event
    except BaseException as error:
        problem = error
        raise
    finally:
        try:
            with _inside(run, span):
                await events.aclose()
        finally:
            span.end(None if isinstance(problem, GeneratorExit) else problem)


# ---------------------------------------------------------------------- the proof


def self_test(instrumentor: Instrumentor) -> list[str]:
    """Tries probes of every path; returns the names of those that got through. Not for a running event loop."""
    with instrumentor.denying_everything() as governor:
        probes = _Probes(governor)
        asyncio.run(probes.try_everything())
    return probes.ran


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
