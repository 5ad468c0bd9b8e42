"""An `Action` as an agent context of AGENT-HOOKS-0.1 and back: what interceptors changed, and what a host sent.

`context_of` and `replaced` are pure; `action_of` keeps what it needs of earlier contexts in a `HooksSession`.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from agent_hooks import SPEC_VERSION

from lgov_core._util.containers import BoundedDict
from lgov_core._util.json_text import NotCanonical, plain_json
from lgov_core.types import Action, Decision, Kind, Point, ToolOutcome, new_id

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


class UnclearContext(ValueError):
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
    beginning of a run and ``ended`` says how it ended, where the action does not. Raises `UnclearContext` for an
    action that JSON cannot hold.
    """
    context: dict[str, Any] = {
        "spec": SPEC_VERSION,
        "interception_point": action.point.value,
        "timestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "sequence": sequence,
        "agent": {
            "id": action.agent or "agent",
            "framework": _NO_FRAMEWORK_NAME.sub("-", (action.framework or "lgov").lower()) or "lgov",
        },
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
                raise UnclearContext("the messages of this model call are not known")
            return {"model": {"id": action.name}, "messages": plain(own["messages"])}
        case Point.POST_MODEL_CALL:
            usage = own.get("usage")
            counts = {
                theirs: usage[ours]
                for theirs, ours in (("prompt_tokens", "input_tokens"), ("completion_tokens", "output_tokens"))
                if isinstance(usage, Mapping) and isinstance(usage.get(ours), int)
            }
            facts = {"model": {"id": action.name}, "response": _response(action)}
            return {**facts, "usage": counts} if isinstance(usage, Mapping) else facts
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
    """``value`` in dicts, lists and plain scalars of its own. Raises `UnclearContext` for what JSON has no form for."""
    try:
        return plain_json(value)
    except NotCanonical as error:
        raise UnclearContext(f"a value has no form in JSON: {error}") from None


# ---------------------------------------------------------------------- back


def replaced(action: Action, before: Mapping[str, Any], after: Mapping[str, Any]) -> Replacement:
    """The arguments and the text that interceptors left where they changed ``before`` into ``after``; None where not.

    Raises `UnclearContext` for a change that lgov cannot make.
    """
    point = action.point
    old, new = before[_MEMBER[point]], after[_MEMBER[point]]
    # Written out, because to Python 1 and true are equal.
    if json.dumps(old, sort_keys=True) == json.dumps(new, sort_keys=True):
        return None, None
    match point:
        case Point.PRE_MODEL_CALL:
            if not isinstance(new, list):
                raise UnclearContext("the messages of a model call must be a list")
            return {**action.arguments, "messages": new}, None
        case Point.PRE_TOOL_CALL:
            _only(old, new, "args")
            if not isinstance(new["args"], dict):
                raise UnclearContext("the arguments of a tool must be an object")
            return new["args"], None
        case Point.POST_TOOL_CALL:
            _only(old, new, "value")
            value = new["value"]
            return None, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        case Point.INPUT | Point.OUTPUT | Point.POST_MODEL_CALL:
            _only(old, new, "content")
            content = new["content"]
            if not isinstance(content, str | None):
                raise UnclearContext("the new content is not a text")
            return None, content or ""
        case _:
            raise UnclearContext("nothing can be changed here")


Replacement = tuple[dict[str, Any] | None, str | None]


def _only(old: Any, new: Any, member: str) -> None:
    if not isinstance(new, dict) or {**new, member: None} != {**old, member: None} or member not in new:
        raise UnclearContext(f"only {member} can be changed here")


#: Characters of a session's user text that policies get to see.
MAX_USER_TEXT: Final = 65_536
#: Calls of a session whose decision is kept until their result comes.
MAX_OPEN_CALLS: Final = 4096
#: The points before and after a call, and what is called.
BEFORE: Final = {Point.PRE_MODEL_CALL: "model", Point.PRE_TOOL_CALL: "tool"}
_AFTER: Final = {Point.POST_MODEL_CALL: "model", Point.POST_TOOL_CALL: "tool"}
_KINDS: Final[Mapping[Point, Kind]] = {
    Point.AGENT_STARTUP: "agent",
    Point.AGENT_SHUTDOWN: "agent",
    Point.INPUT: "text",
    Point.OUTPUT: "text",
    Point.PRE_MODEL_CALL: "model",
    Point.POST_MODEL_CALL: "model",
}


@dataclass(slots=True)
class HooksSession:
    """The user's text and the open calls of one session. Any thread may call its methods."""

    user_text: str = ""
    _open: dict[tuple[str, str | None], list[str]] = field(default_factory=dict)  # pyright: ignore[reportUnknownVariableType]
    _decisions: BoundedDict[str, Decision] = field(default_factory=lambda: BoundedDict(MAX_OPEN_CALLS))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def said(self, text: str) -> None:
        """Appends to the user's text."""
        with self._lock:
            self.user_text = f"{self.user_text}\n{text}".strip()[-MAX_USER_TEXT:]

    def begin(self, kind: str, call_id: str | None) -> str:
        """The operation id of a call that begins."""
        operation = new_id("op")
        with self._lock:
            self._open.setdefault((kind, call_id), []).append(operation)
        return operation

    def end(self, kind: str, call_id: str | None) -> str | None:
        """The operation id of the call that ended; None when several are open under that id."""
        with self._lock:
            operation_ids = self._open.pop((kind, call_id), [])
        return operation_ids[0] if len(operation_ids) == 1 else None

    def decided(self, operation: str | None, decision: Decision) -> None:
        """Notes the decision on a call that may run."""
        if operation is not None:
            self._decisions.put(operation, decision)

    def decision_on(self, operation: str | None) -> Decision | None:
        """The decision on a call that has run, once."""
        return None if operation is None else self._decisions.pop(operation)


@dataclass(slots=True)
class _Reading:
    """The facts of a context's point."""

    name: Any
    arguments: dict[str, Any] = field(default_factory=dict)  # pyright: ignore[reportUnknownVariableType]
    text: str | None = None
    call_id: str | None = None
    by_user: bool = True
    circumstances: dict[str, Any] = field(default_factory=dict)  # pyright: ignore[reportUnknownVariableType]


def action_of(context: Mapping[str, Any], point: Point, session_id: str, session: HooksSession) -> Action:
    """The context as an action. Raises `UnclearContext`, or `KeyError`, `TypeError` and the like for one that is malformed."""
    agent = context["agent"]
    agent_name = string_of(agent.get("name") or agent["id"], "agent")
    read = _reading_of(context, point, agent_name)
    if point is Point.INPUT and read.by_user and read.text:
        session.said(read.text)
    operation = None
    if point in BEFORE:
        operation = session.begin(BEFORE[point], read.call_id)
    elif point in _AFTER:
        operation = session.end(_AFTER[point], read.call_id)
    if session.user_text:
        read.circumstances["user_text"] = session.user_text
    return Action(
        point,
        name=string_of(read.name, "name"),
        kind=_KINDS.get(point, "function"),
        arguments=read.arguments,
        text=read.text,
        agent=agent_name,
        framework=agent.get("framework"),
        session_id=session_id,
        call_id=read.call_id,
        parent_id=None if read.by_user else session_id,
        operation_id=operation,
        context=read.circumstances,
        native=context,
    )


def _reading_of(context: Mapping[str, Any], point: Point, agent: str) -> _Reading:
    match point:
        case Point.AGENT_STARTUP:
            return _Reading(agent, {"tools": plain(context["agent_init"].get("tools_registered", []))})
        case Point.AGENT_SHUTDOWN:
            return _Reading(agent, {"reason": context["summary"].get("reason")})
        case Point.INPUT:
            message = context["input"]
            return _Reading(agent, text=_words(message["content"]), by_user=message.get("role", "user") == "user")
        case Point.OUTPUT:
            return _Reading(agent, text=_words(context["output"]["content"]))
        case Point.PRE_MODEL_CALL:
            arguments = {
                name: plain(context[name]) for name in ("messages", "tools") if name == "messages" or name in context
            }
            return _Reading(context["model"]["id"], arguments, call_id=context.get("request_id"))
        case Point.POST_MODEL_CALL:
            response = context["response"]
            return _Reading(
                context["model"]["id"],
                {"tool_calls": plain(response["tool_calls"]), **_usage_of(context.get("usage"))},
                _words(response["content"]),
                context.get("request_id"),
                circumstances={"finish_reason": response.get("finish_reason")},
            )
        case Point.PRE_TOOL_CALL | Point.POST_TOOL_CALL:
            call, arguments = context["tool_call"], plain(context["tool_call"]["args"])
            if not isinstance(arguments, dict):
                raise UnclearContext("the arguments of a tool are not an object")
            reading = _Reading(call["name"], arguments, call_id=string_of(call["id"], "tool_call.id"))
            if point is Point.POST_TOOL_CALL:
                reading.text = _words(context["tool_result"]["value"])
                reading.circumstances["tool_status"] = "error" if context["tool_result"].get("is_error") else "ok"
            return reading


def outcome_of(action: Action, context: Mapping[str, Any], decision: Decision | None) -> ToolOutcome:
    """The outcome of the tool call whose result ``action`` is."""
    result = context["tool_result"]
    failed = bool(result.get("is_error"))
    took = result.get("duration_ms")
    return ToolOutcome(
        action,
        "error" if failed else "ok",
        result=action.text,
        error=action.text if failed else None,
        decision=decision,
        duration_s=took / 1000 if isinstance(took, int | float) else 0.0,
    )


#: What the contract, and hosts, call the counts.
_COUNTS: Final = {
    "input_tokens": ("prompt_tokens", "input_tokens", "input_token_count"),
    "output_tokens": ("completion_tokens", "output_tokens", "output_token_count"),
}


def _usage_of(usage: Any) -> dict[str, Any]:
    """``usage`` as policies read it, where it has both numbers: one alone would make a call look cheap."""
    if not isinstance(usage, Mapping):
        return {}
    counts: dict[str, int] = {}
    for ours, theirs in _COUNTS.items():
        for name in theirs:
            count = usage.get(name)
            if isinstance(count, int) and not isinstance(count, bool) and count >= 0:
                counts[ours] = count
                break
    return {"usage": counts} if len(counts) == len(_COUNTS) else {}


def string_of(value: Any, what: str) -> str:
    """``value`` where it is a text that is not empty. Raises `UnclearContext`."""
    if not isinstance(value, str) or not value:
        raise UnclearContext(f"{what} is not a text")
    return value


def _words(value: Any) -> str:
    """The text that policies read of a value: text as it is, nothing as an empty text, anything else as JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(plain(value), ensure_ascii=False)
