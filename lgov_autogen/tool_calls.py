"""Calls of single tools, by whoever runs them. What a workbench's call has been judged for passes through.

A denial is what the tool returns, in a form that its caller can read.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any

from lgov_autogen.calling import as_arguments, as_given, events_of, is_covered, kind_of, note_abort, note_failure
from lgov_autogen.messages import FRAMEWORK
from lgov_autogen.proposals import is_handoff
from lgov_autogen.runs import current_run
from lgov_core.errors import PolicyDenied
from lgov_core.instrumentation import Governor
from lgov_core.instrumentation.tool_call import GovernedResult, ToolReading, agovern_tool
from lgov_core.types import Action, Decision, Point


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
            return run_json(self, as_given(args, permitted), cancellation_token, call_id)

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
            held: list[Any] = []
            async for event in stream(self, as_given(args, permitted), cancellation_token, call_id):
                if held:
                    emit(held.pop())
                held.append(event)
            return held.pop() if held else None

        def governed(emit: Callable[[Any], None]) -> Awaitable[Any]:
            return _govern_tool(governor, self, action, lambda permitted: drained(permitted, emit))

        async for event in events_of(governed):
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
        arguments=as_arguments(args),
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
    note_abort(result.decision, action)
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
