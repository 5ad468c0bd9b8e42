"""Reads and writes parts of both protocols: text content, JSON arguments, usage, server-sent events."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, cast

JSON: TypeAlias = dict[str, Any]


def text_of(content: Any) -> str:
    """The text of a message's ``content``: the string itself, or the text of its parts, one a line."""
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    parts = content if isinstance(content, list) else [content]
    return "\n".join(found for part in parts if (found := _part_text(part)) is not None)


def _part_text(part: Any) -> str | None:
    key = text_key(part)
    return part[key] if key is not None else part if isinstance(part, str) else None


def text_key(part: Any) -> str | None:
    """The field of a part of a content that is its text."""
    found = (key for key in ("text", "refusal") if isinstance(part, Mapping) and isinstance(part.get(key), str))
    return next(found, None)


def content_with_text(content: Any, text: str) -> Any:
    """``content`` with ``text`` in place of all its texts; other parts (pictures) stay."""
    if not isinstance(content, list):
        return text
    parts = cast(list[Any], content)
    first = next((at for at, part in enumerate(parts) if _part_text(part) is not None), len(parts))
    kept = [part for part in parts[first:] if _part_text(part) is None]
    key = text_key(parts[first]) if first < len(parts) else None
    placed = {**parts[first], key: text} if key is not None else None
    return [*parts[:first], placed or {"type": "text", "text": text}, *kept]


def read_arguments(raw: str, *, unique_keys: bool = True) -> JSON | None:
    """The object in ``raw``, ``{}`` if it is blank, None if it is anything else.

    With ``unique_keys`` an object that has a key twice is None too: program and policy might read it differently.
    """
    if not raw.strip():
        return {}
    try:
        value = json.loads(raw, object_pairs_hook=_unique if unique_keys else None)
    except (ValueError, RecursionError):
        return None
    return cast(JSON, value) if isinstance(value, dict) else None


def _unique(pairs: list[tuple[str, Any]]) -> JSON:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object has a key twice")
    return found


def token_usage(usage: Mapping[str, Any], input_key: str, output_key: str) -> dict[str, int] | None:
    """The numbers of tokens in ``usage``; None where one is missing."""
    counts = usage.get(input_key), usage.get(output_key)
    if not isinstance(counts[0], int) or not isinstance(counts[1], int):
        return None
    return {"input_tokens": counts[0], "output_tokens": counts[1]}


def with_total_usage(reply: JSON, further: Sequence[JSON]) -> JSON:
    """``reply`` with the usage of ``further`` replies added to its own."""
    usage = reply.get("usage")
    for other in further:
        usage = _sum(usage, other.get("usage"))
    return {**reply, "usage": usage} if further else reply


def _sum(first: Any, second: Any) -> Any:
    if isinstance(first, dict) and isinstance(second, dict):
        return {key: _sum(first.get(key), second.get(key)) for key in {**first, **second}}
    if isinstance(first, int | float) and isinstance(second, int | float):
        return first + second
    return second if first is None else first


def read_events(text: str, *, partial: bool = False) -> list[JSON]:
    """The JSON objects in a stream of server-sent events. Raises ValueError for an event that is not a JSON object.

    ``partial``: the stream may have been cut; an incomplete last event is left out.
    """
    events: list[JSON] = []
    blocks = text.replace("\r\n", "\n").replace("\r", "\n").split("\n\n")
    for block in blocks[:-1] if partial else blocks:
        data = "\n".join(line[5:].removeprefix(" ") for line in block.split("\n") if line.startswith("data:"))
        if data and data != "[DONE]":
            value = json.loads(data)
            if not isinstance(value, dict):
                raise ValueError("an event is not a JSON object")
            events.append(cast(JSON, value))
    return events
