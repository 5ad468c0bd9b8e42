"""How a reply goes out: passed on as the engine wrote it, or written in another API from chat completions.

Chat completions may send pieces of several calls in turns; the Responses and the Messages API have one item open at a
time. What cannot go out yet is kept until the items before it are closed, so nothing is reordered within an item.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from lgov_core.errors import LgovError, UpstreamError
from lgov_core.types import new_id
from lgov_core.wire.chat import completion_body, read_completion
from lgov_core.wire.chat_turns import ChatAssembler, begins_another, longer_name
from lgov_core.wire.exchange import DONE, Assembler, ChatRequest, Completion, StreamPiece, frame, read_event

# A chunk with a finish reason tells the client that it has everything, so it is held until the call is recorded.
_FINISHES = re.compile(r'"finish_reason"\s*:\s*"[^"]')

ErrorBody = Callable[[LgovError, int], Mapping[str, Any]]


class ReplyWriter(Protocol):
    """Writes one reply in one API's form, for one task. The client sees nothing but what it returns."""

    def piece(self, piece: StreamPiece) -> tuple[bytes, bool]:
        """Returns the bytes for a piece of the engine's stream, and whether it tells the client that the reply is whole."""
        ...

    def settle(self, completion: Completion) -> tuple[Completion, Mapping[str, Any], bytes]:
        """The call as it is recorded, the reply's whole body, and the bytes that end its stream. Called once."""
        ...

    def so_far(self) -> Completion:
        """Returns the reply in the pieces so far, as cancelled. Raises `UpstreamError` when nothing with an id has come."""
        ...

    def failed(self, error: LgovError, status: int) -> bytes:
        """The event that ends a stream that failed."""
        ...


class PassedOn:
    """Passes on what the engine wrote in the API that was asked: its events as they are, its body as it is."""

    def __init__(
        self,
        request: ChatRequest,
        read: Callable[[Mapping[str, Any]], Completion],
        assembler: Callable[[int], Assembler],
        error_body: ErrorBody,
        *,
        event: str | None = None,
    ) -> None:
        self._request = request
        self._read = read
        self._assembler = assembler
        self._error_body = error_body
        self._event = event
        self._left = request.n
        self._raw = False
        self._seen: list[str] = []

    def piece(self, piece: StreamPiece) -> tuple[bytes, bool]:
        """The event, byte for byte where the engine kept it."""
        if piece.data:
            self._seen.append(piece.data)
        if piece.raw:
            self._raw = True
            return piece.raw, piece.ends
        self._left -= len(_FINISHES.findall(piece.data))
        return b"data: %s\n\n" % piece.data.encode("utf-8", "backslashreplace"), piece.ends or self._left <= 0

    def settle(self, completion: Completion) -> tuple[Completion, Mapping[str, Any], bytes]:
        """The completion and its body as they are; an engine that does not write events itself gets its ``[DONE]``."""
        return completion, completion_body(completion, self._request.body), b"" if self._raw else DONE

    def so_far(self) -> Completion:
        """The pieces put together as the API's whole reply."""
        assembler = self._assembler(self._request.n)
        for data in self._seen:
            if data.strip() != "[DONE]":
                assembler.add(data)
        return self._read(assembler.body(finish_reason="cancelled"))

    def failed(self, error: LgovError, status: int) -> bytes:
        """The error as an event."""
        return frame(self._error_body(error, status), self._event)


class ChunkWriter(ReplyWriter):
    """The part that writers of other APIs share: chat chunks in, events of the API out. For one task."""

    def __init__(self, request: ChatRequest, body: Mapping[str, Any], response_id: str) -> None:
        self._request = request
        self._asked = body
        self._response_id = response_id
        self._assembler = ChatAssembler(request.n)

    def piece(self, piece: StreamPiece) -> tuple[bytes, bool]:
        """The events that a chat chunk becomes. The end of the reply is never among them."""
        if not piece.data or piece.data.strip() == "[DONE]":
            return b"", False
        return self._events(self._assembler.add(piece.data, piece.event)), False

    def so_far(self) -> Completion:
        """The chunks up to now, as a chat reply."""
        return read_completion(self._assembler.body(finish_reason="cancelled"))

    def _events(self, chunk: Mapping[str, Any]) -> bytes:
        raise NotImplementedError


class TranslatedWriter(ChunkWriter):
    """Writes the items of one choice, one after the other; subclasses say how."""

    def __init__(self, request: ChatRequest, body: Mapping[str, Any], response_id: str) -> None:
        super().__init__(request, body, response_id)
        self._turn = TurnItems()
        self._begun = False

    def _events(self, chunk: Mapping[str, Any]) -> bytes:
        written = b"".join(self._first(str(chunk.get("model") or self._request.model)))
        for choice in chunk.get("choices") or ():
            if choice.get("index", 0) == 0:
                written += self._items(self._turn.feed(choice.get("delta") or {}))
        return written

    def settle(self, completion: Completion) -> tuple[Completion, Mapping[str, Any], bytes]:
        """The call under the id that the client knows, its body, and the events that close it."""
        chat = completion_body(completion, {**self._request.body, "stream": None})
        written = b"".join(self._first(completion.model or self._request.model))
        if not self._turn.items:  # it was not streamed
            written += self._items(self._turn.feed(chat["choices"][0]["message"]))
        written += self._items(self._turn.finish())
        calls = [item for item in self._turn.items if item.kind == "call"]
        named = tuple(
            replace(call, call_id=call.call_id or item.call_id)
            for call, item in zip(completion.tool_calls, calls, strict=False)
        )
        completion = replace(completion, response_id=self._response_id, tool_calls=named)
        body = self._body(completion, chat)
        return completion, body, written + b"".join(self._end(completion, body))

    def _first(self, model: str) -> Iterator[bytes]:
        if not self._begun:
            self._begun = True
            yield from self._begin(model)

    def _items(self, events: Iterator[ItemEvent]) -> bytes:
        return b"".join(data for event in events for data in self._item(event.what, event.item, event.delta))

    def _begin(self, model: str) -> Iterator[bytes]:
        raise NotImplementedError

    def _item(self, what: str, item: Item, delta: str) -> Iterator[bytes]:
        raise NotImplementedError

    def _end(self, completion: Completion, body: Mapping[str, Any]) -> Iterator[bytes]:
        raise NotImplementedError

    def _body(self, completion: Completion, chat: Mapping[str, Any]) -> dict[str, Any]:
        raise NotImplementedError


