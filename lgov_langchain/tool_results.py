"""Tool calls and their results: what policies read of them, and results with what a policy replaced."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeGuard

from langchain_core.messages import ToolMessage

from lgov_core.instrumentation.tool_call import GovernedResult, ToolReading
from lgov_core.types import Kind
from lgov_langchain._internals import HANDOFF_DESTINATION
from lgov_langchain.messages import content_with_text, text_of

#: The names of tools that hand the conversation over, in LangGraph's own packages and documents.
_HANDOFF_NAME = re.compile(r"(transfer|hand_?off)(_back)?_to_")


def kind_of(name: str, tool: Any = None) -> Kind:
    """``handoff`` for a tool with the name (``transfer_to_x``) or LangGraph's mark of one, else ``function``."""
    marked = HANDOFF_DESTINATION in (getattr(tool, "metadata", None) or {})
    return "handoff" if marked or _HANDOFF_NAME.match(name) else "function"


def result_messages(result: Any) -> list[ToolMessage]:
    """The tool messages that a tool's result holds: itself, in a list, or in the update of a ``Command``."""
    if isinstance(result, ToolMessage):
        return [result]
    if _is_sequence(result):
        return [message for part in result for message in result_messages(part)]
    update = getattr(result, "update", None)
    if isinstance(update, Mapping):
        return [message for value in update.values() if _is_sequence(value) for message in result_messages(value)]
    return result_messages(update) if _is_sequence(update) else []


def _is_sequence(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, (list, tuple))


def result_reading(result: Any) -> ToolReading:
    """The text of a result, as the model will read it, and whether one of its messages reports an error."""
    messages = result_messages(result)
    failed = any(message.status == "error" for message in messages)
    text = "\n".join(text_of(message) for message in messages) if messages else str(result)
    return ToolReading(text, "error" if failed else "ok")


def denial_message(denial: str, name: str, call_id: str) -> ToolMessage:
    """The denial as the answer to a tool call."""
    return ToolMessage(content=denial, name=name, tool_call_id=call_id, status="error")


def answer(result: GovernedResult, name: str, call_id: str | None) -> Any:
    """What the caller of a governed tool gets. A denial is text where the call has no id."""
    if result.denial is not None:
        return result.denial if call_id is None else denial_message(result.denial, name, call_id)
    return result.result if result.text is None else with_result_text(result.result, result.text)


def with_result_text(result: Any, text: str) -> Any:
    """``result`` with the text that the model reads replaced.

    A result of several messages keeps the first with the new text; the others are emptied, because which part of the
    text the policy wanted gone from which message cannot be known. A result without messages is the text.
    """
    messages = result_messages(result)
    replaced: dict[int, ToolMessage] = {}
    for position, message in enumerate(messages):
        content = content_with_text(message.content, text) if position == 0 else ""
        replaced[id(message)] = message.model_copy(update={"content": content})
    return _map_messages(result, lambda message: replaced[id(message)]) if messages else text


def _map_messages(value: Any, change: Callable[[ToolMessage], ToolMessage]) -> Any:
    if isinstance(value, ToolMessage):
        return change(value)
    if _is_sequence(value):
        return [_map_messages(part, change) for part in value]
    update = getattr(value, "update", None)
    if isinstance(update, Mapping):
        return dataclasses.replace(value, update={key: _map_messages(part, change) for key, part in update.items()})
    return dataclasses.replace(value, update=_map_messages(update, change)) if _is_sequence(update) else value
