"""Requests of OpenAI's Responses API as chat completion requests. What cannot be said there is refused by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lgov_core.errors import EndpointError
from lgov_core.gateway.formats import request_fields as fields
from lgov_core.gateway.formats.openai_format import read_chat_request
from lgov_core.gateway.protocol import ChatRequest

Message = dict[str, Any]

_WHOSE = "the Responses API of this endpoint"
#: Read, or echoed in the reply, or of no effect on what the model reads and writes.
_KNOWN = frozenset(
    (
        "include", "input", "instructions", "max_output_tokens", "metadata", "model", "parallel_tool_calls",
        "previous_response_id", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "reasoning",
        "safety_identifier", "service_tier", "store", "stream", "stream_options", "temperature", "text", "tool_choice",
        "tools", "top_logprobs", "top_p", "truncation", "user",
    )
)  # fmt: skip
#: Named one by one, so that the message is about what was asked for.
_REFUSED = ("background", "conversation", "context_management", "max_tool_calls", "moderation", "prompt")
_INCLUDED = ("message.output_text.logprobs", "reasoning.encrypted_content")
_ROLES = ("user", "system", "developer", "assistant")


def read_responses_request(body: Mapping[str, Any], before: Sequence[Mapping[str, Any]] = ()) -> ChatRequest:
    """A Responses request as the chat completion request that asks the same.

    ``before`` is the conversation that ``previous_response_id`` stands for, which the caller looks up. Raises
    `EndpointError` (400) that names the field.
    """
    fields.refuse(body, _REFUSED, _WHOSE)
    fields.only_known(body, _KNOWN, _WHOSE)
    fields.refuse(body, ("truncation",), _WHOSE, unless={"truncation": ("disabled",)})
    chat: dict[str, Any] = {"model": fields.model_name(body), "messages": [*before, *input_messages(body)]}
    if instructions := fields.text(body, "instructions"):
        chat["messages"].insert(0, {"role": "system", "content": instructions})
    chat |= {name: body[name] for name in ("temperature", "top_p", "parallel_tool_calls") if body.get(name) is not None}
    if (most := fields.number(body, "max_output_tokens", None, low=1, whole=True)) is not None:
        chat["max_completion_tokens"] = int(most)
    if tools := [_tool(index, tool) for index, tool in enumerate(fields.a_list(body, "tools"))]:
        chat["tools"] = tools
    if (choice := body.get("tool_choice")) is not None:
        chat["tool_choice"] = _tool_choice(choice)
    fields.flag(body, "store")
    fields.flag(body, "parallel_tool_calls")
    chat |= _format(body) | _reasoning(body) | _logprobs(body)
    if fields.flag(body, "stream"):
        chat |= {"stream": True, "stream_options": {"include_usage": True}}
        fields.an_object(body, "stream_options")
    return read_chat_request(chat)


def input_messages(body: Mapping[str, Any]) -> list[Message]:
    """The field ``input`` as chat messages. What one turn of the model wrote becomes one message."""
    given = body.get("input")
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        raise EndpointError("'input' must be text or a list with at least one item")
    return chat_messages(given)


def chat_messages(items: Sequence[Any]) -> list[Message]:
    """Items of input, or of an earlier output, as chat messages. Raises `EndpointError` (400) that names the item."""
    messages: list[Message] = []
    turn: Message | None = None  # what the model wrote and a following call still belongs to
    for index, item in enumerate(items):
        where = f"input[{index}]"
        if not isinstance(item, dict):
            raise EndpointError(f"{where} must be an object, not {fields.shown(item)}")
        kind = item.get("type") or ("message" if "role" in item else None)
        read = _ITEMS.get(str(kind))
        if read is None:
            raise EndpointError(
                f"{where} is of type {fields.shown(kind)}, which is not supported",
                hint=f"supported are {', '.join(_ITEMS)}",
            )
        message = read(item, where)
        continues = message["role"] == "assistant" and turn is not None and "tool_calls" not in turn
        if kind == "function_call" and turn is not None:
            turn.setdefault("tool_calls", []).extend(message["tool_calls"])
        elif kind == "message" and continues and turn is not None and turn.get("content") is None:
            turn["content"] = message["content"]
        else:
            messages.append(message)
            turn = message if message["role"] == "assistant" else None
    return messages


def _message(item: Mapping[str, Any], where: str) -> Message:
    role = item.get("role")
    if role not in _ROLES:
        raise EndpointError(f"{where} has the role {fields.shown(role)}", hint=f"roles are {', '.join(_ROLES)}")
    content = item.get("content")
    if isinstance(content, str):
        return {"role": role, "content": content}
    parts = [
        _part(part, f"{where}.content[{place}]")
        for place, part in enumerate(fields.a_list(item, "content", f"{where}."))
    ]
    return {"role": role, "content": _joined(parts, always=role == "assistant")}


def _joined(parts: Sequence[Mapping[str, Any]], *, always: bool = False) -> Any:
    """Text alone as one text where that says the same, else the parts."""
    if (len(parts) == 1 or always) and all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return list(parts)


def _part(part: Any, where: str) -> Message:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in ("input_text", "output_text", "text") and isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    if kind == "refusal" and isinstance(part.get("refusal"), str):
        return {"type": "text", "text": part["refusal"]}
    if kind == "input_image" and isinstance(part.get("image_url"), str):
        detail = {"detail": part["detail"]} if part.get("detail") is not None else {}
        return {"type": "image_url", "image_url": {"url": part["image_url"], **detail}}
    raise EndpointError(
        f"{where} is of type {fields.shown(kind)}, or lacks its content",
        hint="text is supported, and images by their address",
    )


def _function_call(item: Mapping[str, Any], where: str) -> Message:
    named = {name: fields.text(item, name, f"{where}.") for name in ("call_id", "name", "arguments")}
    if not named["call_id"] or not named["name"] or named["arguments"] is None:
        raise EndpointError(f"{where} is a function call without 'call_id', 'name' or 'arguments'")
    function = {"name": named["name"], "arguments": named["arguments"]}
    call = {"id": named["call_id"], "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def _function_output(item: Mapping[str, Any], where: str) -> Message:
    call_id, output = fields.text(item, "call_id", f"{where}."), item.get("output")
    if not call_id:
        raise EndpointError(f"{where} is a function's output without 'call_id'")
    if not isinstance(output, str):
        parts = fields.a_list(item, "output", f"{where}.")
        output = _joined([_part(part, f"{where}.output[{place}]") for place, part in enumerate(parts)])
    return {"role": "tool", "tool_call_id": call_id, "content": output}


def _reasoned(item: Mapping[str, Any], where: str) -> Message:
    written = [
        part.get("text") if isinstance(part, dict) else None for part in fields.a_list(item, "content", f"{where}.")
    ]
    if not written or not all(isinstance(one, str) for one in written):
        raise EndpointError(
            f"{where} is reasoning without its text", hint="encrypted reasoning of another server cannot be read here"
        )
    return {"role": "assistant", "content": None, "reasoning_content": "".join(map(str, written))}


_ITEMS: Mapping[str, Callable[[Mapping[str, Any], str], Message]] = {
    "message": _message,
    "function_call": _function_call,
    "function_call_output": _function_output,
    "reasoning": _reasoned,
}


def _tool(index: int, tool: Any) -> Message:
    where = f"tools[{index}]"
    if not isinstance(tool, dict) or tool.get("type") != "function" or not isinstance(tool.get("name"), str):
        kind = tool.get("type") if isinstance(tool, dict) else tool
        raise EndpointError(
            f"{where} ({fields.shown(kind)}) must be of type 'function' and have a name",
            hint="tools that a server runs itself are not supported",
        )
    fields.only_known(tool, ("type", "name", "description", "parameters", "strict"), f"{where}, a function,")
    return {
        "type": "function",
        "function": {key: value for key, value in tool.items() if key != "type" and value is not None},
    }


def _tool_choice(choice: Any) -> Any:
    if choice in ("auto", "none", "required"):
        return choice
    if isinstance(choice, dict) and choice.get("type") == "function" and isinstance(choice.get("name"), str):
        return {"type": "function", "function": {"name": choice["name"]}}
    raise EndpointError(
        f"'tool_choice' ({fields.shown(choice)}) is not supported by {_WHOSE}",
        hint="auto, none, required, or a function",
    )


def _format(body: Mapping[str, Any]) -> Message:
    given = fields.an_object(body, "text")
    fields.only_known(given, ("format", "verbosity"), "'text'")
    chat: Message = {} if given.get("verbosity") is None else {"verbosity": given["verbosity"]}
    form = fields.an_object(given, "format", "text.")
    kind = form.get("type", "text")
    if kind == "json_schema":
        chat["response_format"] = {"type": kind, kind: {key: form[key] for key in form if key != "type"}}
    elif kind == "json_object":
        chat["response_format"] = {"type": kind}
    elif kind != "text":
        raise EndpointError(f"text.format is of type {fields.shown(kind)}, which is not supported")
    return chat


def _reasoning(body: Mapping[str, Any]) -> Message:
    given = fields.an_object(body, "reasoning")
    fields.only_known(given, ("effort",), f"'reasoning' of {_WHOSE}")
    return {} if given.get("effort") is None else {"reasoning_effort": given["effort"]}


def _logprobs(body: Mapping[str, Any]) -> Message:
    include = fields.a_list(body, "include")
    if other := [one for one in include if one not in _INCLUDED]:
        raise EndpointError(
            f"'include' names {fields.shown(other[0])}, which is not supported", hint=", ".join(_INCLUDED)
        )
    top = fields.number(body, "top_logprobs", 0, low=0, high=20, whole=True)
    chat: Message = {"top_logprobs": top} if top else {}
    return {**chat, "logprobs": True} if top or _INCLUDED[0] in include else chat
