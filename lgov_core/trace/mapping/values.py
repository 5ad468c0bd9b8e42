"""How values of other instrumentations are read: numbers, lists, messages spread over attributes, JSON in text."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from lgov_core.types import JSONValue

Read = Callable[[Any], JSONValue]

#: Integers of more digits are neither counts nor token ids.
_DIGITS: Final = 18


def _number(value: Any) -> JSONValue:
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return None
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _integer(value: Any) -> JSONValue:
    if isinstance(value, str) and len(value) <= _DIGITS and value.isascii() and value.isdigit():
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _list(value: Any) -> JSONValue:
    if isinstance(value, str):
        return [value] if value else None
    return list(value) if isinstance(value, Sequence) and value else None


def text(value: Any) -> str | None:
    """``value`` as text; other values as JSON."""
    return value if isinstance(value, str) or value is None else json.dumps(value, ensure_ascii=False)


def _token_ids(value: Any) -> JSONValue:
    """Token ids as a list of integers; text is read as JSON, and of a list of lists the first counts."""
    found = from_json(value) if isinstance(value, str) else value
    if isinstance(found, Sequence) and not isinstance(found, str) and found and isinstance(found[0], Sequence):
        found = found[0]
    if not isinstance(found, Sequence) or isinstance(found, str):
        return None
    ids = [_integer(item) for item in found]
    return ids if ids and all(type(item) is int for item in ids) else None


def _logprobs(value: Any) -> JSONValue:
    """Log-probabilities as a list of numbers, out of a list of ``{"token", "logprob"}`` or of numbers."""
    found = from_json(value) if isinstance(value, str) else value
    if not isinstance(found, Sequence) or isinstance(found, str):
        return None
    read = [_number(item.get("logprob") if isinstance(item, Mapping) else item) for item in found]
    return read if read and None not in read else None


FORMS: Final[Mapping[str, Read]] = {
    "as it is": lambda value: value if value != "" else None,
    "lower case": lambda value: value.lower() if isinstance(value, str) and value else None,
    "number": _number,
    "integer": _integer,
    "list": _list,
    "text": text,
    "token ids": _token_ids,
    "logprobs": _logprobs,
}


def from_json(value: Any) -> Any:
    """The list or object in ``value``: parsed from JSON text, or ``value`` itself; else None."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return None
    return value if isinstance(value, list | tuple | Mapping) else None


def at_path(value: Any, path: str) -> Any:
    """The value at ``path`` (keys and indexes with dots between them) in a JSON value, or None."""
    for key in path.split("."):
        if isinstance(value, Mapping):
            value = value.get(key)
        elif isinstance(value, list) and key.isdigit() and int(key) < len(value):
            value = value[int(key)]
        else:
            return None
    return value


def family(attributes: Mapping[str, JSONValue], prefix: str) -> list[Any]:
    """The list that ``PREFIX.0.a``, ``PREFIX.0.b.0.c``, ``PREFIX.1.a`` and so on are written of."""
    root: dict[str, Any] = {}
    start = len(prefix) + 1
    for name, value in attributes.items():
        if not (name.startswith(prefix) and name[start - 1 : start] == "."):
            continue
        here = root
        *above, last = name[start:].split(".")
        for key in above:
            inner = here.get(key)
            if not isinstance(inner, dict):
                inner = here[key] = {}
            here = inner
        if not isinstance(here.get(last), dict):
            here[last] = value
    found = _lists(root, 0)
    return found if isinstance(found, list) else []


def _lists(value: Any, depth: int) -> Any:
    if not isinstance(value, dict) or depth > 32:
        return value
    if value and all(key.isascii() and key.isdigit() and len(key) < 10 for key in value):
        return [_lists(value[key], depth + 1) for key in sorted(value, key=int)]
    return {key: _lists(item, depth + 1) for key, item in value.items()}


def message_of(given: Any) -> dict[str, Any] | None:
    """One message in the form in which chat completions have it, whatever it was written in.

    None for other values, and for messages with a part that has no place there (an image, reasoning).
    Read: OpenInference's (``message.role`` and so on), OpenLLMetry's and agentops's, the parts of OpenTelemetry's own
    conventions, and a choice that holds a message.
    """
    if not isinstance(given, Mapping):
        return None
    inner = given.get("message")
    found: Mapping[str, Any] = inner if isinstance(inner, Mapping) else given
    message: dict[str, Any] = {}
    for name in ("role", "content", "name", "tool_call_id"):
        if found.get(name) is not None:
            message[name] = found[name]
    for result in _sequence(given.get("function")):  # AutoGen's results of tools, as OpenInference writes them
        held = from_json(result)
        if isinstance(held, Mapping) and "content" in held:
            message |= {"role": "tool", "tool_call_id": held.get("call_id"), "content": held["content"]}
    calls = [made for one in _sequence(found.get("tool_calls")) if (made := _tool_call(one)) is not None]
    for part in _sequence(found.get("parts")):
        if not _take_part(message, calls, part):
            return None
    if calls:
        message["tool_calls"] = calls
    return message if "content" in message or calls else None


def apart(given: Any) -> list[Any]:
    """A message that holds the results of several tools as one for each, which is how chat completions have them."""
    parts = _sequence(given.get("parts")) if isinstance(given, Mapping) else ()
    if len(parts) < 2 or not all(isinstance(one, Mapping) and one.get("type") == "tool_call_response" for one in parts):
        return [given]
    return [{**given, "parts": [one]} for one in parts]


def _take_part(message: dict[str, Any], calls: list[dict[str, Any]], part: Any) -> bool:
    """Adds a part; False for one that a chat completion has no place for."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind == "text" and isinstance(part.get("content"), str) and "tool_call_id" not in message:
        message["content"] = f"{message.get('content', '')}{part['content']}"
    elif kind == "tool_call" and (made := _tool_call(part)) is not None:
        calls.append(made)
    elif kind == "tool_call_response" and "content" not in message:
        message |= {"role": "tool", "tool_call_id": part.get("id")}
        message["content"] = text(part.get("response", part.get("result", part.get("content")))) or ""
    else:
        return False
    return True


def _tool_call(given: Any) -> dict[str, Any] | None:
    if not isinstance(given, Mapping):
        return None
    inner = given.get("tool_call")
    found: Mapping[str, Any] = inner if isinstance(inner, Mapping) else given
    function = found.get("function")
    named: Mapping[str, Any] = function if isinstance(function, Mapping) else found
    if named.get("name") is None:
        return None
    arguments = text(named.get("arguments")) or ""
    return {
        "id": found.get("id"),
        "type": "function",
        "function": {"name": named["name"], "arguments": arguments},
    }


def _sequence(value: Any) -> Sequence[Any]:
    found = from_json(value) if isinstance(value, str) else value
    return found if isinstance(found, list) else ()
