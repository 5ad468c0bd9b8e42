"""What the two protocols of the openai client have in common: entries of a transcript, turns of a reply, proposed calls.

An *entry* is one JSON object of a transcript: a message, or an item of the Responses API. A *turn* is what the model wrote
in one reply (in one choice of it), as entries. Nothing here decides anything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, cast

from lgov_core.instrumentation.model_call import ModelReading, rewritten_arguments
from lgov_core.types import Kind

JSON: TypeAlias = dict[str, Any]


class Entry(JSON):
    """An entry that remembers what has been read off it: a program sends its whole transcript with each request.

    For entries that nobody changes in place. A copy remembers nothing.
    """

    canonical: str | None = None
    proposals: list[Proposal] | None = None


class Proposal:
    """A call that the model asks the program to make.

    ``raw`` is what the model wrote for arguments; ``entry`` is the position of its entry in the turn, ``place`` that of
    the call in the entry. Nobody changes it.
    """

    __slots__ = ("_arguments", "call_id", "entry", "identity", "kind", "name", "place", "raw")

    def __init__(
        self,
        call_id: str | None,
        name: str,
        raw: str,
        arguments: Mapping[str, Any] | None = None,
        kind: Kind = "function",
        entry: int = 0,
        place: int = 0,
    ) -> None:
        self.call_id = call_id
        self.name = name
        self.raw = raw
        #: What makes it this call and no other, as far as the transcript says.
        self.identity: tuple[str | None, str, str] = (call_id, name, raw)
        self.kind: Kind = kind
        self.entry = entry
        self.place = place
        self._arguments: tuple[Mapping[str, Any] | None] | None = None if arguments is None else (arguments,)

    @property
    def arguments(self) -> Mapping[str, Any] | None:
        """The arguments, None where they cannot be read: those it was made with, or else what ``raw`` says.

        Read when first asked for, because most calls of a transcript are old.
        """
        if self._arguments is None:
            self._arguments = (read_arguments(self.raw),)
        return self._arguments[0]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Proposal):
            return NotImplemented
        same = (self.identity, self.kind, self.entry, self.place) == (
            other.identity,
            other.kind,
            other.entry,
            other.place,
        )
        return same and (self._arguments is other._arguments or self.arguments == other.arguments)

    def __hash__(self) -> int:
        return hash(self.identity)


@dataclass(slots=True)  # not frozen, which would set each field by a call
class Turn:
    """What the model wrote in one reply, or in one choice of it. Nobody changes it."""

    entries: Sequence[JSON]
    text: str
    proposals: Sequence[Proposal] = ()


class Wire(Protocol):
    """One of the two protocols: chat completions, or responses. All methods are pure and leave what they get unchanged."""

    #: The field of a request that holds the transcript.
    transcript: str
    #: How the openai client begins to write it; empty where more than this field makes the transcript.
    opening: bytes

    # -- requests

    def entries(self, body: JSON) -> list[JSON]:
        """The transcript that a request sends."""
        ...

    def with_entries(self, body: JSON, entries: Sequence[JSON]) -> JSON:
        """The request with another transcript."""
        ...

    def mapping(self, entry: JSON) -> JSON:
        """The entry as policies see it: ``role``, ``content`` (text), and its calls or the call it answers."""
        ...

    def with_text(self, entry: JSON, text: str) -> JSON:
        """The entry with its text replaced; what is not text (pictures) stays."""
        ...

    def user_text(self, entry: JSON) -> str | None:
        """The text, if the user says it."""
        ...

    def answered_call(self, entry: JSON) -> tuple[str | None, str] | None:
        """The id of the call whose result this is, and the result's text; None if it is no result."""
        ...

    def with_answer(self, entry: JSON, text: str) -> JSON:
        """The result with another text."""
        ...

    def is_of_model(self, entry: JSON) -> bool:
        """Whether the model wrote it."""
        ...

    def proposals(self, entry: JSON) -> list[Proposal]:
        """The calls that an entry of the model proposes."""
        ...

    def entry_id(self, entry: JSON) -> str | None:
        """The id that the server gave to this very entry, where the protocol has one."""
        ...

    def parent(self, body: JSON) -> str | None:
        """The stored response or conversation that the request continues, where the server keeps the transcript."""
        ...

    def continued(self, body: JSON, sent: Sequence[JSON], reply: JSON, turn: Turn, answers: Sequence[JSON]) -> JSON:
        """The request that follows when ``answers`` are what came of the calls of ``turn``."""
        ...

    # -- replies

    def turns(self, reply: JSON) -> list[Turn]:
        """What the model wrote, choice by choice."""
        ...

    def reading(self, reply: JSON, turns: Sequence[Turn]) -> ModelReading:
        """What the whole reply says."""
        ...

    def with_turns(self, reply: JSON, turns: Sequence[Turn]) -> JSON:
        """The reply with other turns."""
        ...

    def without(self, turn: Turn, denied: Sequence[Proposal]) -> Turn:
        """The turn without these calls."""
        ...

    def with_arguments(self, turn: Turn, proposal: Proposal, arguments: Mapping[str, Any]) -> Turn:
        """The turn in which one call has other arguments."""
        ...

    def reworded(self, turn: Turn, text: str) -> Turn:
        """The turn with its text replaced."""
        ...

    def denial(self, turn: Turn, proposal: Proposal, text: str) -> JSON | None:
        """The entry by which the model reads that a call was denied; None where the protocol has none."""
        ...

    def told(self, body: JSON, text: str) -> Turn:
        """A turn that says ``text`` in the model's place, so that a program that expects a structure is not misled."""
        ...

    def invented(self, body: JSON, text: str) -> JSON:
        """A whole reply that says ``text``, for a call that was not sent."""
        ...

    def with_usage(self, reply: JSON, further: Sequence[JSON]) -> JSON:
        """The reply with the usage of the replies before it added to its own."""
        ...

    # -- streams

    def from_stream(self, events: Sequence[JSON]) -> JSON | None:
        """The whole reply that a stream brought; None if it did not come to its end."""
        ...

    def to_stream(self, body: JSON, reply: JSON, events: Sequence[JSON]) -> str:
        """``reply`` as a stream; ``events`` are those of the reply it was made from, if any."""
        ...


