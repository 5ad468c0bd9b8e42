"""Governs a call of a tool, by its workbench or by itself: its action, and its result, whole or as a stream of events.

A denial is a return value in a form that the tool's caller can read, never an exception of a workbench: an exception out of its
call leaves an agent waiting for ever. The same holds for a decision that says abort; the run then ends at its next step.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from autogen_core import CancellationToken, Component, ComponentModel
from autogen_core.tools import (
    BaseTool,
    ImageResultContent,
    StaticStreamWorkbench,
    StreamTool,
    TextResultContent,
    ToolResult,
    ToolSchema,
    Workbench,
)
from pydantic import BaseModel

from lgov_autogen._internals import carry_context, observe_errors, tool_in, tools_of
from lgov_autogen.messages import FRAMEWORK, RAW_ARGUMENTS
from lgov_autogen.runs import GovernedComponent, behind, current_run, end_at_next_step
from lgov_autogen.tool_models import ToolModel, as_arguments, kind_of
from lgov_core.errors import PolicyDenied
from lgov_core.instrumentation import UNNAMED, Governor, arun_flow
from lgov_core.instrumentation.live_span import covered_call, note_error
from lgov_core.instrumentation.tool_call import GovernedToolCall, ToolReading, failure_status, tool_flow
from lgov_core.types import Action, Decision, Kind, Point


def tool_action(
    name: str, kind: Kind, arguments: Any, native: Any, *, call_id: str | None = None, agent: str | None = None
) -> Action:
    """A tool call before it runs; without ``agent``, that of the current run."""
    run = current_run()
    return Action(
        Point.PRE_TOOL_CALL,
        name=name,
        kind=kind,
        arguments=as_arguments(arguments),
        agent=agent if agent is not None or run is None else run.agent,
        framework=FRAMEWORK,
        call_id=call_id or None,
        context={UNNAMED: True} if run is not None and run.of_team else {},
        native=native,
    )


def is_evaluated(governor: Governor, name: str, arguments: Any, call_id: str | None) -> bool:
    """Returns whether ``governor`` has already evaluated exactly this call, which is running now."""
    call = covered_call()
    return call is not None and call.covers(governor, name, as_arguments(arguments), call_id or None)


def as_given(arguments: Any, permitted: Mapping[str, Any]) -> Any:
    """``permitted`` in the form of ``arguments``, so that a tool still refuses what it would refuse."""
    if isinstance(arguments, Mapping):
        return permitted
    if permitted == as_arguments(arguments):
        return arguments
    return permitted[RAW_ARGUMENTS] if set(permitted) == {RAW_ARGUMENTS} else permitted


def note_abort(decision: Decision, call_id: str | None) -> None:
    """Ends the run at its next step where the decision says abort."""
    if decision.blocks and decision.abort:
        end_at_next_step(decision, call_id)


Emit = Callable[[Any], None]

#: Runs the call with the permitted arguments.
RunTool = Callable[[Mapping[str, Any]], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class GovernedCall(ABC):
    """One call of a tool, by its workbench or by itself. ``owner`` is what is called, ``agent`` as policies name it.

    ``validated`` are the arguments as the tool's schema yields them, where it validates. Without a governor, and inside a call
    that it has evaluated, the owner's own method answers.
    """

    governor: Governor | None
    owner: Any
    name: str
    arguments: Any
    token: Any
    call_id: str | None
    agent: str | None = None
    validated: ToolModel | None = None

    async def result(self, method: Callable[..., Awaitable[Any]]) -> Any:
        """The governed result of ``method``, the owner's own."""
        if self.governor is None or self.passes(self.governor):
            try:
                return await method(*self.parameters(self.arguments))
            except Exception as error:
                note_error(error)
                raise
        return await self.govern(self.governor, lambda permitted: method(*self._permitted(permitted)))

    async def events(self, stream: Callable[..., AsyncIterator[Any]]) -> AsyncGenerator[Any]:
        """The events of ``stream``, the owner's own method, as they come; the last is the governed result."""
        governor = self.governor
        if governor is None or self.passes(governor):
            try:
                async for event in stream(*self.parameters(self.arguments)):
                    yield event
            except Exception as error:
                note_error(error)
                raise
            return

        def governed(emit: Emit) -> Awaitable[Any]:
            return self.govern(governor, lambda permitted: self.last_of(stream(*self._permitted(permitted)), emit))

        async for event in _events_of(governed):
            yield event

    def passes(self, governor: Governor) -> bool:
        """Returns whether the owner's own method answers: ``governor`` has already evaluated the call."""
        return is_evaluated(governor, self.name, self.judged, self.call_id)

    @property
    def judged(self) -> Any:
        """The arguments as policies see them: as the tool's schema yields them, where it validates."""
        return self.arguments if self.validated is None else self.validated.arguments

    def _permitted(self, permitted: Mapping[str, Any]) -> tuple[Any, ...]:
        if self.validated is not None and permitted == self.validated.judged:
            return self.parameters(self.arguments)
        return self.parameters(as_given(self.arguments, permitted))

    @abstractmethod
    def parameters(self, arguments: Any) -> tuple[Any, ...]:
        """The parameters of the owner's method, with these arguments of the tool."""

    @abstractmethod
    async def govern(self, governor: Governor, run: RunTool) -> Any:
        """The governed result of ``run``."""

    @abstractmethod
    async def last_of(self, events: AsyncIterator[Any], emit: Emit) -> Any:
        """The result among the events of the owner's method; emits the others."""


