"""Anthropic's Messages API: requests read as chat completion requests, replies read and written, whole and as events."""

from __future__ import annotations

import json
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from lgov_core._util.json_text import json_object, wire_text
from lgov_core.errors import ContextOverflow, EndpointError, LgovError, UpstreamError
from lgov_core.wire import fields
from lgov_core.wire.chat import read_chat_request
from lgov_core.wire.exchange import (
    Assembler,
    CallIds,
    Changes,
    ChatRequest,
    Completion,
    Place,
    ToolCall,
    frame,
    read_event,
    text_completion,
    unreadable_parts,
)
from lgov_core.wire.fields import Use, accepted_fields, fields_below, fields_with
from lgov_core.wire.reply_writer import Item, TranslatedWriter

Message = dict[str, Any]

_WHOSE = "the Messages API of this endpoint"
#: Named one by one, so that the message is about what was asked for; a value that asks for nothing is none.
_REFUSED = fields_with("messages", Use.REFUSED)
_KNOWN = {*accepted_fields("messages"), *_REFUSED}
_TOOL_FIELDS = fields_below("messages", "tools")


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
    fields.an_object(body, "thinking")  # the model may think; whether, its template says
    if fields.flag(body, "stream"):
        chat |= {"stream": True, "stream_options": {"include_usage": True}}
    return read_chat_request(chat)


def _messages(body: Mapping[str, Any], places: list[Place | None] | None = None) -> list[Message]:
    """The messages in chat form. To ``places`` it adds where the text of each stands in the request."""
    listed = body.get("messages")
    if not isinstance(listed, list) or not listed:
        raise EndpointError("'messages' must be a list with at least one message")
    messages: list[Message] = []
    places = [] if places is None else places
    for index, message in enumerate(listed):
        where = f"messages[{index}]"
        role = message.get("role") if isinstance(message, dict) else None
        if role not in ("user", "assistant", "system"):
            raise EndpointError(f"{where} must be an object with the role 'user', 'assistant' or 'system'")
        content = message.get("content")
        whole: Place = ("messages", index, "content")
        if isinstance(content, str):
            messages.append({"role": role, "content": content})
            places.append(whole)
        elif role == "user":
            of_user = list(_user(fields.a_list(message, "content", f"{where}."), where))
            messages += of_user
            results = sum(chat_message["role"] == "tool" for chat_message in of_user)  # they come first
            places += [(*whole, number, "content") for number in range(results)]
            places += [whole] * (len(of_user) - results)
        elif role == "system":
            messages.append({"role": role, "content": _content(message, "content", f"{where}.", ("text",)) or ""})
            places.append(whole)
        else:
            messages.append(_assistant(fields.a_list(message, "content", f"{where}."), where))
            places.append(whole)
    if messages and messages[-1]["role"] == "assistant":
        raise EndpointError(
            "the last message is the assistant's: a reply that goes on from it is not supported",
            hint="end with a message of the user",
        )
    return messages


def message_places(body: Mapping[str, Any]) -> list[Place | None]:
    """Where the text of each message stands in a Messages request."""
    places: list[Place | None] = [("system",)] if body.get("system") else []
    _messages(body, places)
    return places


def _user(blocks: Sequence[Any], where: str) -> Iterator[Message]:
    """Yields the messages for a user's message: each tool result a message of its own, in the order of the blocks."""
    if not blocks:
        raise EndpointError(f"{where}.content must have at least one block")
    parts: list[Message] = []
    for index, block in enumerate(blocks):
        at = f"{where}.content[{index}]"
        if isinstance(block, dict) and block.get("type") == "tool_result":
            if parts:  # as Anthropic has it; a chat completion has no place for a text between a call and its result
                raise EndpointError(f"{at}: the results of tools come first in a message, other content after them")
            yield _tool_result(block, at)
        else:
            parts.append(_part(block, at, ("text", "image", "document")))
    if parts:
        yield {"role": "user", "content": _joined(parts)}


def _tool_result(block: Mapping[str, Any], where: str) -> Message:
    call_id = fields.text(block, "tool_use_id", f"{where}.")
    if not call_id:
        raise EndpointError(f"{where} is a tool result without 'tool_use_id'")
    fields.flag(block, "is_error")  # the text of the result says it: a chat completion has no field for it
    content = _content(block, "content", f"{where}.", ("text", "image", "document"))
    return {"role": "tool", "tool_call_id": call_id, "content": content or ""}


