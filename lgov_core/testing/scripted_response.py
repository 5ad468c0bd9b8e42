"""A scripted reply as an OpenAI Response, whole and as typed events."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

from lgov_core.testing.scripted_reply import ScriptedReply, halves, sse, words
from lgov_core.types import new_id

_ECHOED = ("instructions", "metadata", "previous_response_id", "temperature", "text", "top_p", "truncation", "user")


class ResponseWriter:
    """Writes one reply as a Responses object: a message item if it has text, then an item for each call.

    ``finish_reason`` ``length`` ends the response as ``incomplete``. ``extra`` is added to the object that ends it.
    """

    def __init__(self, reply: ScriptedReply, request: Mapping[str, Any], model: str, token_ids: bool = False) -> None:
        self._reply = reply
        self._incomplete = reply.finish_reason == "length"
        written = (reply.text or "") + "".join(call.text for call in reply.tool_calls)
        read = len(json.dumps(request.get("input")).encode())
        self._usage = {
            "input_tokens": read,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": len(written.encode()) + 1,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": read + len(written.encode()) + 1,
        }
        self._head: dict[str, Any] = {
            "id": new_id("resp"),
            "object": "response",
            "created_at": int(time.time()),
            "model": request.get("model") or model,
            "error": None,
            "incomplete_details": None,
            "parallel_tool_calls": request.get("parallel_tool_calls", True),
            "tool_choice": request.get("tool_choice", "auto"),
            "tools": request.get("tools") or [],
            "store": request.get("store", True),
            **{name: request.get(name) for name in _ECHOED},
        }
        self._items = list(self._output())
        self._sequence = 0

    def _output(self) -> Iterator[dict[str, Any]]:
        status = "incomplete" if self._incomplete else "completed"
        if self._reply.text is not None:
            part = {"type": "output_text", "text": self._reply.text, "annotations": [], "logprobs": []}
            yield {
                "id": new_id("msg"), "type": "message", "role": "assistant", "status": status, "content": [part]
            }  # fmt: skip
        for call in self._reply.tool_calls:
            yield {
                "id": new_id("fc"),
                "type": "function_call",
                "status": status,
                "call_id": call.call_id,
                "name": call.name,
                "arguments": call.text,
            }

    def body(self) -> dict[str, Any]:
        """The response at once."""
        ended = {"status": "completed", "output": self._items, "usage": self._usage}
        if self._incomplete:
            ended |= {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
        return {**self._head, **ended, **self._reply.extra}

    def frames(self) -> Iterator[str]:
        """The response as server-sent events, in the order of the real API: the text word by word, arguments in halves."""
        begun = {**self._head, "status": "in_progress", "output": [], "usage": None}
        yield self._frame("response.created", response=begun)
        yield self._frame("response.in_progress", response=begun)
        for index, item in enumerate(self._items):
            yield from self._message(index, item) if item["type"] == "message" else self._call(index, item)
        yield self._frame("response.incomplete" if self._incomplete else "response.completed", response=self.body())

    def _message(self, index: int, item: Mapping[str, Any]) -> Iterator[str]:
        (part,) = item["content"]
        at = {"output_index": index, "item_id": item["id"], "content_index": 0}
        started = {**item, "status": "in_progress", "content": []}
        yield self._frame("response.output_item.added", output_index=index, item=started)
        yield self._frame("response.content_part.added", **at, part={**part, "text": ""})
        for word in words(part["text"]):
            yield self._frame("response.output_text.delta", **at, delta=word, logprobs=[])
        yield self._frame("response.output_text.done", **at, text=part["text"], logprobs=[])
        yield self._frame("response.content_part.done", **at, part=part)
        yield self._frame("response.output_item.done", output_index=index, item=item)

    def _call(self, index: int, item: Mapping[str, Any]) -> Iterator[str]:
        at = {"output_index": index, "item_id": item["id"]}
        started = {**item, "status": "in_progress", "arguments": ""}
        yield self._frame("response.output_item.added", output_index=index, item=started)
        for part in halves(item["arguments"]):
            yield self._frame("response.function_call_arguments.delta", **at, delta=part)
        yield self._frame("response.function_call_arguments.done", **at, name=item["name"], arguments=item["arguments"])
        yield self._frame("response.output_item.done", output_index=index, item=item)

    def _frame(self, kind: str, **fields: Any) -> str:
        event = {"type": kind, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return sse(event, kind)
