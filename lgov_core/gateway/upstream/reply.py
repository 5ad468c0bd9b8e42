"""What other OpenAI-compatible servers answer, read without guessing.

Token ids and logprobs are taken where vLLM puts them (``prompt_token_ids``, ``choices[].token_ids``,
``choices[].logprobs.content[].logprob``; of legacy completions ``choices[].prompt_token_ids`` and
``choices[].logprobs.token_logprobs``); what is not there, or does not fit together, is None.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Final, cast

from lgov_core.errors import UpstreamError
from lgov_core.gateway.protocol import Completion, ToolCall

_NO_USAGE: Final[Mapping[str, Any]] = {}


class UpstreamRejection(UpstreamError):
    """The upstream refused the request (a 4xx): its status, body and content type are handed on as they are.

    ``route`` is the API in which it was asked.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int,
        body: bytes,
        content_type: str,
        headers: Mapping[str, str],
        route: str = "chat",
    ) -> None:
        super().__init__(message, status=status)
        self.route = route
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
    """A body of chat completions or of legacy completions as a `Completion` whose ``raw`` is the body.

    Choices come in the order of their index. Token ids that do not add up to the usage are not the reply's and become
    None, for all of its choices. Raises `UpstreamError` if the body is no completion.
    """
    response_id, found = body.get("id"), body.get("choices")
    choices: list[Any] = cast("list[Any]", found) if isinstance(found, list) else []
    if not isinstance(response_id, str) or not response_id or not choices or not all(map(_is_choice, choices)):
        raise UpstreamError("the upstream's reply is not a completion: it has no id, no choice or no message")
    choices = sorted(choices, key=lambda choice: choice["index"] if isinstance(choice.get("index"), int) else 0)
    usage: Any = body.get("usage") if isinstance(body.get("usage"), dict) else {}
    generated = usage.get("completion_tokens")
    ids = [_ids(choice.get("token_ids")) for choice in choices]
    lengths = [len(one) for one in ids if one is not None]
    if len(lengths) < len(ids) or (isinstance(generated, int) and sum(lengths) != generated):
        ids = [None] * len(ids)
    more = [_read_choice(body, response_id, choice, one) for choice, one in zip(choices[1:], ids[1:], strict=True)]
    return _read_choice(body, response_id, choices[0], ids[0], usage=usage, raw=body, more=tuple(more))


def _is_choice(choice: Any) -> bool:
    return isinstance(choice, dict) and (isinstance(choice.get("message"), dict) or "text" in choice)


def _read_choice(
    body: Mapping[str, Any],
    response_id: str,
    choice: Mapping[str, Any],
    response_ids: tuple[int, ...] | None,
    *,
    usage: Mapping[str, Any] = _NO_USAGE,
    raw: Mapping[str, Any] | None = None,
    more: tuple[Completion, ...] = (),
) -> Completion:
    """One choice. The first has the ``usage`` of the reply, its whole JSON and ``more`` choices."""
    message: Mapping[str, Any] = choice["message"] if "message" in choice else {"content": choice["text"]}
    content = message.get("content")
    if content is not None and not isinstance(content, str):
        raise UpstreamError(f"the upstream's reply has content of type {type(content).__name__}, not text")
    prompt_ids = _ids(choice.get("prompt_token_ids") or body.get("prompt_token_ids"))
    lgov: Any = body.get("lgov")
    version = lgov.get("weights_version") if isinstance(lgov, dict) else None
    matched = choice.get("stop_reason")
    return Completion(
        response_id=response_id,
        model=str(body.get("model") or ""),
        text=content or "",
        content=content,
        tool_calls=_tool_calls(message.get("tool_calls")) + _legacy_call(message.get("function_call")),
        finish_reason=str(choice.get("finish_reason") or "unknown"),
        prompt_ids=prompt_ids,
        response_ids=response_ids,
        logprobs=_logprobs(choice.get("logprobs"), response_ids),
        weights_version=version if isinstance(version, int) else None,
        prompt_tokens=_count(usage.get("prompt_tokens"), prompt_ids),
        completion_tokens=_count(usage.get("completion_tokens") if response_ids is None else None, response_ids),
        raw=raw,
        matched_stop=matched if isinstance(matched, str) else None,
        more=more,
    )


def _ids(value: Any) -> tuple[int, ...] | None:
    if isinstance(value, list) and all(type(one) is int and 0 <= one < 2**31 for one in cast("list[Any]", value)):
        return tuple(cast("list[int]", value))
    return None


def _logprobs(value: Any, response_ids: tuple[int, ...] | None) -> tuple[float, ...] | None:
    """Of chat completions (``content[].logprob``) or of legacy completions (``token_logprobs``)."""
    if response_ids is None or not isinstance(value, dict):
        return None
    try:
        if isinstance(value.get("content"), list):
            found = tuple([float(item["logprob"]) for item in cast("list[Any]", value["content"])])
        else:
            found = tuple([float(item) for item in cast("list[Any]", value["token_logprobs"])])
    except (KeyError, TypeError, ValueError):
        return None
    return found if len(found) == len(response_ids) and all(map(math.isfinite, found)) else None


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


def _legacy_call(value: Any) -> tuple[ToolCall, ...]:
    """What servers of the API's first form call with: no id, and one a reply. Policies judge it as any other."""
    if not isinstance(value, dict) or not value.get("name"):
        return ()
    return (ToolCall("", str(value["name"]), str(value.get("arguments") or "")),)


