"""Governed calls of a workbench's tools.

A denial is a result, never an exception: an exception out of a tool call leaves an agent waiting for ever. The same holds
for a decision that says abort; the run then ends at its next step.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from autogen_core.tools import ImageResultContent, TextResultContent, ToolResult

from lgov_autogen._internals import tool_in
from lgov_autogen.runs import end_at_next_step
from lgov_autogen.tool_action import as_given, is_evaluated, kind_of, note_abort, tool_action
from lgov_autogen.tool_events import Emit, events_of
from lgov_core.errors import PolicyDenied
from lgov_core.instrumentation import Governor
from lgov_core.instrumentation.evaluated_call import covered_call
from lgov_core.instrumentation.tool_call import ToolReading, agovern_tool, failure_status

#: The text for an image in a result.
IMAGE = "[image]"


@dataclass(frozen=True, slots=True)
class WorkbenchCall:
    """One call of a workbench's tool, with the arguments of ``Workbench.call_tool``; ``agent`` as policies name it.

    Without a governor, and inside a call that it has evaluated, the workbench's own method answers.
    """

    governor: Governor | None
    workbench: Any
    name: str
    arguments: Any
    token: Any
    call_id: str | None
    agent: str | None = None

    async def result(self, call_tool: Callable[..., Awaitable[ToolResult]]) -> ToolResult:
        """The governed result; ``call_tool`` is the workbench's own method. Raises only when cancelled from outside."""
        if self.governor is None or self._is_evaluated(self.governor):
            return await call_tool(self.name, self.arguments, self.token, self.call_id)
        return await self._govern(self.governor, lambda arguments: call_tool(*self._with(arguments)))

    async def events(self, stream: Callable[..., AsyncIterator[Any]]) -> AsyncGenerator[Any]:
        """The events of the workbench's own method ``stream`` as they come, then the governed result."""
        governor = self.governor
        if governor is None or self._is_evaluated(governor):
            async for event in stream(self.name, self.arguments, self.token, self.call_id):
                yield event
            return

        def governed(emit: Emit) -> Awaitable[ToolResult]:
            return self._govern(governor, lambda arguments: self._result_in(stream(*self._with(arguments)), emit))

        async for event in events_of(governed):
            yield event

    def _is_evaluated(self, governor: Governor) -> bool:
        return is_evaluated(governor, self.name, self.arguments, self.call_id)

    def _with(self, permitted: Mapping[str, Any]) -> tuple[Any, ...]:
        return self.name, as_given(self.arguments, permitted), self.token, self.call_id

    async def _result_in(self, events: AsyncIterator[Any], emit: Emit) -> ToolResult:
        result: ToolResult | None = None
        async for event in events:
            if isinstance(event, ToolResult):
                result = event
            else:
                emit(event)
        if result is None:
            raise RuntimeError(f"the workbench's stream of {self.name} ended without a result")
        return result

    async def _govern(
        self, governor: Governor, run: Callable[[Mapping[str, Any]], Awaitable[ToolResult]]
    ) -> ToolResult:
        kind = kind_of(tool_in(self.workbench, self.name), self.workbench)
        action = tool_action(self.name, kind, self.arguments, self.workbench, call_id=self.call_id, agent=self.agent)
        try:
            governed = await agovern_tool(governor, action, run, _reading, raise_abort=False)
        except asyncio.CancelledError:
            if not _only_by_token(self.token):
                raise
            return error_result(self.name, "The call was cancelled.")  # recorded; the agent must not wait for it
        if (denial := governed.told) is not None:
            note_abort(governed.decision, action.call_id)
            return error_result(self.name, denial)
        assert governed.result is not None
        if governed.text is None:
            return governed.result
        content = TextResultContent(content=governed.text)
        return ToolResult(name=self.name, result=[content], is_error=governed.result.is_error)


def _only_by_token(token: Any) -> bool:
    """Whether AutoGen's token alone was cancelled, and this task is to go on."""
    task = asyncio.current_task()
    return token is not None and token.is_cancelled() and (task is None or task.cancelling() == 0)


def error_result(name: str, text: str) -> ToolResult:
    """A result that says that the call failed."""
    return ToolResult(name=name, result=[TextResultContent(content=text)], is_error=True)


def _reading(result: ToolResult) -> ToolReading:
    text = "\n".join(IMAGE if isinstance(part, ImageResultContent) else part.content for part in result.result)
    if not result.is_error:
        return ToolReading(text)
    call = covered_call()
    raised = call.raised if call is not None else None
    if call is not None and isinstance(raised, PolicyDenied) and raised.decision.abort:
        end_at_next_step(raised.decision, call.call_id)  # the run inside the tool was ended; so must this one
    return ToolReading(text, "error" if raised is None else failure_status(raised))


def wrap_call_tool(acting: Callable[[], Governor | None], call_tool: Callable[..., Any]) -> Callable[..., Any]:
    """``Workbench.call_tool``, governed by what ``acting`` returns."""

    @functools.wraps(call_tool)
    async def governed_call_tool(
        self: Any, name: str, arguments: Any = None, cancellation_token: Any = None, call_id: str | None = None
    ) -> ToolResult:
        call = WorkbenchCall(acting(), self, name, arguments, cancellation_token, call_id)
        return await call.result(functools.partial(call_tool, self))

    return governed_call_tool


def wrap_call_tool_stream(acting: Callable[[], Governor | None], stream: Callable[..., Any]) -> Callable[..., Any]:
    """``StreamWorkbench.call_tool_stream``, governed by what ``acting`` returns."""

    @functools.wraps(stream)
    async def governed_call_tool_stream(
        self: Any, name: str, arguments: Any = None, cancellation_token: Any = None, call_id: str | None = None
    ) -> AsyncGenerator[Any]:
        call = WorkbenchCall(acting(), self, name, arguments, cancellation_token, call_id)
        async for event in call.events(functools.partial(stream, self)):
            yield event

    return governed_call_tool_stream
