"""Messages as the chat templates of transformers read them, and with them the trainers of TRL."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from lgov_core.transitions.reading.conversations import Message


class UnreadableArguments(ValueError):
    """The arguments of a tool call are not a JSON object, so that no template can write them as the model would."""


def template_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """``messages`` of OpenAI's chat form with the ``arguments`` of tool calls as objects, and without what is None.

    Templates write the arguments with ``tojson``: most take nothing but an object, and some make of OpenAI's text one that
    is quoted twice, without a word. Raises `UnreadableArguments`.
    """
    return [_as_read(message) for message in messages]


def _as_read(message: Message) -> dict[str, Any]:
    read = {name: value for name, value in message.items() if value is not None}
    if message.get("tool_calls"):
        read["tool_calls"] = [_called(call) for call in message["tool_calls"]]
    elif "content" not in read:
        read["content"] = ""
    return read


def _called(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, Mapping):
        return dict(call)
    return {**call, "function": {**function, "arguments": _object(function.get("arguments"))}}


def _object(arguments: Any) -> Mapping[str, Any]:
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")  # some models write nothing where there is nothing to say
        except ValueError as error:
            raise UnreadableArguments(str(error)) from error
    if not isinstance(arguments, Mapping):
        raise UnreadableArguments(f"{type(arguments).__name__} instead of an object")
    return arguments