def _assistant(blocks: Sequence[Any], where: str) -> Message:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[Message] = []
    for index, block in enumerate(blocks):
        at = f"{where}.content[{index}]"
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "tool_use":
            calls.append(_tool_use(block, at))
        elif kind == "thinking" and isinstance(block.get("thinking"), str):
            thoughts.append(block["thinking"])
        elif fields.of_another_server(block):
            continue
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
    call_id, name, raw = (
        fields.text(block, "id", f"{where}."),
        fields.text(block, "name", f"{where}."),
        block.get("input"),
    )
    if not call_id or not name or not isinstance(raw, dict):
        raise EndpointError(f"{where} is a tool use without 'id', 'name' or an object as 'input'")
    broken = raw.get(INVALID_JSON) if len(raw) == 1 else None
    arguments = broken if isinstance(broken, str) else json.dumps(raw, ensure_ascii=False)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _part(block: Any, where: str, kinds: Sequence[str]) -> Message:
    kind = block.get("type") if isinstance(block, dict) else None
    if kind in kinds:
        if kind == "text" and isinstance(block.get("text"), str):
            return {"type": "text", "text": block["text"]}
        source = block.get("source") if kind != "text" else None
        value = (
            source.get({"url": "url", "base64": "data"}.get(str(source.get("type")), ""))
            if isinstance(source, dict)
            else 0
        )
        if isinstance(source, dict) and source.get("type") == "text" and isinstance(source.get("data"), str):
            return {"type": "text", "text": source["data"]}
        if isinstance(source, dict) and isinstance(value, str):
            address = value if source["type"] == "url" else f"data:{source.get('media_type')};base64,{value}"
            if kind == "image":
                return {"type": "image_url", "image_url": {"url": address}}
            return {"type": "file", "file": {"file_data": address, "filename": block.get("title") or "document"}}
    raise EndpointError(
        f"{where} is of type {fields.shown(kind)}, or lacks its content", hint=f"supported here: {', '.join(kinds)}"
    )


def _content(holder: Mapping[str, Any], name: str, where: str, kinds: Sequence[str]) -> Any:
    """A field that is a text or a list of parts; None where it is absent or empty."""
    value = holder.get(name)
    if value is None or isinstance(value, str):
        return value or None
    parts = [_part(block, f"{where}{name}[{at}]", kinds) for at, block in enumerate(fields.a_list(holder, name, where))]
    return _joined(parts) if parts else None


def _joined(parts: Sequence[Mapping[str, Any]]) -> Any:
    return parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else list(parts)


def _tool(index: int, tool: Any) -> Message:
    where = f"tools[{index}]"
    if not isinstance(tool, dict) or tool.get("type") not in (None, "custom") or not isinstance(tool.get("name"), str):
        kind = tool.get("type") if isinstance(tool, dict) else tool
        raise EndpointError(
            f"{where} ({fields.shown(kind)}) must have a name and an input schema",
            hint="a tool that a server runs itself has a type",
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
    fields.only_known(config, fields_below("messages", "output_config"), "'output_config'")
    chat: Message = {} if config.get("effort") is None else {"reasoning_effort": config["effort"]}
    if form := fields.an_object(config, "format", "output_config."):
        if form.get("type") != "json_schema" or not isinstance(form.get("schema"), dict):
            raise EndpointError("'output_config.format' must be of type 'json_schema' and have a schema")
        schema = {"name": "output", "schema": form["schema"], "strict": True}
        chat["response_format"] = {"type": "json_schema", "json_schema": schema}
    return chat


#: Arguments that are no JSON object, as the model wrote them: the API has no other place for them.
INVALID_JSON = "INVALID_JSON"

_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_MESSAGE_REASONS = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "tool_calls"}
_STOP_REASONS = {"length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal", "cancelled": None}


def messages_error(error: LgovError, status: int) -> dict[str, Any]:
    """An error in Anthropic's shape."""
    kind = _ERROR_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    message = str(error)
    if isinstance(error, ContextOverflow):  # by these words clients know it
        message = f"prompt is too long: {error.tokens} tokens > {error.limit} maximum"
    return {"type": "error", "error": {"type": kind, "message": message}}


