"""A model call on its way between a client and an engine: what is asked, what is answered, and the events of a stream.

Server-sent events are written by `frame`; an `Assembler` puts them together into the body that a reply would have had at once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from lgov_core._util.json_text import json_object, wire_bytes
from lgov_core.errors import UpstreamError
from lgov_core.types import new_id
from lgov_core.wire.fields import shown


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A model call as an engine is asked for it. ``body`` is the JSON; the rest is read out of it, checked.

    ``route`` is the API whose JSON ``body`` is: ``chat``, or another one that the engine `speaks`; then it is the
    client's own. ``messages`` and ``tools`` are in chat completion form in either case. ``max_tokens`` is a count of
    tokens, or None for the engine's limit. ``temperature`` 0 means greedy. ``seed`` is None unless the client asked for
    one. ``n`` is how many choices the reply has.
    """

    body: Mapping[str, Any]
    model: str
    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    stop: tuple[str, ...] = ()
    seed: int | None = None
    stream: bool = False
    n: int = 1
    route: str = "chat"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call as the model proposed it. ``arguments`` is the JSON text, which may be broken: the model wrote it."""

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Completion:
    """The answer of an engine.

    ``prompt_ids``, ``response_ids`` and ``logprobs`` are exact (see `lgov_core.types.CapturedCall`), or None where the
    engine cannot know them. ``text`` is the reply exactly as generated; ``content`` is the part of it that is not a tool
    call (None when there is nothing but calls). ``response_ids`` includes the end-of-turn token when one was generated;
    ``text`` does not. ``finish_reason`` is stop, length, tool_calls, or an upstream's own word; ``matched_stop`` is the
    stop text that ended the reply, where that is known. ``raw`` is an upstream's own JSON body.

    A reply of several choices is its first one; ``more`` holds the others, each without ``more`` and ``raw``.
    ``unreadable`` says why the calls of this choice cannot be read for certain: a gate refuses the reply. ``forced`` are the
    places in ``response_ids`` of tokens that a form decided which the request demands, not the model.
    """

    response_id: str
    model: str
    text: str
    content: str | None
    tool_calls: tuple[ToolCall, ...]
    finish_reason: str
    prompt_ids: tuple[int, ...] | None
    response_ids: tuple[int, ...] | None
    logprobs: tuple[float, ...] | None
    weights_version: int | None
    prompt_tokens: int
    completion_tokens: int
    raw: Mapping[str, Any] | None = None
    matched_stop: str | None = None
    more: tuple[Completion, ...] = ()
    unreadable: str | None = None
    forced: tuple[int, ...] = ()

    @property
    def choices(self) -> tuple[Completion, ...]:
        """Every choice, this one first."""
        return (self, *self.more)


@dataclass(frozen=True, slots=True)
class ChoiceChange:
    """One choice of a reply as a policy left it.

    ``calls`` are those that the agent may get, by their place among the calls of the model's reply; without
    ``keeps_text`` the choice says ``text`` instead, and without ``keeps_reasoning`` nothing that stands beside its text.
    """

    text: str
    keeps_text: bool
    calls: Mapping[int, ToolCall]
    keeps_reasoning: bool


#: What policies changed in a reply, by the number of the choice; the others are as the model wrote them.
Changes: TypeAlias = Mapping[int, ChoiceChange]
#: Where a text stands in a request: the names and numbers that lead to it.
Place: TypeAlias = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class StreamPiece:
    """One server-sent event of a streamed reply: ``data`` is its JSON text, without the ``data:`` prefix.

    ``raw`` is the event exactly as an upstream sent it, with all its lines; it goes to the client as it is, and then
    ``data`` may be empty. ``ends`` marks the first event that tells the client that the reply is whole; ``event`` is
    ``data`` as it was read. The last piece of
    a stream carries ``completion``, what the whole stream amounted to, and no data.
    """

    data: str = ""
    completion: Completion | None = None
    raw: bytes = b""
    ends: bool = False
    event: Mapping[str, Any] | None = None


def unclear_ids(calls: Sequence[Mapping[str, Any]]) -> str | None:
    """Why a result cannot be assigned to exactly one of ``calls``; None if it can. A legacy call has no key ``id``."""
    ids = [call["id"] for call in calls if "id" in call]
    if not all(isinstance(call_id, str) and call_id for call_id in ids):
        return "a tool call has no id"
    return "two tool calls have the same id" if len(set(ids)) < len(ids) else None


class CallIds:
    """The ids of the tool calls of one reply, by their place in it, whole or while it arrives.

    Some servers give no id, an empty one, or one id to several calls. Then the call gets a fresh one, before anybody reads
    it, and its result is sent back under that. An id that is clear stays.
    """

    __slots__ = ("_ids", "_written")

    def __init__(self) -> None:
        self._ids: dict[Hashable, str] = {}
        self._written: dict[Hashable, Any] = {}

    def __contains__(self, place_of_call: Hashable) -> bool:
        return place_of_call in self._ids

    def first(self, place_of_call: Hashable) -> str:
        """Returns the id that the server wrote first for a call; empty where it wrote none."""
        return self._written.get(place_of_call) or ""

    def of(self, place_of_call: Hashable, written: Any) -> Any:
        """Returns the id of a call for which the server wrote the id ``written``.

        A call that has another one keeps both: who reads it finds the contradiction.
        """
        if place_of_call not in self._ids:
            usable = isinstance(written, str) and written and written not in self._ids.values()
            self._written[place_of_call] = written
            self._ids[place_of_call] = written if usable else new_id("call")
        first = self._written[place_of_call]
        return self._ids[place_of_call] if not first or written == first else written

    def put(self, place_of_call: Hashable, holder: Any, key: str = "id") -> Any:
        """Returns ``holder``, the JSON of a call, with the id of the call; the same object where it has that."""
        call_id = self.of(place_of_call, holder.get(key))
        return holder if holder.get(key) == call_id else {**holder, key: call_id}


def clear_ids(written: Sequence[Any]) -> list[str]:
    """The ids of the calls of a whole reply, for which the server wrote the ids ``written``: see `CallIds`."""
    ids = CallIds()
    return [ids.of(number, call_id) for number, call_id in enumerate(written)]


def unreadable_parts(kinds: Sequence[Any], readable: Sequence[str]) -> str | None:
    """Why the calls of a reply with parts of these ``kinds`` cannot be read for certain; None if they can."""
    unknown = next((kind for kind in kinds if kind not in readable), None)
    return None if unknown is None else f"it has a part of type {shown(unknown)}"


def text_completion(
    body: Mapping[str, Any],
    response_id: str,
    texts: list[str],
    calls: list[ToolCall],
    finish: str,
    usage: Any,
    unreadable: str | None,
) -> Completion:
    """A reply as a completion without tokens; ``unreadable`` is why its calls cannot be read for certain."""
    lgov: Any = body.get("lgov")
    version = lgov.get("weights_version") if isinstance(lgov, dict) else None
    read, generated = usage.get("input_tokens"), usage.get("output_tokens")
    text = "".join(texts)
    return Completion(
        response_id=response_id,
        model=str(body.get("model") or ""),
        text=text,
        content=text if texts else None,
        tool_calls=tuple(calls),
        finish_reason=finish,
        prompt_ids=None,
        response_ids=None,
        logprobs=None,
        weights_version=version if isinstance(version, int) else None,
        prompt_tokens=read if isinstance(read, int) else 0,
        completion_tokens=generated if isinstance(generated, int) else 0,
        raw=body,
        unreadable=unreadable,
    )


def frame(content: Any, event: str | None = None) -> bytes:
    """One server-sent event whose data is ``content`` as JSON."""
    return b"%sdata: %s\n\n" % (f"event: {event}\n".encode() if event else b"", wire_bytes(content))


#: The last event of a stream of chat completions or completions.
DONE: Final = b"data: [DONE]\n\n"


async def sse_frames(parts: AsyncIterator[bytes]) -> AsyncIterator[tuple[str | None, bytes]]:
    """Server-sent events: the data of each (None where it has none), and its bytes with the blank line that ends it.

    What is left at the end without a blank line comes last, without data.
    """
    rest = b""
    frame: list[bytes] = []
    data: list[str] = []
    async for chunk in parts:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            frame.append(line)
            bare = line.removesuffix(b"\r")
            if bare.startswith(b"data:"):
                data.append(bare[5:].removeprefix(b" ").decode())
            elif not bare:
                yield "\n".join(data) if data else None, b"\n".join([*frame, b""])
                frame, data = [], []
    if rest_of_stream := b"\n".join([*frame, rest]):
        yield None, rest_of_stream


def read_event(data: str) -> dict[str, Any]:
    """The JSON object of one server-sent event. Raises `UpstreamError`."""
    event = json_object(data)
    if event is None:
        raise UpstreamError("a chunk of the upstream's stream is not a JSON object", detail=repr(data[:200]))
    return event


class Assembler:
    """Puts the events of one streamed reply together into the body that it would have had at once. For one task."""

    #: Whether the event has come that says that the reply is whole.
    finished = False
    #: Why clients may read the calls of this stream otherwise than its `body` says; None if they cannot.
    unreadable: str | None = None

    def add(self, data: str, event: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """Takes the data of one event, read as ``event`` where it has been; returns the event as clients should read it.

        That is the same object, unless a call had no clear id or place. Raises `UpstreamError` for an error or a malformed
        event.
        """
        event = read_event(data) if event is None else event
        if event.get("type") == "error" or event.get("error"):
            failure = event.get("error") or event
            reason = failure.get("message") if isinstance(failure, dict) else failure
            raise UpstreamError(f"the upstream failed in mid-stream: {reason}")
        try:
            return self._take(event)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise UpstreamError("an event of the upstream's stream is malformed", detail=repr(data[:200])) from error

    def ends_whole(self) -> bool:
        """Returns whether the reply is whole if its stream ends here: some servers do not say so in an event."""
        return self.finished

    def whole(self, events: Sequence[Mapping[str, Any]], *, ended: bool = True) -> dict[str, Any] | None:
        """The body in all ``events`` of a stream; None if it failed or did not finish.

        ``ended``: the server ended the stream there, so that nothing was cut off.
        """
        try:
            for event in events:
                self.add("", event)
        except UpstreamError:
            return None
        return self.body() if self.finished or (ended and self.ends_whole()) else None

    def body(self, *, finish_reason: str | None = None) -> dict[str, Any]:
        """The whole body so far; ``finish_reason`` replaces the stream's own."""
        raise NotImplementedError

    def _take(self, event: Mapping[str, Any]) -> Mapping[str, Any]:
        raise NotImplementedError
