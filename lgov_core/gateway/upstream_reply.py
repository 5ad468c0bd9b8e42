"""What other OpenAI-compatible servers answer, read without guessing.

Token ids and logprobs are taken where vLLM puts them (``prompt_token_ids``, ``choices[].token_ids``,
``choices[].logprobs.content[].logprob``); what is not there, or does not fit together, is None.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, cast

from lgov_core.errors import UpstreamError
from lgov_core.gateway.protocol import Completion, ToolCall


class UpstreamRejection(UpstreamError):
    """The upstream refused the request (a 4xx): its status, body and content type are handed on as they are."""

    def __init__(
        self, message: str, *, status: int, body: bytes, content_type: str, headers: Mapping[str, str]
    ) -> None:
        super().__init__(message, status=status)
        self.body = body
        self.content_type = content_type
        self.headers = headers


class ReceivedBody(dict[str, Any]):
    """A JSON body that also keeps the bytes in which it came, so that it can be passed on exactly."""

    __slots__ = ("received",)

    def __init__(self, content: Mapping[str, Any], received: bytes) -> None:
        super().__init__(content)
        self.received = received


def read_completion(body: Mapping[str, Any]) -> Completion:
    """A chat completion body as a `Completion` whose ``raw`` is the body. Raises `UpstreamError` if it is not one."""
    response_id, choices = body.get("id"), body.get("choices")
    choice: Any = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(message, dict) or not isinstance(response_id, str) or not response_id:
        raise UpstreamError("the upstream's reply is not a chat completion: it has no id, no choice or no message")
    content = message.get("content")
    if content is not None and not isinstance(content, str):
        raise UpstreamError(f"the upstream's reply has content of type {type(content).__name__}, not text")
    response_ids = _ids(choice.get("token_ids"))
    usage: Any = body.get("usage") if isinstance(body.get("usage"), dict) else {}
    prompt_ids = _ids(body.get("prompt_token_ids"))
    lgov: Any = body.get("lgov")
    version = lgov.get("weights_version") if isinstance(lgov, dict) else None
    return Completion(
        response_id=response_id,
        model=str(body.get("model") or ""),
        text=content or "",
        content=content,
        tool_calls=_tool_calls(message.get("tool_calls")),
        finish_reason=str(choice.get("finish_reason") or "unknown"),
        prompt_ids=prompt_ids,
        response_ids=response_ids,
        logprobs=_logprobs(choice.get("logprobs"), response_ids),
        weights_version=version if isinstance(version, int) else None,
        prompt_tokens=_count(usage.get("prompt_tokens"), prompt_ids),
        completion_tokens=_count(usage.get("completion_tokens"), response_ids),
        raw=body,
    )


def _ids(value: Any) -> tuple[int, ...] | None:
    if not isinstance(value, list):
        return None
    ids = cast("list[Any]", value)  # long, hence the checks without a loop in Python
    return tuple(ids) if set(map(type, ids)) <= {int} and min(ids, default=0) >= 0 else None


def _logprobs(value: Any, response_ids: tuple[int, ...] | None) -> tuple[float, ...] | None:
    content = value.get("content") if isinstance(value, dict) else None
    if response_ids is None or not isinstance(content, list) or len(cast("list[Any]", content)) != len(response_ids):
        return None
    try:
        found = tuple([float(item["logprob"]) for item in cast("list[Any]", content)])
    except (KeyError, TypeError, ValueError):
        return None
    return found if all(map(math.isfinite, found)) else None


def _count(value: Any, ids: tuple[int, ...] | None) -> int:
    return value if isinstance(value, int) else len(ids or ())


def _tool_calls(value: Any) -> tuple[ToolCall, ...]:
    if value is None:
        return ()
    try:
        return tuple(
            ToolCall(str(call.get("id") or ""), str(call["function"]["name"]), str(call["function"]["arguments"]))
            for call in value
        )
    except (AttributeError, KeyError, TypeError) as error:
        raise UpstreamError("the upstream's reply has tool calls without a function name or arguments") from error


class StreamAssembler:
    """Puts the chunks of a streamed reply together into the body it would have had at once. For one task."""

    __slots__ = ("_body", "_choice", "_message", "_tool_calls")

    def __init__(self) -> None:
        self._message: dict[str, Any] = {"role": "assistant", "content": None}
        self._choice: dict[str, Any] = {"index": 0, "message": self._message, "finish_reason": None, "logprobs": None}
        self._body: dict[str, Any] = {}
        self._tool_calls: dict[int, dict[str, Any]] = {}

    @property
    def finished(self) -> bool:
        """Whether a chunk with a finish reason has come."""
        return self._choice["finish_reason"] is not None

    def add(self, data: str) -> None:
        """Takes one chunk, as JSON text. Raises `UpstreamError` for an error in the stream, or what is no chunk."""
        try:
            chunk: Any = json.loads(data)
        except ValueError as error:
            raise UpstreamError(f"a chunk of the upstream's stream is not JSON: {data[:200]!r}") from error
        if not isinstance(chunk, dict):
            raise UpstreamError(f"a chunk of the upstream's stream is not an object: {data[:200]!r}")
        if chunk.get("error"):
            failure = chunk["error"]
            said = failure.get("message") if isinstance(failure, dict) else failure
            raise UpstreamError(f"the upstream failed in mid-stream: {said}")
        for key, value in cast("dict[str, Any]", chunk).items():
            if key not in ("choices", "object") and value is not None and (key == "usage" or key not in self._body):
                self._body[key] = value
        try:
            for choice in chunk.get("choices") or ():
                if choice.get("index", 0) == 0:
                    self._add_choice(choice)
        except (AttributeError, KeyError, TypeError) as error:
            raise UpstreamError(f"a chunk of the upstream's stream is malformed: {data[:200]!r}") from error

    def _add_choice(self, choice: Mapping[str, Any]) -> None:
        for key, value in choice.items():
            if value is None or key in ("index", "delta"):
                continue
            if key == "token_ids":
                self._choice.setdefault(key, []).extend(value)
            elif key == "logprobs":
                kept = self._choice["logprobs"] = self._choice["logprobs"] or {"content": []}
                kept["content"].extend(value.get("content") or ())
            else:
                self._choice[key] = value
        for key, value in (choice.get("delta") or {}).items():
            if key == "tool_calls":
                for part in value or ():
                    self._add_call(part)
            elif isinstance(value, str) and key != "role":
                self._message[key] = (self._message.get(key) or "") + value

    def _add_call(self, part: Mapping[str, Any]) -> None:
        call = self._tool_calls.setdefault(
            part.get("index", 0), {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
        )
        function = part.get("function") or {}
        call["id"] = call["id"] or part.get("id") or ""
        call["function"]["name"] = call["function"]["name"] or function.get("name") or ""
        call["function"]["arguments"] += function.get("arguments") or ""

    def body(self, *, finish_reason: str | None = None) -> dict[str, Any]:
        """The whole body so far; ``finish_reason`` replaces the stream's own."""
        if self._tool_calls:
            self._message["tool_calls"] = [call for _, call in sorted(self._tool_calls.items())]
        if finish_reason is not None:
            self._choice["finish_reason"] = finish_reason
        return {**self._body, "object": "chat.completion", "choices": [self._choice]}