# ---------------------------------------------------------------------- what policies make of a transcript


def rewritten_entries(
    wire: Wire, sent: Sequence[JSON], mappings: Sequence[JSON], wanted: Sequence[Mapping[str, Any]]
) -> list[JSON] | None:
    """The entries that the messages of a transform mean; None if that cannot be told.

    ``mappings`` are the messages of ``sent`` as the transform got them. Where only texts and the arguments of calls were
    changed, everything else of an entry stays.
    """
    found: list[JSON] = []
    for position, mapping in enumerate(wanted):
        original = mappings[position] if position < len(mappings) else None
        if original == mapping:
            found.append(sent[position])
        elif original is not None and {**original, "content": ""} == {**mapping, "content": ""}:
            found.append(wire.with_text(sent[position], str(mapping["content"])))
        elif original is not None and (arguments := rewritten_arguments(original, mapping)) is not None:
            entry, text = _with_arguments(wire, sent[position], arguments), str(mapping["content"])
            found.append(entry if text == original["content"] else wire.with_text(entry, text))
        elif mapping in mappings:
            found.append(sent[list(mappings).index(dict(mapping))])
        elif set(mapping) <= {"role", "content"} and isinstance(mapping.get("content"), str):
            found.append(dict(mapping))
        else:
            return None
    return found


def _with_arguments(wire: Wire, entry: JSON, arguments: Sequence[Mapping[str, Any] | None]) -> JSON:
    turn = Turn([entry], "", wire.proposals(entry))
    for proposal, changed in zip(turn.proposals, arguments, strict=True):
        if changed is not None:
            turn = wire.with_arguments(turn, proposal, changed)
    return turn.entries[0]


