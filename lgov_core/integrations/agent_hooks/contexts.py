"""An `Action` as an agent context of AGENT-HOOKS-0.1, and the changes of interceptors put back. Pure functions."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from agent_hooks import SPEC_VERSION

from lgov_core._util.json_text import NotCanonical, plain_json
from lgov_core.types import Action, Point

#: The member of a context that holds the facts of its point.
_MEMBER: Final = {
    Point.AGENT_STARTUP: "agent_init",
    Point.INPUT: "input",
    Point.PRE_MODEL_CALL: "messages",
    Point.POST_MODEL_CALL: "response",
    Point.PRE_TOOL_CALL: "tool_call",
    Point.POST_TOOL_CALL: "tool_result",
    Point.OUTPUT: "output",
    Point.AGENT_SHUTDOWN: "summary",
}
_NO_FRAMEWORK_NAME: Final = re.compile(r"[^a-z0-9_-]+")
_CUT_SHORT: Final = ("length", "content_filter")
_ENDS: Final = ("completed", "error", "cancelled")


class Unclear(ValueError):
    """A value that the other vocabulary cannot express; the message names it, without its content."""


def context_of(
    action: Action,
    *,
    session_id: str,
    sequence: int,
    arguments: Mapping[str, Any] | None = None,
    tools: tuple[str, ...] = (),
    ended: str = "completed",
) -> dict[str, Any]:
    """The context of ``action``, of JSON values only.

    ``arguments`` are those that the tool ran with, where they are not the action's own; ``tools`` are named at the
    beginning of a run and ``ended`` says how it ended, where the action does not. Raises `Unclear` for an action that JSON
    cannot hold.
    """
    context: dict[str, Any] = {
        "spec": SPEC_VERSION,
        "interception_point": action.point.value,
        "timestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "sequence": sequence,
        "agent": {"id": action.agent or "agent", "framework": _framework(action.framework)},
        "session": {"id": session_id},
        "target": None,
        "extensions": {"lgov": _facts(action)},
    }
    context |= _members(action, arguments, tools, ended)
    context["target"] = target_of(context, action.point)
    return context


def target_of(context: Mapping[str, Any], point: Point) -> Any:
    """The value that interceptors may replace at ``point``: the tool's arguments or its value, else the member itself."""
    member = context[_MEMBER[point]]
    if point is Point.PRE_TOOL_CALL:
        return member["args"]
    return member["value"] if point is Point.POST_TOOL_CALL else member


def _members(action: Action, arguments: Mapping[str, Any] | None, tools: tuple[str, ...], ended: str) -> dict[str, Any]:
    own = action.arguments
    match action.point:
        case Point.AGENT_STARTUP:
            named = own.get("tools", tools)
            return {"agent_init": {"tools_registered": [str(tool) for tool in named]}}
        case Point.INPUT:
            # Another agent's words are not the user's.
            return {"input": {"content": _text(action), "role": "user" if action.parent_id is None else "external"}}
        case Point.PRE_MODEL_CALL:
            if not isinstance(own.get("messages"), list | tuple):
                raise Unclear("the messages of this model call are not known")
            return {"model": {"id": action.name}, "messages": plain(own["messages"])}
        case Point.POST_MODEL_CALL:
            return {"model": {"id": action.name}, "response": _response(action), **_usage(own.get("usage"))}
        case Point.PRE_TOOL_CALL:
            return {"tool_call": _tool_call(action, own)}
        case Point.POST_TOOL_CALL:
            failed = action.context.get("tool_status", "ok") != "ok"
            result = {"value": _value(_text(action)), "is_error": failed}
            return {"tool_call": _tool_call(action, own if arguments is None else arguments), "tool_result": result}
        case Point.OUTPUT:
            return {"output": {"content": _text(action)}}
        case Point.AGENT_SHUTDOWN:
            reason = own.get("reason")
            if ended == "completed" and reason in _ENDS:
                ended = reason
            return {"summary": {"reason": ended}}


