"""The actions that policies judge at the endpoint, made of its calls and replies."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from lgov_core.gateway.protocol import GateReply, GateRequest
from lgov_core.types import Action, Point
from lgov_core.wire.exchange import ToolCall, unclear_ids

FRAMEWORK: Final = "endpoint"


def endpoint_action(asked: GateRequest, point: Point, name: str, kind: Any, **fields: Any) -> Action:
    """An action of the call ``asked``, with further ``fields`` of `Action`."""
    fields = {"arguments": {}, **fields, "rollout_id": asked.rollout_id, "attempt": asked.attempt}
    return Action(point, name, kind, agent=asked.agent, framework=FRAMEWORK, **fields)


def reply_action(asked: GateRequest, reply: GateReply, *, first: bool) -> Action:
    """The action of one choice of the reply; the ``first`` one ends the operation of the call."""
    calls = [
        {"id": call.call_id, "name": call.name, "args": call_arguments(call.arguments) or call.arguments}
        for call in reply.tool_calls
    ]
    arguments: dict[str, Any] = {"tool_calls": calls}
    if reply.prompt_tokens is not None and reply.completion_tokens is not None:
        arguments["usage"] = {"input_tokens": reply.prompt_tokens, "output_tokens": reply.completion_tokens}
    return endpoint_action(
        asked,
        Point.POST_MODEL_CALL,
        asked.model,
        "model",
        arguments=arguments,
        text=reply.text,
        call_id=reply.response_id,
        context={"finish_reason": reply.finish_reason},
        operation_id=asked.operation_id if first else None,
    )


def rewritten_messages(sent: Sequence[Mapping[str, Any]], wanted: Any) -> list[Mapping[str, Any]]:
    """The messages as a policy left them. Raises `ValueError` unless only texts differ."""
    found = cast("Sequence[Mapping[str, Any]]", wanted) if isinstance(wanted, Sequence) else ()
    if len(found) != len(sent):
        raise ValueError("a policy added or removed messages")
    for old, new in zip(sent, found, strict=True):
        if not isinstance(new.get("content"), str) or {**old, "content": ""} != {**new, "content": ""}:
            raise ValueError("a policy changed more of a message than its text")
    return list(found)


def unclear_calls(calls: Sequence[ToolCall]) -> str | None:
    """Why a decision cannot be assigned to exactly one of ``calls``; a call alone (of a legacy reply) needs no id."""
    return unclear_ids([{"id": call.call_id} for call in calls]) if len(calls) > 1 else None


def call_arguments(text: str) -> dict[str, Any] | None:
    """The arguments of a tool call; None where they are not one JSON object with each key once.

    Two readers could read a repeated key differently. Blank text is ``{}``.
    """
    if not text.strip():
        return {}
    try:
        value = json.loads(text, object_pairs_hook=_each_key_once)
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is repeated")
    return found
