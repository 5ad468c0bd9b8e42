"""OpenAI's chat completions: requests read and checked, replies read and written, errors.

Token ids and logprobs of a reply are taken where vLLM puts them (``prompt_token_ids``, ``choices[].token_ids``,
``choices[].logprobs.content[].logprob``; of legacy completions ``choices[].prompt_token_ids`` and
``choices[].logprobs.token_logprobs``); what is missing, or does not fit together, is None.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, cast

from lgov_core._util.json_text import token_ids, wire_text
from lgov_core.errors import EndpointError, LgovError, UpstreamError
from lgov_core.wire.chat_turns import with_call_ids
from lgov_core.wire.exchange import (
    Changes,
    ChatRequest,
    ChoiceChange,
    Completion,
    Place,
    StreamPiece,
    ToolCall,
)
from lgov_core.wire.fields import flag, model_name, number, shown

#: More choices than this in one reply are refused, as by OpenAI.
MOST_CHOICES = 128

_ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


def error_body(error: LgovError, status: int) -> dict[str, Any]:
    """An error in OpenAI's shape; ``code`` is the error's own slug."""
    kind = _ERROR_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": str(error), "type": kind, "code": error.code, "param": None}}


def read_chat_request(body: Mapping[str, Any]) -> ChatRequest:
    """A chat completion request, checked. Raises `EndpointError` (400) that names the field and what it should be."""
    model = model_name(body)
    stop = body.get("stop")
    stops = [stop] if isinstance(stop, str) else stop if stop is not None else []
    if not isinstance(stops, list) or not all(isinstance(text, str) and text for text in cast("list[Any]", stops)):
        raise EndpointError("'stop' must be a text or a list of texts, none of them empty")
    seed = number(body, "seed", None, whole=True)
    tools = _tools(body)
    return ChatRequest(
        body=body,
        model=model,
        messages=_messages(body),
        tools=() if body.get("tool_choice") == "none" else tools,
        max_tokens=_max_tokens(body),
        temperature=number(body, "temperature", 1.0, low=0, high=2) or 0.0,
        top_p=number(body, "top_p", 1.0, above=0, high=1) or 1.0,
        stop=tuple(cast("list[str]", stops)),
        seed=None if seed is None else int(seed),
        stream=flag(body, "stream"),
        n=int(number(body, "n", 1, low=1, high=MOST_CHOICES, whole=True) or 1),
    )


def wants_usage(body: Mapping[str, Any]) -> bool:
    """Returns whether a streamed reply ends with a usage chunk."""
    options = body.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise EndpointError(f"'stream_options' must be an object, not {shown(options)}")
    return flag(cast("Mapping[str, Any]", options or {}), "include_usage")


def _max_tokens(body: Mapping[str, Any]) -> int | None:
    limits = [number(body, name, None, low=1, whole=True) for name in ("max_completion_tokens", "max_tokens")]
    values = {int(value) for value in limits if value is not None}
    if len(values) > 1:
        raise EndpointError("'max_tokens' and 'max_completion_tokens' disagree", hint="send one of them")
    return values.pop() if values else None


def _messages(body: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise EndpointError("'messages' must be a list with at least one message")
    for index, message in enumerate(cast("list[Any]", messages)):
        where = f"messages[{index}]"
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise EndpointError(f"{where} must be an object with a role")
        if message["role"] == "tool" and not isinstance(message.get("tool_call_id"), str):
            raise EndpointError(f"{where} is a tool result without 'tool_call_id'")
        calls = message.get("tool_calls")
        if calls is None:
            continue
        if not isinstance(calls, list) or not all(map(_is_call, cast("list[Any]", calls))):
            raise EndpointError(f"{where}.tool_calls must be a list of calls with a function name and arguments text")
    return cast("list[Mapping[str, Any]]", messages)


def _is_call(call: Any) -> bool:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        return False
    return isinstance(function.get("arguments", ""), str)


def _tools(body: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    tools = body.get("tools")
    if tools is None:
        return ()
    if not isinstance(tools, list):
        raise EndpointError(f"'tools' must be a list, not {shown(tools)}")
    for index, tool in enumerate(cast("list[Any]", tools)):
        function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise EndpointError(f"tools[{index}] must be of type 'function' and have a function name")
        parameters = function.get("parameters")
        if parameters is not None and not isinstance(parameters, dict):
            raise EndpointError(f"tools[{index}].function.parameters must be a JSON schema")
    return cast("list[Mapping[str, Any]]", tools)


def usage_body(completion: Completion) -> dict[str, int]:
    """The usage object of a completion, in tokens; every choice counts, the prompt once."""
    generated = sum(choice.completion_tokens for choice in completion.choices)
    return {
        "prompt_tokens": completion.prompt_tokens,
        "completion_tokens": generated,
        "total_tokens": completion.prompt_tokens + generated,
    }


def weights_version(completion: Completion) -> int | None:
    """The version that wrote all choices; None when it is not known, or not one."""
    versions = {choice.weights_version for choice in completion.choices}
    return versions.pop() if len(versions) == 1 else None


def _logprobs(completion: Completion) -> dict[str, Any] | None:
    if completion.response_ids is None or completion.logprobs is None:
        return None
    # An engine knows ids; a token alone need not be valid text, so the id stands for it.
    pairs = zip(completion.response_ids, completion.logprobs, strict=True)
    content = [{"token": f"token_id:{i}", "logprob": p, "bytes": None, "top_logprobs": []} for i, p in pairs]
    return {"content": content, "refusal": None}


def completion_body(completion: Completion, body: Mapping[str, Any]) -> Mapping[str, Any]:
    """The reply to request ``body``: an upstream's own JSON as it is, else built from the completion and its choices.

    ``logprobs: true`` adds logprobs (tokens are written ``token_id:<id>``), ``return_token_ids: true`` adds
    ``prompt_token_ids`` and ``choices[].token_ids``, as vLLM does.
    """
    if completion.raw is not None:
        return completion.raw
    reply: dict[str, Any] = {
        "id": completion.response_id,
        "object": "chat.completion",
        "created": int(time.time()),
        "model": completion.model,
        "choices": [_choice_body(index, choice, body) for index, choice in enumerate(completion.choices)],
        "usage": usage_body(completion),
        "lgov": {"weights_version": weights_version(completion)},
    }
    if flag(body, "return_token_ids"):
        reply["prompt_token_ids"] = completion.prompt_ids
    return reply


def _choice_body(index: int, completion: Completion, body: Mapping[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": completion.content, "refusal": None}
    if completion.tool_calls:
        message["tool_calls"] = [
            {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in completion.tool_calls
        ]
    choice: dict[str, Any] = {"index": index, "message": message, "finish_reason": completion.finish_reason}
    choice["logprobs"] = _logprobs(completion) if flag(body, "logprobs") else None
    if completion.matched_stop is not None:
        choice["stop_reason"] = completion.matched_stop
    if flag(body, "return_token_ids"):
        choice["token_ids"] = completion.response_ids
    return choice


#: Fields of a chat reply that hold no text of the model.
_NO_TEXT = frozenset(("created", "id", "lgov", "model", "object", "service_tier", "system_fingerprint", "usage"))
_BESIDE_TEXT = ("reasoning_content", "reasoning", "thinking", "refusal", "audio")


def changed_chat_reply(body: Mapping[str, Any], changes: Changes) -> dict[str, Any]:
    """A chat reply as policies left it. Of a choice that was changed it has only what was judged, and no tokens."""
    choices = sorted(body["choices"], key=lambda choice: choice.get("index") or 0)
    changed = [_changed_choice(choice, changes.get(number)) for number, choice in enumerate(choices)]
    return {
        name: changed if name == "choices" else value for name, value in body.items() if name in {*_NO_TEXT, "choices"}
    }


def _changed_choice(choice: Mapping[str, Any], change: ChoiceChange | None) -> Mapping[str, Any]:
    if change is None:
        return choice
    message: Mapping[str, Any] = choice["message"]
    calls = message.get("tool_calls") or ()
    written: dict[str, Any] = {"role": "assistant", "content": change.text if change.text or not change.calls else None}
    written["refusal"] = None
    if change.keeps_reasoning:
        written |= {name: message[name] for name in _BESIDE_TEXT if message.get(name) is not None}
    if kept := [
        {"id": call.get("id"), "type": "function", "function": _function(change.calls[number])}
        for number, call in enumerate(calls)
        if number in change.calls
    ]:
        written["tool_calls"] = kept
    if len(calls) in change.calls:  # the call in the API's first form, which is read after the others
        written["function_call"] = _function(change.calls[len(calls)])
    reason = choice.get("finish_reason")
    if reason in ("tool_calls", "function_call") and not change.calls:
        reason = "stop"
    kept_fields = {name: choice[name] for name in ("index", "stop_reason") if name in choice}
    return {"index": 0, **kept_fields, "message": written, "finish_reason": reason, "logprobs": None}


def _function(call: ToolCall) -> dict[str, str]:
    return {"name": call.name, "arguments": call.arguments}


def chat_places(body: Mapping[str, Any]) -> list[Place | None]:
    """Where the text of each message stands in a chat completion request."""
    return [("messages", number, "content") for number in range(len(body["messages"]))]


def completion_pieces(completion: Completion, body: Mapping[str, Any]) -> Iterator[StreamPiece]:
    """A finished completion as a stream: what `Engine.stream` yields, for engines that do not stream by themselves.

    Choice by choice: its text, its tool calls, then its finish reason with token ids and logprobs, where asked for.
    """
    whole = completion_body(replace(completion, raw=None), body)
    head = {"id": whole["id"], "object": "chat.completion.chunk", "created": whole["created"], "model": whole["model"]}
    last = {name: whole[name] for name in ("lgov", "prompt_token_ids") if name in whole}
    for index, (choice, written) in enumerate(zip(completion.choices, whole["choices"], strict=True)):
        empty = {"index": index, "logprobs": None, "finish_reason": None}
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": "" if choice.content is not None else None}]
        if choice.content:
            deltas.append({"content": choice.content})
        calls = written.pop("message").get("tool_calls", ())
        deltas += [{"tool_calls": [{"index": number, **call}]} for number, call in enumerate(calls)]
        for delta in deltas:
            yield _piece({**head, "choices": [{**empty, "delta": delta}]})
        yield _piece({**head, "choices": [{**written, "delta": {}}], **last})
    if wants_usage(body):
        yield _piece({**head, "choices": [], "usage": whole["usage"]})
    yield StreamPiece(completion=completion)


_NO_USAGE: Final[Mapping[str, Any]] = {}


def read_completion(body: Mapping[str, Any]) -> Completion:
    """A body of chat completions or of legacy completions as a `Completion` whose ``raw`` is the body, with clear ids of calls.

    Choices come in the order of their index. Token ids that do not add up to the usage are not the reply's and become
    None, for all of its choices. Raises `UpstreamError` if the body is not a completion.
    """
    response_id, listed = body.get("id"), body.get("choices")
    choices: list[Any] = cast("list[Any]", listed) if isinstance(listed, list) else []
    if not isinstance(response_id, str) or not response_id or not choices or not all(map(_is_choice, choices)):
        raise UpstreamError("the upstream's reply is not a completion: it has no id, no choice or no message")
    try:
        body = with_call_ids(cast("dict[str, Any]", body))
    except (AttributeError, TypeError) as error:
        raise UpstreamError("the upstream's reply has tool calls that are no calls") from error
    choices = sorted(body["choices"], key=lambda choice: choice["index"] if isinstance(choice.get("index"), int) else 0)
    usage: Any = body.get("usage") if isinstance(body.get("usage"), dict) else {}
    generated = usage.get("completion_tokens")
    ids = [token_ids(choice.get("token_ids")) for choice in choices]
    lengths = [len(choice_ids) for choice_ids in ids if choice_ids is not None]
    if len(lengths) < len(ids) or (isinstance(generated, int) and sum(lengths) != generated):
        ids = [None] * len(ids)
    more = [
        _read_choice(body, response_id, choice, choice_ids)
        for choice, choice_ids in zip(choices[1:], ids[1:], strict=True)
    ]
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
    prompt_ids = token_ids(choice.get("prompt_token_ids") or body.get("prompt_token_ids"))
    lgov: Any = body.get("lgov")
    version = lgov.get("weights_version") if isinstance(lgov, dict) else None
    listed: Sequence[Mapping[str, Any]] = message.get("tool_calls") or ()
    two_kinds = any(call.get("custom") or call.get("type") not in (None, "function") for call in listed)
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
        logprobs=_read_logprobs(choice.get("logprobs"), response_ids),
        weights_version=version if isinstance(version, int) else None,
        prompt_tokens=_count(usage.get("prompt_tokens"), prompt_ids),
        completion_tokens=_count(usage.get("completion_tokens") if response_ids is None else None, response_ids),
        raw=raw,
        matched_stop=matched if isinstance(matched, str) else None,
        more=more,
        unreadable="a tool call is of two kinds" if two_kinds else None,
    )


def _read_logprobs(value: Any, response_ids: tuple[int, ...] | None) -> tuple[float, ...] | None:
    """Of chat completions (``content[].logprob``) or of legacy completions (``token_logprobs``)."""
    if response_ids is None or not isinstance(value, dict):
        return None
    try:
        if isinstance(value.get("content"), list):
            logprobs = tuple([float(item["logprob"]) for item in cast("list[Any]", value["content"])])
        else:
            logprobs = tuple([float(item) for item in cast("list[Any]", value["token_logprobs"])])
    except (KeyError, TypeError, ValueError):
        return None
    return logprobs if len(logprobs) == len(response_ids) and all(map(math.isfinite, logprobs)) else None


def _count(value: Any, ids: tuple[int, ...] | None) -> int:
    return value if isinstance(value, int) else len(ids or ())


def _tool_calls(message: Mapping[str, Any]) -> tuple[ToolCall, ...]:
    """The calls, with the ``function_call`` of the API's first version, which has no id: policies judge it as the others."""
    listed, legacy = message.get("tool_calls"), message.get("function_call")
    try:
        calls = [
            ToolCall(
                str(call.get("id") or ""), str(call["function"]["name"]), _json_text(call["function"]["arguments"])
            )
            for call in (() if listed is None else listed)
        ]
    except (AttributeError, KeyError, TypeError) as error:
        raise UpstreamError("the upstream's reply has tool calls without a function name or arguments") from error
    if isinstance(legacy, dict) and legacy.get("name"):
        calls.append(ToolCall("", str(legacy["name"]), _json_text(legacy.get("arguments") or "")))
    return tuple(calls)


