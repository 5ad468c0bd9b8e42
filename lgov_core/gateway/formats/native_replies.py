"""Replies of upstream servers in each API that they may speak: read whole, and put together from their events.

Chat completions and completions carry token ids where the server gives them (see `chat_reply`). The Responses and
the Messages API have no place for token ids, so calls recorded from them have none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, cast

from lgov_core.errors import UpstreamError
from lgov_core.gateway.formats.chat_reply import read_completion
from lgov_core.gateway.formats.request_fields import shown
from lgov_core.gateway.formats.responses_assembler import ResponsesAssembler
from lgov_core.gateway.formats.stream_assembler import Assembler, StreamAssembler, read_event
from lgov_core.gateway.protocol import Completion, ToolCall
from lgov_core.instrumentation.model_call import unclear_ids

_MESSAGE_REASONS = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "tool_calls"}
_INCOMPLETE = {"max_output_tokens": "length"}
_WANTED = {"logprobs": True, "return_token_ids": True}


@dataclass(frozen=True, slots=True)
class NativeReply:
    """How an upstream is asked in one API: the path below its base URL, what is added to the request so that token ids
    come back, and how the reply is read.
    """

    path: str
    wanted: Mapping[str, Any]
    read: Callable[[Mapping[str, Any]], Completion]
    assembler: Callable[[int], Assembler]


def read_response(body: Mapping[str, Any]) -> Completion:
    """A Response. Raises `UpstreamError` if it is none."""
    response_id, output = body.get("id"), body.get("output")
    if not isinstance(response_id, str) or not response_id or not isinstance(output, list):
        raise UpstreamError("the upstream's reply is not a response: it has no id or no output")
    texts: list[str] = []
    calls: list[ToolCall] = []
    ids: list[Any] = []
    kinds: list[Any] = []
    try:
        for item in cast("list[Any]", output):
            kinds.append(item["type"])
            if item["type"] == "message":
                texts += [part.get("text") or part.get("refusal") or "" for part in item["content"]]
            elif item["type"] == "function_call":
                ids.append(item.get("call_id"))
                calls.append(ToolCall(str(ids[-1] or ""), str(item["name"]), str(item["arguments"])))
    except (AttributeError, KeyError, TypeError) as error:
        raise UpstreamError("the upstream's response has items without a type, a name or content") from error
    status = str(body.get("status") or "completed")
    reason: Any = (body.get("incomplete_details") or {}).get("reason")
    finish = {"completed": "tool_calls" if calls else "stop", "incomplete": _INCOMPLETE.get(reason, str(reason))}
    usage: Any = body.get("usage") or {}
    problem = _unreadable(kinds, ("message", "function_call", "reasoning"), ids)
    return _completion(body, response_id, texts, calls, finish.get(status, status), usage, problem)


class _MessagesAssembler(Assembler):
    def __init__(self) -> None:
        self._body: dict[str, Any] = {}
        self._blocks: dict[int, dict[str, Any]] = {}
        self._inputs: dict[int, str] = {}

    def add(self, data: str) -> Mapping[str, Any]:
        return {} if data.strip() == "[DONE]" else super().add(data)  # which some servers add

    def _take(self, event: Mapping[str, Any]) -> None:
        kind = event["type"]
        if kind == "message_start":
            self._body = dict(event["message"])
        elif kind == "content_block_start":
            if event["index"] != len(self._blocks):  # clients count the blocks, and find each by its number
                raise ValueError("the blocks are not numbered one after the other")
            self._blocks[event["index"]] = dict(event["content_block"])
        elif kind == "content_block_delta":
            block, delta = self._blocks[event["index"]], event["delta"]
            if delta["type"] == "input_json_delta":
                self._inputs[event["index"]] = self._inputs.get(event["index"], "") + delta["partial_json"]
            elif delta["type"] in ("text_delta", "thinking_delta", "signature_delta"):
                name = delta["type"].removesuffix("_delta")
                block[name] = (block.get(name) or "") + delta[name]
            elif delta["type"] == "citations_delta":
                block["citations"] = [*(block.get("citations") or ()), delta["citation"]]
        elif kind == "message_delta":
            self._body |= {name: value for name, value in event["delta"].items() if value is not None}
            self._body["usage"] = {**(self._body.get("usage") or {}), **(event.get("usage") or {})}
            if "lgov" in event:
                self._body["lgov"] = event["lgov"]
            self.finished = self.finished or bool(event["delta"].get("stop_reason"))
        elif kind == "message_stop":
            self.finished = True

    def body(self, *, finish_reason: str | None = None) -> dict[str, Any]:
        # The input of a tool use stays text as long as it is no JSON object.
        content: list[dict[str, Any]] = []
        for index, block in sorted(self._blocks.items()):
            text = self._inputs.get(index)
            content.append(block if not text else {**block, "input": _parsed(text)})
        return {**self._body, "content": content, **({} if finish_reason is None else {"stop_reason": finish_reason})}


def read_message(body: Mapping[str, Any]) -> Completion:
    """A Message. Raises `UpstreamError` if it is none."""
    message_id, content = body.get("id"), body.get("content")
    if not isinstance(message_id, str) or not message_id or not isinstance(content, list):
        raise UpstreamError("the upstream's reply is not a message: it has no id or no content")
    texts: list[str] = []
    calls: list[ToolCall] = []
    ids: list[Any] = []
    kinds: list[Any] = []
    try:
        for block in cast("list[Any]", content):
            kinds.append(block["type"])
            if block["type"] == "text":
                texts.append(block["text"])
            elif block["type"] == "tool_use":
                given = block["input"]
                written = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
                ids.append(block["id"])
                calls.append(ToolCall(str(ids[-1] or ""), str(block["name"]), written))
    except (KeyError, TypeError) as error:
        raise UpstreamError("the upstream's message has blocks without a type, a name or content") from error
    reason = str(body.get("stop_reason") or "unknown")
    problem = _unreadable(kinds, ("text", "tool_use", "thinking", "redacted_thinking"), ids)
    finish = _MESSAGE_REASONS.get(reason, reason)
    return _completion(body, message_id, texts, calls, finish, body.get("usage") or {}, problem)


def _unreadable(kinds: Sequence[Any], known: Sequence[str], ids: Sequence[Any]) -> str | None:
    unknown = next((kind for kind in kinds if kind not in known), None)
    return unclear_ids([{"id": one} for one in ids]) if unknown is None else f"it has a part of type {shown(unknown)}"


def _parsed(text: str) -> Any:
    try:
        return read_event(text)
    except UpstreamError:
        return text


def _completion(
    body: Mapping[str, Any],
    response_id: str,
    texts: list[str],
    calls: list[ToolCall],
    finish: str,
    usage: Any,
    unreadable: str | None,
) -> Completion:
    lgov: Any = body.get("lgov")
    version = lgov.get("weights_version") if isinstance(lgov, dict) else None
    read, generated = usage.get("input_tokens"), usage.get("output_tokens")
    text = "".join(texts)
    return Completion(
        response_id=response_id,
        model=str(body.get("model") or ""),
        text=text,
        content=text if texts else None,
        tool_calls=tuple(calls),
        finish_reason=finish,
        prompt_ids=None,
        response_ids=None,
        logprobs=None,
        weights_version=version if isinstance(version, int) else None,
        prompt_tokens=read if isinstance(read, int) else 0,
        completion_tokens=generated if isinstance(generated, int) else 0,
        raw=body,
        unreadable=unreadable,
    )


NATIVE: Mapping[str, NativeReply] = MappingProxyType(
    {
        "chat": NativeReply("/chat/completions", _WANTED, read_completion, StreamAssembler),
        "completions": NativeReply(
            "/completions", {**_WANTED, "logprobs": 1}, read_completion, lambda n: StreamAssembler(n, legacy=True)
        ),
        "responses": NativeReply("/responses", {}, read_response, lambda _n: ResponsesAssembler()),
        "messages": NativeReply("/messages", {}, read_message, lambda _n: _MessagesAssembler()),
    }
)
