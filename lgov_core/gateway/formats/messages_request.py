"""Requests of Anthropic's Messages API as chat completion requests. What cannot be said there is refused by name."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lgov_core.errors import EndpointError
from lgov_core.gateway.formats import request_fields as fields
from lgov_core.gateway.formats.messages_format import INVALID_JSON
from lgov_core.gateway.formats.openai_format import read_chat_request
from lgov_core.gateway.protocol import ChatRequest

Message = dict[str, Any]

_WHOSE = "the Messages API of this endpoint"
#: Read, or of no effect on what the model reads and writes.
_KNOWN = frozenset(
    (
        "cache_control", "max_tokens", "messages", "metadata", "model", "output_config", "service_tier",
        "stop_sequences", "stream", "system", "temperature", "thinking", "tool_choice", "tools", "top_k", "top_p",
    )
)  # fmt: skip
_REFUSED = ("container", "context_management", "mcp_servers", "speed", "inference_geo")
_TOOL_FIELDS = ("cache_control", "description", "eager_input_streaming", "input_schema", "name", "strict", "type")


def read_messages_request(
    body: Mapping[str, Any], _before: Sequence[Any] = (), *, counting: bool = False
) -> ChatRequest:
    """A Messages request as the chat completion request that asks the same; ``counting`` needs no ``max_tokens``.

    Raises `EndpointError` (400) that names the field.
    """
    fields.refuse(body, _REFUSED, _WHOSE)
    fields.only_known(body, _KNOWN, _WHOSE)
    chat: dict[str, Any] = {"model": fields.model_name(body), "messages": _messages(body)}
    if (system := _content(body, "system", "", ("text",))) is not None:
        chat["messages"].insert(0, {"role": "system", "content": system})
    most = fields.number(body, "max_tokens", None, low=1, whole=True)
    if most is not None:
        chat["max_tokens"] = int(most)
    elif not counting:
        raise EndpointError("'max_tokens' must be a whole number ≥ 1")
    chat |= {name: body[name] for name in ("temperature", "top_p", "top_k") if body.get(name) is not None}
    if stops := fields.a_list(body, "stop_sequences"):
        chat["stop"] = stops
    if tools := [_tool(index, tool) for index, tool in enumerate(fields.a_list(body, "tools"))]:
        chat["tools"] = tools
    chat |= _tool_choice(body) | _output(body)
    if fields.an_object(body, "thinking").get("type", "disabled") != "disabled":
        raise EndpointError(f"'thinking' is not supported by {_WHOSE}", hint="leave it out, or send type 'disabled'")
    if fields.flag(body, "stream"):
        chat |= {"stream": True, "stream_options": {"include_usage": True}}
    return read_chat_request(chat)


def _messages(body: Mapping[str, Any]) -> list[Message]:
    given = body.get("messages")
    if not isinstance(given, list) or not given:
        raise EndpointError("'messages' must be a list with at least one message")
    messages: list[Message] = []
    for index, message in enumerate(given):
        where = f"messages[{index}]"
        role = message.get("role") if isinstance(message, dict) else None
        if role not in ("user", "assistant"):
            raise EndpointError(f"{where} must be an object with the role 'user' or 'assistant'")
        content = message.get("content")
        if isinstance(content, str):
            messages.append({"role": role, "content": content})
        elif role == "user":
            messages += _user(fields.a_list(message, "content", f"{where}."), where)
        else:
            messages.append(_assistant(fields.a_list(message, "content", f"{where}."), where))
    if messages and messages[-1]["role"] == "assistant":
        raise EndpointError(
            "the last message is the assistant's: a reply that goes on from it is not supported",
            hint="end with a message of the user",
        )
    return messages


def _user(blocks: Sequence[Any], where: str) -> Iterator[Message]:
    """What a user's message becomes: each tool result a message of its own, in the order of the blocks."""
    if not blocks:
        raise EndpointError(f"{where}.content must have at least one block")
    parts: list[Message] = []
    for place, block in enumerate(blocks):
        at = f"{where}.content[{place}]"
        if isinstance(block, dict) and block.get("type") == "tool_result":
            if parts:  # as Anthropic has it; a chat completion has no place for a text between a call and its result
                raise EndpointError(f"{at}: the results of tools come first in a message, other content after them")
            yield _tool_result(block, at)
        else:
            parts.append(_part(block, at, ("text", "image")))
    if parts:
        yield {"role": "user", "content": _joined(parts)}


def _tool_result(block: Mapping[str, Any], where: str) -> Message:
    call_id = fields.text(block, "tool_use_id", f"{where}.")
    if not call_id:
        raise EndpointError(f"{where} is a tool result without 'tool_use_id'")
    fields.flag(block, "is_error")  # the text of the result says it: a chat completion has no field for it
    content = _content(block, "content", f"{where}.", ("text", "image"))
    return {"role": "tool", "tool_call_id": call_id, "content": content or ""}


