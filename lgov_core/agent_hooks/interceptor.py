"""lgov's policies as an interceptor of AGENT-HOOKS-0.1, for hosts that lgov has no adapter for."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from agent_hooks import Decision as TheirDecision
from agent_hooks import Evidence, Transform, Verdict, Warning

from lgov_core.agent_hooks.contexts import Unclear, plain, target_of
from lgov_core.agent_hooks.sessions import Remembered
from lgov_core.errors import PolicyError
from lgov_core.governor import Governor
from lgov_core.policies.base import Policy
from lgov_core.types import Action, Decision, Effect, Kind, Point, ToolOutcome, new_id

#: Characters of a session's user text that policies get to see.
MAX_USER_TEXT: Final = 65_536
_SEPARATOR: Final = "\n"
_KINDS: Final[Mapping[Point, Kind]] = {
    Point.AGENT_STARTUP: "agent",
    Point.AGENT_SHUTDOWN: "agent",
    Point.INPUT: "text",
    Point.OUTPUT: "text",
    Point.PRE_MODEL_CALL: "model",
    Point.POST_MODEL_CALL: "model",
}
_AFTER: Final = {Point.POST_MODEL_CALL: "model", Point.POST_TOOL_CALL: "tool"}
_BEFORE: Final = {Point.PRE_MODEL_CALL: "model", Point.PRE_TOOL_CALL: "tool"}
#: Where the text of a point is in its target; None: the target itself.
_TEXT_AT: Final = {
    Point.INPUT: "content",
    Point.POST_MODEL_CALL: "content",
    Point.OUTPUT: "content",
    Point.POST_TOOL_CALL: None,
}


class LgovInterceptor:
    """Has ``governor`` (or a governor made of policies) judge what a host of AGENT-HOOKS-0.1 is about to do::

        emitter = InterceptionEmitter().register(LgovInterceptor(load_policy_file("policy.yaml")))

    Each context becomes an `Action` with the agent, the session, the call id and the operation id (the same before and
    after one call); ``context["user_text"]`` is what the user has said in the session. The decision becomes a verdict:
    deny; escalate is a deny with approval; transform; warn is an allow with a warning; ``evidence.artefact`` is the id of
    the entry in the audit record. What came of a tool call is recorded as an outcome, so that budgets, rewards and
    policies that keep count work as under an adapter of lgov's own. ``abort`` is a deny like any other: whether a run ends
    is for the host to say.

    A host has one transform a verdict: where a decision changes both the text and the proposed calls of a reply, the reply
    is replaced as a whole. A change that the target has no place for is a deny.

    May be called from any threads and tasks at once. Whatever cannot be read or judged is a deny; nothing is raised, except
    that a cancelled task is cancelled. Fails closed.
    """

    def __init__(self, governor: Governor | Policy | Iterable[Policy]) -> None:
        if not isinstance(governor, Governor):
            policies = [governor] if isinstance(governor, Policy) else list(governor)
            if not policies:
                raise PolicyError("LgovInterceptor has no policies", hint="give it a policy set or a governor")
            governor = Governor(policies)
        self.governor = governor
        self._sessions: Remembered[_Session] = Remembered()

    async def intercept(self, context: Mapping[str, Any], /) -> Verdict:
        """The verdict on one context, in the running event loop."""
        try:
            seen = self._seen(context)
            if seen.outcome is not None:
                await self.governor.arecord(seen.outcome)
            decision = await self.governor.adecide(seen.action)
            if (denied := self._settled(seen, decision)) is not None:
                await self.governor.arecord(denied)
            return verdict_of(seen.action, context, decision)
        except Exception as error:  # noqa: BLE001 - whatever breaks is a deny
            return _broken(error)

    def intercept_sync(self, context: Mapping[str, Any], /) -> Verdict:
        """As `intercept`, for synchronous hosts."""
        try:
            seen = self._seen(context)
            if seen.outcome is not None:
                self.governor.record(seen.outcome)
            decision = self.governor.decide(seen.action)
            if (denied := self._settled(seen, decision)) is not None:
                self.governor.record(denied)
            return verdict_of(seen.action, context, decision)
        except Exception as error:  # noqa: BLE001 - whatever breaks is a deny
            return _broken(error)

    def _seen(self, context: Mapping[str, Any]) -> _Seen:
        """What the context says. Raises `Unclear`, or what looking things up in it raises."""
        point = Point(context["interception_point"])
        session_id = _string(context["session"]["id"], "session.id")
        session = self._sessions.get_or_make(session_id, _Session)
        action = _action_of(context, point, session_id, session)
        outcome = None
        if point is Point.POST_TOOL_CALL:
            outcome = _outcome_of(action, context, session.decision_on(action.operation_id))
        if point is Point.AGENT_SHUTDOWN:
            self._sessions.drop(session_id)
        return _Seen(action, session, outcome)

    def _settled(self, seen: _Seen, decision: Decision) -> ToolOutcome | None:
        """Notes the decision on a call; the outcome to be recorded of one that does not run."""
        action = seen.action
        if action.point not in _BEFORE:
            return None
        if decision.blocks:
            seen.session.end(_BEFORE[action.point], action.call_id)
            return ToolOutcome(action, "denied", decision=decision) if action.point is Point.PRE_TOOL_CALL else None
        seen.session.decided(action.operation_id, decision)
        return None


@dataclass(frozen=True, slots=True)
class _Seen:
    action: Action
    session: _Session
    outcome: ToolOutcome | None


@dataclass(slots=True)
class _Session:
    """What was said and which calls are open in one session. Locked, as hosts may run calls at the same time."""

    user_text: str = ""
    _open: dict[tuple[str, str | None], list[str]] = field(default_factory=dict)  # pyright: ignore[reportUnknownVariableType]
    _decisions: Remembered[Decision] = field(default_factory=Remembered)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def said(self, text: str) -> None:
        with self._lock:
            self.user_text = f"{self.user_text}{_SEPARATOR}{text}".strip()[-MAX_USER_TEXT:]

    def begin(self, kind: str, call_id: str | None) -> str:
        """The operation id of a call that begins."""
        operation = new_id("op")
        with self._lock:
            self._open.setdefault((kind, call_id), []).append(operation)
        return operation

    def end(self, kind: str, call_id: str | None) -> str | None:
        """The operation id of the call that ended; None where it cannot be told which of several that was."""
        with self._lock:
            found = self._open.pop((kind, call_id), [])
        return found[0] if len(found) == 1 else None

    def decided(self, operation: str | None, decision: Decision) -> None:
        if operation is not None:
            self._decisions.put(operation, decision)

    def decision_on(self, operation: str | None) -> Decision | None:
        return self._decisions.drop(operation)


# ---------------------------------------------------------------------- contexts


@dataclass(slots=True)
class _Reading:
    """What a context says of its point."""

    name: Any
    arguments: dict[str, Any] = field(default_factory=dict)  # pyright: ignore[reportUnknownVariableType]
    text: str | None = None
    call_id: str | None = None
    by_user: bool = True
    circumstances: dict[str, Any] = field(default_factory=dict)  # pyright: ignore[reportUnknownVariableType]


def _action_of(context: Mapping[str, Any], point: Point, session_id: str, session: _Session) -> Action:
    agent = context["agent"]
    agent_name = _string(agent.get("name") or agent["id"], "agent")
    read = _CALLS[point](context) if point in _CALLS else _text_or_life(context, point, agent_name)
    if point is Point.INPUT and read.by_user and read.text:
        session.said(read.text)
    operation = None
    if point in _BEFORE:
        operation = session.begin(_BEFORE[point], read.call_id)
    elif point in _AFTER:
        operation = session.end(_AFTER[point], read.call_id)
    if session.user_text:
        read.circumstances["user_text"] = session.user_text
    return Action(
        point,
        name=_string(read.name, "name"),
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
            said = context["input"]
            return _Reading(agent, text=_words(said["content"]), by_user=said.get("role", "user") == "user")
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
        raise Unclear("the arguments of a tool are no object")
    return _Reading(call["name"], arguments, call_id=_string(call["id"], "tool_call.id"))


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


def _outcome_of(action: Action, context: Mapping[str, Any], decision: Decision | None) -> ToolOutcome:
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
    """``usage`` as policies read it, where it says both numbers: half of it would make a call look cheap."""
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


def _string(value: Any, what: str) -> str:
    if not isinstance(value, str) or not value:
        raise Unclear(f"{what} is no text")
    return value


def _words(value: Any) -> str:
    """What policies read of a value: text as it is, nothing as an empty text, anything else as JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(plain(value), ensure_ascii=False)


