"""Governed calls of a workbench's tools.

A denial is a result, never an exception: an exception out of a tool call leaves an agent waiting for ever. The same holds
for a decision that says abort; the run then ends at its next step.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

from autogen_core.tools import ImageResultContent, TextResultContent, ToolResult

from lgov_autogen._internals import tool_in
from lgov_autogen.current_governor import acting_governor
from lgov_autogen.governed_call import Emit, GovernedCall, Run
from lgov_autogen.runs import end_at_next_step
from lgov_autogen.tool_action import kind_of, note_abort, tool_action
from lgov_core.errors import PolicyDenied
from lgov_core.instrumentation import Governor
from lgov_core.instrumentation.evaluated_call import covered_call
from lgov_core.instrumentation.tool_call import ToolReading, agovern_tool, failure_status

#: The text for an image in a result.
IMAGE = "[image]"


class WorkbenchCall(GovernedCall):
    """One call of a workbench's tool, with the arguments of ``Workbench.call_tool``."""

    __slots__ = ()

    def parameters(self, arguments: Any) -> tuple[Any, ...]:
        """Those of ``Workbench.call_tool``."""
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

    async def govern(self, governor: Governor, run: Run) -> ToolResult:
        """Raises only when cancelled from outside."""
        kind = kind_of(tool_in(self.owner, self.name), self.owner)
        action = tool_action(self.name, kind, self.arguments, self.owner, call_id=self.call_id, agent=self.agent)
        try:
            governed = await agovern_tool(governor, action, run, _reading, raise_abort=False)
        except asyncio.CancelledError:
            if not _only_by_token(self.token):
                raise
            return error_result(self.name, "The call was cancelled.")  # recorded; the agent must not wait for it
        if (denial := governed.told) is not None:
            note_abort(governed.decision, action.call_id)
            return error_result(self.name, denial)
        result: ToolResult | None = governed.result
        assert result is not None
        if governed.text is None:
            return result
        return ToolResult(name=self.name, result=[TextResultContent(content=governed.text)], is_error=result.is_error)


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


async def call_tool(
    workbench: Any,
    own: Callable[..., Any],
    name: str,
    arguments: Any = None,
    cancellation_token: Any = None,
    call_id: str | None = None,
) -> ToolResult:
    """``Workbench.call_tool`` in an instrumented process; ``own`` is the workbench's own method."""
    return await WorkbenchCall(acting_governor(), workbench, name, arguments, cancellation_token, call_id).result(own)


def call_tool_stream(
    workbench: Any,
    own: Callable[..., Any],
    name: str,
    arguments: Any = None,
    cancellation_token: Any = None,
    call_id: str | None = None,
) -> AsyncGenerator[Any]:
    """``StreamWorkbench.call_tool_stream`` in an instrumented process."""
    return WorkbenchCall(acting_governor(), workbench, name, arguments, cancellation_token, call_id).events(own)
