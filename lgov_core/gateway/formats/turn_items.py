"""A chat reply taken apart into items that follow one another: reasoning, text, calls.

Chat completions may send pieces of several calls in turns; the Responses and the Messages API have one item open at a
time. What cannot go out yet is kept until the items before it are closed, so nothing is reordered within an item.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from lgov_core.gateway.formats.stream_assembler import begins_another, longer_name
from lgov_core.types import new_id

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
        for place, part in enumerate(message.get("tool_calls") or ()):
            yield from self._call(part, place if (index := part.get("index")) is None else index)

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

    def _call(self, part: Mapping[str, Any], place: int) -> Iterator[ItemEvent]:
        function: Mapping[str, Any] = part.get("function") or {}
        item = self._call_items.get(place)
        if item is None or begins_another(part, item.call_id):
            item = self._call_items[place] = Item("call", -1)
            self._waiting.append(item)
        item.call_id = item.call_id or part.get("id") or ""
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