async def _events_of(governed: Callable[[Emit], Awaitable[Any]]) -> AsyncIterator[Any]:
    """The events that ``governed`` emits while it runs, then what it returns. Raises what it raises.

    It runs in its own task, so that no context variable of the call is set while the consumer handles an event.
    """
    events: asyncio.Queue[tuple[bool, Any]] = asyncio.Queue()

    async def work() -> Any:
        try:
            return await governed(lambda event: events.put_nowait((True, event)))
        finally:
            events.put_nowait((False, None))

    task = asyncio.create_task(work())
    try:
        while True:
            more, event = await events.get()
            if not more:
                break
            yield event
        yield await task
    finally:
        task.cancel()  # where nobody reads any more


#: The text for an image in a result.
IMAGE = "[image]"


class WorkbenchCall(GovernedCall):
    """One call of a workbench's tool, with the arguments of ``Workbench.call_tool``."""

    __slots__ = ()

    @classmethod
    def of(cls, governor: Governor | None, workbench: Any, *call: Any) -> WorkbenchCall:
        """A call of ``workbench``: the tool's name, its arguments, the token, the call's id and the agent."""
        tool = tool_in(workbench, call[0])
        method = getattr(type(tool), "run_json_stream" if isinstance(tool, StreamTool) else "run_json", None)
        validated = None if governor is None else ToolModel.of(tool, method, call[1] or {})
        return cls(governor, workbench, *call, validated=validated)

    def parameters(self, arguments: Any) -> tuple[Any, ...]:
        """Those of ``Workbench.call_tool``."""
        if self.validated is not None:
            self.validated.is_due = True
        return self.name, arguments, self.token, self.call_id

    async def last_of(self, events: AsyncIterator[Any], emit: Emit) -> ToolResult:
        """The last `ToolResult`."""
        result: ToolResult | None = None
        async for event in events:
            if isinstance(event, ToolResult):
                result = event
            else:
                emit(event)
        if result is None:
            raise RuntimeError(f"the workbench's stream of {self.name} ended without a result")
        return result

    async def govern(self, governor: Governor, run: RunTool) -> ToolResult:
        """Raises only when cancelled from outside."""
        kind = kind_of(tool_in(self.owner, self.name), self.owner)
        action = tool_action(self.name, kind, self.judged, self.owner, call_id=self.call_id, agent=self.agent)
        call = GovernedToolCall(governor, action, validated=self.validated)
        try:
            governed = await arun_flow(tool_flow(call, run, _reading, raise_abort=False))
        except asyncio.CancelledError:
            if not _only_by_token(self.token):
                raise
            return error_result(self.name, "The call was cancelled.")  # recorded; the agent must not wait for it
        if (denial := governed.denial) is not None:
            note_abort(governed.decision, action.call_id)
            return error_result(self.name, denial)
        result: ToolResult | None = governed.result
        assert result is not None
        if governed.text is None:
            return result
        return ToolResult(name=self.name, result=[TextResultContent(content=governed.text)], is_error=result.is_error)


def _only_by_token(token: Any) -> bool:
    """Returns whether AutoGen's token alone was cancelled, and this task is to go on."""
    task = asyncio.current_task()
    return token is not None and token.is_cancelled() and (task is None or task.cancelling() == 0)


def error_result(name: str, text: str) -> ToolResult:
    """A result that says that the call failed."""
    return ToolResult(name=name, result=[TextResultContent(content=text)], is_error=True)


