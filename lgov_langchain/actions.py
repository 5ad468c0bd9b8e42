"""LangChain's messages and tool calls as lgov sees them, and back. Pure functions; nothing here decides anything."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    ToolMessage,
    convert_to_messages,
)
from langchain_core.runnables.config import var_child_runnable_config
from pydantic import BaseModel

from lgov_core.instrumentation.model_call import ModelReading
from lgov_core.types import Action, Decision, Kind, Point

if TYPE_CHECKING:
    from langgraph.prebuilt.tool_node import ToolCallRequest

M = TypeVar("M", bound=BaseMessage)

FRAMEWORK = "langchain"

#: Where LangChain's clients keep what they parsed out of a reply's text.
_PARSED = "parsed"

#: How tools that hand the conversation over are named and marked by LangGraph's own packages and documents.
_HANDOFF_NAME = re.compile(r"(transfer|hand_?off)(_back)?_to_")
_HANDOFF_MARK = "__handoff_destination"

_ROLES = {"human": "user", "ai": "assistant", "AIMessageChunk": "assistant", "HumanMessageChunk": "user"}


# ---------------------------------------------------------------------- out of LangChain


def running_config() -> Mapping[str, Any]:
    """The config of the run that the running code belongs to, to be read: ``ensure_config`` would copy all that is in it."""
    return var_child_runnable_config.get() or {}


def agent_name(config: Mapping[str, Any] | None = None) -> str | None:
    """The ``name=`` of the agent that the running code belongs to, or None if it has none."""
    return agent_in((running_config() if config is None else config).get("metadata"))


def agent_in(metadata: Mapping[str, Any] | None) -> str | None:
    """The ``name=`` of the agent that a run with this metadata belongs to, or None if it has none."""
    name = metadata.get("lc_agent_name") if metadata else None
    return name if isinstance(name, str) else None


def as_mappings(messages: Sequence[BaseMessage]) -> list[dict[str, Any]]:
    """Messages as ``role`` and ``content`` (their text), with their tool calls or the call they answer."""
    plain: list[dict[str, Any]] = []
    message: Any
    for message in messages:
        from_model, from_tool, text_is_content = _come_from(type(message))
        role, content = message.type, message.content
        if not text_is_content or type(content) is not str:
            content = str(message.text)
        mapping: dict[str, Any] = {"role": _ROLES.get(role, role), "content": content}
        if from_model:
            if calls := message.tool_calls:
                mapping["tool_calls"] = plain_calls(calls)
        elif from_tool:
            mapping["tool_call_id"] = message.tool_call_id
            mapping["name"] = message.name
        plain.append(mapping)
    return plain


@functools.lru_cache(maxsize=256)
def _come_from(cls: type[BaseMessage]) -> tuple[bool, bool, bool]:
    """Whether messages of ``cls`` are a model's, whether a tool's, and whether their text is what they hold, if that is text.

    Pydantic answers ``isinstance`` slowly.
    """
    return issubclass(cls, AIMessage), issubclass(cls, ToolMessage), cls.text is BaseMessage.text


def text_of(message: BaseMessage) -> str:
    """The text of a message as a plain string."""
    content = message.content
    return content if type(content) is str and _come_from(type(message))[2] else str(message.text)


def role_and_text(message: BaseMessage) -> tuple[str, str]:
    """Who speaks (``user``, ``assistant``, or LangChain's own word) and what."""
    return _ROLES.get(message.type, message.type), text_of(message)


def plain_calls(calls: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Tool calls as mappings with ``id``, ``name`` and ``args``."""
    return [{"id": call.get("id"), "name": call["name"], "args": call["args"]} for call in calls]


def tool_action(request: ToolCallRequest) -> Action:
    """The call as the model proposed it, to be judged before it runs."""
    call = request.tool_call
    return Action(
        Point.PRE_TOOL_CALL,
        name=call["name"],
        kind=kind_of(call["name"], request.tool),
        arguments=dict(call["args"]),
        agent=agent_name(getattr(request.runtime, "config", None)),
        framework=FRAMEWORK,
        call_id=call["id"],
        native=request,
    )


def kind_of(name: str, tool: Any = None) -> Kind:
    """What kind of act a tool is: a hand-off says so by its name (``transfer_to_x``) or by LangGraph's mark on it."""
    marked = _HANDOFF_MARK in (getattr(tool, "metadata", None) or {})
    return "handoff" if marked or _HANDOFF_NAME.match(name) else "function"


def reply_limit(model: Any, settings: Mapping[str, Any]) -> dict[str, int]:
    """How long the reply may be, as an entry for ``Action.arguments``; empty when nothing says so."""
    names = ("max_completion_tokens", "max_tokens", "max_output_tokens")
    found = [settings.get(name) for name in names] + [getattr(model, name, None) for name in names]
    limit = next((value for value in found if type(value) is int and value > 0), None)
    return {} if limit is None else {"max_output_tokens": limit}


def model_reading(reply: AIMessage) -> ModelReading:
    """What the model wrote. Its id is the endpoint's, or None: LangChain's own ids of messages join nothing."""
    used, details = reply.usage_metadata, reply.response_metadata
    return ModelReading(
        text_of(reply),
        plain_calls(reply.tool_calls),
        usage=None if used is None else {name: used[name] for name in ("input_tokens", "output_tokens")},
        response_id=details.get("id"),
        response_model=details.get("model_name"),
        finish_reason=details.get("finish_reason"),
    )


def model_name(model: Any) -> str:
    """What the model calls itself, or the name of its class."""
    for attribute in ("model_name", "model"):
        if isinstance(name := getattr(model, attribute, None), str) and name:
            return name
    return type(model).__name__


def new_user_messages(messages: Sequence[BaseMessage]) -> list[HumanMessage]:
    """What the user said since the agent last did anything: the human messages at the end, oldest first."""
    found: list[HumanMessage] = []
    for message in reversed(messages):
        if not isinstance(message, HumanMessage):
            break
        found.append(message)
    return found[::-1]


def reply_of(messages: Sequence[BaseMessage]) -> AIMessage | None:
    """The model's own message among ``messages``."""
    return next((message for message in messages if isinstance(message, AIMessage)), None)


def result_messages(result: Any) -> list[ToolMessage]:
    """The tool messages that a tool's result holds: itself, in a list, or in the update of a ``Command``."""
    if isinstance(result, ToolMessage):
        return [result]
    if isinstance(result, (list, tuple)):
        return [message for part in result for message in result_messages(part)]
    update = getattr(result, "update", None)
    if isinstance(update, Mapping):
        return [message for value in update.values() if is_sequence(value) for message in result_messages(value)]
    return result_messages(update) if is_sequence(update) else []


def is_sequence(value: object) -> TypeGuard[Sequence[Any]]:
    """Whether ``value`` is a list or a tuple."""
    return isinstance(value, (list, tuple))


def result_text(result: Any) -> str:
    """The result as the model will read it."""
    return texts_of(result_messages(result))


def texts_of(messages: Sequence[BaseMessage]) -> str:
    """The texts of messages that are one result."""
    return "\n".join([text_of(message) for message in messages])


def is_interrupt(error: BaseException) -> bool:
    """Whether LangGraph only pauses the run (a question to a person, a jump to a parent graph): nothing failed."""
    return any(cls.__name__ == "GraphBubbleUp" for cls in type(error).__mro__)


# ---------------------------------------------------------------------- into LangChain


def denial_message(told: str, name: str, call_id: str) -> ToolMessage:
    """The denial as the answer to a tool call."""
    return ToolMessage(content=told, name=name, tool_call_id=call_id, status="error")


def denial_reply(decision: Decision, instead_of: AIMessage | None = None) -> AIMessage:
    """The denial in place of a model's reply; it keeps the id of the message it stands for and proposes no calls."""
    return AIMessage(content=decision.denial_message(), id=instead_of.id if instead_of else None)


def with_text(message: M, text: str) -> M:
    """``message`` with its text replaced; its tool calls and blocks that are not text stay.

    A client that has parsed the text keeps what it found beside it: that is parsed anew, or taken away where the new text
    does not fit.
    """
    update: dict[str, Any] = {"content": _content_with_text(message.content, text)}
    parsed = message.additional_kwargs.get(_PARSED)
    if parsed is not None:
        others = {key: value for key, value in message.additional_kwargs.items() if key != _PARSED}
        new = _parsed_anew(parsed, text)
        update["additional_kwargs"] = others if new is None else {**others, _PARSED: new}
    return message.model_copy(update=update)


def _parsed_anew(parsed: Any, text: str) -> Any:
    try:
        return type(parsed).model_validate_json(text) if isinstance(parsed, BaseModel) else json.loads(text)
    except ValueError:
        return None


def _content_with_text(content: str | list[Any], text: str) -> str | list[Any]:
    if isinstance(content, str):
        return text
    others = [block for block in content if isinstance(block, dict) and block.get("type") != "text"]
    return [{"type": "text", "text": text}, *others] if others else text


def with_result_text(result: Any, text: str) -> Any:
    """``result`` as the model reads it once its text is replaced.

    A result of several messages keeps the first with the new text; the others are emptied, because which part of the
    text the policy wanted gone from which message cannot be known.
    """
    replaced: dict[int, ToolMessage] = {}
    for position, message in enumerate(result_messages(result)):
        content = _content_with_text(message.content, text) if position == 0 else ""
        replaced[id(message)] = message.model_copy(update={"content": content})
    return _map_messages(result, lambda message: replaced[id(message)])


def _map_messages(value: Any, change: Callable[[ToolMessage], ToolMessage]) -> Any:
    if isinstance(value, ToolMessage):
        return change(value)
    if is_sequence(value):
        return [_map_messages(part, change) for part in value]
    update = getattr(value, "update", None)
    if isinstance(update, Mapping) or is_sequence(update):
        from dataclasses import replace

        mapped = (
            {key: _map_messages(part, change) for key, part in update.items()}
            if isinstance(update, Mapping)
            else _map_messages(update, change)
        )
        return replace(value, update=mapped)
    return value


def with_messages(messages: Sequence[BaseMessage], mappings: Sequence[Mapping[str, Any]]) -> list[BaseMessage]:
    """The messages as a transform left them. One that the transform left alone stays the object it was.

    Where only texts were changed, everything else of a message stays. Where messages were put in or taken out, those that
    are not among the originals are made anew: what was in the place of one that is gone must not come with another.
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
            original = messages[position]
            content = _content_with_text(original.content, str(mapping["content"]))
            found.append(original.model_copy(update={"content": content}))
        else:
            found.extend(convert_to_messages([_without_nulls(mapping)]))  # type: ignore[arg-type]
    return found


def _without_nulls(mapping: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in mapping.items() if value is not None}
