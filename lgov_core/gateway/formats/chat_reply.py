"""Replies of OpenAI-compatible servers, read without guessing.

Token ids and logprobs are taken where vLLM puts them (``prompt_token_ids``, ``choices[].token_ids``,
``choices[].logprobs.content[].logprob``; of legacy completions ``choices[].prompt_token_ids`` and
``choices[].logprobs.token_logprobs``); what is missing, or does not fit together, is None.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, cast

from lgov_core.errors import UpstreamError
from lgov_core.gateway.protocol import Completion, ToolCall
from lgov_core.instrumentation.model_call import unclear_ids

_NO_USAGE: Final[Mapping[str, Any]] = {}


def read_completion(body: Mapping[str, Any]) -> Completion:
    """A body of chat completions or of legacy completions as a `Completion` whose ``raw`` is the body.

    Choices come in the order of their index. Token ids that do not add up to the usage are not the reply's and become
    None, for all of its choices. Raises `UpstreamError` if the body is not a completion.
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
        tool_calls=_tool_calls(message),
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
        unreadable=_unreadable(message),
    )


def _ids(value: Any) -> tuple[int, ...] | None:
    if not isinstance(value, list) or not set(map(type, cast("list[Any]", value))) <= {int}:
        return None
    ids = cast("list[int]", value)
    return tuple(ids) if min(ids, default=0) >= 0 and max(ids, default=0) < 2**31 else None


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


def _unreadable(message: Mapping[str, Any]) -> str | None:
    calls = message.get("tool_calls") or ()
    if any(call.get("custom") or call.get("type") not in (None, "function") for call in calls):
        return "a tool call is of two kinds"
    return unclear_ids([{"id": call.get("id")} for call in calls])


def _tool_calls(message: Mapping[str, Any]) -> tuple[ToolCall, ...]:
    """The calls, with the ``function_call`` of the API's first version, which has no id: policies judge it as the others."""
    given, legacy = message.get("tool_calls"), message.get("function_call")
    try:
        calls = [
            ToolCall(str(call.get("id") or ""), str(call["function"]["name"]), str(call["function"]["arguments"]))
            for call in (() if given is None else given)
        ]
    except (AttributeError, KeyError, TypeError) as error:
        raise UpstreamError("the upstream's reply has tool calls without a function name or arguments") from error
    if isinstance(legacy, dict) and legacy.get("name"):
        calls.append(ToolCall("", str(legacy["name"]), str(legacy.get("arguments") or "")))
    return tuple(calls)