class MessagesWriter(TranslatedWriter):
    """Writes a Message: a thinking block, text and tool uses, as far as the reply has them.

    The input of a tool use is sent whole, since it has to be known whether it is an object; arguments that are none are
    handed on as ``{"INVALID_JSON": <text>}``, and read back as that text.
    """

    _model = ""

    def failed(self, error: LgovError, status: int) -> bytes:
        """An ``error`` event."""
        return frame(messages_error(error, status), "error")

    def _event(self, kind: str, **fields: Any) -> bytes:
        return frame({"type": kind, **fields}, kind)

    def _begin(self, model: str) -> Iterator[bytes]:
        self._model = model
        # The prompt's length is known at the end only, and reported there.
        begun = {**self._head(), "content": [], "stop_reason": None, "usage": _usage(0, 0)}
        yield self._event("message_start", message=begun)

    def _head(self) -> dict[str, Any]:
        head = {"id": self._response_id, "type": "message", "role": "assistant", "model": self._model}
        return {**head, "stop_sequence": None}

    def _item(self, what: str, item: Item, delta: str) -> Iterator[bytes]:
        at = {"index": item.index}
        if what == "open":
            block = _block(Item(item.kind, item.index, "", item.call_id, item.name))
            yield self._event("content_block_start", **at, content_block=block)
        elif what == "delta" and item.kind != "call":
            kind = "text" if item.kind == "text" else "thinking"
            yield self._event("content_block_delta", **at, delta={"type": f"{kind}_delta", kind: delta})
        elif what == "close":
            if item.kind == "call":
                written = {"type": "input_json_delta", "partial_json": wire_text(_input(item))}
                yield self._event("content_block_delta", **at, delta=written)
            yield self._event("content_block_stop", **at)

    def _body(self, completion: Completion, chat: Mapping[str, Any]) -> dict[str, Any]:
        stop_reason = _STOP_REASONS.get(completion.finish_reason, "end_turn")
        matched = completion.matched_stop if stop_reason == "end_turn" else None
        matched = matched if matched in self._request.stop else None
        return {
            **self._head(),
            "content": [_block(item) for item in self._turn.items],
            "stop_reason": "stop_sequence" if matched else stop_reason,
            "stop_sequence": matched,
            "usage": _usage(completion.prompt_tokens, completion.completion_tokens),
            "lgov": {"weights_version": completion.weights_version},
        }

    def _end(self, completion: Completion, body: Mapping[str, Any]) -> Iterator[bytes]:
        stop = {"stop_reason": body["stop_reason"], "stop_sequence": body["stop_sequence"]}
        yield self._event("message_delta", delta=stop, usage=body["usage"], lgov=body["lgov"])
        yield self._event("message_stop")


def _input(item: Item) -> dict[str, Any]:
    if not item.text.strip():
        return {}
    value = json_object(item.text)
    return {INVALID_JSON: item.text} if value is None else value


def _block(item: Item) -> dict[str, Any]:
    if item.kind == "call":
        return {"type": "tool_use", "id": item.call_id, "name": item.name, "input": _input(item)}
    if item.kind == "reasoning":
        return {"type": "thinking", "thinking": item.text, "signature": ""}
    return {"type": "text", "text": item.text}


def _usage(prompt: int, generated: int) -> dict[str, int]:
    caches = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
    return {"input_tokens": prompt, **caches, "output_tokens": generated}