def _json_text(arguments: Any) -> str:
    """The arguments of a call as text, also of a server that gives them as an object, or as null where there are none."""
    return arguments if isinstance(arguments, str) else wire_text({} if arguments is None else arguments)


def _piece(chunk: dict[str, Any]) -> StreamPiece:
    return StreamPiece(wire_text(chunk), event=chunk)


def reasoning_of(completion: Completion) -> dict[int, str]:
    """The model's thoughts and refusals, which the upstream's own reply shows beside the text, by choice."""
    raw: Mapping[str, Any] = completion.raw or {}
    choices = sorted(raw.get("choices") or (), key=lambda part_of_reply: part_of_reply.get("index") or 0)
    thoughts = {number: _thoughts(part_of_reply.get("message") or {}) for number, part_of_reply in enumerate(choices)}
    blocks = [
        part_of_reply
        for part_of_reply in (*(raw.get("output") or ()), *(raw.get("content") or ()))
        if isinstance(part_of_reply, dict)
    ]
    for block in blocks:
        if block.get("type") in ("reasoning", "thinking"):
            thoughts[0] = thoughts.get(0, "") + _thoughts(block)
    return thoughts


def _thoughts(holder: Mapping[str, Any]) -> str:
    audio = holder.get("audio")
    texts = [holder.get(name) for name in ("reasoning_content", "reasoning", "thinking", "refusal")]
    texts.append(audio.get("transcript") if isinstance(audio, dict) else None)
    if holder.get("type") == "reasoning":
        parts = [*(holder.get("summary") or ()), *(holder.get("content") or ())]
        texts += [content_part.get("text") for content_part in parts if isinstance(content_part, dict)]
    return "\n".join(text for text in texts if isinstance(text, str) and text)
