"""OpenAI's Responses API: requests read as chat completion requests, replies read and written, whole and as events."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

from lgov_core._util.json_text import wire_text
from lgov_core.errors import EndpointError, LgovError, UpstreamError
from lgov_core.types import new_id
from lgov_core.wire import fields
from lgov_core.wire.chat import read_chat_request
from lgov_core.wire.exchange import (
    Changes,
    ChatRequest,
    Completion,
    Place,
    ToolCall,
    frame,
    text_completion,
    unreadable_parts,
)
from lgov_core.wire.fields import Use, accepted_fields, fields_below, fields_with
from lgov_core.wire.reply_writer import Item, TranslatedWriter
from lgov_core.wire.responses_stream import with_call_ids

Message = dict[str, Any]

_WHOSE = "the Responses API of this endpoint"
#: Named one by one, so that the message is about what was asked for; a value that asks for nothing is none.
_REFUSED = fields_with("responses", Use.REFUSED)
_KNOWN = {*accepted_fields("responses"), *_REFUSED}
#: Further parts of a reply; those of tools that a server runs, which no reply has, end in other names.
_INCLUDED = ("message.output_text.logprobs", "reasoning.encrypted_content")
_OF_TOOLS = (
    "_call.results",
    "_call.outputs",
    "_call.action.sources",
    "_output.output.image_url",
    "input_image.image_url",
)
_ROLES = ("user", "system", "developer", "assistant")


def read_responses_request(body: Mapping[str, Any], before: Sequence[Mapping[str, Any]] = ()) -> ChatRequest:
    """A Responses request as the chat completion request that asks the same.

    ``before`` is the conversation that ``previous_response_id`` stands for, which the caller looks up. Raises
    `EndpointError` (400) that names the field.
    """
    fields.refuse(body, _REFUSED, _WHOSE)
    fields.only_known(body, _KNOWN, _WHOSE)
    fields.refuse(body, ("truncation",), _WHOSE, unless={"truncation": ("auto", "disabled")})
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
    raw = body.get("input")
    if isinstance(raw, str):
        return [{"role": "user", "content": raw}]
    if not isinstance(raw, list) or not raw:
        raise EndpointError("'input' must be text or a list with at least one item")
    return chat_messages(raw)


def chat_messages(items: Sequence[Any], places: list[Place | None] | None = None) -> list[Message]:
    """Items of input, or of an earlier output, as chat messages. Raises `EndpointError` (400) that names the item.

    To ``places`` it adds where the text of each message stands in a request with this input.
    """
    messages: list[Message] = []
    text_places: list[Place | None] = []
    turn: Message | None = None  # what the model wrote and a following call still belongs to
    for index, item in enumerate(items):
        where = f"input[{index}]"
        if not isinstance(item, dict):
            raise EndpointError(f"{where} must be an object, not {fields.shown(item)}")
        kind = _kind(item)
        if fields.of_another_server(item):
            continue
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
        elif kind == "reasoning" and not message["reasoning_content"]:
            continue
        elif kind == "message" and continues and turn is not None and turn.get("content") is None:
            turn["content"] = message["content"]
            text_places[-1] = ("input", index, "content")
        else:
            messages.append(message)
            has_text = kind in ("message", "function_call_output")
            text_places.append(("input", index, "content" if kind == "message" else "output") if has_text else None)
            turn = message if message["role"] == "assistant" else None
    if places is not None:
        places += text_places
    return messages


def _kind(item: Mapping[str, Any]) -> Any:
    """The type of an item; a call of any kind of tool that a client runs is a function call, and so is its output."""
    kind = item.get("type") or ("message" if "role" in item else None)
    functions = ("function_call", "function_call_output") if item.get("call_id") else ()
    return next((name for name in functions if str(kind).endswith(name[8:])), kind)


def response_places(body: Mapping[str, Any], before: int = 0) -> list[Place | None]:
    """Where the text of each message stands in a Responses request, ``before`` being those of an earlier conversation."""
    places: list[Place | None] = [("before", number, "content") for number in range(before)]
    if isinstance(body["input"], str):
        places.append(("input",))
    else:
        chat_messages(body["input"], places)
    return [("instructions",), *places] if body.get("instructions") else places


#: Fields of a Response that may repeat its text.
_REPEATED = ("output_text",)


def changed_response(body: Mapping[str, Any], changes: Changes) -> dict[str, Any]:
    """A Response as policies left it."""
    change = changes[0]
    output: list[Mapping[str, Any]] = []
    number, says, begins_at = 0, "" if change.keeps_text else change.text, None
    for item in body["output"]:
        if item["type"] == "function_call":
            begins_at = len(output) if begins_at is None else begins_at
            if (call := change.calls.get(number)) is not None:
                kept = {name: item[name] for name in ("id", "type", "status", "call_id") if name in item}
                output.append({**kept, "name": call.name, "arguments": call.arguments})
            number += 1
        elif item["type"] == "message" and not change.keeps_text:
            if says:
                output.append({**item, "content": [_text_part(says)]})
                says = ""
        elif item["type"] == "message" or change.keeps_reasoning:
            output.append(item)
    if says:
        item = {"id": new_id("msg"), "type": "message", "role": "assistant", "status": "completed"}
        output.insert(len(output) if begins_at is None else begins_at, {**item, "content": [_text_part(says)]})
    return {**{name: value for name, value in body.items() if name not in _REPEATED}, "output": output}


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _message(item: Mapping[str, Any], where: str) -> Message:
    role = item.get("role")
    if role not in _ROLES:
        raise EndpointError(f"{where} has the role {fields.shown(role)}", hint=f"roles are {', '.join(_ROLES)}")
    content = item.get("content")
    if isinstance(content, str):
        return {"role": role, "content": content}
    parts = [
        _part(content_part, f"{where}.content[{index}]")
        for index, content_part in enumerate(fields.a_list(item, "content", f"{where}."))
    ]
    return {"role": role, "content": _joined(parts, always=role == "assistant")}


def _joined(parts: Sequence[Mapping[str, Any]], *, always: bool = False) -> Any:
    """Text alone as one text where that says the same, else the parts."""
    if (len(parts) == 1 or always) and all(content_part["type"] == "text" for content_part in parts):
        return "".join(content_part["text"] for content_part in parts)
    return list(parts)


def _part(content_part: Any, where: str) -> Message:
    kind = content_part.get("type") if isinstance(content_part, dict) else None
    if kind in ("input_text", "output_text", "text") and isinstance(content_part.get("text"), str):
        return {"type": "text", "text": content_part["text"]}
    if kind == "refusal" and isinstance(content_part.get("refusal"), str):
        return {"type": "text", "text": content_part["refusal"]}
    if kind == "input_image" and isinstance(content_part.get("image_url"), str):
        detail = {"detail": content_part["detail"]} if content_part.get("detail") is not None else {}
        return {"type": "image_url", "image_url": {"url": content_part["image_url"], **detail}}
    names = ("file_data", "file_id", "file_url", "filename")
    file = (
        {name: content_part[name] for name in names if content_part.get(name) is not None}
        if kind == "input_file"
        else {}
    )
    if file and all(isinstance(value, str) for value in file.values()):
        return {"type": "file", "file": file}
    raise EndpointError(
        f"{where} is of type {fields.shown(kind)}, or lacks its content",
        hint="text is supported, and images and files by their address or data",
    )


def _function_call(item: Mapping[str, Any], where: str) -> Message:
    if (kind := item.get("type")) != "function_call":
        details = {
            name: value for name, value in item.items() if name not in ("type", "id", "call_id", "name", "status")
        }
        item = {"call_id": item["call_id"], "name": item.get("name") or str(kind)[:-5], "arguments": wire_text(details)}
    named = {name: fields.text(item, name, f"{where}.") for name in ("call_id", "name", "arguments")}
    if not named["call_id"] or not named["name"] or named["arguments"] is None:
        raise EndpointError(f"{where} is a function call without 'call_id', 'name' or 'arguments'")
    function = {"name": named["name"], "arguments": named["arguments"]}
    call = {"id": named["call_id"], "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def _output_part(value: Any, where: str) -> Message:
    is_of_shell = isinstance(value, dict) and "type" not in value  # it has texts of its own
    return {"type": "text", "text": wire_text(value)} if is_of_shell else _part(value, where)


def _function_output(item: Mapping[str, Any], where: str) -> Message:
    call_id, output = fields.text(item, "call_id", f"{where}."), item.get("output")
    if not call_id:
        raise EndpointError(f"{where} is a function's output without 'call_id'")
    if not isinstance(output, str):
        parts = fields.a_list(item, "output", f"{where}.")
        output = _joined([_output_part(value, f"{where}.output[{index}]") for index, value in enumerate(parts)]) or ""
    return {"role": "tool", "tool_call_id": call_id, "content": output}


def _reasoned(item: Mapping[str, Any], where: str) -> Message:
    parts = fields.a_list(item, "content", f"{where}.") or fields.a_list(item, "summary", f"{where}.")
    written = [content_part.get("text") if isinstance(content_part, dict) else None for content_part in parts]
    if not all(isinstance(text, str) for text in written):
        raise EndpointError(f"{where} is reasoning with a part that has no text")
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
            hint="a tool that a server runs itself has another type",
        )
    fields.only_known(tool, fields_below("responses", "tools"), f"{where}, a function,")
    named = ("name", "description", "parameters", "strict")
    return {"type": "function", "function": {name: tool[name] for name in named if tool.get(name) is not None}}


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
    text_options = fields.an_object(body, "text")
    fields.only_known(text_options, fields_below("responses", "text"), "'text'")
    chat: Message = {} if text_options.get("verbosity") is None else {"verbosity": text_options["verbosity"]}
    form = fields.an_object(text_options, "format", "text.")
    kind = form.get("type", "text")
    if kind == "json_schema":
        chat["response_format"] = {"type": kind, kind: {key: form[key] for key in form if key != "type"}}
    elif kind == "json_object":
        chat["response_format"] = {"type": kind}
    elif kind != "text":
        raise EndpointError(f"text.format is of type {fields.shown(kind)}, which is not supported")
    return chat


def _reasoning(body: Mapping[str, Any]) -> Message:
    options = fields.an_object(body, "reasoning")
    fields.only_known(options, fields_below("responses", "reasoning"), f"'reasoning' of {_WHOSE}")
    return {} if options.get("effort") is None else {"reasoning_effort": options["effort"]}


def _logprobs(body: Mapping[str, Any]) -> Message:
    include = fields.a_list(body, "include")
    if other := [name for name in include if name not in _INCLUDED and not str(name).endswith(_OF_TOOLS)]:
        raise EndpointError(
            f"'include' names {fields.shown(other[0])}, which is not supported", hint=", ".join(_INCLUDED)
        )
    top = fields.number(body, "top_logprobs", 0, low=0, high=20, whole=True)
    chat: Message = {"top_logprobs": top} if top else {}
    return {**chat, "logprobs": True} if top or _INCLUDED[0] in include else chat


_ECHOED: Mapping[str, Any] = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "reasoning": None,
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": 1.0,
    "user": None,
}
_LENGTH_REASONS = {"max_output_tokens": "length"}
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
_PREFIX = {"text": "msg", "reasoning": "rs", "call": "fc"}


class ResponsesWriter(TranslatedWriter):
    """Writes a Response: a reasoning item, a message and function calls, as far as the reply has them."""

    def __init__(self, request: ChatRequest, body: Mapping[str, Any], response_id: str) -> None:
        super().__init__(request, body, response_id)
        self._sequence = 0
        self._created_at = int(time.time())
        # A client that asks for a summary of the thoughts gets them there, and sends them back with its next call.
        self._summarised = bool((body.get("reasoning") or {}).get("summary"))
        self._model = request.model

    def _event(self, kind: str, **fields: Any) -> bytes:
        event = {"type": kind, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return frame(event, kind)

    def failed(self, error: LgovError, status: int) -> bytes:
        """An ``error`` event."""
        return self._event("error", code=error.code, message=str(error), param=None)

    def _head(self) -> dict[str, Any]:
        echoed = {
            name: default if self._asked.get(name) is None else self._asked[name] for name, default in _ECHOED.items()
        }
        return {
            "id": self._response_id,
            "object": "response",
            "created_at": self._created_at,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "model": self._model,
            "truncation": "disabled",
            **echoed,
        }

    def _begin(self, model: str) -> Iterator[bytes]:
        self._model = model
        begun = {**self._head(), "status": "in_progress", "output": [], "usage": None}
        yield self._event("response.created", response=begun)
        yield self._event("response.in_progress", response=begun)

    def _item(self, what: str, item: Item, delta: str) -> Iterator[bytes]:
        if what == "open":
            item.item_id = f"{_PREFIX[item.kind]}_{self._response_id.partition('_')[2]}{item.index}"
        at = {"output_index": item.index, "item_id": item.item_id}
        if item.kind == "call":
            yield from self._call(what, item, delta, at)
            return
        content_part = self._part(item)
        is_summary = content_part["type"] == "summary_text"
        noun, whole = (
            ("reasoning_summary_text", "reasoning_summary_part")
            if is_summary
            else (content_part["type"], "content_part")
        )
        logprobs: dict[str, Any] = {"logprobs": []} if item.kind == "text" else {}
        at["summary_index" if is_summary else "content_index"] = 0
        if what == "open":
            body = self._item_body(item, "in_progress")
            begun = {**body, **({"summary": []} if is_summary else {"content": []})}
            yield self._event("response.output_item.added", output_index=item.index, item=begun)
            yield self._event(f"response.{whole}.added", **at, part={**content_part, "text": ""})
        elif what == "delta":
            yield self._event(f"response.{noun}.delta", **at, delta=delta, **logprobs)
        else:
            yield self._event(f"response.{noun}.done", **at, text=item.text, **logprobs)
            yield self._event(f"response.{whole}.done", **at, part=content_part)
            yield self._done(item)

    def _call(self, what: str, item: Item, delta: str, at: Mapping[str, Any]) -> Iterator[bytes]:
        if what == "open":
            begun = {**self._item_body(item, "in_progress"), "arguments": ""}
            yield self._event("response.output_item.added", output_index=item.index, item=begun)
        elif what == "delta":
            yield self._event("response.function_call_arguments.delta", **at, delta=delta)
        else:
            done = {"name": item.name, "arguments": item.text}
            yield self._event("response.function_call_arguments.done", **at, **done)
            yield self._done(item)

    def _done(self, item: Item) -> bytes:
        body = self._item_body(item, "completed")
        return self._event("response.output_item.done", output_index=item.index, item=body)

    def _body(self, completion: Completion, chat: Mapping[str, Any]) -> dict[str, Any]:
        reason = _INCOMPLETE.get(completion.finish_reason)
        status = "cancelled" if completion.finish_reason == "cancelled" else "incomplete" if reason else "completed"
        ended = "completed" if status == "completed" else "incomplete"
        output = [self._item_body(item, ended) for item in self._turn.items]
        if "message.output_text.logprobs" in (self._asked.get("include") or ()):
            texts = [item for item in output if item["type"] == "message"]
            if len(output) == len(texts) == 1:
                texts[0]["content"][0]["logprobs"] = _written_logprobs(chat)
        usage = {
            "input_tokens": completion.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": completion.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": completion.prompt_tokens + completion.completion_tokens,
        }
        return {
            **self._head(),
            "status": status,
            "incomplete_details": {"reason": reason} if reason else None,
            "output": output,
            "usage": usage,
            "lgov": {"weights_version": completion.weights_version},
        }

    def _end(self, completion: Completion, body: Mapping[str, Any]) -> Iterator[bytes]:
        yield self._event(f"response.{body['status']}", response=body)

    def _part(self, item: Item) -> dict[str, Any]:
        if item.kind == "reasoning":
            return {"type": "summary_text" if self._summarised else "reasoning_text", "text": item.text}
        return _text_part(item.text)

    def _item_body(self, item: Item, status: str) -> dict[str, Any]:
        if item.kind == "call":
            call = {"call_id": item.call_id, "name": item.name, "arguments": item.text}
            return {"id": item.item_id, "type": "function_call", "status": status, **call}
        if item.kind == "reasoning":
            thoughts = (
                {"summary": [self._part(item)]} if self._summarised else {"summary": [], "content": [self._part(item)]}
            )
            return {"id": item.item_id, "type": "reasoning", **thoughts, "status": status}
        head = {"id": item.item_id, "type": "message", "role": "assistant", "status": status}
        return {**head, "content": [self._part(item)]}


def _written_logprobs(chat: Mapping[str, Any]) -> list[dict[str, Any]]:
    content = (chat["choices"][0].get("logprobs") or {}).get("content") or ()
    return [
        {
            "token": entry["token"],
            "bytes": entry.get("bytes") or [],
            "logprob": entry["logprob"],
            "top_logprobs": [{**top, "bytes": top.get("bytes") or []} for top in entry.get("top_logprobs") or ()],
        }
        for entry in content
    ]


def read_response(body: Mapping[str, Any]) -> Completion:
    """A Response. Raises `UpstreamError` if it is none."""
    response_id, output = body.get("id"), body.get("output")
    if not isinstance(response_id, str) or not response_id or not isinstance(output, list):
        raise UpstreamError("the upstream's reply is not a response: it has no id or no output")
    texts: list[str] = []
    calls: list[ToolCall] = []
    kinds: list[Any] = []
    try:
        body = with_call_ids(cast("dict[str, Any]", body))
        for item in body["output"]:
            kinds.append(item["type"])
            if item["type"] == "message":
                texts += [
                    content_part.get("text") or content_part.get("refusal") or "" for content_part in item["content"]
                ]
            elif item["type"] == "function_call":
                written = item["arguments"]
                calls.append(ToolCall(item["call_id"], str(item["name"]), "{}" if written is None else str(written)))
    except (AttributeError, KeyError, TypeError) as error:
        raise UpstreamError("the upstream's response has items without a type, a name or content") from error
    status = str(body.get("status") or "completed")
    reason: Any = (body.get("incomplete_details") or {}).get("reason")
    finish = {"completed": "tool_calls" if calls else "stop", "incomplete": _LENGTH_REASONS.get(reason, str(reason))}
    usage: Any = body.get("usage") or {}
    problem = unreadable_parts(kinds, ("message", "function_call", "reasoning"))
    return text_completion(body, response_id, texts, calls, finish.get(status, status), usage, problem)
