"""Replies of Anthropic's Messages API, whole and as events, written from chat completions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lgov_core.errors import LgovError
from lgov_core.gateway.formats.json_body import json_text
from lgov_core.gateway.formats.reply_writer import TranslatedWriter, frame
from lgov_core.gateway.formats.turn_items import Item
from lgov_core.gateway.protocol import Completion
from lgov_core.models.tool_text import load_object

#: Arguments that are no JSON object, as the model wrote them: the API has no other place for them.
INVALID_JSON = "INVALID_JSON"

_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_STOP_REASONS = {"length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal", "cancelled": None}


def messages_error(error: LgovError, status: int) -> dict[str, Any]:
    """An error in Anthropic's shape."""
    kind = _ERROR_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": str(error)}}


class MessagesWriter(TranslatedWriter):
    """Writes a Message: a thinking block, text and tool uses, as far as the reply has them.

    The input of a tool use is sent whole, since it has to be known whether it is an object; arguments that are none are
    handed on as ``{"INVALID_JSON": <text>}``, and read back as that text.
    """

    _model = ""

    def failed(self, error: LgovError, status: int) -> bytes:
        """An ``error`` event."""
        return frame(json_text(messages_error(error, status)), "error")

    def _event(self, kind: str, **fields: Any) -> bytes:
        return frame(json_text({"type": kind, **fields}), kind)

    def _begin(self, model: str) -> Iterator[bytes]:
        self._model = model
        # The prompt's length is known at the end only, and reported there.
        begun = {**self._head(), "content": [], "stop_reason": None, "usage": _usage(0, 0)}
        yield self._event("message_start", message=begun)

    def _head(self) -> dict[str, Any]:
        head = {"id": self._response_id, "type": "message", "role": "assistant", "model": self._model}
        return {**head, "stop_sequence": None}

    def _item(self, what: str, item: Item, delta: str) -> Iterator[bytes]:
        at = {"index": item.index}
        if what == "open":
            block = _block(Item(item.kind, item.index, "", item.call_id, item.name))
            yield self._event("content_block_start", **at, content_block=block)
        elif what == "delta" and item.kind != "call":
            kind = "text" if item.kind == "text" else "thinking"
            yield self._event("content_block_delta", **at, delta={"type": f"{kind}_delta", kind: delta})
        elif what == "close":
            if item.kind == "call":
                written = {"type": "input_json_delta", "partial_json": json_text(_input(item))}
                yield self._event("content_block_delta", **at, delta=written)
            yield self._event("content_block_stop", **at)

    def _body(self, completion: Completion, chat: Mapping[str, Any]) -> dict[str, Any]:
        stop_reason = _STOP_REASONS.get(completion.finish_reason, "end_turn")
        matched = completion.matched_stop if stop_reason == "end_turn" else None
        matched = matched if matched in self._request.stop else None
        return {
            **self._head(),
            "content": [_block(item) for item in self._turn.items],
            "stop_reason": "stop_sequence" if matched else stop_reason,
            "stop_sequence": matched,
            "usage": _usage(completion.prompt_tokens, completion.completion_tokens),
            "lgov": {"weights_version": completion.weights_version},
        }

    def _end(self, completion: Completion, body: Mapping[str, Any]) -> Iterator[bytes]:
        stop = {"stop_reason": body["stop_reason"], "stop_sequence": body["stop_sequence"]}
        yield self._event("message_delta", delta=stop, usage=body["usage"], lgov=body["lgov"])
        yield self._event("message_stop")


def _input(item: Item) -> dict[str, Any]:
    if not item.text.strip():
        return {}
    value = load_object(item.text)
    return {INVALID_JSON: item.text} if value is None else value


def _block(item: Item) -> dict[str, Any]:
    if item.kind == "call":
        return {"type": "tool_use", "id": item.call_id, "name": item.name, "input": _input(item)}
    if item.kind == "reasoning":
        return {"type": "thinking", "thinking": item.text, "signature": ""}
    return {"type": "text", "text": item.text}


def _usage(prompt: int, generated: int) -> dict[str, int]:
    caches = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
    return {"input_tokens": prompt, **caches, "output_tokens": generated}
