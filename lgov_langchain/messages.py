"""LangChain's messages and tool results as policies read them, and with what a policy replaced."""

from __future__ import annotations

import dataclasses
import json
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeGuard, TypeVar

from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    ToolMessage,
    convert_to_messages,
)
from pydantic import BaseModel

from lgov_core.instrumentation.model_call import reply_limit as first_limit
from lgov_core.instrumentation.tool_call import GovernedResult, ToolReading
from lgov_core.types import Decision, Kind
from lgov_core.wire.exchange import CallIds, clear_ids
from lgov_core.wire.turns import ModelReading, media_in
from lgov_langchain._internals import HANDOFF_DESTINATION

M = TypeVar("M", bound=BaseMessage)

#: Where LangChain's clients keep what they parsed out of a reply's text.
_PARSED = "parsed"
#: Where they keep a refusal: among these arguments, or in a block of this type.
_REFUSAL = "refusal"

_ROLES = {"human": "user", "ai": "assistant", "AIMessageChunk": "assistant", "HumanMessageChunk": "user"}


# ---------------------------------------------------------------------- read


def as_mappings(messages: Sequence[BaseMessage]) -> list[dict[str, Any]]:
    """Messages as ``role`` and ``content`` (their text), with their tool calls or the call they answer."""
    mappings: list[dict[str, Any]] = []
    for message in messages:
        role, text = role_and_text(message)
        mapping: dict[str, Any] = {"role": role, "content": text}
        if isinstance(message, AIMessage):
            if message.tool_calls:
                mapping["tool_calls"] = call_mappings(message.tool_calls)
        elif isinstance(message, ToolMessage):
            mapping["tool_call_id"] = message.tool_call_id
            mapping["name"] = message.name
        if media := media_in(message.content):
            mapping["media"] = media
        mappings.append(mapping)
    return mappings


def role_and_text(message: BaseMessage) -> tuple[str, str]:
    """The role (``user``, ``assistant``, or LangChain's own word) and the text of a message."""
    return _ROLES.get(message.type, message.type), text_of(message)


def text_of(message: BaseMessage) -> str:
    """The text of a message as a plain string, a refusal included."""
    content = message.content if isinstance(message.content, list) else []
    refusals = [message.additional_kwargs, *(block for block in content if isinstance(block, dict))]
    texts = [str(message.text), *(holder[_REFUSAL] for holder in refusals if isinstance(holder.get(_REFUSAL), str))]
    return "\n".join(filter(None, texts))