def text_in(piece: StreamPiece) -> str | None:
    """The text in a chat chunk of the first choice that has nothing else; None for any other piece."""
    try:
        choices = (read_event(piece.data) if piece.event is None else piece.event)["choices"]
        deltas = [choice["delta"] for choice in choices if not choice.get("index") and not choice.get("finish_reason")]
        if not choices or len(deltas) < len(choices):
            return None
        if any(value and not isinstance(value, str) for delta in deltas for value in delta.values()):
            return None
        return "".join(delta.get("content") or "" for delta in deltas)
    except (UpstreamError, LookupError, TypeError, AttributeError):
        return None


Kind = Literal["reasoning", "text", "call"]
_REASONING = ("reasoning_content", "reasoning")


@dataclass(slots=True, eq=False)
class Item:
    """One item: what it is, what was written of it so far, and of a call its id and name."""

    kind: Kind
    index: int
    text: str = ""
    call_id: str = ""
    name: str = ""
    item_id: str = field(default="")


@dataclass(frozen=True, slots=True)
class ItemEvent:
    """An item began (``open``), grew by ``delta``, or is complete (``close``)."""

    what: Literal["open", "delta", "close"]
    item: Item
    delta: str = ""


class TurnItems:
    """The items of one choice, in the order in which they go out. For one task."""

    __slots__ = ("_call_items", "_live", "_waiting", "items")

    def __init__(self) -> None:
        self.items: list[Item] = []  # those that have begun
        self._live: Item | None = None
        self._call_items: dict[int, Item] = {}
        self._waiting: list[Item] = []

    def feed(self, message: Mapping[str, Any]) -> Iterator[ItemEvent]:
        """Takes the delta of a chunk, or the message of a whole reply."""
        reasoning = next((message[key] for key in _REASONING if isinstance(message.get(key), str)), "")
        if reasoning:
            yield from self._write("reasoning", reasoning)
        content = message.get("content")
        if isinstance(content, str) and content:
            yield from self._write("text", content)
        for position, piece in enumerate(message.get("tool_calls") or ()):
            yield from self._call(piece, position if (index := piece.get("index")) is None else index)

    def finish(self) -> Iterator[ItemEvent]:
        """Closes what is open and sends what waited."""
        yield from self._close()
        for item in self._waiting:
            yield from self._open(item)
            yield from self._close()
        self._waiting.clear()

    def _write(self, kind: Kind, text: str) -> Iterator[ItemEvent]:
        live = self._live
        if live is not None and live.kind == kind:
            yield from self._grow(live, text)
        elif live is not None and live.kind == "call":
            if self._waiting and self._waiting[-1].kind == kind:
                self._waiting[-1].text += text
            else:
                self._waiting.append(Item(kind, -1, text))
        else:
            yield from self._close()
            yield from self._open(Item(kind, -1, text))

    def _call(self, piece: Mapping[str, Any], index: int) -> Iterator[ItemEvent]:
        function: Mapping[str, Any] = piece.get("function") or {}
        item = self._call_items.get(index)
        if item is None or begins_another(piece, item.call_id):
            item = self._call_items[index] = Item("call", -1)
            self._waiting.append(item)
        item.call_id = item.call_id or piece.get("id") or ""
        item.name = longer_name(item.name, function.get("name") or "")
        arguments = function.get("arguments") or ""
        if item is self._live:
            if arguments:
                yield from self._grow(item, arguments)
            return
        item.text += arguments
        can_begin = self._live is None or self._live.kind != "call"
        # The arguments say that the name is whole: it may come in pieces, and goes out once.
        if can_begin and self._waiting[0] is item and item.name and item.call_id and item.text:
            self._waiting.pop(0)
            yield from self._close()
            yield from self._open(item)

    def _open(self, item: Item) -> Iterator[ItemEvent]:
        item.index = len(self.items)
        if item.kind == "call" and not item.call_id:
            item.call_id = new_id("call")
        self.items.append(item)
        self._live = item
        written, item.text = item.text, ""
        yield ItemEvent("open", item)
        if written:
            yield from self._grow(item, written)

    @staticmethod
    def _grow(item: Item, text: str) -> Iterator[ItemEvent]:
        item.text += text
        yield ItemEvent("delta", item, text)

    def _close(self) -> Iterator[ItemEvent]:
        if self._live is not None:
            item, self._live = self._live, None
            yield ItemEvent("close", item)