def _response(action: Action) -> dict[str, Any]:
    calls = plain(list(action.arguments.get("tool_calls") or ()))
    text = _text(action)
    cut = action.context.get("finish_reason")
    return {
        "content": None if calls and not text else text,
        "tool_calls": calls,
        # Frameworks have different words for the ordinary ends; the reply itself shows which it was.
        "finish_reason": cut if cut in _CUT_SHORT else ("tool_calls" if calls else "stop"),
    }


def _usage(usage: Any) -> dict[str, Any]:
    if not isinstance(usage, Mapping):
        return {}
    names = {"prompt_tokens": "input_tokens", "completion_tokens": "output_tokens"}
    return {"usage": {theirs: usage[ours] for theirs, ours in names.items() if isinstance(usage.get(ours), int)}}


def _tool_call(action: Action, arguments: Mapping[str, Any]) -> dict[str, Any]:
    call_id = action.call_id or action.operation_id or "call"
    return {"id": call_id, "name": action.name or "?", "args": plain(arguments)}


def _facts(action: Action) -> dict[str, Any]:
    facts = {
        "kind": action.kind,
        "rollout_id": action.rollout_id,
        "attempt": action.attempt,
        "session_id": action.session_id,
        "operation_id": action.operation_id,
    }
    return {name: value for name, value in facts.items() if value is not None}


def _framework(name: str | None) -> str:
    return _NO_FRAMEWORK_NAME.sub("-", (name or "lgov").lower()) or "lgov"


def _text(action: Action) -> str:
    return str.__str__(action.text) if action.text is not None else ""


def _value(text: str) -> Any:
    """A tool's result: an object or array where the text is one, else the text. What a number was is not known."""
    if text[:1] not in ("{", "["):
        return text
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return text


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def plain(value: Any) -> Any:
    """``value`` in dicts, lists and plain scalars of its own. Raises `Unclear` for what JSON has no form for."""
    try:
        return plain_json(value)
    except NotCanonical as error:
        raise Unclear(f"a value has no form in JSON: {error}") from None


# ---------------------------------------------------------------------- back


def replaced(action: Action, before: Mapping[str, Any], after: Mapping[str, Any]) -> Replacement:
    """The arguments and the text that interceptors left where they changed ``before`` into ``after``; None where not.

    Raises `Unclear` for a change that lgov cannot make.
    """
    point = action.point
    old, new = before[_MEMBER[point]], after[_MEMBER[point]]
    if old == new and _same_kinds(old, new):
        return None, None
    match point:
        case Point.PRE_MODEL_CALL:
            if not isinstance(new, list):
                raise Unclear("the messages of a model call must be a list")
            return {**action.arguments, "messages": new}, None
        case Point.PRE_TOOL_CALL:
            _only(old, new, "args")
            if not isinstance(new["args"], dict):
                raise Unclear("the arguments of a tool must be an object")
            return new["args"], None
        case Point.POST_TOOL_CALL:
            _only(old, new, "value")
            value = new["value"]
            return None, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        case Point.INPUT | Point.OUTPUT | Point.POST_MODEL_CALL:
            _only(old, new, "content")
            content = new["content"]
            if not isinstance(content, str | None):
                raise Unclear("the new content is not a text")
            return None, content or ""
        case _:
            raise Unclear("nothing can be changed here")


Replacement = tuple[dict[str, Any] | None, str | None]


def _only(old: Any, new: Any, member: str) -> None:
    if not isinstance(new, dict) or {**new, member: None} != {**old, member: None} or member not in new:
        raise Unclear(f"only {member} can be changed here")


def _same_kinds(old: Any, new: Any) -> bool:
    """Returns whether values that are equal are so also in JSON, where 1 is not true."""
    return json.dumps(old, sort_keys=True) == json.dumps(new, sort_keys=True)
