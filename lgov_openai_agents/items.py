"""Translates the SDK's items and replies to what policies read, and back; whole replies to events, and back. Pure functions."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from agents import ModelResponse, Usage
from agents.items import TResponseInputItem
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseContentPartAddedEvent,
    ResponseContentPartDoneEvent,
    ResponseCreatedEvent,
    ResponseFunctionToolCall,
    ResponseOutputItemAddedEvent,
    ResponseOutputItemDoneEvent,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseTextDeltaEvent,
    ResponseTextDoneEvent,
    ResponseUsage,
)

from lgov_core.instrumentation import json_object, readable_json
from lgov_core.types import new_id
from lgov_core.wire.exchange import clear_ids
from lgov_core.wire.turns import ModelReading, media_in, media_kind, rewritten_arguments

FRAMEWORK = "openai-agents"

#: The name of the argument for a text that is not a JSON object.
SINGLE = "input"

#: What the SDK writes where the endpoint gave no id.
_NO_ID = frozenset({"", "__fake_id__"})


# ---------------------------------------------------------------------- the request


def as_list(input: str | Sequence[TResponseInputItem]) -> list[Any]:
    """Returns the input of a model as a list of items."""
    return [{"role": "user", "content": input}] if isinstance(input, str) else list(input)


def as_mapping(item: Any) -> dict[str, Any]:
    """An item as ``role`` and ``content`` (its text), with the tool call it is or answers."""
    item = _plain(item)
    kind = item.get("type")
    if kind == "function_call":
        call = {"id": item.get("call_id"), "name": item.get("name"), "args": arguments_of(item.get("arguments"))}
        return {"role": "assistant", "content": "", "tool_calls": [call]}
    if kind == "function_call_output":
        result = {"role": "tool", "content": text_of(item.get("output")), "tool_call_id": item.get("call_id")}
        return result | ({"media": media} if (media := media_in(item.get("output"))) else {})
    if "role" in item:
        message = {"role": item["role"], "content": text_of(item.get("content"))}
        return message | ({"media": media} if (media := media_in(item.get("content"))) else {})
    role = "tool" if str(kind).endswith("_output") else "assistant"
    return {"role": role, "content": readable_json(item)}


def text_of(content: Any) -> str:
    """The text of a message's content or a tool's output: its text parts, or what it is written as; not that of media."""
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if isinstance(content, (list, tuple)):
        return "\n".join(text_of(element) for element in content if media_kind(element) is None)
    for name in ("text", "refusal"):
        value = content.get(name) if isinstance(content, Mapping) else getattr(content, name, None)
        if isinstance(value, str):
            return value
    if isinstance(content, Mapping):
        return readable_json(content)
    dump = getattr(content, "model_dump", None)
    return readable_json(dump(exclude_none=True)) if callable(dump) else str(content)


def end_of_history(items: Sequence[Any]) -> int:
    """Where in ``items`` the user's messages at the end begin, since the agent last did anything."""
    position = len(items)
    while position and is_user_message(items[position - 1]):
        position -= 1
    return position


def user_messages(items: Sequence[Any]) -> list[tuple[int, str, str | None]]:
    """The position and text of each message of the user, and the text that the agent answered, if it did."""
    messages: list[tuple[int, str, str | None]] = []
    answer: str | None = None
    for position in range(len(items) - 1, -1, -1):
        if is_user_message(items[position]):
            messages.append((position, as_mapping(items[position])["content"], answer))
        else:
            plain = as_mapping(items[position])
            answer = plain["content"] if plain["role"] == "assistant" else None
    return messages[::-1]


def is_user_message(item: Any) -> bool:
    """Returns whether ``item`` is a message of the user."""
    return _plain(item).get("role") == "user"


def with_text(item: Any, text: str) -> Any:
    """``item`` with its text replaced; parts of a message that are not text stay."""
    item = dict(_plain(item))
    key = "output" if item.get("type") == "function_call_output" else "content"
    item[key] = _content_with_text(item.get(key), text)
    return item


def _content_with_text(content: Any, text: str) -> Any:
    if not isinstance(content, (list, tuple)):
        return text
    parts: list[Any] = []
    replaced = False
    for element in content:
        if not isinstance(element, Mapping) or "text" not in element:
            parts.append(element)
        elif not replaced:
            parts.append({**element, "text": text})
            replaced = True
    return parts if replaced else text