def _reading(result: ToolResult) -> ToolReading:
    text = "\n".join(IMAGE if isinstance(content, ImageResultContent) else content.content for content in result.result)
    if not result.is_error:
        return ToolReading(text)
    call = covered_call()
    raised = call.raised if call is not None else None
    if call is not None and isinstance(raised, PolicyDenied) and raised.decision.abort:
        end_at_next_step(raised.decision, call.call_id)  # the run inside the tool was ended; so must this one
    return ToolReading(text, "error" if raised is None else failure_status(raised))


class GovernedWorkbenchConfig(BaseModel):
    """The configuration of a `GovernedWorkbench`, without its governor."""

    workbench: ComponentModel
    agent: str | None = None


class GovernedToolSchema(dict[str, Any]):
    """A tool's schema as a governed workbench offers it: ``governor`` evaluates its calls when they run."""

    def __init__(self, schema: Mapping[str, Any], governor: Governor) -> None:
        super().__init__(schema)
        self.governor = governor


def is_governed_schema(tool: object, governor: Governor) -> bool:
    """Returns whether ``tool`` is the schema of a tool whose calls ``governor`` evaluates when they run."""
    return isinstance(tool, GovernedToolSchema) and tool.governor is governor


class GovernedWorkbench(GovernedComponent, StaticStreamWorkbench, Component[GovernedWorkbenchConfig]):  # type: ignore[misc]
    """Evaluates every call of the tools of ``workbench``, and its result; records the outcome.

    ``workbench`` is a workbench (MCP included) or a sequence of tools. A denial is an error result that the model reads,
    never an exception, because an exception would leave the agent waiting for ever; for the same reason a decision
    that says abort only ends the run at its next model call, in a governed client. What a tool raised is recorded with
    its own type. Events of a streaming tool (an agent as a tool) come while it runs.

    Without a governor it asks that of the instrumented process and raises `InstrumentationError` where there is
    none: fails closed. ``agent`` is the agent's name for policies in a process that is not instrumented. Calls may run
    at the same time. Serialisable; see `governing` for the governor of a loaded one.
    """

    component_type = "workbench"
    component_config_schema = GovernedWorkbenchConfig
    component_provider_override = "lgov_autogen.GovernedWorkbench"

    def __init__(
        self,
        workbench: Workbench | Sequence[BaseTool[Any, Any]],
        governor: Governor | None = None,
        *,
        agent: str | None = None,
    ) -> None:
        # An assistant streams the events of tools only from workbenches of this class, so this is one. It holds no tools.
        super().__init__([])
        self.workbench = workbench if isinstance(workbench, Workbench) else StaticStreamWorkbench(list(workbench))
        self.agent = agent
        self._use_governor(governor)
        observe_errors(self.workbench, note_error)
        for tool in tools_of(self.workbench):
            carry_context(tool)

    async def list_tools(self) -> list[ToolSchema]:
        """The tools of the workbench behind."""
        governor = self.governor
        schemas: list[Any] = [GovernedToolSchema(schema, governor) for schema in await self.workbench.list_tools()]
        return schemas

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        cancellation_token: CancellationToken | None = None,
        call_id: str | None = None,
    ) -> ToolResult:
        """The governed result of one call."""
        call = WorkbenchCall.of(self.governor, self.workbench, name, arguments, cancellation_token, call_id, self.agent)
        return await call.result(self.workbench.call_tool)

    async def call_tool_stream(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        cancellation_token: CancellationToken | None = None,
        call_id: str | None = None,
    ) -> AsyncGenerator[Any | ToolResult, None]:
        """The tool's events while it runs, then the governed result."""
        call = WorkbenchCall.of(self.governor, self.workbench, name, arguments, cancellation_token, call_id, self.agent)
        async for event in call.events(getattr(self.workbench, "call_tool_stream", self._whole)):
            yield event

    async def _whole(self, *args: Any) -> AsyncIterator[ToolResult]:
        yield await self.workbench.call_tool(*args)

    start: Any = behind("workbench.start")
    stop: Any = behind("workbench.stop")
    reset: Any = behind("workbench.reset")
    save_state: Any = behind("workbench.save_state")
    load_state: Any = behind("workbench.load_state")

    def _to_config(self) -> GovernedWorkbenchConfig:  # type: ignore[override]
        return GovernedWorkbenchConfig(workbench=self.workbench.dump_component(), agent=self.agent)

    @classmethod
    def _from_config(cls, config: GovernedWorkbenchConfig) -> Self:  # type: ignore[override]
        return cls(Workbench.load_component(config.workbench), agent=config.agent)
