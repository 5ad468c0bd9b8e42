"""Governed calls of single tools. A call that its workbench has evaluated passes through.

A denial is a return value in a form that the tool's caller can read.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lgov_autogen._internals import is_handoff
from lgov_autogen.tool_action import as_given, is_evaluated, kind_of, note_abort, note_error, tool_action
from lgov_autogen.tool_events import Emit, events_of, last_of
from lgov_core.errors import PolicyDenied
from lgov_core.instrumentation import Governor
from lgov_core.instrumentation.tool_call import ToolReading, agovern_tool
from lgov_core.types import Decision


@dataclass(frozen=True, slots=True)
class _ToolCall:
    """One call of ``tool``, with the arguments of ``BaseTool.run_json``."""

    governor: Governor | None
    tool: Any
    args: Any
    token: Any
    call_id: str | None

    async def result(self, run_json: Callable[..., Awaitable[Any]]) -> Any:
        """The governed return value; ``run_json`` is the tool's own method."""
        if self.governor is None or self._passes(self.governor):
            try:
                return await run_json(self.args, self.token, self.call_id)
            except Exception as error:
                note_error(error)
                raise
        return await self._govern(self.governor, lambda arguments: run_json(*self._with(arguments)))

    async def events(self, stream: Callable[..., AsyncIterator[Any]]) -> AsyncGenerator[Any]:
        """The events of the tool's own method ``stream``; the last is the governed return value."""
        governor = self.governor
        if governor is None or self._passes(governor):
            try:
                async for event in stream(self.args, self.token, self.call_id):
                    yield event
            except Exception as error:
                note_error(error)
                raise
            return

        def governed(emit: Emit) -> Awaitable[Any]:
            return self._govern(governor, lambda arguments: last_of(stream(*self._with(arguments)), emit))

        async for event in events_of(governed):
            yield event

    def _passes(self, governor: Governor) -> bool:
        """Whether the call was evaluated already, or is a hand-off, which is evaluated with the model's reply.

        A tool that a workbench shows to the model under another name is evaluated under both.
        """
        return is_evaluated(governor, self.tool.name, self.args, self.call_id) or is_handoff(self.tool)

    def _with(self, permitted: Mapping[str, Any]) -> tuple[Any, ...]:
        return as_given(self.args, permitted), self.token, self.call_id

    async def _govern(self, governor: Governor, run: Callable[[Mapping[str, Any]], Awaitable[Any]]) -> Any:
        tool = self.tool
        action = tool_action(tool.name, kind_of(tool), self.args, tool, call_id=self.call_id)
        governed = await agovern_tool(
            governor, action, run, lambda value: ToolReading(_text_of(tool, value)), raise_abort=False
        )
        note_abort(governed.decision, action.call_id)
        text = governed.told if governed.told is not None else governed.text
        return governed.result if text is None else _as_value(tool, text, governed.decision)


def _text_of(tool: Any, value: Any) -> str:
    try:
        return str(tool.return_value_as_string(value))
    except Exception:  # noqa: BLE001 - a value that the tool cannot show is judged as Python shows it
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


def wrap_run_json(acting: Callable[[], Governor | None], run_json: Callable[..., Any]) -> Callable[..., Any]:
    """``BaseTool.run_json``, governed by what ``acting`` returns."""

    @functools.wraps(run_json)
    async def governed_run_json(self: Any, args: Any, cancellation_token: Any, call_id: str | None = None) -> Any:
        return await _ToolCall(acting(), self, args, cancellation_token, call_id).result(
            functools.partial(run_json, self)
        )

    return governed_run_json


def wrap_run_json_stream(acting: Callable[[], Governor | None], stream: Callable[..., Any]) -> Callable[..., Any]:
    """``BaseStreamTool.run_json_stream``, governed by what ``acting`` returns."""

    @functools.wraps(stream)
    async def governed_run_json_stream(
        self: Any, args: Any, cancellation_token: Any, call_id: str | None = None
    ) -> AsyncGenerator[Any]:
        call = _ToolCall(acting(), self, args, cancellation_token, call_id)
        async for event in call.events(functools.partial(stream, self)):
            yield event

    return governed_run_json_stream