def with_messages(
    instructions: str | None, items: Sequence[Any], mappings: Sequence[Mapping[str, Any]]
) -> tuple[str | None, list[Any]]:
    """Instructions and items with the messages of a transform; a message that it left alone stays the item it was.

    Where only texts and the arguments of calls were changed, everything else of an item stays. Raises `ValueError` where it
    cannot be decided which item a message is to be.
    """
    originals: list[Any] = ([{"role": "system", "content": instructions}] if instructions else []) + list(items)
    result: list[Any] = []
    for position, mapping in enumerate(mappings):
        item = _reworded(originals[position], mapping) if position < len(originals) else None
        if item is None:
            if set(mapping) != {"role", "content"} or not all(isinstance(value, str) for value in mapping.values()):
                raise ValueError(f"message {position + 1} is neither of the request nor only a role and a text")
            item = dict(mapping)
        result.append(item)
    if instructions and result and _plain(result[0]).get("role") == "system":
        return str(result[0]["content"]), result[1:]
    return None, result


def _reworded(item: Any, mapping: Mapping[str, Any]) -> Any:
    """The item with the text or arguments of ``mapping``; None where more than those differ."""
    before = as_mapping(item)
    if before == mapping:
        return item
    plain = _plain(item)
    if plain.get("type") == "function_call":
        changed = rewritten_arguments(before, mapping)
        if changed is None or changed[0] is None or mapping["content"]:
            return None
        return {**plain, "arguments": arguments_text(changed[0], str(plain.get("arguments")))}
    if {**before, "content": ""} != {**mapping, "content": ""}:
        return None
    text = str(mapping["content"])
    if "role" in plain or plain.get("type") == "function_call_output":
        return with_text(plain, text)
    try:  # the text of any other item is its JSON
        changed_item = json.loads(text)
    except ValueError:
        return None
    same = isinstance(changed_item, dict) and all(
        changed_item.get(key) == plain.get(key) for key in ("type", "id", "call_id")
    )
    return changed_item if same else None


class ItemReader:
    """Recognises the items of a transcript: see `lgov_core.instrumentation.conversation_memory.TranscriptReader`."""

    def from_model(self, entry: Any) -> bool:
        """See `TranscriptReader.from_model`."""
        plain = _plain(entry)
        return plain.get("role") == "assistant" or str(plain.get("type")).endswith(("_call", "_request", "reasoning"))

    def marks(self, entry: Any) -> Sequence[str]:
        """See `TranscriptReader.marks`."""
        plain = _plain(entry)
        if plain.get("call_id"):
            return [str(plain["call_id"])]
        return [str(plain["id"])] if plain.get("id") and plain["id"] not in _NO_ID else []

    def has_calls(self, entry: Any) -> bool:
        """See `TranscriptReader.has_calls`."""
        return "call_id" in _plain(entry)

    def canonical(self, entry: Any) -> str:
        """See `TranscriptReader.canonical`."""
        return readable_json([_plain(entry).get("type"), as_mapping(entry)])


READER = ItemReader()


def _plain(item: Any) -> Mapping[str, Any]:
    if isinstance(item, Mapping):
        return cast("Mapping[str, Any]", item)
    dump: Any = getattr(item, "model_dump", None)
    return dump(exclude_none=True) if dump is not None else {}


# ---------------------------------------------------------------------- the reply


def arguments_of(raw: Any) -> dict[str, Any]:
    """A call's arguments text as a mapping; a text that is not a JSON object is the argument `SINGLE`."""
    if isinstance(raw, Mapping):
        return dict(raw)
    if not raw or raw == "null":
        return {}
    parsed = json_object(raw)
    return {SINGLE: raw} if parsed is None else parsed


def arguments_text(arguments: Mapping[str, Any], raw: str) -> str:
    """``arguments`` as the text that a tool gets; ``raw`` is the text that they replace."""
    if set(arguments) == {SINGLE} and SINGLE not in arguments_of(raw):
        return json.dumps(dict(arguments))
    if set(arguments) == {SINGLE} and isinstance(arguments[SINGLE], str) and json_object(raw) is None:
        return arguments[SINGLE]
    return json.dumps(dict(arguments), ensure_ascii=False)


