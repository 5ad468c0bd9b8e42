"""A context of AGENT-HOOKS-0.1 as an `Action`, and the state of a session that this needs."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from lgov_core._util.containers import BoundedDict
from lgov_core.integrations.agent_hooks.contexts import Unclear, plain
from lgov_core.types import Action, Decision, Kind, Point, ToolOutcome, new_id

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
class Session:
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


def action_of(context: Mapping[str, Any], point: Point, session_id: str, session: Session) -> Action:
    """The context as an action. Raises `Unclear`, or `KeyError`, `TypeError` and the like for one that is malformed."""
    agent = context["agent"]
    agent_name = string_of(agent.get("name") or agent["id"], "agent")
    read = _CALLS[point](context) if point in _CALLS else _text_or_life(context, point, agent_name)
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


def _text_or_life(context: Mapping[str, Any], point: Point, agent: str) -> _Reading:
    match point:
        case Point.AGENT_STARTUP:
            return _Reading(agent, {"tools": plain(context["agent_init"].get("tools_registered", []))})
        case Point.AGENT_SHUTDOWN:
            return _Reading(agent, {"reason": context["summary"].get("reason")})
        case Point.INPUT:
            message = context["input"]
            return _Reading(agent, text=_words(message["content"]), by_user=message.get("role", "user") == "user")
        case _:
            return _Reading(agent, text=_words(context["output"]["content"]))


def _request(context: Mapping[str, Any]) -> _Reading:
    arguments = {"messages": plain(context["messages"])}
    if "tools" in context:
        arguments["tools"] = plain(context["tools"])
    return _Reading(context["model"]["id"], arguments, call_id=context.get("request_id"))


def _response(context: Mapping[str, Any]) -> _Reading:
    response = context["response"]
    return _Reading(
        context["model"]["id"],
        {"tool_calls": plain(response["tool_calls"]), **_usage_of(context.get("usage"))},
        _words(response["content"]),
        context.get("request_id"),
        circumstances={"finish_reason": response.get("finish_reason")},
    )


def _tool_call(context: Mapping[str, Any]) -> _Reading:
    call = context["tool_call"]
    arguments = plain(call["args"])
    if not isinstance(arguments, dict):
        raise Unclear("the arguments of a tool are not an object")
    return _Reading(call["name"], arguments, call_id=string_of(call["id"], "tool_call.id"))


def _tool_result(context: Mapping[str, Any]) -> _Reading:
    read, result = _tool_call(context), context["tool_result"]
    read.text = _words(result["value"])
    read.circumstances["tool_status"] = "error" if result.get("is_error") else "ok"
    return read


_CALLS: Final[Mapping[Point, Callable[[Mapping[str, Any]], _Reading]]] = {
    Point.PRE_MODEL_CALL: _request,
    Point.POST_MODEL_CALL: _response,
    Point.PRE_TOOL_CALL: _tool_call,
    Point.POST_TOOL_CALL: _tool_result,
}


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
    """``value`` where it is a text that is not empty. Raises `Unclear`."""
    if not isinstance(value, str) or not value:
        raise Unclear(f"{what} is not a text")
    return value


def _words(value: Any) -> str:
    """The text that policies read of a value: text as it is, nothing as an empty text, anything else as JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(plain(value), ensure_ascii=False)