# ---------------------------------------------------------------------- JSON


class _Repeated(ValueError):
    """An object has a key twice: which one counts depends on who reads it."""


def _no_repeats(pairs: list[tuple[str, Any]]) -> JSON:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _Repeated
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=_no_repeats)  # json.loads would make one for each call


def read_arguments(raw: str) -> JSON | None:
    """The object that the text is; None if it is none, or one that two readers could read differently. No text is ``{}``."""
    if not raw.strip():
        return {}
    try:
        value, end = _DECODER.raw_decode(raw) if raw[0] == "{" else (None, -1)
        if end != len(raw):  # space around it, or what is no object
            value = _DECODER.decode(raw)
    except (ValueError, RecursionError):
        return None
    return cast(JSON, value) if isinstance(value, dict) else None


_PLAIN_DECODER = json.JSONDecoder()


def loads(content: bytes) -> Any:
    """As `json.loads`, which finds out in which encoding the bytes are: it is seen at once where they are UTF-8."""
    if content.startswith((b'{"', b"{\n", b"{ ")):
        value, end = _PLAIN_DECODER.raw_decode(text := content.decode("utf-8", "surrogatepass"))
        if end == len(text):
            return value
    return json.loads(content)


#: A value as JSON as it goes over the wire: ASCII, so that half a character, which JSON can hold, can be sent.
dump = json.JSONEncoder(check_circular=False, separators=(",", ":")).encode
#: As `dump`, the same for objects that differ in the order of their keys only.
dump_sorted = json.JSONEncoder(check_circular=False, separators=(",", ":"), sort_keys=True).encode


# ---------------------------------------------------------------------- text in content


def text_of(content: Any) -> str:
    """The text of a message's content: itself, or that of its parts."""
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    parts = content if isinstance(content, list) else [content]
    return "\n".join(found for part in parts if (found := _part_text(part)) is not None)


def _part_text(part: Any) -> str | None:
    if isinstance(part, str):
        return part
    if isinstance(part, Mapping):
        for key in ("text", "refusal"):
            if isinstance(value := part.get(key), str):
                return value
    return None


def content_with_text(content: Any, text: str) -> Any:
    """The content with one text in place of all its texts; parts that are no text stay."""
    if not isinstance(content, list):
        return text
    kept: list[Any] = []
    placed = False
    for part in cast(list[Any], content):
        if _part_text(part) is None:
            kept.append(part)
        elif not placed:
            placed = True
            kept.append(text if isinstance(part, str) else {**part, "text": text})
    return kept if placed else [*kept, {"type": "text", "text": text}]


def summed(first: Any, second: Any) -> Any:
    """Two usages added up, number by number."""
    if isinstance(first, dict) and isinstance(second, dict):
        return {key: summed(first.get(key), second.get(key)) for key in {**first, **second}}
    if isinstance(first, int | float) and isinstance(second, int | float):
        return first + second
    return second if first is None else first


# ---------------------------------------------------------------------- server-sent events


def read_events(text: str, *, cut: bool = False) -> list[JSON]:
    """The JSON objects of a stream of server-sent events. Raises ValueError where one is not readable.

    ``cut``: more may have come, so that the last one may be no whole one; then it is left out.
    """
    found: list[JSON] = []
    *blocks, last = text.replace("\r\n", "\n").replace("\r", "\n").split("\n\n")
    for block in blocks:
        _add_event(found, block)
    try:
        _add_event(found, last)
    except ValueError:
        if not cut:
            raise
    return found


def _add_event(found: list[JSON], block: str) -> None:
    data = "\n".join(line[5:].removeprefix(" ") for line in block.split("\n") if line.startswith("data:"))
    if not data or data == "[DONE]":
        return
    value = json.loads(data)
    if not isinstance(value, dict):
        raise ValueError("an event is not an object")
    found.append(cast(JSON, value))
