"""The common part of the tool formats: texts of messages, and calls cut out of JSON exactly as written."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from lgov_core._util.json_text import json_object
from lgov_core.errors import EndpointError

Message = Mapping[str, Any]
Tool = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """A call found in a reply. ``arguments_text`` is JSON text if the model wrote JSON, else the raw text it wrote."""

    name: str
    arguments_text: str


@dataclass(frozen=True, slots=True)
class ParsedReply:
    """A reply taken apart. ``content`` is what is not a call; None when there is nothing but calls."""

    content: str | None
    calls: tuple[ParsedCall, ...] = ()


def tool_name(tool: Tool) -> str:
    """The function name in an OpenAI tool definition."""
    return str(tool["function"]["name"])


def tool_parameters(tool: Tool) -> tuple[Mapping[str, Any], Sequence[str]]:
    """The properties of a tool's parameter schema by name, and the names of those that are required."""
    schema = tool["function"].get("parameters") or {}
    return schema.get("properties") or {}, schema.get("required") or ()


def schema_line(tool: Tool) -> str:
    """A tool as one line of JSON."""
    function = tool["function"]
    return dump({key: function[key] for key in ("name", "description", "parameters") if function.get(key) is not None})


def message_text(message: Message) -> str:
    """The text of an OpenAI message: a string, or a list of text parts. Raises `EndpointError` for anything else."""
    content = message.get("content")
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise EndpointError(f"message content must be a string or a list of parts, not {type(content).__name__}")
    texts: list[str] = []
    for content_part in cast("Sequence[Any]", content):
        kind = content_part.get("type") if isinstance(content_part, Mapping) else type(content_part).__name__
        if kind not in ("text", "refusal") or not isinstance(content_part.get(kind), str):
            raise EndpointError(f"message part of type {kind!r} is not supported", hint="this model reads text only")
        texts.append(content_part[kind])
    return "".join(texts)


def dump(value: Any) -> str:
    """``value`` as readable JSON. A lone surrogate, which is not valid text, stays an escape."""
    text = json.dumps(value, ensure_ascii=False)
    return text if is_valid_text(text) else json.dumps(value)


def is_valid_text(text: str) -> bool:
    """Returns whether ``text`` can be encoded, i.e. has no lone surrogates."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


_DECODER = json.JSONDecoder()
# A call in the key order that call_object writes.
_CALL_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*')


def value_end(text: str, start: int) -> int:
    """Where the JSON value that begins at ``start`` ends; -1 when there is none."""
    try:
        return _DECODER.raw_decode(text, start)[1]
    except (ValueError, RecursionError):
        return -1


def call_object(name: str, arguments_json: str) -> str:
    """A call as a JSON object around the arguments as they are; blank arguments are an empty object."""
    return f'{{"name": {json.dumps(name)}, "arguments": {arguments_json.strip() or "{}"}}}'


def call_in(text: str) -> ParsedCall | None:
    """The call that the whole ``text`` is; None when it is not a call.

    Broken JSON is still a call if its name can be read: then the arguments are the raw text after it.
    """
    value, head = json_object(text), _CALL_HEAD.match(text)
    if value is not None and isinstance(value.get("name"), str):
        key = "arguments" if "arguments" in value else "parameters"
        if head is not None and (end := value_end(text, head.end())) >= 0:
            raw = text[head.end() : end]
            if json.loads(raw) == value[key]:  # a repeated key would make another value count
                return ParsedCall(value["name"], raw)
        return ParsedCall(value["name"], dump(value[key]) if key in value else "{}")
    if value is None and head is not None:
        try:
            name = json.loads(head.group(1))
        except ValueError:
            return None
        rest = text[head.end() :].strip()
        # The last brace closes the call, not the arguments.
        return ParsedCall(name, rest[:-1].rstrip() if rest.endswith("}") else rest)
    return None
