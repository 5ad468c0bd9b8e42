"""Tool calls where AutoGen runs them: through a workbench, or a tool by itself.

A denial is what the caller reads, never an exception: an exception out of a tool call leaves an agent waiting for ever.
The same holds for a decision that says abort; the run is then ended at its next step.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, TypeVar

from autogen_core.tools import ImageResultContent, TextResultContent, ToolResult

from lgov_autogen.messages import FRAMEWORK, RAW_ARGUMENTS
from lgov_autogen.proposals import is_handoff
from lgov_autogen.runs import current_run, end_at_next_step
from lgov_core.coverage import covered_call
from lgov_core.errors import PolicyDenied
from lgov_core.governed_call import GovernedResult, ToolReading, agovern_tool, failure_status
from lgov_core.governor import Governor
from lgov_core.types import Action, Decision, Kind, Point

T = TypeVar("T")

#: What stands for an image in the text of a result.
IMAGE = "[image]"


# ---------------------------------------------------------------------- what a tool raised


def note_failure(error: Exception) -> None:
    """Tells the governed call around the running code what its tool raised."""
    call = covered_call()
    if call is not None and call.raised is None:
        call.raised = error


# ---------------------------------------------------------------------- workbenches


def tool_in(workbench: Any, name: str) -> Any:
    """The tool of a static workbench that is called ``name``, or None."""
    original = getattr(workbench, "_override_name_to_original", {}).get(name, name)
    return next((tool for tool in getattr(workbench, "_tools", ()) if tool.name == original), None)


def kind_of(owner: Any, tool: Any = None) -> Kind:
    """What kind of act a call of ``tool`` is; ``owner`` is the workbench, or the tool itself."""
    for one in (tool, owner):
        for cls in type(one).__mro__:
            if cls.__name__ == "TaskRunnerTool":
                return "agent"
            if cls.__module__.startswith("autogen_ext.tools.mcp"):
                return "mcp"
    return "function"


def workbench_action(workbench: Any, name: str, arguments: Any, call_id: str | None, agent: str | None) -> Action:
    """The call of a workbench's tool, to be judged before it runs."""
    run = current_run()
    return Action(
        Point.PRE_TOOL_CALL,
        name=name,
        kind=kind_of(workbench, tool_in(workbench, name)),
        arguments=_mapping(arguments),
        agent=agent if agent is not None else run.agent if run is not None else None,
        framework=FRAMEWORK,
        call_id=call_id or None,
        native=workbench,
    )


def is_covered(governor: Governor, name: str, arguments: Any, call_id: str | None) -> bool:
    """Whether exactly this call has been judged by ``governor`` already."""
    call = covered_call()
    return call is not None and call.covers(governor, name, _mapping(arguments), call_id or None)


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
    _note_abort(result.decision, action)
    if result.told is not None:
        return error_result(action.name, result.told)
    assert result.result is not None
    if result.text is not None:
        content = [TextResultContent(content=result.text)]
        return ToolResult(name=action.name, result=list(content), is_error=result.result.is_error)
    return result.result


def _only_the_token(token: Any) -> bool:
    """Whether a cancellation came by AutoGen's token alone, and this task itself is to go on."""
    task = asyncio.current_task()
    return token is not None and token.is_cancelled() and (task is None or task.cancelling() == 0)


async def govern_workbench_stream(
    governor: Governor,
    action: Action,
    run: Callable[[Mapping[str, Any]], AsyncIterator[Any]],
    token: Any = None,
) -> AsyncIterator[Any]:
    """The events of a workbench's tool as they come, then its governed result."""

    async def drained(arguments: Mapping[str, Any], emit: Callable[[Any], None]) -> ToolResult:
        result: ToolResult | None = None
        async for event in run(arguments):
            if isinstance(event, ToolResult):
                result = event
            else:
                emit(event)
        if result is None:
            raise RuntimeError(f"the workbench's stream of {action.name} ended without a result")
        return result

    def governed(emit: Callable[[Any], None]) -> Awaitable[ToolResult]:
        return govern_workbench_call(governor, action, lambda arguments: drained(arguments, emit), token)

    async for event in _events_of(governed):
        yield event