class MessagesAssembler(Assembler):
    """The events of one Message."""

    def __init__(self) -> None:
        self._body: dict[str, Any] = {}
        self._blocks: dict[int, dict[str, Any]] = {}
        self._inputs: dict[int, str] = {}
        self._ids = CallIds()

    def add(self, data: str, event: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """Takes the data of one event; returns it."""
        return {} if data.strip() == "[DONE]" else super().add(data, event)  # which some servers add

    def _take(self, event: Mapping[str, Any]) -> Mapping[str, Any]:
        kind = event["type"]
        if kind == "message_start":
            self._body = dict(event["message"])
        elif kind == "content_block_start":
            if event["index"] != len(self._blocks):  # clients count the blocks, and find each by its number
                raise ValueError("the blocks are not numbered one after the other")
            block = _with_call_id(event["content_block"], self._ids, event["index"])
            event = event if block is event["content_block"] else {**event, "content_block": block}
            self._blocks[event["index"]] = dict(block)
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
        return event

    def body(self, *, finish_reason: str | None = None) -> dict[str, Any]:
        """The whole body so far; ``finish_reason`` replaces the stream's own."""
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
    kinds: list[Any] = []
    try:
        ids = CallIds()
        content = [_with_call_id(block, ids, number) for number, block in enumerate(cast("list[Any]", content))]
        if not all(map(operator.is_, content, body["content"])):
            body = {**body, "content": content}
        for block in content:
            kinds.append(block["type"])
            if block["type"] == "text":
                texts.append(block["text"])
            elif block["type"] == "tool_use":
                raw = block["input"]
                written = raw if isinstance(raw, str) else json.dumps(raw, ensure_ascii=False)
                calls.append(ToolCall(block["id"], str(block["name"]), written))
    except (KeyError, TypeError) as error:
        raise UpstreamError("the upstream's message has blocks without a type, a name or content") from error
    reason = str(body.get("stop_reason") or "unknown")
    problem = unreadable_parts(kinds, ("text", "tool_use", "thinking", "redacted_thinking"))
    finish = _MESSAGE_REASONS.get(reason, reason)
    return text_completion(body, message_id, texts, calls, finish, body.get("usage") or {}, problem)


def _with_call_id(block: Any, ids: CallIds, number: int) -> Any:
    return ids.put(number, block) if block["type"] == "tool_use" else block


def _parsed(text: str) -> Any:
    try:
        return read_event(text)
    except UpstreamError:
        return text


def changed_message(body: Mapping[str, Any], changes: Changes) -> dict[str, Any]:
    """A Message as policies left it."""
    change = changes[0]
    content: list[Mapping[str, Any]] = []
    number, says, begins_at = 0, "" if change.keeps_text else change.text, None
    for block in body["content"]:
        if block["type"] == "tool_use":
            begins_at = len(content) if begins_at is None else begins_at
            if (call := change.calls.get(number)) is not None:
                value = json_object(call.arguments)
                content.append({**block, "input": {INVALID_JSON: call.arguments} if value is None else value})
            number += 1
        elif block["type"] == "text" and not change.keeps_text:
            if says:
                content.append({"type": "text", "text": says})
                says = ""
        elif block["type"] == "text" or change.keeps_reasoning:
            content.append(block)
    if says:
        content.insert(len(content) if begins_at is None else begins_at, {"type": "text", "text": says})
    ends = body.get("stop_reason")
    return {**body, "content": content, "stop_reason": "end_turn" if ends == "tool_use" and not change.calls else ends}


def message_events(body: Mapping[str, Any], passed: Sequence[Mapping[str, Any]]) -> bytes:
    """A Message as events, without the events ``passed``; of a text in pieces, what follows the pieces that were."""
    done = {(event.get("type"), event.get("index")) for event in passed}
    passed_texts: dict[tuple[Any, str], str] = {}
    for event in passed:
        if event.get("type") == "content_block_delta":
            key = (event["index"], event["delta"]["type"])
            passed_texts[key] = passed_texts.get(key, "") + str(event["delta"].get(key[1].removesuffix("_delta"), ""))
    written = b""
    for event in _events_of(body):
        kind, index = event["type"], event.get("index")
        if kind == "content_block_delta":
            delta = dict(event["delta"])
            name = str(delta["type"]).removesuffix("_delta")
            if before := passed_texts.get((index, delta["type"])):
                delta[name] = delta[name].removeprefix(before)
            if before is None or delta[name]:
                written += frame({**event, "delta": delta}, kind)
        elif (kind, index) not in done:
            written += frame(event, kind)
    return written


def _events_of(body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    ends = ("content", "stop_reason", "stop_sequence", "usage", "lgov")
    head = {name: value for name, value in body.items() if name not in ends}
    usage = {**(body.get("usage") or {}), "output_tokens": 0}
    begun = {**head, "stop_sequence": None, "content": [], "stop_reason": None, "usage": usage}
    yield {"type": "message_start", "message": begun}
    for index, block in enumerate(body["content"]):
        kind = {"thinking": "thinking", "text": "text"}.get(block["type"])
        empty = {**block, kind: ""} if kind else {**block, "input": {}} if "input" in block else block
        if "signature" in block:
            empty = {**empty, "signature": ""}
        yield {"type": "content_block_start", "index": index, "content_block": empty}
        deltas: list[dict[str, Any]] = [{"type": f"{kind}_delta", kind: block[kind]}] if kind else []
        if "input" in block:
            deltas = [{"type": "input_json_delta", "partial_json": wire_text(block["input"])}]
        if block.get("signature"):
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        yield from ({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas)
        yield {"type": "content_block_stop", "index": index}
    stop = {name: body.get(name) for name in ("stop_reason", "stop_sequence")}
    more = {"lgov": body["lgov"]} if "lgov" in body else {}
    yield {"type": "message_delta", "delta": stop, "usage": body.get("usage") or {}, **more}
    yield {"type": "message_stop"}
