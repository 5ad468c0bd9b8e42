"""The events of a streamed Response put together, and compared with the Response that ends the stream."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from lgov_core.wire.sse import Assembler

#: Where in an item a text is: the field, and the number of the part.
_Place: TypeAlias = tuple[str, Any]


class ResponsesAssembler(Assembler):
    """The events of one Response. It is unreadable if a client could find another call or text in the events."""

    def __init__(self) -> None:
        self._body: dict[str, Any] = {}
        self._items: dict[int, dict[str, Any]] = {}
        self._said: list[tuple[int, _Place, Any]] = []
        self._grown: dict[tuple[int, _Place], str] = {}

    def _take(self, event: Mapping[str, Any]) -> None:
        kind, at = str(event.get("type")), event.get("output_index")
        if isinstance(event.get("response"), dict):
            self._body = dict(event["response"])
            self.finished = kind in ("response.completed", "response.incomplete", "response.failed")
            if self.finished and not self._agrees(self._body.get("output")):
                self.unreadable = "the events of its stream say something else than its end"
        elif isinstance(at, int):
            self._take_part(kind, at, event)

    def _take_part(self, kind: str, at: int, event: Mapping[str, Any]) -> None:
        item: dict[str, Any]
        if isinstance(event.get("item"), dict):
            item = self._items[at] = dict(event["item"])
            self._said.append((at, ("call", 0), _call(item)))
            if kind.endswith(".done"):
                self._said += [(at, place, text) for place, text in _texts(item)]
            else:
                self._grown |= {(at, place): text for place, text in _texts(item)}
            return
        name = next((name for name in ("content", "summary") if f"{name}_index" in event), "arguments")
        number = event.get(f"{name}_index", 0)
        if not isinstance(number, int):
            raise TypeError("a part without a number")
        place = (name, number)
        text = _text({**event, **(event.get("part") or {})})
        if kind.endswith(".done"):
            self._said.append((at, place, text))
        elif isinstance(text, str):
            self._grown[at, place] = self._grown.get((at, place), "") + text

    def _agrees(self, output: Any) -> bool:
        final: dict[tuple[int, _Place], Any] = {}
        for at, item in enumerate(output if isinstance(output, list) else ()):
            final |= {(at, place): text for place, text in _texts(item)} | {(at, ("call", 0)): _call(item)}
        said = [*self._said, *((at, place, text) for (at, place), text in self._grown.items() if text)]
        return all(final.get((at, place), "") == text for at, place, text in said)

    def body(self, *, finish_reason: str | None = None) -> dict[str, Any]:
        """The Response that ended the stream, or what its events amount to."""
        if self.finished and finish_reason is None:
            return self._body
        for (at, (name, number)), text in sorted(self._grown.items()):
            item = self._items.get(at, {})
            if item.get("type") == "function_call" and name == "arguments":
                item[name] = item.get(name) or text
            elif item.get("type") == "message" and len(parts := item.setdefault("content", [])) <= number:
                parts.append({"type": "output_text", "text": text, "annotations": []})
        output = [item for _, item in sorted(self._items.items())]
        return {**self._body, "output": output, **({} if finish_reason is None else {"status": finish_reason})}


def _call(item: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(item.get(name) for name in ("type", "call_id", "name"))


def _texts(item: Mapping[str, Any]) -> Iterator[tuple[_Place, Any]]:
    if item.get("arguments") is not None:
        yield ("arguments", 0), item["arguments"]
    for name in ("content", "summary"):
        for number, part in enumerate(item.get(name) or ()):
            yield (name, number), _text(part)


def _text(holder: Mapping[str, Any]) -> Any:
    return next((holder[name] for name in ("delta", "text", "arguments", "refusal") if holder.get(name)), "")
