"""Replies of OpenAI's Responses API, whole and as typed events, written from chat completions."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from lgov_core.errors import LgovError
from lgov_core.gateway.formats.json_body import json_text
from lgov_core.gateway.formats.reply_writer import TranslatedWriter, frame
from lgov_core.gateway.formats.turn_items import Item
from lgov_core.gateway.protocol import ChatRequest, Completion

_ECHOED: Mapping[str, Any] = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "reasoning": None,
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
_PREFIX = {"text": "msg", "reasoning": "rs", "call": "fc"}


class ResponsesWriter(TranslatedWriter):
    """Writes a Response: a reasoning item, a message and function calls, as far as the reply has them."""

    def __init__(self, request: ChatRequest, body: Mapping[str, Any], response_id: str) -> None:
        super().__init__(request, body, response_id)
        self._sequence = 0
        self._created_at = int(time.time())
        self._model = request.model

    def _event(self, kind: str, **fields: Any) -> bytes:
        event = {"type": kind, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return frame(json_text(event), kind)

    def failed(self, error: LgovError, status: int) -> bytes:
        """An ``error`` event."""
        return self._event("error", code=error.code, message=str(error), param=None)

    def _head(self) -> dict[str, Any]:
        echoed = {
            name: default if self._asked.get(name) is None else self._asked[name] for name, default in _ECHOED.items()
        }
        return {
            "id": self._response_id,
            "object": "response",
            "created_at": self._created_at,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "model": self._model,
            **echoed,
        }

    def _begin(self, model: str) -> Iterator[bytes]:
        self._model = model
        begun = {**self._head(), "status": "in_progress", "output": [], "usage": None}
        yield self._event("response.created", response=begun)
        yield self._event("response.in_progress", response=begun)

    def _item(self, what: str, item: Item, delta: str) -> Iterator[bytes]:
        if what == "open":
            item.item_id = f"{_PREFIX[item.kind]}_{self._response_id.partition('_')[2]}{item.index}"
        at = {"output_index": item.index, "item_id": item.item_id}
        if item.kind == "call":
            yield from self._call(what, item, delta, at)
            return
        part = _part(item)
        noun = part["type"]
        logprobs: dict[str, Any] = {"logprobs": []} if item.kind == "text" else {}
        at["content_index"] = 0
        if what == "open":
            begun = {**_item_body(item, "in_progress"), "content": []}
            yield self._event("response.output_item.added", output_index=item.index, item=begun)
            yield self._event("response.content_part.added", **at, part={**part, "text": ""})
        elif what == "delta":
            yield self._event(f"response.{noun}.delta", **at, delta=delta, **logprobs)
        else:
            yield self._event(f"response.{noun}.done", **at, text=item.text, **logprobs)
            yield self._event("response.content_part.done", **at, part=part)
            yield self._done(item)

    def _call(self, what: str, item: Item, delta: str, at: Mapping[str, Any]) -> Iterator[bytes]:
        if what == "open":
            begun = {**_item_body(item, "in_progress"), "arguments": ""}
            yield self._event("response.output_item.added", output_index=item.index, item=begun)
        elif what == "delta":
            yield self._event("response.function_call_arguments.delta", **at, delta=delta)
        else:
            done = {"name": item.name, "arguments": item.text}
            yield self._event("response.function_call_arguments.done", **at, **done)
            yield self._done(item)

    def _done(self, item: Item) -> bytes:
        body = _item_body(item, "completed")
        return self._event("response.output_item.done", output_index=item.index, item=body)

    def _body(self, completion: Completion, chat: Mapping[str, Any]) -> dict[str, Any]:
        reason = _INCOMPLETE.get(completion.finish_reason)
        status = "cancelled" if completion.finish_reason == "cancelled" else "incomplete" if reason else "completed"
        output = [_item_body(item, "completed" if status == "completed" else "incomplete") for item in self._turn.items]
        if "message.output_text.logprobs" in (self._asked.get("include") or ()):
            texts = [item for item in output if item["type"] == "message"]
            if len(output) == len(texts) == 1:
                texts[0]["content"][0]["logprobs"] = _logprobs(chat)
        usage = {
            "input_tokens": completion.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": completion.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": completion.prompt_tokens + completion.completion_tokens,
        }
        return {
            **self._head(),
            "status": status,
            "incomplete_details": {"reason": reason} if reason else None,
            "output": output,
            "usage": usage,
            "lgov": {"weights_version": completion.weights_version},
        }

    def _end(self, completion: Completion, body: Mapping[str, Any]) -> Iterator[bytes]:
        yield self._event(f"response.{body['status']}", response=body)


def _part(item: Item) -> dict[str, Any]:
    if item.kind == "reasoning":
        return {"type": "reasoning_text", "text": item.text}
    return {"type": "output_text", "text": item.text, "annotations": [], "logprobs": []}


def _item_body(item: Item, status: str) -> dict[str, Any]:
    if item.kind == "call":
        call = {"call_id": item.call_id, "name": item.name, "arguments": item.text}
        return {"id": item.item_id, "type": "function_call", "status": status, **call}
    if item.kind == "reasoning":
        return {"id": item.item_id, "type": "reasoning", "summary": [], "content": [_part(item)], "status": status}
    return {"id": item.item_id, "type": "message", "role": "assistant", "status": status, "content": [_part(item)]}


def _logprobs(chat: Mapping[str, Any]) -> list[dict[str, Any]]:
    content = (chat["choices"][0].get("logprobs") or {}).get("content") or ()
    return [
        {
            "token": one["token"],
            "bytes": one.get("bytes") or [],
            "logprob": one["logprob"],
            "top_logprobs": [{**top, "bytes": top.get("bytes") or []} for top in one.get("top_logprobs") or ()],
        }
        for one in content
    ]
