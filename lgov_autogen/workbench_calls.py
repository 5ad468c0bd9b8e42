"""Calls of a workbench's tools.

A denial is what the caller reads, never an exception: an exception out of a tool call leaves an agent waiting for ever.
The same holds for a decision that says abort; the run is then ended at its next step.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from autogen_core.tools import ImageResultContent, TextResultContent, ToolResult

from lgov_autogen.calling import as_arguments, as_given, events_of, is_covered, kind_of, note_abort
from lgov_autogen.messages import FRAMEWORK
from lgov_autogen.runs import current_run, end_at_next_step
from lgov_core.errors import PolicyDenied
from lgov_core.instrumentation import Governor
from lgov_core.instrumentation.evaluated_call import covered_call
from lgov_core.instrumentation.tool_call import ToolReading, agovern_tool, failure_status
from lgov_core.types import Action, Point

#: What stands for an image in the text of a result.
IMAGE = "[image]"


def tool_in(workbench: Any, name: str) -> Any:
    """The tool of a static workbench that is called ``name``, or None."""
    original = getattr(workbench, "_override_name_to_original", {}).get(name, name)
    for tool in getattr(workbench, "_tools", ()):
        if tool.name == original:
            return tool
    return None


def workbench_action(
    workbench: Any, tool: Any, name: str, arguments: Any, call_id: str | None, agent: str | None
) -> Action:
    """The call of a workbench's tool, to be judged before it runs; ``tool`` is what `tool_in` finds."""
    run = current_run()
    return Action(
        Point.PRE_TOOL_CALL,
        name=name,
        kind=kind_of(workbench, tool),
        arguments=as_arguments(arguments),
        agent=agent if agent is not None else run.agent if run is not None else None,
        framework=FRAMEWORK,
        call_id=call_id or None,
        native=workbench,
    )


async def govern_workbench_call(
    governor: Governor, action: Action, run: Callable[[Mapping[str, Any]], Awaitable[ToolResult]], token: Any = None
) -> ToolResult:
    """The governed result of a workbench's tool; a denial is an error result. Raises only when cancelled from outside."""
    try:
        result = await agovern_tool(governor, action, run, _reading, raise_abort=False)
    except asyncio.CancelledError:
        if not _only_the_token(token):
            raise
        return error_result(action.name, "The call was cancelled.")  # its outcome is recorded; the agent must not wait
    if (told := result.told) is not None:
        note_abort(result.decision, action)
        return error_result(action.name, told)
    assert result.result is not None
    if result.text is not None:
        content = [TextResultContent(content=result.text)]
        return ToolResult(name=action.name, result=list(content), is_error=result.result.is_error)
    return result.result


def _only_the_token(token: Any) -> bool:
    """Whether a cancellation came by AutoGen's token alone, and this task itself is to go on."""
    task = asyncio.current_task()
    return token is not None and token.is_cancelled() and (task is None or task.cancelling() == 0)


def emits_nothing(tool: Any) -> bool:
    """Whether it is certain that calls of ``tool`` emit no events, so that nothing has to be passed on while they run."""
    return tool is not None and not hasattr(tool, "run_json_stream")


async def govern_workbench_stream(
    governor: Governor,
    action: Action,
    tool: Any,
    run: Callable[[Mapping[str, Any]], AsyncIterator[Any]],
    token: Any = None,
) -> AsyncIterator[Any]:
    """The events of a workbench's tool as they come, then its governed result."""
    if emits_nothing(tool):
        yield await govern_silent_call(governor, action, run, token)
        return

    async def drained(arguments: Mapping[str, Any], emit: Callable[[Any], None]) -> ToolResult:
        return await _last_of(run(arguments), action, emit)

    def governed(emit: Callable[[Any], None]) -> Awaitable[ToolResult]:
        return govern_workbench_call(governor, action, lambda arguments: drained(arguments, emit), token)

    async for event in events_of(governed):
        yield event


def govern_silent_call(
    governor: Governor, action: Action, run: Callable[[Mapping[str, Any]], AsyncIterator[Any]], token: Any
) -> Awaitable[ToolResult]:
    """As `govern_workbench_stream`, where the result is all that the call emits."""
    return govern_workbench_call(governor, action, lambda arguments: _last_of(run(arguments), action), token)


async def _last_of(
    events: AsyncIterator[Any], action: Action, emit: Callable[[Any], None] = lambda event: None
) -> ToolResult:
    result: ToolResult | None = None
    async for event in events:
        if isinstance(event, ToolResult):
            result = event
        else:
            emit(event)
    if result is None:
        raise RuntimeError(f"the workbench's stream of {action.name} ended without a result")
    return result


def error_result(name: str, text: str) -> ToolResult:
    """A result that says that the call failed."""
    return ToolResult(name=name, result=[TextResultContent(content=text)], is_error=True)


def _reading(result: ToolResult) -> ToolReading:
    parts = result.result
    if (
        len(parts) == 1 and type(parts[0]) is TextResultContent
    ):  # pydantic answers ``isinstance`` slowly where it is not so
        text = parts[0].content
    else:
        text = "\n".join(IMAGE if isinstance(part, ImageResultContent) else part.content for part in parts)
    if not result.is_error:
        return ToolReading(text)
    call = covered_call()
    raised = call.raised if call is not None else None
    if call is not None and isinstance(raised, PolicyDenied) and raised.decision.abort:
        end_at_next_step(raised.decision, call.call_id)  # a run inside the tool was ended, and this one is to end too
    return ToolReading(text, "error" if raised is None else failure_status(raised))


def wrap_call_tool(acting: Callable[[], Governor | None], call_tool: Callable[..., Any]) -> Callable[..., Any]:
    """``Workbench.call_tool`` with a judgement before and after."""

    @functools.wraps(call_tool)
    async def governed_call_tool(
        self: Any, name: str, arguments: Any = None, cancellation_token: Any = None, call_id: str | None = None
    ) -> ToolResult:
        governor = acting()
        if governor is None or is_covered(governor, name, arguments, call_id):
            return await call_tool(self, name, arguments, cancellation_token, call_id)
        action = workbench_action(self, tool_in(self, name), name, arguments, call_id, None)

        def run(permitted: Mapping[str, Any]) -> Awaitable[ToolResult]:
            return call_tool(self, name, as_given(arguments, permitted), cancellation_token, call_id)

        return await govern_workbench_call(governor, action, run, cancellation_token)

    return governed_call_tool


def wrap_call_tool_stream(acting: Callable[[], Governor | None], stream: Callable[..., Any]) -> Callable[..., Any]:
    """``StreamWorkbench.call_tool_stream`` with a judgement before and after."""

    @functools.wraps(stream)
    async def governed_call_tool_stream(
        self: Any, name: str, arguments: Any = None, cancellation_token: Any = None, call_id: str | None = None
    ) -> AsyncGenerator[Any]:
        governor = acting()
        if governor is None or is_covered(governor, name, arguments, call_id):
            async for event in stream(self, name, arguments, cancellation_token, call_id):
                yield event
            return
        tool = tool_in(self, name)
        action = workbench_action(self, tool, name, arguments, call_id, None)

        def run(permitted: Mapping[str, Any]) -> AsyncIterator[Any]:
            return stream(self, name, as_given(arguments, permitted), cancellation_token, call_id)

        if emits_nothing(tool):
            yield await govern_silent_call(governor, action, run, cancellation_token)
            return
        async for event in govern_workbench_stream(governor, action, tool, run, cancellation_token):
            yield event

    return governed_call_tool_stream
