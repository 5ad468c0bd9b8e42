"""The tool calls in a captured reply, as the model wrote them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from lgov_core.errors import UpstreamError
from lgov_core.types import CapturedCall
from lgov_core.wire.apis import BY_ROUTE
from lgov_core.wire.turns import read_arguments

#: What is left in a reply's text of a call that the parser could not read.
_CALL_TAG = "<tool_call>"


@dataclass(frozen=True, slots=True)
class WrittenCall:
    """A tool call in a reply: its id, and its arguments (None where they are not a JSON object)."""

    call_id: str | None
    arguments: dict[str, Any] | None


def written_calls(call: CapturedCall) -> Iterator[WrittenCall]:
    """The tool calls in a reply of any API; one without id and arguments for a call that stayed text."""
    try:
        choices = BY_ROUTE[call.route].read_reply({"id": call.response_id, **call.response}).choices
    except (KeyError, UpstreamError):  # what no API replies
        return
    choice = choices[call.choice] if call.choice < len(choices) else choices[0]
    for tool_call in choice.tool_calls:
        yield WrittenCall(tool_call.call_id or None, read_arguments(tool_call.arguments, unique_keys=False))
    if call.request.get("tools") and _CALL_TAG in (choice.content or ""):
        yield WrittenCall(None, None)


def as_object(value: Any) -> dict[str, Any] | None:
    """The JSON object that ``value`` is, or its text; None for anything else."""
    try:
        parsed = value if isinstance(value, Mapping) else json.loads(value)
    except (TypeError, ValueError, RecursionError):
        return None
    return dict(cast("Mapping[str, Any]", parsed)) if isinstance(parsed, Mapping) else None
