"""The typed events of a streamed Response: put together, compared with the Response that ends the stream, and written.

Several events hold the same finished call, and a program may act on any of them. So the events of calls are never passed
on by an adapter: they are written anew from the response that was evaluated.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias, cast

from lgov_core._util.json_text import wire_text
from lgov_core.wire.exchange import Assembler, CallIds
from lgov_core.wire.turns import JSON, text_of

#: Calls that the model's server runs itself, where they have no call id.
HOSTED = frozenset(
    f"{kind}_call"
    for kind in ("web_search", "file_search", "code_interpreter", "image_generation", "mcp", "tool_search")
)
#: Where in an item a text is: the field, and the number of the part.
_Place: TypeAlias = tuple[str, Any]


def with_call_id(item: JSON, ids: CallIds, number: int) -> JSON:
    """The item of an output at position ``number`` with the id of its call, if it is one that a program answers."""
    kind = str(item.get("type"))
    if kind == "mcp_approval_request":
        return ids.put(number, item)
    if not kind.endswith("_call") or (item.get("call_id") is None and kind in HOSTED):
        return item
    return ids.put(number, item, "call_id")


def with_call_ids(reply: JSON, ids: CallIds | None = None) -> JSON:
    """``reply`` with clear ids of its calls: see `CallIds`. The same object where they are."""
    output, ids = reply.get("output") or (), CallIds() if ids is None else ids
    items = [with_call_id(item, ids, number) for number, item in enumerate(output)]
    return reply if all(map(operator.is_, items, output)) else {**reply, "output": items}


class ResponsesAssembler(Assembler):
    """The events of one Response. It is unreadable if a client could find another call or text in the events."""

    def __init__(self) -> None:
        self._body: dict[str, Any] = {}
        self._items: dict[int, dict[str, Any]] = {}
        self._done: dict[int, dict[str, Any]] = {}
        self._said: list[tuple[int, _Place, Any]] = []
        self._grown: dict[tuple[int, _Place], str] = {}
        self._ids = CallIds()

    def _take(self, event: Mapping[str, Any]) -> Mapping[str, Any]:
        kind, at = str(event.get("type")), event.get("output_index")
        if isinstance(event.get("response"), dict):
            response = with_call_ids(event["response"], self._ids)
            event = event if response is event["response"] else {**event, "response": response}
            self._body = dict(event["response"])
            if not self._body.get("output") and kind in _LAST:  # some servers leave the items out of the last event
                self._body["output"] = [item for _, item in sorted(self._done.items())]
            self.finished = kind in ("response.completed", "response.incomplete", "response.failed")
            if self.finished and not self._agrees(self._body.get("output")):
                self.unreadable = "the events of its stream say something else than its end"
        elif isinstance(at, int):
            if isinstance(item := event.get("item"), dict):
                clear = with_call_id(cast("JSON", item), self._ids, at)
                event = event if clear is item else {**event, "item": clear}
            self._take_part(kind, at, event)
        return event

    def _take_part(self, kind: str, at: int, event: Mapping[str, Any]) -> None:
        item: dict[str, Any]
        if isinstance(event.get("item"), dict):
            item = self._items[at] = dict(event["item"])
            self._said.append((at, ("call", 0), _identity(item)))
            if kind.endswith(".done"):
                self._done[at] = event["item"]
                self._said += [(at, key, text) for key, text in _texts(item)]
            else:
                self._grown |= {(at, key): text for key, text in _texts(item)}
            return
        name = next((name for name in ("content", "summary") if f"{name}_index" in event), "arguments")
        number = event.get(f"{name}_index", 0)
        if not isinstance(number, int):
            raise TypeError("a part without a number")
        key = (name, number)
        text = _text({**event, **(event.get("part") or {})})
        if kind.endswith(".done"):
            self._said.append((at, key, text))
        elif isinstance(text, str):
            self._grown[at, key] = self._grown.get((at, key), "") + text

    def _agrees(self, output: Any) -> bool:
        final: dict[tuple[int, _Place], Any] = {}
        for at, item in enumerate(output if isinstance(output, list) else ()):
            final |= {(at, key): text for key, text in _texts(item)} | {(at, ("call", 0)): _identity(item)}
        events = [*self._said, *((at, key, text) for (at, key), text in self._grown.items() if text)]
        return all(final.get((at, key), "") == text for at, key, text in events)

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


def _identity(item: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(item.get(name) for name in ("type", "call_id", "name"))


def _texts(item: Mapping[str, Any]) -> Iterator[tuple[_Place, Any]]:
    if item.get("arguments") is not None:
        yield ("arguments", 0), item["arguments"]
    for name in ("content", "summary"):
        for number, content_part in enumerate(item.get(name) or ()):
            yield (name, number), _text(content_part)


def _text(holder: Mapping[str, Any]) -> Any:
    return next((holder[name] for name in ("delta", "text", "arguments", "refusal") if holder.get(name)), "")


_LAST = ("response.completed", "response.incomplete")
_HEADS = ("response.created", "response.queued", "response.in_progress")
_OF_ITEMS = ("response.output_item.added", "response.output_item.done")
_TEXT_ITEMS = ("message", "reasoning")
#: How the types of events within such items begin.
_TEXTS = ("response.content_part.", "response.output_text.", "response.refusal.", "response.reasoning")


def is_text(event: JSON) -> bool:
    """Returns whether an event holds only text: no call, and not the end of the reply."""
    kind = str(event.get("type"))
    if kind in _HEADS:
        return not (event.get("response") or {}).get("output")
    if kind in _OF_ITEMS:
        return (event.get("item") or {}).get("type") in _TEXT_ITEMS
    return kind.startswith(_TEXTS)


def passed_items(events: Sequence[JSON]) -> list[JSON]:
    """The items in events that hold only text, in order; the last one may have ended early."""
    items: dict[int, JSON] = {}
    for event in events:
        if event["type"] in _OF_ITEMS:
            items[event["output_index"]] = event["item"]
        elif event["type"] == "response.output_text.delta":
            item = items.get(event["output_index"]) or {"type": "message", "role": "assistant", "status": "incomplete"}
            content_part = {
                "type": "output_text",
                "text": text_of(item.get("content")) + event["delta"],
                "annotations": [],
            }
            items[event["output_index"]] = {**item, "content": [content_part]}
    return [items[index] for index in sorted(items)]


def stream_of(body: JSON, reply: JSON, events: Sequence[JSON], passed: Sequence[JSON] = ()) -> str:
    """``reply`` as the events of any request, without those that were ``passed``.

    An item that is unchanged and not a call keeps its own ``events``.
    """
    frames: list[JSON] = []
    heads = [event for event in events if event.get("type") in ("response.created", "response.in_progress")]
    begun = {**reply, "status": "in_progress", "output": [], "usage": None}
    for kind in [event["type"] for event in heads] or ["response.created", "response.in_progress"]:
        frames.append({"type": kind, "response": begun})
    ended = {
        event["output_index"]: event["item"] for event in events if event.get("type") == "response.output_item.done"
    }
    for index, item in enumerate(reply["output"]):
        before = next((at for at, earlier in ended.items() if earlier == item and not _is_call(item)), None)
        own = [event for event in events if before is not None and event.get("output_index") == before]
        if own and "_call" not in json.dumps([(event["type"], (event.get("item") or {}).get("type")) for event in own]):
            frames.extend({**event, "output_index": index} for event in own)
        else:
            frames.extend(_events_of(index, item))
    last = "response.incomplete" if reply.get("status") == "incomplete" else "response.completed"
    frames.append({"type": last, "response": reply})
    return "".join(
        f"event: {frame['type']}\ndata: {wire_text({**frame, 'sequence_number': number})}\n\n"
        for number, frame in enumerate(_after(passed, frames), len(passed))
    )


def _after(passed: Sequence[JSON], frames: Sequence[JSON]) -> Iterator[JSON]:
    """``frames`` without those that were passed; of a text in pieces, what follows the pieces that were."""
    done = {_place(event) for event in passed}
    passed_texts: dict[Any, str] = {}
    for event in passed:
        if "delta" in event:
            passed_texts[_place(event)] = passed_texts.get(_place(event), "") + event["delta"]
    for frame in frames:
        key = _place(frame)
        if before := passed_texts.get(key):
            passed_texts[key], frame = (
                before[len(frame["delta"]) :],
                {**frame, "delta": frame["delta"][len(before) :]},
            )
            if frame["delta"]:
                yield {**frame, "logprobs": []} if "logprobs" in frame else frame
        elif key not in done or key in passed_texts:
            yield frame


def _place(event: JSON) -> Any:
    names = ("output_index", "content_index", "summary_index", "annotation_index")
    return event["type"], *(event.get(name) for name in names)


def _is_call(item: Mapping[str, Any]) -> bool:
    return str(item.get("type")).endswith("_call") or item.get("type") == "mcp_approval_request"


def _events_of(index: int, item: JSON) -> Iterator[JSON]:
    kind = item.get("type")
    at = {"output_index": index, "item_id": item.get("id")}
    if kind == "message":
        yield _added(index, {**item, "status": "in_progress", "content": []})
        for position, content_part in enumerate(item.get("content") or ()):
            yield from _part_events({**at, "content_index": position}, content_part)
    elif kind == "function_call":
        yield _added(index, {**item, "status": "in_progress", "arguments": ""})
        yield {"type": "response.function_call_arguments.delta", **at, "delta": item["arguments"]}
        yield {
            "type": "response.function_call_arguments.done", **at, "name": item["name"], "arguments": item["arguments"]
        }  # fmt: skip
    elif kind == "custom_tool_call":
        yield _added(index, {**item, "input": ""})
        yield {"type": "response.custom_tool_call_input.delta", **at, "delta": item["input"]}
        yield {"type": "response.custom_tool_call_input.done", **at, "input": item["input"]}
    else:
        yield _added(index, item)
    yield {"type": "response.output_item.done", "output_index": index, "item": item}


def _added(index: int, item: JSON) -> JSON:
    return {"type": "response.output_item.added", "output_index": index, "item": item}


def _part_events(at: JSON, content_part: JSON) -> Iterator[JSON]:
    key = "refusal" if content_part.get("type") == "refusal" else "text"
    name = "response.refusal" if key == "refusal" else "response.output_text"
    logprobs: JSON = {} if key == "refusal" else {"logprobs": content_part.get("logprobs") or []}
    yield {"type": "response.content_part.added", **at, "part": {**content_part, key: ""}}
    yield {"type": f"{name}.delta", **at, "delta": content_part.get(key) or "", **logprobs}
    yield {"type": f"{name}.done", **at, key: content_part.get(key) or "", **logprobs}
    yield {"type": "response.content_part.done", **at, "part": content_part}
