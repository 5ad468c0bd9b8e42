"""Governed calls of single tools. A call that its workbench has evaluated passes through.

A denial is a return value in a form that the tool's caller can read.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

from lgov_autogen._internals import is_handoff
from lgov_autogen.current_governor import acting_governor
from lgov_autogen.governed_call import Emit, GovernedCall, Run, kind_of, note_abort, tool_action
from lgov_core.errors import PolicyDenied
from lgov_core.instrumentation import Governor, arun_flow
from lgov_core.instrumentation.tool_call import ToolReading, tool_flow
from lgov_core.types import Decision


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
    return await _ToolCall(acting_governor(), tool, tool.name, args, cancellation_token, call_id).result(own)


def run_json_stream(
    tool: Any, own: Callable[..., Any], args: Any, cancellation_token: Any, call_id: str | None = None
) -> AsyncGenerator[Any]:
    """``BaseStreamTool.run_json_stream`` in an instrumented process."""
    return _ToolCall(acting_governor(), tool, tool.name, args, cancellation_token, call_id).events(own)
