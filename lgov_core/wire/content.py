"""Reads and writes parts of both protocols: text content, JSON arguments, usage, server-sent events.

What a reply hands the program beside its text and its calls (reasoning, transcripts, citations) is read by `texts`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias, cast

JSON: TypeAlias = dict[str, Any]

#: Fields of bytes (a recording, a picture, what only the model's server can read), if that is what they hold.
_BYTES = frozenset({"b64_json", "data", "encrypted_content", "result", "signature", "thought_signature"})
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{64,}={0,2}")


def text_of(content: Any) -> str:
    """The text of a message's ``content``: the string itself, or the text of its parts, one a line."""
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    parts = content if isinstance(content, list) else [content]
    return "\n".join(text for content_part in parts if (text := _part_text(content_part)) is not None)


def _part_text(content_part: Any) -> str | None:
    key = text_key(content_part)
    return content_part[key] if key is not None else content_part if isinstance(content_part, str) else None


def text_key(content_part: Any) -> str | None:
    """The field of a part of a content that is its text."""
    keys = (
        key
        for key in ("text", "refusal")
        if isinstance(content_part, Mapping) and isinstance(content_part.get(key), str)
    )
    return next(keys, None)


def content_with_text(content: Any, text: str) -> Any:
    """``content`` with ``text`` in place of all its texts; other parts (pictures) stay."""
    if not isinstance(content, list):
        return text
    parts = cast(list[Any], content)
    first = next((at for at, content_part in enumerate(parts) if _part_text(content_part) is not None), len(parts))
    kept = [content_part for content_part in parts[first:] if _part_text(content_part) is None]
    key = text_key(parts[first]) if first < len(parts) else None
    placed = {**parts[first], key: text} if key is not None else None
    return [*parts[:first], placed or {"type": "text", "text": text}, *kept]


def with_text_at(holder: Any, path: Sequence[str | int], text: str) -> Any:
    """``holder`` with ``text`` in place of the texts at ``path``, the names and numbers that lead there."""
    if not path:
        return content_with_text(holder, text)
    first, rest = path[0], path[1:]
    if isinstance(holder, Mapping):
        return {**holder, str(first): with_text_at(holder.get(first), rest, text)}
    changed = list(cast("Sequence[Any]", holder))
    changed[int(first)] = with_text_at(changed[int(first)], rest, text)
    return changed


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
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("an object has a key twice")
    return value


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


def without(value: Any, names: Collection[str | None]) -> JSON:
    """The object ``value`` without the fields ``names``; empty for anything else."""
    return (
        {key: item for key, item in cast(JSON, value).items() if key not in names} if isinstance(value, Mapping) else {}
    )


def texts(value: Any) -> Any:
    """``value`` with its texts alone, in its form (None for an element of a list without any); None if there are none."""
    if isinstance(value, str):
        return value or None
    if isinstance(value, list):
        items = [texts(item) for item in cast(list[Any], value)]
        return items if any(item is not None for item in items) else None
    if not isinstance(value, Mapping):
        return None
    fields = cast(JSON, value).items()
    kept = {key: texts(item) for key, item in fields if not (key in _BYTES and _BASE64.fullmatch(str(item)))}
    return {key: item for key, item in kept.items() if item is not None} or None


def with_texts(value: Any, before: Any, after: Any) -> Any:
    """``value`` with the texts by which ``after`` differs from ``before``, what `texts` gave.

    Raises ValueError for any other difference.
    """
    if before == after:
        return value
    if isinstance(before, Mapping) and isinstance(after, Mapping) and before.keys() == after.keys():
        return {**value, **{key: with_texts(value[key], before[key], after[key]) for key in before}}
    if isinstance(before, list) and isinstance(after, list | tuple) and len(cast(list[Any], before)) == len(after):
        return [with_texts(*each) for each in zip(value, before, after, strict=True)]
    if isinstance(before, str) and isinstance(after, str):
        return after
    raise ValueError("a policy changed more of a reply than its texts")
