"""The answers of a scripted model, and how each API writes them, whole and streamed.

They share no code with `lgov_core.wire`, so that they can be used to test it.
"""

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
    (with ``content_type``). The reply comes after ``delay_s`` seconds and once ``gate`` is set; a streamed reply waits
    for the gate before chunk number ``gate_at``. ``cut_at`` closes the connection of a streamed reply before that chunk.
    ``finish_reason`` is ``tool_calls`` or ``stop`` unless given. ``extra`` is added to the body (each chunk, if streamed).
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


def words(text: str) -> Iterator[str]:
    """The words of a text, each but the first with the space before it."""
    for number, word in enumerate(text.split(" ")):
        yield f" {word}" if number else word


def halves(text: str) -> tuple[str, str]:
    """A text in two parts."""
    return text[: len(text) // 2], text[len(text) // 2 :]


def sse(data: Mapping[str, Any], event: str | None = None) -> str:
    """One server-sent event."""
    name = f"event: {event}\n" if event else ""
    return f"{name}data: {json.dumps(data)}\n\n"


def openai_usage(prompt: int, generated: int) -> dict[str, int]:
    """The usage object of OpenAI's chat completions and completions."""
    return {"prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated}


class ChatWriter:
    """Writes one reply as a chat completion, with the token ids where vLLM puts them."""

    def __init__(self, reply: ScriptedReply, request: Mapping[str, Any], model: str, token_ids: bool = False) -> None:
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
        self._usage = openai_usage(len(self._prompt_ids), len(self._response_ids))

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

    def frames(self) -> Iterator[str]:
        """The reply in pieces: the text word by word, each call's name, then its arguments in two halves."""
        yield self._chunk({"role": "assistant", "content": ""}, first=True)
        ids = list(self._response_ids)
        for word in words(self._reply.text) if self._reply.text else ():
            size = len(word.encode())
            yield self._chunk({"content": word}, ids=ids[:size])
            del ids[:size]
        for index, call in enumerate(self._reply.tool_calls):
            head = {"index": index, "id": call.call_id, "type": "function", "function": {"name": call.name}}
            yield self._chunk({"tool_calls": [head]})
            for half in halves(call.text):
                yield self._chunk({"tool_calls": [{"index": index, "function": {"arguments": half}}]})
        yield self._chunk({}, ids=ids, finish_reason=self._finish_reason)
        if (self._request.get("stream_options") or {}).get("include_usage"):
            yield sse({**self._head, "object": "chat.completion.chunk", "choices": [], "usage": self._usage})
        yield "data: [DONE]\n\n"

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
        return sse(chunk)


class CompletionWriter:
    """Writes one reply's text as a completion, with the token ids where vLLM puts them: in the choice."""

    def __init__(self, reply: ScriptedReply, request: Mapping[str, Any], model: str, token_ids: bool = False) -> None:
        self._reply = reply
        self._ids = [*(reply.text or "").encode(), 256]
        prompt = request.get("prompt")
        self._prompt_ids = list((prompt if isinstance(prompt, str) else json.dumps(prompt)).encode())
        self._with_ids = token_ids and bool(request.get("return_token_ids"))
        self._with_logprobs = request.get("logprobs") is not None
        self._with_usage = bool((request.get("stream_options") or {}).get("include_usage"))
        self._head = {
            "id": new_id("cmpl"),
            "object": "text_completion",
            "created": int(time.time()),
            "model": request.get("model") or model,
        }
        self._usage = openai_usage(len(self._prompt_ids), len(self._ids))

    def _choice(
        self, text: str, ids: Sequence[int], finish_reason: str | None, *, first: bool = True
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "text": text, "finish_reason": finish_reason, "logprobs": None}
        if self._with_logprobs:
            tokens = [chr(token) if token < 128 else "\ufffd" for token in ids]
            choice["logprobs"] = {"tokens": tokens, "token_logprobs": list(map(token_logprob, ids))}
        if self._with_ids:
            choice["token_ids"] = list(ids)
            choice["prompt_token_ids"] = self._prompt_ids if first else None
        return choice

    def body(self) -> dict[str, Any]:
        """The completion at once."""
        choice = self._choice(self._reply.text or "", self._ids, self._reply.finish_reason or "stop")
        return {**self._head, "choices": [choice], "usage": self._usage, **self._reply.extra}

    def frames(self) -> Iterator[str]:
        """The completion as server-sent events, word by word."""
        for number, word in enumerate(words(self._reply.text or "")):
            yield self._frame([self._choice(word, list(word.encode()), None, first=not number)])
        yield self._frame([self._choice("", [256], self._reply.finish_reason or "stop", first=False)])
        if self._with_usage:
            yield self._frame([], usage=self._usage)
        yield "data: [DONE]\n\n"

    def _frame(self, choices: Sequence[Mapping[str, Any]], **more: Any) -> str:
        return sse({**self._head, "choices": choices, **more, **self._reply.extra})


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
            if block["type"] == "text":
                empty = {**block, "text": ""}
                deltas = [{"type": "text_delta", "text": word} for word in words(block["text"])]
            else:
                empty, text = {**block, "input": {}}, json.dumps(block["input"])
                deltas = [{"type": "input_json_delta", "partial_json": half} for half in halves(text)]
            yield _frame("content_block_start", index=index, content_block=empty)
            for delta in deltas:
                yield _frame("content_block_delta", index=index, delta=delta)
            yield _frame("content_block_stop", index=index)
        yield _frame("message_delta", delta=self._stop, usage={"output_tokens": self._written})
        yield _frame("message_stop")


def _object(text: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _frame(kind: str, **fields: Any) -> str:
    return sse({"type": kind, **fields}, kind)


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
            content_part = {"type": "output_text", "text": self._reply.text, "annotations": [], "logprobs": []}
            yield {
                "id": new_id("msg"), "type": "message", "role": "assistant", "status": status, "content": [content_part]
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
        (content_part,) = item["content"]
        at = {"output_index": index, "item_id": item["id"], "content_index": 0}
        started = {**item, "status": "in_progress", "content": []}
        yield self._frame("response.output_item.added", output_index=index, item=started)
        yield self._frame("response.content_part.added", **at, part={**content_part, "text": ""})
        for word in words(content_part["text"]):
            yield self._frame("response.output_text.delta", **at, delta=word, logprobs=[])
        yield self._frame("response.output_text.done", **at, text=content_part["text"], logprobs=[])
        yield self._frame("response.content_part.done", **at, part=content_part)
        yield self._frame("response.output_item.done", output_index=index, item=item)

    def _call(self, index: int, item: Mapping[str, Any]) -> Iterator[str]:
        at = {"output_index": index, "item_id": item["id"]}
        started = {**item, "status": "in_progress", "arguments": ""}
        yield self._frame("response.output_item.added", output_index=index, item=started)
        for half in halves(item["arguments"]):
            yield self._frame("response.function_call_arguments.delta", **at, delta=half)
        yield self._frame("response.function_call_arguments.done", **at, name=item["name"], arguments=item["arguments"])
        yield self._frame("response.output_item.done", output_index=index, item=item)

    def _frame(self, kind: str, **fields: Any) -> str:
        event = {"type": kind, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return sse(event, kind)