async def _events_of(governed: Callable[[Callable[[Any], None]], Awaitable[Any]]) -> AsyncIterator[Any]:
    """What ``governed`` emits while it runs, and what it returns, last.

    It runs in a task of its own, so that no context variable of the call is set while the consumer of an event runs.
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
        end_at_next_step(raised.decision, call.call_id)  # a run inside the tool was ended, and this one is to end too
    return ToolReading(text, "error" if raised is None else failure_status(raised))


def _note_abort(decision: Decision, action: Action) -> None:
    if decision.blocks and decision.abort:
        end_at_next_step(decision, action.call_id)


def _mapping(arguments: Any) -> Mapping[str, Any]:
    if arguments is None:
        return {}
    return dict(arguments) if isinstance(arguments, Mapping) else {RAW_ARGUMENTS: arguments}


def wrap_call_tool(acting: Callable[[], Governor | None], call_tool: Callable[..., Any]) -> Callable[..., Any]:
    """``Workbench.call_tool`` with a judgement before and after."""

    @functools.wraps(call_tool)
    async def governed_call_tool(
        self: Any, name: str, arguments: Any = None, cancellation_token: Any = None, call_id: str | None = None
    ) -> ToolResult:
        governor = acting()
        if governor is None or is_covered(governor, name, arguments, call_id):
            return await call_tool(self, name, arguments, cancellation_token, call_id)
        action = workbench_action(self, name, arguments, call_id, None)

        def run(permitted: Mapping[str, Any]) -> Awaitable[ToolResult]:
            return call_tool(self, name, permitted, cancellation_token, call_id)

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
        action = workbench_action(self, name, arguments, call_id, None)

        def run(permitted: Mapping[str, Any]) -> AsyncIterator[Any]:
            return stream(self, name, permitted, cancellation_token, call_id)

        async for event in govern_workbench_stream(governor, action, run, cancellation_token):
            yield event

    return governed_call_tool_stream


# ---------------------------------------------------------------------- tools by themselves


def wrap_run_json(acting: Callable[[], Governor | None], run_json: Callable[..., Any]) -> Callable[..., Any]:
    """``BaseTool.run_json`` with a judgement before and after, unless the call was judged where it came from."""

    @functools.wraps(run_json)
    async def governed_run_json(self: Any, args: Any, cancellation_token: Any, call_id: str | None = None) -> Any:
        governor = acting()
        if governor is None or _is_passed(governor, self, args, call_id):
            try:
                return await run_json(self, args, cancellation_token, call_id)
            except Exception as error:
                note_failure(error)
                raise

        def run(permitted: Mapping[str, Any]) -> Awaitable[Any]:
            given = permitted if isinstance(args, Mapping) else args
            return run_json(self, given, cancellation_token, call_id)

        return await _govern_tool(governor, self, _tool_action(self, args, call_id), run)

    return governed_run_json


def wrap_run_json_stream(acting: Callable[[], Governor | None], stream: Callable[..., Any]) -> Callable[..., Any]:
    """``BaseStreamTool.run_json_stream`` with a judgement before and after; the last thing it yields is the result."""

    @functools.wraps(stream)
    async def governed_run_json_stream(
        self: Any, args: Any, cancellation_token: Any, call_id: str | None = None
    ) -> AsyncGenerator[Any]:
        governor = acting()
        if governor is None or _is_passed(governor, self, args, call_id):
            try:
                async for event in stream(self, args, cancellation_token, call_id):
                    yield event
            except Exception as error:
                note_failure(error)
                raise
            return
        action = _tool_action(self, args, call_id)

        async def drained(permitted: Mapping[str, Any], emit: Callable[[Any], None]) -> Any:
            given = permitted if isinstance(args, Mapping) else args
            held: list[Any] = []
            async for event in stream(self, given, cancellation_token, call_id):
                if held:
                    emit(held.pop())
                held.append(event)
            return held.pop() if held else None

        def governed(emit: Callable[[Any], None]) -> Awaitable[Any]:
            return _govern_tool(governor, self, action, lambda permitted: drained(permitted, emit))

        async for event in _events_of(governed):
            yield event

    return governed_run_json_stream


def _is_passed(governor: Governor, tool: Any, args: Any, call_id: str | None) -> bool:
    """Whether the call needs no judgement here: it was judged, or it is a hand-off, which the model client judges.

    A tool that a workbench shows to the model under another name is judged under both.
    """
    return is_covered(governor, tool.name, args, call_id) or is_handoff(tool)


def _tool_action(tool: Any, args: Any, call_id: str | None) -> Action:
    run = current_run()
    return Action(
        Point.PRE_TOOL_CALL,
        name=tool.name,
        kind=kind_of(tool),
        arguments=_mapping(args),
        agent=run.agent if run is not None else None,
        framework=FRAMEWORK,
        call_id=call_id or None,
        native=tool,
    )


async def _govern_tool(
    governor: Governor, tool: Any, action: Action, run: Callable[[Mapping[str, Any]], Awaitable[Any]]
) -> Any:
    def read(result: Any) -> ToolReading:
        return ToolReading(_text_of(tool, result))

    result: GovernedResult[Any] = await agovern_tool(governor, action, run, read, raise_abort=False)
    _note_abort(result.decision, action)
    instead = result.told if result.told is not None else result.text
    return result.result if instead is None else _as_result(tool, instead, result.decision)


def _text_of(tool: Any, result: Any) -> str:
    try:
        return str(tool.return_value_as_string(result))
    except Exception:  # noqa: BLE001 - what the tool cannot say as text is judged as Python says it
        return str(result)


def _as_result(tool: Any, text: str, decision: Decision) -> Any:
    """``text`` as something that the caller of ``tool`` can read. Raises `PolicyDenied` where there is no such thing."""
    for instead in _shapes(tool, text):
        try:
            if text in str(tool.return_value_as_string(instead)):
                return instead
        except Exception:  # noqa: BLE001 - the tool does not read it so; the next shape may do
            continue
    raise PolicyDenied(decision)


def _shapes(tool: Any, text: str) -> list[Any]:
    kind = kind_of(tool)
    if kind == "agent":
        from autogen_agentchat.base import TaskResult
        from autogen_agentchat.messages import TextMessage

        return [TaskResult(messages=[TextMessage(content=text, source=tool.name)])]
    if kind == "mcp":
        from mcp.types import TextContent

        return [[TextContent(type="text", text=text)], text]
    return [text]