# ---------------------------------------------------------------------- verdicts


def verdict_of(action: Action, context: Mapping[str, Any], decision: Decision) -> Verdict:
    """``decision`` on ``action``, which was made of ``context``, as a verdict. Raises `Unclear` for an impossible change."""
    slug = _slug(decision)
    evidence = Evidence(artefact=decision.decision_id) if decision.decision_id else None
    if decision.blocks:
        approval: dict[str, Any] | None = {} if decision.effect is Effect.ESCALATE else None
        message = decision.tell(after=action.point in _AFTER)
        return Verdict(TheirDecision.DENY, slug, message, approval=approval, evidence=evidence)
    warnings = tuple(Warning(_slug(part), part.reason) for part in _warned(decision))
    if decision.arguments is None and decision.text is None:
        return Verdict(TheirDecision.ALLOW, slug, decision.reason, warnings, evidence=evidence)
    transform = _transform_of(action.point, context, decision)
    return Verdict(TheirDecision.TRANSFORM, slug, decision.reason, warnings, transform=transform, evidence=evidence)


def _slug(decision: Decision) -> str:
    where = f"{decision.policy}/{decision.rule}" if decision.rule else decision.policy
    return f"lgov:{where}"[:200]


def _warned(decision: Decision) -> list[Decision]:
    """The parts that warn, and those that would have blocked if their set did not only watch."""
    parts = decision.parts or (decision,)
    return [part for part in parts if part.effect is Effect.WARN or (part.shadowed and part.blocks)]


