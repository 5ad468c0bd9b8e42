"""Transcripts: what chat completions and the Responses API have in common for those who judge them, and reading their parts.

An *entry* is one JSON object of a transcript: a message, or an item of the Responses API. A *turn* is what the model wrote
in one reply (in one choice of it), as entries. A *proposal* is a tool call in a turn. What a reply hands the program beside
its text and its calls (reasoning, transcripts, citations) is read by `texts`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias, cast

from lgov_core.types import Kind

JSON: TypeAlias = dict[str, Any]

#: Fields of bytes (a recording, a picture, what only the model's server can read), if that is what they hold.
_BYTES = frozenset({"b64_json", "data", "encrypted_content", "result", "signature", "thought_signature"})
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{64,}={0,2}")


#: The kinds of content that is no text, by the type of its part in any API, and fields that hold its bytes.
_MEDIA: Final[Mapping[str, str]] = {
    **dict.fromkeys(("image", "image_file", "image_url", "input_image", "computer_screenshot"), "image"),
    **dict.fromkeys(("audio", "audio_url", "input_audio"), "audio"),
    **dict.fromkeys(("video", "video_url", "input_video"), "video"),
    **dict.fromkeys(("file", "input_file", "document", "media"), "file"),
}
_MEDIA_FIELDS = _BYTES | {"base64", "file_data", "image_data"}
_DATA_URL = re.compile(r"data:([^;,]*)[^,]*;base64,(.*)", re.DOTALL)
_BASE64_TEXT = re.compile(r"[A-Za-z0-9+/_\-\s]+={0,2}\s*")


def media_bytes(field: str, value: str) -> tuple[str, str] | None:
    """The declared type and the base64 of the bytes in ``value``, of a part that is no text; None if it is a text."""
    url = _DATA_URL.fullmatch(value)
    if url is not None:
        media_type, encoded = url.groups()
        return (media_type, encoded) if _BASE64_TEXT.fullmatch(encoded) else None
    bare = field in _MEDIA_FIELDS and len(value) >= 48 and _BASE64_TEXT.fullmatch(value)
    return ("", value) if bare else None


def media_in(content: Any) -> list[JSON]:
    """The pictures, recordings, films and files in a content: the kind, type, size and digest of each, never the bytes.

    ``texts`` are its other values (an address, a name), which policies read.
    """
    parts = cast("Sequence[Any]", content) if isinstance(content, list | tuple) else ()
    return [_described(content_part) for content_part in parts if media_kind(content_part) is not None]


def media_kind(content_part: Any) -> str | None:
    """The kind of a part of a content that is no text: image, audio, video or file; None if it is text, or unknown."""
    kind = content_part.get("type") if isinstance(content_part, Mapping) else None
    if not isinstance(kind, str) or text_key(content_part) is not None:
        return None
    source = content_part.get("source")
    if isinstance(source, Mapping) and source.get("type") in ("text", "content"):  # a document that is text
        return None
    return _MEDIA.get(kind)


def _described(content_part: Mapping[str, Any]) -> JSON:
    digest, size = hashlib.sha256(), 0
    media: JSON = {"kind": media_kind(content_part)}
    for field, value in _texts_in("", without(content_part, {"type", "cache_control"})):
        if (encoded := media_bytes(field, value)) is not None:
            data = base64.b64decode(encoded[1].translate(_URL_DIGITS) + "==")
            digest.update(data)
            size += len(data)
            media["media_type"] = encoded[0] or media.get("media_type", "")
        elif field in ("mime_type", "media_type", "format"):
            media["media_type"] = value
        else:
            media.setdefault("texts", []).append(value)
    return {**media, "bytes": size, "sha256": digest.hexdigest()} if size else media


_URL_DIGITS = str.maketrans("-_", "+/")


def _texts_in(field: str, value: Any) -> Iterator[tuple[str, str]]:
    """The texts at any depth of ``value``, each with the field that holds it."""
    if isinstance(value, str):
        yield field, value
    elif isinstance(value, Mapping):
        for name, item in cast(JSON, value).items():
            yield from _texts_in(name, item)
    elif isinstance(value, list):
        for item in cast(list[Any], value):
            yield from _texts_in(field, item)


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
    """The object in ``raw``, ``{}`` if it is blank or null, as frameworks read that, None if it is anything else.

    With ``unique_keys`` a text that programs read differently is None too: an object with a key twice, a number that is not
    finite, half of a surrogate pair.
    """
    if not raw.strip():
        return {}
    try:
        value = json.loads(raw, **_ONE_READING) if unique_keys else json.loads(raw)
        if unique_keys and _SURROGATE.search(raw) is not None:
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    return {} if value is None else cast(JSON, value) if isinstance(value, dict) else None


def _unique(pairs: list[tuple[str, Any]]) -> JSON:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("an object has a key twice")
    return value


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number is not finite")
    return number


#: A text without this has no half of a surrogate pair.
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")
_ONE_READING: Mapping[str, Any] = {"object_pairs_hook": _unique, "parse_float": _finite, "parse_constant": _finite}


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


@dataclass(slots=True)
class ModelReading:
    """A model's reply as policies read it. ``tool_calls`` are mappings with ``id``, ``name`` and ``args``.

    ``usage`` is ``{"input_tokens": int, "output_tokens": int}`` where the model reported it. ``response_id`` must be
    the id that the endpoint gave to the reply: it joins this call with the endpoint's record of it. ``fields`` are the
    further texts of the reply that the program gets, in the form of the reply.
    """

    text: str
    tool_calls: Sequence[Mapping[str, Any]] = ()
    usage: Mapping[str, int] | None = None
    response_id: str | None = None
    response_model: str | None = None
    finish_reason: str | None = None
    unreadable: str | None = None
    fields: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Proposal:
    """A tool call that the model asks the program to make.

    ``raw`` is the text of the arguments, ``arguments`` its object, None if it cannot be read unambiguously. ``entry`` is
    the position of its entry in the turn, ``index`` that of the call in the entry (-1: a legacy ``function_call``).
    ``unclear``: a program may read another call in it.
    """

    call_id: str | None
    name: str
    raw: str
    arguments: Mapping[str, Any] | None
    kind: Kind = "function"
    entry: int = 0
    index: int = 0
    unclear: bool = False

    @property
    def identity(self) -> tuple[str | None, str, str]:
        """Equal for the same call in two copies of a transcript."""
        return self.call_id, self.name, self.raw

    @property
    def position(self) -> tuple[int, int]:
        """Where it is in its turn."""
        return self.entry, self.index

    def as_mapping(self) -> JSON:
        """The call as policies get it beside a reply."""
        call = {"name": self.name, "args": self.raw if self.arguments is None else self.arguments}
        return call if self.index < 0 else {"id": self.call_id, **call}


@dataclass(frozen=True, slots=True)
class Turn:
    """The entries that the model wrote in one reply, or in one choice of it."""

    entries: Sequence[JSON]
    text: str
    proposals: Sequence[Proposal] = ()


def unclear_call(turns: Sequence[Turn]) -> str | None:
    """Why a call of ``turns`` cannot be read for certain; None if all can."""
    unclear = any(call.unclear for turn in turns for call in turn.proposals)
    return "a tool call has no name, or is not exactly one of a function and a custom tool call" if unclear else None


class MessageProtocol(Protocol):
    """One of the two APIs. All methods are pure: they never change their arguments."""

    def entries(self, body: JSON) -> list[JSON]:
        """The transcript in a request body."""
        ...

    def with_entries(self, body: JSON, entries: Sequence[JSON]) -> JSON:
        """The request with another transcript."""
        ...

    def mapping(self, entry: JSON) -> JSON:
        """The entry as policies get it: ``role``, ``content`` (text), its tool calls or the call it is the result of.

        ``media`` is what `media_in` reads, where the content has any.
        """
        ...

    def with_text(self, entry: JSON, text: str) -> JSON:
        """The entry with its text replaced; other content (pictures) stays, except in a tool result."""
        ...

    def user_text(self, entry: JSON) -> str | None:
        """The text of a user message; None for any other entry."""
        ...

    def tool_result(self, entry: JSON) -> tuple[str | None, str] | None:
        """Call id and text of a tool result; None for any other entry."""
        ...

    def from_model(self, entry: JSON) -> bool:
        """True where the model wrote the entry."""
        ...

    def proposals(self, entry: JSON) -> list[Proposal]:
        """The tool calls in an entry of the model."""
        ...

    def ids(self, entry: JSON) -> list[str]:
        """The ids of an entry of the model: those of its calls, and its own where the API has one."""
        ...

    def parent(self, body: JSON) -> str | None:
        """The id of the stored response or conversation that the request continues."""
        ...

    def continued(self, body: JSON, sent: Sequence[JSON], reply: JSON, turn: Turn, results: Sequence[JSON]) -> JSON:
        """The request that follows ``body``: ``results`` answer the calls of ``turn``, which was all of ``reply``."""
        ...

    def turns(self, reply: JSON) -> list[Turn]:
        """The turns that the model wrote, one for each choice."""
        ...

    def reading(self, reply: JSON, turns: Sequence[Turn]) -> ModelReading:
        """Text, calls, usage and ids of the whole reply."""
        ...

    def fields(self, reply: JSON) -> JSON:
        """The texts of the reply beside its turns' texts and calls, in the form of the reply
        (`lgov_core.wire.turns.texts`).
        """
        ...

    def without_fields(self, reply: JSON) -> JSON:
        """The reply without what `fields` reads, for turns that are denials."""
        ...

    def with_turns(self, reply: JSON, turns: Sequence[Turn]) -> JSON:
        """The reply with other turns."""
        ...

    def without(self, turn: Turn, proposals: Sequence[Proposal]) -> Turn:
        """The turn without these calls."""
        ...

    def with_arguments(self, turn: Turn, proposal: Proposal, arguments: Mapping[str, Any]) -> Turn:
        """The turn with other arguments for one call."""
        ...

    def with_turn_text(self, turn: Turn, text: str) -> Turn:
        """The turn with its text replaced."""
        ...

    def denied_result(self, turn: Turn, proposal: Proposal, text: str) -> JSON | None:
        """The tool result by which the model reads that the call was denied; None where the API has none for it."""
        ...

    def denial_turn(self, body: JSON, text: str) -> Turn:
        """A turn that says ``text`` in the model's place: a refusal where the program asked for a structure."""
        ...

    def denial_reply(self, body: JSON, text: str) -> JSON:
        """A whole reply that says ``text``, for a request that was not sent."""
        ...

    def from_stream(self, events: Sequence[JSON], *, ended: bool = True) -> JSON | None:
        """The whole reply in the events of a stream; None if the stream did not finish. ``ended``: see `Assembler.whole`."""
        ...

    def with_call_ids(self, reply: JSON) -> JSON:
        """The reply with an id of its own for each call: see `lgov_core.wire.exchange.CallIds`."""
        ...

    def is_text_stream(self, body: JSON) -> bool:
        """True where the reply to a request may reach the program in part, its text before its calls: a stream of one
        choice.
        """
        ...

    def is_text(self, event: JSON) -> bool:
        """True where an event of such a stream holds text only: no call, and no end."""
        ...

    def turn_after(self, passed: Sequence[JSON], turn: Turn) -> Turn:
        """The turn as the program has it that got the events ``passed`` before."""
        ...

    def to_stream(self, body: JSON, reply: JSON, events: Sequence[JSON], passed: Sequence[JSON] = ()) -> str:
        """``reply`` as server-sent events; ``events`` are those of the reply it was made from, if any. The program has got
        the events ``passed``, so they are not written again.
        """
        ...


