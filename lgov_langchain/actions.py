"""LangChain's messages and tool calls as lgov sees them, and back. Pure functions; nothing here decides anything."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    convert_to_messages,
)
from langchain_core.runnables.config import ensure_config

from lgov_core.types import Action, Decision, Point, ToolStatus, new_id

if TYPE_CHECKING:
    from langchain.agents.middleware.types import ModelRequest
    from langgraph.prebuilt.tool_node import ToolCallRequest

FRAMEWORK = "langchain"

_NOT_CONNECTED = frozenset({"ConnectError", "ConnectTimeout", "ConnectionRefusedError", "PoolTimeout"})
_ROLES = {"human": "user", "ai": "assistant", "AIMessageChunk": "assistant", "HumanMessageChunk": "user"}


# ---------------------------------------------------------------------- out of LangChain


def agent_name(config: Mapping[str, Any] | None = None) -> str | None:
    """The ``name=`` of the agent that the running code belongs to, or None if it has none."""
    found = (ensure_config() if config is None else config).get("metadata") or {}
    name = found.get("lc_agent_name")
    return name if isinstance(name, str) else None


def as_mapping(message: BaseMessage) -> dict[str, Any]:
    """A message as ``role`` and ``content`` (its text), with its tool calls or the call it answers."""
    mapping: dict[str, Any] = {"role": _ROLES.get(message.type, message.type), "content": str(message.text)}
    if isinstance(message, AIMessage) and message.tool_calls:
        mapping["tool_calls"] = [_plain_call(call) for call in message.tool_calls]
    if isinstance(message, ToolMessage):
        mapping["tool_call_id"] = message.tool_call_id
        mapping["name"] = message.name
    return mapping


def _plain_call(call: Mapping[str, Any]) -> dict[str, Any]:
    return {"id": call.get("id"), "name": call["name"], "args": call["args"]}


def tool_action(request: ToolCallRequest) -> Action:
    """The call as the model proposed it, to be judged before it runs."""
    call = request.tool_call
    return Action(
        Point.PRE_TOOL_CALL,
        name=call["name"],
        arguments=dict(call["args"]),
        agent=agent_name(getattr(request.runtime, "config", None)),
        framework=FRAMEWORK,
        call_id=call["id"],
        operation_id=new_id("op"),
        native=request,
    )


def model_action(request: ModelRequest[Any], point: Point = Point.PRE_MODEL_CALL, **fields: Any) -> Action:
    """The model call that is about to be sent; ``fields`` replaces what is different at another point."""
    if point is Point.PRE_MODEL_CALL:
        fields["arguments"] = {
            "messages": [as_mapping(message) for message in all_messages(request)],
            **_reply_limit(request),
        }
    text_point = point in (Point.INPUT, Point.OUTPUT)
    return Action(
        point,
        name=(agent_name() or "agent") if text_point else model_name(request.model),
        kind="text" if text_point else "model",
        agent=agent_name(),
        framework=FRAMEWORK,
        native=request,
        **fields,
    )


def _reply_limit(request: ModelRequest[Any]) -> dict[str, int]:
    """How long the reply may be, as an entry for ``Action.arguments``; empty when nothing says so."""
    names = ("max_completion_tokens", "max_tokens", "max_output_tokens")
    settings = request.model_settings or {}
    found = [settings.get(name) for name in names] + [getattr(request.model, name, None) for name in names]
    limit = next((value for value in found if type(value) is int and value > 0), None)
    return {} if limit is None else {"max_output_tokens": limit}


def was_refused(error: BaseException) -> bool:
    """Whether the model certainly did not run: its server answered with an error status, or could not be connected to."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(getattr(seen, "status_code", None), int) or type(seen).__name__ in _NOT_CONNECTED:
            return True
        seen = seen.__cause__
    return False


def usage_of(reply: AIMessage) -> dict[str, Any]:
    """What the reply says it used, as an entry for ``Action.arguments``; empty when it does not say."""
    used = reply.usage_metadata
    if used is None:
        return {}
    return {"usage": {"input_tokens": used["input_tokens"], "output_tokens": used["output_tokens"]}}


def model_name(model: Any) -> str:
    """What the model calls itself, or the name of its class."""
    for attribute in ("model_name", "model"):
        if isinstance(name := getattr(model, attribute, None), str) and name:
            return name
    return type(model).__name__


def all_messages(request: ModelRequest[Any]) -> list[AnyMessage]:
    """The messages of the call in the order in which they are sent, the system message first."""
    return [request.system_message, *request.messages] if request.system_message else list(request.messages)


def new_user_messages(request: ModelRequest[Any]) -> list[HumanMessage]:
    """What the user said since the agent last did anything: the human messages at the end, oldest first."""
    found: list[HumanMessage] = []
    for message in reversed(request.messages):
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
    return "\n".join(str(message.text) for message in result_messages(result))


def failure_status(error: BaseException) -> ToolStatus:
    """What a tool that raised ``error`` is recorded as."""
    if isinstance(error, TimeoutError):
        return "timeout"
    # Arguments that do not fit are a ValidationError of either pydantic generation.
    return "invalid_args" if type(error).__name__ == "ValidationError" else "error"


def is_interrupt(error: BaseException) -> bool:
    """Whether LangGraph only pauses the run (a question to a person, a jump to a parent graph): nothing failed."""
    return any(cls.__name__ == "GraphBubbleUp" for cls in type(error).__mro__)


# ---------------------------------------------------------------------- into LangChain


def denial_message(decision: Decision, call: Mapping[str, Any]) -> ToolMessage:
    """The denial as the answer to a tool call."""
    return ToolMessage(content=decision.tell(), name=call["name"], tool_call_id=call["id"], status="error")


def denial_reply(decision: Decision, instead_of: AIMessage | None = None) -> AIMessage:
    """The denial in place of a model's reply; it keeps the id of the message it stands for and proposes no calls."""
    return AIMessage(content=decision.tell(), id=instead_of.id if instead_of else None)


def with_text(message: AIMessage, text: str) -> AIMessage:
    """``message`` with its text replaced; its tool calls and blocks that are not text stay."""
    return message.model_copy(update={"content": _content_with_text(message.content, text)})


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


def with_messages(request: ModelRequest[Any], mappings: Sequence[Mapping[str, Any]]) -> ModelRequest[Any]:
    """``request`` with the messages of a transform. A message that the transform left alone stays the object it was.

    Raises `ValueError` when a mapping is not a message.
    """
    originals = all_messages(request)
    messages: list[AnyMessage] = []
    for position, mapping in enumerate(mappings):
        original = originals[position] if position < len(originals) else None
        if original is not None and as_mapping(original) == mapping:
            messages.append(original)
        elif original is not None and {**as_mapping(original), "content": ""} == {**mapping, "content": ""}:
            content = _content_with_text(original.content, str(mapping["content"]))
            messages.append(original.model_copy(update={"content": content}))
        else:
            messages.extend(convert_to_messages([_without_nulls(mapping)]))  # type: ignore[arg-type]
    first = messages[0] if messages else None
    if isinstance(first, SystemMessage):
        return request.override(system_message=first, messages=messages[1:])
    return request.override(system_message=None, messages=messages)


def _without_nulls(mapping: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in mapping.items() if value is not None}


def json_text(value: Any) -> str:
    """Any value as JSON, for spans; what JSON cannot say is written with ``str``."""
    return json.dumps(value, default=str, ensure_ascii=False)
