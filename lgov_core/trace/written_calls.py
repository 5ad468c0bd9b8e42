"""The tool calls in a captured reply, as the model wrote them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from lgov_core.types import CapturedCall

#: What is left in a reply's text of a call that the parser could not read.
_CALL_TAG = "<tool_call>"


@dataclass(frozen=True, slots=True)
class WrittenCall:
    """A tool call in a reply: its id, and its arguments (None where they are not a JSON object)."""

    call_id: str | None
    arguments: dict[str, Any] | None


def written_calls(call: CapturedCall) -> Iterator[WrittenCall]:
    """The tool calls in a reply of any API; one without id and arguments for a call that stayed text."""
    response = call.response
    choices = response.get("choices")
    if isinstance(choices, list) and choices:
        choice = choices[call.choice] if call.choice < len(choices) else choices[0]
        message = cast("Mapping[str, Any]", choice.get("message") or {})
        for tool_call in message.get("tool_calls") or ():
            yield WrittenCall(tool_call.get("id"), as_object((tool_call.get("function") or {}).get("arguments")))
        if call.request.get("tools") and _CALL_TAG in str(message.get("content") or ""):
            yield WrittenCall(None, None)
    for item in (*(response.get("output") or ()), *(response.get("content") or ())):
        if isinstance(item, Mapping) and item.get("type") in ("function_call", "tool_use"):
            yield WrittenCall(
                item.get("call_id") or item.get("id"), as_object(item.get("arguments", item.get("input")))
            )


def as_object(value: Any) -> dict[str, Any] | None:
    """The JSON object that ``value`` is, or its text; None for anything else."""
    try:
        parsed = value if isinstance(value, Mapping) else json.loads(value)
    except (TypeError, ValueError, RecursionError):
        return None
    return dict(cast("Mapping[str, Any]", parsed)) if isinstance(parsed, Mapping) else None