def rewritten_entries(
    protocol: MessageProtocol, sent: Sequence[JSON], mappings: Sequence[JSON], rewritten: Sequence[Mapping[str, Any]]
) -> list[JSON] | None:
    """The entries for the messages of a transform; None if the transform is ambiguous.

    ``mappings`` are the messages of ``sent`` as the policy got them. Where only texts and the arguments of calls were
    changed, everything else of an entry stays.
    """
    entries: list[JSON] = []
    for position, mapping in enumerate(rewritten):
        original = mappings[position] if position < len(mappings) else None
        if original == mapping:
            entries.append(sent[position])
        elif original is not None and {**original, "content": ""} == {**mapping, "content": ""}:
            entries.append(protocol.with_text(sent[position], str(mapping["content"])))
        elif original is not None and (arguments := rewritten_arguments(original, mapping)) is not None:
            entry, text = _with_all_arguments(protocol, sent[position], arguments), str(mapping["content"])
            entries.append(entry if text == original["content"] else protocol.with_text(entry, text))
        elif mapping in mappings:
            entries.append(sent[list(mappings).index(dict(mapping))])
        elif set(mapping) <= {"role", "content"} and isinstance(mapping.get("content"), str):
            entries.append(dict(mapping))
        else:
            return None
    return entries


def _with_all_arguments(protocol: MessageProtocol, entry: JSON, arguments: Sequence[Mapping[str, Any] | None]) -> JSON:
    turn = Turn([entry], "", protocol.proposals(entry))
    for proposal, changed in zip(turn.proposals, arguments, strict=True):
        if changed is not None:
            turn = protocol.with_arguments(turn, proposal, changed)
    return turn.entries[0]


def rewritten_arguments(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Mapping[str, Any] | None] | None:
    """The arguments that a transform gave the calls of a message, in order; None for each call that it left as it was.

    None where more than the message's text and arguments was changed, or where the message has no calls.
    """
    old, new = before.get("tool_calls"), after.get("tool_calls")
    if not old or not isinstance(new, Sequence) or len(new) != len(old):
        return None
    if {**before, "content": None, "tool_calls": None} != {**after, "content": None, "tool_calls": None}:
        return None
    arguments: list[Mapping[str, Any] | None] = []
    for was, call in zip(old, new, strict=True):
        if not isinstance(call, Mapping) or {**was, "args": None} != {**call, "args": None}:
            return None
        if call["args"] == was["args"]:
            arguments.append(None)
        elif isinstance(call["args"], Mapping):
            arguments.append(call["args"])
        else:
            return None
    return arguments
