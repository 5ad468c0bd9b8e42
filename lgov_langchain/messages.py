"""LangChain's messages as the mappings that policies read, and messages with what a policy replaced."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage, convert_to_messages
from pydantic import BaseModel

from lgov_core.instrumentation.model_call import reply_limit as first_limit
from lgov_core.types import Decision
from lgov_core.wire.turns import ModelReading

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
        mappings.append(mapping)
    return mappings


def role_and_text(message: BaseMessage) -> tuple[str, str]:
    """The role (``user``, ``assistant``, or LangChain's own word) and the text of a message."""
    return _ROLES.get(message.type, message.type), text_of(message)


def text_of(message: BaseMessage) -> str:
    """The text of a message as a plain string, a refusal included."""
    content = message.content if isinstance(message.content, list) else []
    refusals = [message.additional_kwargs, *(block for block in content if isinstance(block, dict))]
    texts = [str(message.text), *(one[_REFUSAL] for one in refusals if isinstance(one.get(_REFUSAL), str))]
    return "\n".join(filter(None, texts))


def call_mappings(calls: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Tool calls as mappings with ``id``, ``name`` and ``args``."""
    return [{"id": call.get("id"), "name": call["name"], "args": call["args"]} for call in calls]


def new_user_messages(messages: Sequence[BaseMessage]) -> list[HumanMessage]:
    """What the user said since the agent last did anything: the human messages at the end, oldest first."""
    found: list[HumanMessage] = []
    for message in reversed(messages):
        if not isinstance(message, HumanMessage):
            break
        found.append(message)
    return found[::-1]


def input_texts(given: Any) -> tuple[str, ...]:
    """The user's texts in the input of a run: texts, and human messages in any form that LangChain takes."""
    parts: list[Any] = list(given.values()) if isinstance(given, Mapping) else [given]
    found: list[str] = []
    for part in parts:
        if isinstance(part, str):
            found.append(part)
        elif isinstance(part, list | tuple | Mapping | BaseMessage):
            listed: Any = part if isinstance(part, list) else [part]
            try:
                messages = convert_to_messages(listed)
            except (ValueError, NotImplementedError, TypeError, KeyError):  # not messages
                continue
            found += [text_of(message) for message in messages if isinstance(message, HumanMessage)]
    return tuple(found)


def first_reply(messages: Sequence[BaseMessage]) -> AIMessage | None:
    """The model's own message among ``messages``."""
    return next((message for message in messages if isinstance(message, AIMessage)), None)


def model_reading(reply: AIMessage) -> ModelReading:
    """What the model wrote. Its id is the endpoint's, or None: LangChain's own ids of messages join nothing."""
    used, details = reply.usage_metadata, reply.response_metadata
    return ModelReading(
        text_of(reply),
        call_mappings(reply.tool_calls),
        usage=None if used is None else {name: used[name] for name in ("input_tokens", "output_tokens")},
        response_id=details.get("id"),
        response_model=details.get("model_name"),
        finish_reason=details.get("finish_reason"),
    )


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
    Raises `ValueError` when a mapping is not a message.
    """
    before = as_mappings(messages)
    same_places = len(before) == len(mappings)
    found: list[BaseMessage] = []
    number = 0
    for position, mapping in enumerate(mappings):
        same = position if same_places and before[position] == mapping else None
        if not same_places:
            same = next((n for n in range(number, len(before)) if before[n] == mapping), None)
        if same is not None:
            found.append(messages[same])
            number = same + 1
        elif same_places and {**before[position], "content": ""} == {**mapping, "content": ""}:
            found.append(with_text(messages[position], str(mapping["content"])))
        else:
            given: Any = {key: value for key, value in mapping.items() if value is not None}
            found.extend(convert_to_messages([given]))
    return found