class StreamAssembler:
    """Puts the chunks of a streamed reply of ``n`` choices together into the body it would have had at once.

    For chat completions and, with ``legacy``, for completions. For one task.
    """

    __slots__ = ("_body", "_choices", "_legacy", "_n", "_tool_calls")

    def __init__(self, n: int = 1, *, legacy: bool = False) -> None:
        self._n = n
        self._legacy = legacy
        self._body: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}
        self._tool_calls: dict[tuple[int, int], list[dict[str, Any]]] = {}

    @property
    def finished(self) -> bool:
        """Whether a finish reason has come for every choice."""
        return sum(choice["finish_reason"] is not None for choice in self._choices.values()) >= self._n

    def add(self, data: str) -> Mapping[str, Any]:
        """Takes one chunk, as JSON text; returns it. Raises `UpstreamError` for an error in the stream, or no chunk."""
        chunk = read_event(data)
        if chunk.get("error"):
            failure = chunk["error"]
            said = failure.get("message") if isinstance(failure, dict) else failure
            raise UpstreamError(f"the upstream failed in mid-stream: {said}")
        for key, value in chunk.items():
            if key not in ("choices", "object") and value is not None and (key == "usage" or key not in self._body):
                self._body[key] = value
        try:
            for choice in chunk.get("choices") or ():
                self._add_choice(choice)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UpstreamError(f"a chunk of the upstream's stream is malformed: {data[:200]!r}") from error
        return chunk

    def _choice(self, index: int) -> dict[str, Any]:
        if not 0 <= index < 4096:
            raise ValueError("no index of a choice")
        while len(self._choices) <= index:
            number = len(self._choices)
            written: dict[str, Any] = (
                {"text": ""} if self._legacy else {"message": {"role": "assistant", "content": None}}
            )
            self._choices[number] = {"index": number, **written, "finish_reason": None, "logprobs": None}
        return self._choices[index]

    def _add_choice(self, added: Mapping[str, Any]) -> None:
        index = added.get("index", 0)
        choice = self._choice(index)
        for key, value in added.items():
            if value is None or key in ("index", "delta"):
                continue
            if key == "token_ids":
                choice.setdefault(key, []).extend(value)
            elif key == "text":
                choice[key] += value
            elif key == "logprobs":
                kept = choice["logprobs"] = choice["logprobs"] or {}
                for name, items in value.items():
                    kept.setdefault(name, []).extend(items or ())
            else:
                choice[key] = value
        for key, value in (added.get("delta") or {}).items():
            if key == "tool_calls":
                for part in value or ():
                    self._add_call(index, part)
            elif key != "role":
                _grow(choice["message"], key, value)

    def _add_call(self, choice: int, part: Mapping[str, Any]) -> None:
        if part.get("type") not in (None, "function"):
            raise ValueError("no call of a function")
        same = self._tool_calls.setdefault((choice, part.get("index") or 0), [])
        if not same or begins_another(part, same[-1]["id"]):
            same.append({"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
        call, function = same[-1], part.get("function") or {}
        call["id"] = call["id"] or part.get("id") or ""
        call["function"]["name"] = longer_name(call["function"]["name"], function.get("name") or "")
        call["function"]["arguments"] += function.get("arguments") or ""

    def body(self, *, finish_reason: str | None = None) -> dict[str, Any]:
        """The whole body so far; ``finish_reason`` replaces the stream's own."""
        for index, choice in self._choices.items():
            calls = [call for (of, _), same in sorted(self._tool_calls.items()) if of == index for call in same]
            if calls:
                choice["message"]["tool_calls"] = calls
            if finish_reason is not None:
                choice["finish_reason"] = finish_reason
        kind = "text_completion" if self._legacy else "chat.completion"
        return {**self._body, "object": kind, "choices": list(self._choices.values())}


def begins_another(part: Mapping[str, Any], call_id: str) -> bool:
    """Whether a piece of a streamed tool call is of another call than the one at its index, whose id is ``call_id``.

    Some servers send each call whole, all at one index; others send a fresh id with each piece of one call, but its name
    only once.
    """
    named = (part.get("function") or {}).get("name")
    return bool(call_id and named and part.get("id")) and part["id"] != call_id


def longer_name(known: str, more: str) -> str:
    """The name of a streamed call and its next piece: names come whole or in pieces, and some servers repeat them."""
    return known if more == known else known + more


def _grow(message: dict[str, Any], key: str, value: Any) -> None:
    """Adds a piece of a message to what came before: texts and lists grow, objects field by field."""
    known = message.get(key)
    if isinstance(value, str) and isinstance(known, str):
        message[key] = known + value
    elif isinstance(value, list) and isinstance(known, list):
        known.extend(cast("list[Any]", value))
    elif isinstance(value, dict):
        if not isinstance(known, dict):
            known = message[key] = {}
        for name, part in cast("dict[str, Any]", value).items():
            _grow(cast("dict[str, Any]", known), name, part)
    elif value is not None:
        message[key] = value


def read_event(data: str) -> dict[str, Any]:
    """The JSON object of one server-sent event. Raises `UpstreamError`."""
    try:
        event: Any = json.loads(data)
    except ValueError as error:
        raise UpstreamError(f"a chunk of the upstream's stream is not JSON: {data[:200]!r}") from error
    if not isinstance(event, dict):
        raise UpstreamError(f"a chunk of the upstream's stream is not an object: {data[:200]!r}")
    return cast("dict[str, Any]", event)