def reading_of(response: ModelResponse, model: str) -> ModelReading:
    """Reads the model's reply."""
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    for item in response.output:
        if isinstance(item, ResponseFunctionToolCall):
            calls.append({"id": item.call_id, "name": item.name, "args": arguments_of(item.arguments)})
        elif isinstance(item, ResponseOutputMessage):
            texts += map(text_of, item.content)
        elif (call := _other_call(item)) is not None:
            calls.append(call)
    usage = response.usage
    used = {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}
    return ModelReading(
        "".join(texts),
        calls,
        used if usage.total_tokens or usage.input_tokens or usage.output_tokens else None,
        response_id_of(response),
        model,
        "tool_calls" if calls else "stop",
    )


def with_call_ids(response: ModelResponse) -> ModelResponse:
    """The reply with an id of its own for each call that the program answers: see `lgov_core.wire.exchange.CallIds`."""
    output: list[Any] = list(response.output)
    calls = [number for number, item in enumerate(output) if hasattr(item, "call_id")]
    written = [output[number].call_id for number in calls]
    if (ids := clear_ids(written)) == written:
        return response
    for number, call_id in zip(calls, ids, strict=True):
        output[number] = output[number].model_copy(update={"call_id": call_id})
    return replace(response, output=output)


def reply_text(response: ModelResponse) -> str:
    """The text of the reply's messages."""
    return "".join(
        text_of(content)
        for item in response.output
        if isinstance(item, ResponseOutputMessage)
        for content in item.content
    )


def _other_call(item: Any) -> dict[str, Any] | None:
    kind = str(getattr(item, "type", ""))
    if not kind.endswith("_call"):
        return None
    plain = dict(_plain(item))
    call_id = plain.pop("call_id", None) or plain.pop("id", None)
    return {"id": call_id, "name": plain.pop("name", None) or kind.removesuffix("_call"), "args": plain}


def response_id_of(response: ModelResponse) -> str | None:
    """The id that the endpoint gave to the reply; for chat completions the SDK notes it on the items."""
    for item in response.output:
        noted = getattr(item, "provider_data", None)
        if (
            isinstance(noted, Mapping)
            and isinstance(response_id := noted.get("response_id"), str)
            and response_id not in _NO_ID
        ):
            return response_id
    response_id = response.response_id
    return (
        response_id
        if response_id is not None and response_id not in _NO_ID and not response_id.startswith("__fake")
        else None
    )


def proposes_calls(response: ModelResponse) -> bool:
    """Returns whether the reply asks the program to do anything, so that it is not the final answer."""
    return any(str(getattr(item, "type", "")).endswith(("_call", "_request")) for item in response.output)


# ---------------------------------------------------------------------- into the SDK


def message(text: str) -> ResponseOutputMessage:
    """A message of the model with this text."""
    content = ResponseOutputText(type="output_text", text=text, annotations=[], logprobs=[])
    return ResponseOutputMessage(
        id=new_id("msg"), type="message", role="assistant", status="completed", content=[content]
    )


def denial_reply(text: str, instead_of: ModelResponse | None = None) -> ModelResponse:
    """The denial ``text`` in place of a model's reply; it proposes no calls."""
    output: list[Any] = [message(text)]
    if instead_of is None:
        return ModelResponse(output=output, usage=Usage(), response_id=None)
    return replace(instead_of, output=output)


def with_reply_text(response: ModelResponse, text: str) -> ModelResponse:
    """``response`` with the text of its messages replaced; what it proposes to do stays."""
    output: list[Any] = []
    replaced = False
    for item in response.output:
        if not isinstance(item, ResponseOutputMessage):
            output.append(item)
        elif not replaced:
            content = ResponseOutputText(type="output_text", text=text, annotations=[], logprobs=[])
            output.append(item.model_copy(update={"content": [content]}))
            replaced = True
    if not replaced:
        output.insert(0, message(text))
    return replace(response, output=output)


def result_text(result: Any) -> str:
    """A tool's return value as the model will read it."""
    if isinstance(result, str):
        return result
    first = result[0] if isinstance(result, (list, tuple)) and result else result
    has_text = isinstance(first, Mapping) or hasattr(first, "model_dump")
    return text_of(result) if has_text else str(result)


