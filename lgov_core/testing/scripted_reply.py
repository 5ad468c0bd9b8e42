"""What a scripted model answers, and how that looks in OpenAI's JSON."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lgov_core.types import new_id


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    """A tool call in a reply. ``arguments`` is an object, or the text itself (which may be broken JSON)."""

    name: str
    arguments: Mapping[str, Any] | str = field(default_factory=dict[str, Any])
    call_id: str = field(default_factory=lambda: new_id("call"))

    @property
    def text(self) -> str:
        """The arguments as JSON text."""
        return self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments)


@dataclass(frozen=True, slots=True)
class ScriptedReply:
    """One answer of the scripted model.

    ``status`` other than 200 answers with an error whose message is ``text``. ``body`` is sent instead of the JSON
    (with ``content_type``). The reply comes after ``delay_s`` seconds and once ``gate`` is set; for a streamed reply
    the gate stands before chunk number ``gate_at``. ``cut_at`` breaks the connection of a streamed reply off before
    that chunk. ``finish_reason`` is ``tool_calls`` or ``stop`` unless given. ``extra`` is added to the body (each
    chunk, if streamed).
    """

    text: str | None = None
    tool_calls: Sequence[ScriptedCall] = ()
    finish_reason: str | None = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    body: bytes | None = None
    content_type: str = "application/json"
    delay_s: float = 0.0
    gate: threading.Event | None = None
    gate_at: int = 0
    cut_at: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])


def call(name: str, arguments: str | None = None, /, **values: Any) -> ScriptedReply:
    """A reply that is one tool call, with the given values or the given arguments text."""
    return ScriptedReply(tool_calls=[ScriptedCall(name, values if arguments is None else arguments)])


def token_logprob(token_id: int) -> float:
    """The logprob that the scripted model gives a token."""
    return -0.01 * (token_id % 50 + 1)


class ReplyWriter:
    """Writes one reply as OpenAI JSON, whole or in chunks."""

    def __init__(self, reply: ScriptedReply, request: Mapping[str, Any], model: str, token_ids: bool) -> None:
        self._reply = reply
        self._request = request
        calls = [{"name": call.name, "arguments": call.text} for call in reply.tool_calls]
        generated = (reply.text or "") + "".join(json.dumps(call) for call in calls)
        self._response_ids = [*generated.encode(), 256]
        self._prompt_ids = list(json.dumps(request.get("messages")).encode())
        self._with_ids = token_ids and bool(request.get("return_token_ids"))
        self._with_logprobs = bool(request.get("logprobs"))
        self._finish_reason = reply.finish_reason or ("tool_calls" if calls else "stop")
        self._head = {"id": new_id("chatcmpl"), "created": int(time.time()), "model": request.get("model") or model}
        self._usage = {
            "prompt_tokens": len(self._prompt_ids),
            "completion_tokens": len(self._response_ids),
            "total_tokens": len(self._prompt_ids) + len(self._response_ids),
        }

    def _logprobs(self, ids: Sequence[int]) -> dict[str, Any] | None:
        if not self._with_logprobs:
            return None
        content = [
            {"token": chr(token) if token < 128 else "\ufffd", "logprob": token_logprob(token), "bytes": None}
            for token in ids
        ]
        return {"content": [{**item, "top_logprobs": []} for item in content]}

    def body(self) -> dict[str, Any]:
        """The reply at once."""
        calls = [
            {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.text}}
            for call in self._reply.tool_calls
        ]
        message = {"role": "assistant", "content": self._reply.text, **({"tool_calls": calls} if calls else {})}
        choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": self._finish_reason}
        choice["logprobs"] = self._logprobs(self._response_ids)
        body = {**self._head, "object": "chat.completion", "choices": [choice], "usage": self._usage}
        if self._with_ids:
            choice["token_ids"] = self._response_ids
            body["prompt_token_ids"] = self._prompt_ids
        return {**body, **self._reply.extra}

    def chunks(self) -> Iterator[str]:
        """The reply in pieces: the text word by word, each call's name, then its arguments in two halves."""
        yield self._chunk({"role": "assistant", "content": ""}, first=True)
        left = list(self._response_ids)
        for word in (self._reply.text or "").split(" ") if self._reply.text else ():
            word = word if len(left) == len(self._response_ids) else f" {word}"
            size = len(word.encode())
            yield self._chunk({"content": word}, ids=left[:size])
            del left[:size]
        for index, call in enumerate(self._reply.tool_calls):
            half = len(call.text) // 2
            head = {"index": index, "id": call.call_id, "type": "function", "function": {"name": call.name}}
            yield self._chunk({"tool_calls": [head]})
            for part in (call.text[:half], call.text[half:]):
                yield self._chunk({"tool_calls": [{"index": index, "function": {"arguments": part}}]})
        yield self._chunk({}, ids=left, finish_reason=self._finish_reason)
        if (self._request.get("stream_options") or {}).get("include_usage"):
            yield json.dumps({**self._head, "object": "chat.completion.chunk", "choices": [], "usage": self._usage})

    def _chunk(
        self,
        delta: Mapping[str, Any],
        *,
        ids: Sequence[int] = (),
        finish_reason: str | None = None,
        first: bool = False,
    ) -> str:
        choice: dict[str, Any] = {"index": 0, "delta": delta, "finish_reason": finish_reason, "logprobs": None}
        if ids:
            choice["logprobs"] = self._logprobs(ids)
        chunk = {**self._head, "object": "chat.completion.chunk", "choices": [choice], **self._reply.extra}
        if self._with_ids:
            choice["token_ids"] = list(ids)
            if first:
                chunk["prompt_token_ids"] = self._prompt_ids
        return json.dumps(chunk)
