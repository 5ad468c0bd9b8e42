"""Governs a call of a tool, by its workbench or by itself: its action, and its result, whole or as a stream of events.

A denial is a return value in a form that the tool's caller can read.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from autogen_agentchat.tools import AgentTool, TeamTool

from lgov_autogen._internals import is_handoff
from lgov_autogen.instrumentor import INSTRUMENTOR
from lgov_autogen.messages import FRAMEWORK, RAW_ARGUMENTS
from lgov_autogen.runs import current_run, end_at_next_step
from lgov_core.errors import PolicyDenied
from lgov_core.instrumentation import Governor, arun_flow
from lgov_core.instrumentation.live_span import covered_call, note_error
from lgov_core.instrumentation.tool_call import ToolReading, tool_flow
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
        native=native,
    )


def kind_of(*owners: Any) -> Kind:
    """The kind of a call of the first of ``owners`` (a tool, its workbench) that tells it."""
    for owner in owners:
        if isinstance(owner, AgentTool | TeamTool):
            return "agent"
        if any(cls.__module__.startswith("autogen_ext.tools.mcp") for cls in type(owner).__mro__):
            return "mcp"
    return "function"


def is_evaluated(governor: Governor, name: str, arguments: Any, call_id: str | None) -> bool:
    """Returns whether ``governor`` has already evaluated exactly this call, which is running now."""
    call = covered_call()
    return call is not None and call.covers(governor, name, as_arguments(arguments), call_id or None)


def as_arguments(arguments: Any) -> dict[str, Any]:
    """The arguments that policies see; anything but a mapping is the argument `RAW_ARGUMENTS`."""
    if arguments is None:
        return {}
    return dict(arguments) if isinstance(arguments, Mapping) else {RAW_ARGUMENTS: arguments}


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
Run = Callable[[Mapping[str, Any]], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class GovernedCall(ABC):
    """One call of a tool, by its workbench or by itself. ``owner`` is what is called, ``agent`` as policies name it.

    Without a governor, and inside a call that it has evaluated, the owner's own method answers.
    """

    governor: Governor | None
    owner: Any
    name: str
    arguments: Any
    token: Any
    call_id: str | None
    agent: str | None = None

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
        return is_evaluated(governor, self.name, self.arguments, self.call_id)

    def _permitted(self, permitted: Mapping[str, Any]) -> tuple[Any, ...]:
        return self.parameters(as_given(self.arguments, permitted))

    @abstractmethod
    def parameters(self, arguments: Any) -> tuple[Any, ...]:
        """The parameters of the owner's method, with these arguments of the tool."""

    @abstractmethod
    async def govern(self, governor: Governor, run: Run) -> Any:
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
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


class _ToolCall(GovernedCall):
    """One call of a tool, with the arguments of ``BaseTool.run_json``."""

    __slots__ = ()

    def passes(self, governor: Governor) -> bool:
        """Also a hand-off, which is evaluated with the model's reply.

        A tool that a workbench shows to the model under another name is evaluated under both.
        """
        return GovernedCall.passes(self, governor) or is_handoff(self.owner)

    def parameters(self, arguments: Any) -> tuple[Any, ...]:
        """Those of ``BaseTool.run_json``."""
        return arguments, self.token, self.call_id

    async def last_of(self, events: AsyncIterator[Any], emit: Emit) -> Any:
        """The last event; None if there is none."""
        waiting: list[Any] = []
        async for event in events:
            if waiting:
                emit(waiting.pop())
            waiting.append(event)
        return waiting.pop() if waiting else None

    async def govern(self, governor: Governor, run: Run) -> Any:
        """Raises `PolicyDenied` where the tool's caller cannot read a denial."""
        tool = self.owner
        action = tool_action(self.name, kind_of(tool), self.arguments, tool, call_id=self.call_id)
        governed = await arun_flow(
            tool_flow(governor, action, run, lambda value: ToolReading(_text_of(tool, value)), raise_abort=False)
        )
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
    return await _ToolCall(INSTRUMENTOR.governor, tool, tool.name, args, cancellation_token, call_id).result(own)


def run_json_stream(
    tool: Any, own: Callable[..., Any], args: Any, cancellation_token: Any, call_id: str | None = None
) -> AsyncGenerator[Any]:
    """``BaseStreamTool.run_json_stream`` in an instrumented process."""
    return _ToolCall(INSTRUMENTOR.governor, tool, tool.name, args, cancellation_token, call_id).events(own)