#: The types of the events with which the SDK has a stream fail.
_FAILURES = frozenset({"response.incomplete", "response.failed", "error", "response.error"})
#: How the types of the events that hold only text go on after ``response.``.
_TEXTS = ("content_part.", "output_text.", "refusal.", "reasoning")


def response_of(events: Sequence[Any]) -> ModelResponse | None:
    """The reply of a stream's events, or None if it is incomplete."""
    completed = next((event for event in reversed(events) if isinstance(event, ResponseCompletedEvent)), None)
    if completed is None:
        return None
    response = completed.response
    output: list[Any] = response.output or [
        event.item for event in events if isinstance(event, ResponseOutputItemDoneEvent)
    ]
    used = response.usage
    usage = Usage() if used is None else Usage(requests=1, **{name: getattr(used, name) for name in _USAGE})
    return ModelResponse(output=output, usage=usage, response_id=response.id)


def failure_in(events: Sequence[Any]) -> list[Any]:
    """Of an incomplete reply that was withheld the event that says why, without what the model wrote."""
    failures = [event for event in events if getattr(event, "type", None) in _FAILURES][-1:]
    return [
        event.model_copy(update={"response": event.response.model_copy(update={"output": []})})
        if isinstance(getattr(event, "response", None), Response)
        else event
        for event in failures
    ]


#: The fields that the two classes for usage share.
_USAGE = ("input_tokens", "output_tokens", "total_tokens", "input_tokens_details", "output_tokens_details")


def is_text(event: Any) -> bool:
    """Returns whether an event of a stream holds only text, or says that the reply has begun."""
    kind = str(getattr(event, "type", "")).removeprefix("response.")
    if kind in ("output_item.added", "output_item.done"):
        return getattr(event.item, "type", None) in ("message", "reasoning")
    return kind in ("created", "in_progress", "queued") or kind.startswith(_TEXTS)


def event_key(event: Any) -> tuple[str, str | None]:
    """An event's type and the id of its item: a stream that goes on does not repeat those that the program has."""
    item = getattr(event, "item", None)
    return str(getattr(event, "type", "")), getattr(event, "item_id", None) or getattr(item, "id", None)


def events_of(answer: ModelResponse, held: Sequence[Any], model: str) -> Iterator[Any]:
    """The events of a stream that brings ``answer``. ``held`` are those of the reply that it replaces, if any."""
    original = next(
        (held_event.response for held_event in reversed(held) if isinstance(held_event, ResponseCompletedEvent)), None
    )
    response = _response(answer, original, model)
    opening = response.model_copy(update={"output": [], "status": "in_progress", "usage": None})
    numbers = itertools.count()

    def event(cls: type[Any], kind: str, **fields: Any) -> Any:
        return cls.model_construct(type=f"response.{kind}", sequence_number=next(numbers), **fields)

    yield event(ResponseCreatedEvent, "created", response=opening)
    for position, item in enumerate(response.output):
        yield event(ResponseOutputItemAddedEvent, "output_item.added", item=item, output_index=position)
        for index, content in enumerate(item.content if isinstance(item, ResponseOutputMessage) else ()):
            if isinstance(content, ResponseOutputText):
                at: dict[str, Any] = {"item_id": item.id, "output_index": position, "content_index": index}
                yield event(ResponseContentPartAddedEvent, "content_part.added", part=content, **at)
                yield event(ResponseTextDeltaEvent, "output_text.delta", delta=content.text, logprobs=[], **at)
                yield event(ResponseTextDoneEvent, "output_text.done", text=content.text, logprobs=[], **at)
                yield event(ResponseContentPartDoneEvent, "content_part.done", part=content, **at)
        yield event(ResponseOutputItemDoneEvent, "output_item.done", item=item, output_index=position)
    yield event(ResponseCompletedEvent, "completed", response=response)


def _response(answer: ModelResponse, original: Response | None, model: str) -> Response:
    usage = ResponseUsage.model_construct(**{name: getattr(answer.usage, name) for name in _USAGE})
    if original is not None:
        return original.model_copy(update={"output": answer.output, "usage": usage})
    return Response.model_construct(
        id=new_id("resp"),
        created_at=time.time(),
        model=model,
        object="response",
        output=answer.output,
        tool_choice="auto",
        tools=[],
        parallel_tool_calls=False,
        status="completed",
        usage=usage,
    )