def _assistant(blocks: Sequence[Any], where: str) -> Message:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[Message] = []
    for place, block in enumerate(blocks):
        at = f"{where}.content[{place}]"
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "tool_use":
            calls.append(_tool_use(block, at))
        elif kind == "thinking" and isinstance(block.get("thinking"), str):
            thoughts.append(block["thinking"])
        else:
            texts.append(_part(block, at, ("text",))["text"])
    message: Message = {"role": "assistant", "content": "".join(texts) if texts else None}
    if not texts and not calls:
        message["content"] = ""
    if any(thoughts):
        message["reasoning_content"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _tool_use(block: Mapping[str, Any], where: str) -> Message:
    call_id, name, given = (
        fields.text(block, "id", f"{where}."),
        fields.text(block, "name", f"{where}."),
        block.get("input"),
    )
    if not call_id or not name or not isinstance(given, dict):
        raise EndpointError(f"{where} is a tool use without 'id', 'name' or an object as 'input'")
    broken = given.get(INVALID_JSON) if len(given) == 1 else None
    arguments = broken if isinstance(broken, str) else json.dumps(given, ensure_ascii=False)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _part(block: Any, where: str, kinds: Sequence[str]) -> Message:
    kind = block.get("type") if isinstance(block, dict) else None
    if kind in kinds:
        if kind == "text" and isinstance(block.get("text"), str):
            return {"type": "text", "text": block["text"]}
        source = block.get("source") if kind == "image" else None
        if isinstance(source, dict) and source.get("type") == "url" and isinstance(source.get("url"), str):
            return {"type": "image_url", "image_url": {"url": source["url"]}}
        if isinstance(source, dict) and source.get("type") == "base64" and isinstance(source.get("data"), str):
            address = f"data:{source.get('media_type')};base64,{source['data']}"
            return {"type": "image_url", "image_url": {"url": address}}
    raise EndpointError(
        f"{where} is of type {fields.shown(kind)}, or lacks its content", hint=f"supported here: {', '.join(kinds)}"
    )


def _content(holder: Mapping[str, Any], name: str, where: str, kinds: Sequence[str]) -> Any:
    """A field that is a text or a list of parts; None where it is absent or empty."""
    given = holder.get(name)
    if given is None or isinstance(given, str):
        return given or None
    parts = [_part(part, f"{where}{name}[{at}]", kinds) for at, part in enumerate(fields.a_list(holder, name, where))]
    return _joined(parts) if parts else None


def _joined(parts: Sequence[Mapping[str, Any]]) -> Any:
    return parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else list(parts)


def _tool(index: int, tool: Any) -> Message:
    where = f"tools[{index}]"
    if not isinstance(tool, dict) or tool.get("type") not in (None, "custom") or not isinstance(tool.get("name"), str):
        kind = tool.get("type") if isinstance(tool, dict) else tool
        raise EndpointError(
            f"{where} ({fields.shown(kind)}) must have a name and an input schema",
            hint="tools that a server runs itself are not supported",
        )
    fields.only_known(tool, _TOOL_FIELDS, where)
    if not isinstance(tool.get("input_schema"), dict):
        raise EndpointError(f"{where}.input_schema must be a JSON schema")
    function = {"name": tool["name"], "parameters": tool["input_schema"]}
    function |= {name: tool[name] for name in ("description", "strict") if tool.get(name) is not None}
    return {"type": "function", "function": function}


def _tool_choice(body: Mapping[str, Any]) -> Message:
    if not (choice := fields.an_object(body, "tool_choice")):
        return {}
    kind = choice.get("type")
    chosen: Any = {"auto": "auto", "any": "required", "none": "none"}.get(str(kind))
    if kind == "tool" and isinstance(choice.get("name"), str):
        chosen = {"type": "function", "function": {"name": choice["name"]}}
    if chosen is None:
        raise EndpointError(f"'tool_choice' must be of type auto, any, tool or none, not {fields.shown(kind)}")
    alone = {"parallel_tool_calls": False} if fields.flag(choice, "disable_parallel_tool_use") else {}
    return {"tool_choice": chosen, **alone}


def _output(body: Mapping[str, Any]) -> Message:
    config = fields.an_object(body, "output_config")
    fields.only_known(config, ("effort", "format"), "'output_config'")
    chat: Message = {} if config.get("effort") is None else {"reasoning_effort": config["effort"]}
    if form := fields.an_object(config, "format", "output_config."):
        if form.get("type") != "json_schema" or not isinstance(form.get("schema"), dict):
            raise EndpointError("'output_config.format' must be of type 'json_schema' and have a schema")
        schema = {"name": "output", "schema": form["schema"], "strict": True}
        chat["response_format"] = {"type": "json_schema", "json_schema": schema}
    return chat