def call_mappings(calls: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Tool calls as mappings with ``id``, ``name`` and ``args``."""
    return [{"id": call.get("id"), "name": call["name"], "args": call["args"]} for call in calls]


def new_user_messages(messages: Sequence[BaseMessage]) -> list[HumanMessage]:
    """The user's words since the agent last did anything: the human messages at the end, oldest first."""
    latest: list[HumanMessage] = []
    for message in reversed(messages):
        if not isinstance(message, HumanMessage):
            break
        latest.append(message)
    return latest[::-1]


def input_texts(value: Any) -> tuple[str, ...]:
    """The user's texts in the input of a run: texts, and human messages in any form that LangChain takes."""
    parts: list[Any] = list(value.values()) if isinstance(value, Mapping) else [value]
    texts: list[str] = []
    for element in parts:
        if isinstance(element, str):
            texts.append(element)
        elif isinstance(element, list | tuple | Mapping | BaseMessage):
            listed: Any = element if isinstance(element, list) else [element]
            try:
                messages = convert_to_messages(listed)
            except (ValueError, NotImplementedError, TypeError, KeyError):  # not messages
                continue
            texts += [text_of(message) for message in messages if isinstance(message, HumanMessage)]
    return tuple(texts)


def first_reply(messages: Sequence[BaseMessage]) -> AIMessage | None:
    """The model's own message among ``messages``."""
    return next((message for message in messages if isinstance(message, AIMessage)), None)


def model_reading(reply: AIMessage) -> ModelReading:
    """Reads the model's reply. Its id is the endpoint's, or None: LangChain's own ids of messages join nothing."""
    used, details = reply.usage_metadata, reply.response_metadata
    return ModelReading(
        text_of(reply),
        call_mappings(reply.tool_calls),
        usage=None if used is None else {name: used[name] for name in ("input_tokens", "output_tokens")},
        response_id=details.get("id"),
        response_model=details.get("model_name"),
        finish_reason=details.get("finish_reason"),
    )


#: The field with the id of a call in a block of a message's content, by the type of the block.
_ID_IN_BLOCK = {"tool_use": "id", "tool_call": "id", "function_call": "call_id", "custom_tool_call": "call_id"}


def with_call_ids(message: AIMessage) -> AIMessage:
    """The reply with an id of its own for each call: see `lgov_core.wire.exchange.CallIds`."""
    written = [call["id"] for call in message.tool_calls]
    ids = clear_ids(written)
    if ids == written:
        return message
    update: dict[str, Any] = {"tool_calls": _with_ids(message.tool_calls, ids)}
    if isinstance(message.content, list):
        blocks = [block for block in message.content if isinstance(block, dict) and block.get("type") in _ID_IN_BLOCK]
        if len(blocks) == len(ids):
            named = iter(_with_ids(blocks, ids))
            update["content"] = [next(named) if block in blocks else block for block in message.content]
    raw = message.additional_kwargs.get("tool_calls")
    if isinstance(raw, list) and len(raw) == len(ids):
        update["additional_kwargs"] = {**message.additional_kwargs, "tool_calls": _with_ids(raw, ids)}
    return message.model_copy(update=update)


def with_result_ids(results: Sequence[BaseMessage], before: AIMessage, after: AIMessage) -> list[BaseMessage]:
    """``results`` with ``after`` in the place of the reply ``before``, and the ids of its calls in results of these."""
    ids = {old["id"]: new["id"] for old, new in zip(before.tool_calls, after.tool_calls, strict=True)}
    written = list[BaseMessage]()
    for message in results:
        if isinstance(message, ToolMessage) and (new := ids.get(message.tool_call_id)) is not None:
            message = message.model_copy(update={"tool_call_id": new})
        written.append(after if message is before else message)
    return written


def _with_ids(calls: Sequence[Any], ids: Sequence[str]) -> list[Any]:
    return [{**call, _ID_IN_BLOCK.get(call.get("type"), "id"): own} for call, own in zip(calls, ids, strict=True)]


def chunk_with_call_ids(chunk: Any, ids: CallIds) -> Any:
    """A chunk of a streamed reply with the ids of its calls, as `with_call_ids`.

    LangChain takes each piece without an index for a call of its own.
    """
    written = chunk.tool_call_chunks if isinstance(chunk, AIMessageChunk) else ()
    pieces: list[Any] = []
    for piece in written:
        at = object() if piece.get("index") is None else piece["index"]
        pieces.append(ids.put(at, piece) if piece.get("id") or at not in ids else piece)
    if all(map(operator.is_, pieces, written)):
        return chunk
    fields: dict[str, Any] = {**vars(chunk), "tool_call_chunks": pieces, "tool_calls": [], "invalid_tool_calls": []}
    return type(chunk)(**fields)


def model_name(model: Any) -> str:
    """The model's name for its provider, or the name of its class."""
    for attribute in ("model_name", "model"):
        if isinstance(name := getattr(model, attribute, None), str) and name:
            return name
    return type(model).__name__


def reply_limit(model: Any, settings: Mapping[str, Any]) -> dict[str, int]:
    """The maximum length of the reply in tokens, as an entry for ``Action.arguments``; empty when nothing limits it."""
    names = ("max_completion_tokens", "max_tokens", "max_output_tokens")
    return first_limit(*map(settings.get, names), *(getattr(model, name, None) for name in names))


# ---------------------------------------------------------------------- replace


def denial_reply(decision: Decision, instead_of: AIMessage | None = None) -> AIMessage:
    """The denial in place of a model's reply; it keeps the id of the message that it replaces and has no tool calls."""
    return AIMessage(content=decision.denial_message(), id=instead_of.id if instead_of else None)


def with_text(message: M, text: str) -> M:
    """``message`` with its text, a refusal included, replaced; its tool calls and blocks that are not text stay.

    What a client parsed out of the old text is parsed from the new one, or dropped if that does not fit.
    """
    update: dict[str, Any] = {"content": content_with_text(message.content, text)}
    replaced = {_PARSED, _REFUSAL} if message.additional_kwargs.get(_REFUSAL) else {_PARSED}
    others = {key: value for key, value in message.additional_kwargs.items() if key not in replaced}
    if others != message.additional_kwargs:
        parsed = message.additional_kwargs.get(_PARSED)
        new = None if parsed is None else _parse_like(parsed, text)
        update["additional_kwargs"] = others if new is None else {**others, _PARSED: new}
    return message.model_copy(update=update)


def _parse_like(parsed: Any, text: str) -> Any:
    try:
        return type(parsed).model_validate_json(text) if isinstance(parsed, BaseModel) else json.loads(text)
    except ValueError:
        return None


def content_with_text(content: str | list[Any], text: str) -> str | list[Any]:
    """The content of a message with its text replaced; blocks that are not text stay."""
    if isinstance(content, str):
        return text
    others = [block for block in content if isinstance(block, dict) and block.get("type") not in ("text", _REFUSAL)]
    return [{"type": "text", "text": text}, *others] if others else text


def with_messages(messages: Sequence[BaseMessage], mappings: Sequence[Mapping[str, Any]]) -> list[BaseMessage]:
    """The messages as a transform left them. One that the transform did not change stays the same object.

    If only texts were changed, everything else of a message stays. If messages were added or removed, those that are not
    among the originals are made from their mappings alone: a picture of a removed message must not come with another.
    Raises `ValueError`, or what LangChain raises, where a mapping is not a message.
    """
    before = as_mappings(messages)
    same_places = len(before) == len(mappings)
    changed: list[BaseMessage] = []
    number = 0
    for position, mapping in enumerate(mappings):
        same = position if same_places and before[position] == mapping else None
        if not same_places:
            same = next((n for n in range(number, len(before)) if before[n] == mapping), None)
        if same is not None:
            changed.append(messages[same])
            number = same + 1
        elif same_places and {**before[position], "content": ""} == {**mapping, "content": ""}:
            changed.append(with_text(messages[position], str(mapping["content"])))
        else:
            plain: Any = {key: value for key, value in mapping.items() if value is not None}
            changed.extend(convert_to_messages([plain]))
    return changed


#: The names of tools that hand the conversation over, in LangGraph's own packages and documents.
_HANDOFF_NAME = re.compile(r"(transfer|hand_?off)(_back)?_to_")


def kind_of(name: str, tool: Any = None) -> Kind:
    """``handoff`` for a tool with the name (``transfer_to_x``) or LangGraph's mark of one, else ``function``."""
    marked = HANDOFF_DESTINATION in (getattr(tool, "metadata", None) or {})
    return "handoff" if marked or _HANDOFF_NAME.match(name) else "function"


def result_messages(result: Any) -> list[ToolMessage]:
    """The tool messages that a tool's result holds: itself, in a list, or in the update of a ``Command``."""
    if isinstance(result, ToolMessage):
        return [result]
    if _is_sequence(result):
        return [message for element in result for message in result_messages(element)]
    update = getattr(result, "update", None)
    if isinstance(update, Mapping):
        return [message for value in update.values() if _is_sequence(value) for message in result_messages(value)]
    return result_messages(update) if _is_sequence(update) else []


def _is_sequence(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, (list, tuple))


def result_reading(result: Any) -> ToolReading:
    """The text of a result, as the model will read it, and whether one of its messages reports an error."""
    messages = result_messages(result)
    failed = any(message.status == "error" for message in messages)
    text = "\n".join(text_of(message) for message in messages) if messages else str(result)
    return ToolReading(text, "error" if failed else "ok")


def denial_message(denial: str, name: str, call_id: str) -> ToolMessage:
    """The denial as the answer to a tool call."""
    return ToolMessage(content=denial, name=name, tool_call_id=call_id, status="error")


def answer(result: GovernedResult, name: str, call_id: str | None) -> Any:
    """Returns the result for the caller of a governed tool. A denial is text where the call has no id."""
    if result.denial is not None:
        return result.denial if call_id is None else denial_message(result.denial, name, call_id)
    return result.result if result.text is None else with_result_text(result.result, result.text)


def with_result_text(result: Any, text: str) -> Any:
    """``result`` with the text that the model reads replaced.

    A result of several messages keeps the first with the new text; the others are emptied, because which part of the
    text the policy wanted gone from which message cannot be known. A result without messages is the text.
    """
    messages = result_messages(result)
    replaced: dict[int, ToolMessage] = {}
    for position, message in enumerate(messages):
        content = content_with_text(message.content, text) if position == 0 else ""
        replaced[id(message)] = message.model_copy(update={"content": content})
    return _map_messages(result, lambda message: replaced[id(message)]) if messages else text


def _map_messages(value: Any, change: Callable[[ToolMessage], ToolMessage]) -> Any:
    if isinstance(value, ToolMessage):
        return change(value)
    if _is_sequence(value):
        return [_map_messages(element, change) for element in value]
    update = getattr(value, "update", None)
    if isinstance(update, Mapping):
        return dataclasses.replace(
            value, update={key: _map_messages(element, change) for key, element in update.items()}
        )
    return dataclasses.replace(value, update=_map_messages(update, change)) if _is_sequence(update) else value