def _transform_of(point: Point, context: Mapping[str, Any], decision: Decision) -> Transform:
    target = target_of(context, point)
    if point is Point.PRE_TOOL_CALL and decision.text is None:
        return Transform("$target", plain(decision.arguments))
    if point is Point.PRE_MODEL_CALL and decision.text is None and decision.arguments is not None:
        if {**decision.arguments, "messages": None} != {**_model_arguments(context), "messages": None}:
            raise Unclear("only the messages of a model call can be changed")
        return Transform("$target", plain(decision.arguments["messages"]))
    if point is Point.POST_MODEL_CALL and decision.arguments is not None:
        calls = plain(decision.arguments.get("tool_calls", []))
        content = target["content"] if decision.text is None else decision.text
        return Transform("$target", {**target, "content": content, "tool_calls": calls})
    if point not in _TEXT_AT or decision.text is None or decision.arguments is not None:
        raise Unclear(f"a change of this kind cannot be made at {point}")
    member = _TEXT_AT[point]
    old = target if member is None else target[member]
    return Transform("$target" if member is None else f"$target.{member}", _as_before(old, decision.text, point))


def _model_arguments(context: Mapping[str, Any]) -> dict[str, Any]:
    return {"messages": None, **({"tools": context["tools"]} if "tools" in context else {})}


def _as_before(old: Any, text: str, point: Point) -> Any:
    """``text`` in the form that ``old`` had: where that was no text, what the text says as JSON."""
    if old is None or isinstance(old, str):
        return text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text
    if type(value) is type(old) or point is Point.POST_TOOL_CALL:
        return value  # a model reads a tool's result in any form
    raise Unclear("content that is no text cannot be replaced by a text")


def _broken(error: Exception) -> Verdict:
    # The class is named; a message may hold what the tool was called with. Ours never do.
    said = str(error) if isinstance(error, Unclear) else type(error).__name__
    return Verdict(TheirDecision.DENY, "lgov:bridge-error", f"DENIED: this could not be judged ({said}).")
