"""A scripted reply as a Message of Anthropic's API, whole and as events."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from lgov_core.testing.scripted_reply import ScriptedReply, halves, sse, words
from lgov_core.types import new_id


class MessageWriter:
    """Writes one reply as a Message: a text block if it has text, then a tool use for each call.

    Arguments that are not a JSON object become an empty input. ``extra`` is added to the message.
    """

    def __init__(self, reply: ScriptedReply, request: Mapping[str, Any], model: str, token_ids: bool = False) -> None:
        self._reply = reply
        blocks: list[dict[str, Any]] = [] if reply.text is None else [{"type": "text", "text": reply.text}]
        for call in reply.tool_calls:
            blocks.append({"type": "tool_use", "id": call.call_id, "name": call.name, "input": _object(call.text)})
        self._blocks = blocks
        reason = {"length": "max_tokens"}.get(reply.finish_reason or "", "tool_use" if reply.tool_calls else "end_turn")
        self._stop = {"stop_reason": reason, "stop_sequence": None}
        written = (reply.text or "") + "".join(call.text for call in reply.tool_calls)
        self._read = len(json.dumps(request.get("messages")).encode())
        self._written = len(written.encode()) + 1
        self._head = {
            "id": new_id("msg"),
            "type": "message",
            "role": "assistant",
            "model": request.get("model") or model,
        }

    def body(self) -> dict[str, Any]:
        """The message at once."""
        usage = {"input_tokens": self._read, "output_tokens": self._written}
        return {**self._head, "content": self._blocks, **self._stop, "usage": usage, **self._reply.extra}

    def frames(self) -> Iterator[str]:
        """The message as server-sent events: the text word by word, inputs in halves, a ping after the start."""
        usage = {"input_tokens": self._read, "output_tokens": 1}
        begun = {**self._head, "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        yield _frame("message_start", message=begun)
        yield _frame("ping")
        for index, block in enumerate(self._blocks):
            empty = {**block, "text": ""} if block["type"] == "text" else {**block, "input": {}}
            yield _frame("content_block_start", index=index, content_block=empty)
            for delta in _deltas(block):
                yield _frame("content_block_delta", index=index, delta=delta)
            yield _frame("content_block_stop", index=index)
        yield _frame("message_delta", delta=self._stop, usage={"output_tokens": self._written})
        yield _frame("message_stop")


def _deltas(block: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    if block["type"] == "text":
        yield from ({"type": "text_delta", "text": word} for word in words(block["text"]))
    else:
        yield from ({"type": "input_json_delta", "partial_json": part} for part in halves(json.dumps(block["input"])))


def _object(text: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _frame(kind: str, **fields: Any) -> str:
    return sse({"type": kind, **fields}, kind)
