"""A `Decision` as a verdict of AGENT-HOOKS-0.1 and back, and lgov's policies as an interceptor.

`LgovInterceptor` is for hosts that lgov has no adapter for.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from threading import Lock
from typing import Any, Final

from agent_hooks import Decision as TheirDecision
from agent_hooks import EnforcementMode, Evidence, InterceptionRecord, Transform, Verdict, Warning

from lgov_core._util.containers import BoundedDict
from lgov_core.errors import PolicyError
from lgov_core.flow import Flow, arun_flow, run_flow
from lgov_core.governor import Governor
from lgov_core.governor.judging import fault
from lgov_core.integrations.agent_hooks.contexts import (
    BEFORE,
    HooksSession,
    UnclearContext,
    action_of,
    outcome_of,
    plain,
    replaced,
    string_of,
    target_of,
)
from lgov_core.types import Action, Decision, Effect, Point, Policy, Severity, ToolOutcome

_AFTER_A_CALL: Final = (Point.POST_MODEL_CALL, Point.POST_TOOL_CALL)
#: Where the text of a point is in its target; None: the target itself.
_TEXT_AT: Final = {
    Point.INPUT: "content",
    Point.POST_MODEL_CALL: "content",
    Point.OUTPUT: "content",
    Point.POST_TOOL_CALL: None,
}


def verdict_of(action: Action, context: Mapping[str, Any], decision: Decision) -> Verdict:
    """``decision`` on ``action``, which was made of ``context``, as a verdict.

    Raises `UnclearContext` for an impossible change.
    """
    slug = _slug(decision)
    evidence = Evidence(artefact=decision.decision_id) if decision.decision_id else None
    if decision.blocks:
        approval: dict[str, Any] | None = {} if decision.effect is Effect.ESCALATE else None
        message = decision.denial_message(after=action.point in _AFTER_A_CALL)
        return Verdict(TheirDecision.DENY, slug, message, approval=approval, evidence=evidence)
    warnings = tuple(
        Warning(_slug(part), part.reason)
        for part in decision.parts or (decision,)
        if part.effect is Effect.WARN or (part.shadowed and part.blocks)  # what would have blocked outside shadow mode
    )
    if decision.arguments is None and decision.text is None:
        return Verdict(TheirDecision.ALLOW, slug, decision.reason, warnings, evidence=evidence)
    transform = _transform_of(action.point, context, decision)
    return Verdict(TheirDecision.TRANSFORM, slug, decision.reason, warnings, transform=transform, evidence=evidence)


def _slug(decision: Decision) -> str:
    where = f"{decision.policy}/{decision.rule}" if decision.rule else decision.policy
    return f"lgov:{where}"[:200]


def _transform_of(point: Point, context: Mapping[str, Any], decision: Decision) -> Transform:
    target = target_of(context, point)
    if point is Point.PRE_TOOL_CALL and decision.text is None:
        return Transform("$target", plain(decision.arguments))
    if point is Point.PRE_MODEL_CALL and decision.text is None and decision.arguments is not None:
        own = {"messages": None} | ({"tools": context["tools"]} if "tools" in context else {})
        if {**decision.arguments, "messages": None} != own:
            raise UnclearContext("only the messages of a model call can be changed")
        return Transform("$target", plain(decision.arguments["messages"]))
    if point is Point.POST_MODEL_CALL and decision.arguments is not None:
        calls = plain(decision.arguments.get("tool_calls", []))
        content = target["content"] if decision.text is None else decision.text
        return Transform("$target", {**target, "content": content, "tool_calls": calls})
    if point not in _TEXT_AT or decision.text is None or decision.arguments is not None:
        raise UnclearContext(f"a change of this kind cannot be made at {point}")
    member = _TEXT_AT[point]
    old = target if member is None else target[member]
    return Transform("$target" if member is None else f"$target.{member}", _as_before(old, decision.text, point))


def _as_before(old: Any, text: str, point: Point) -> Any:
    """``text`` in the form that ``old`` had: where that was not a text, the text read as JSON."""
    if old is None or isinstance(old, str):
        return text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text
    if type(value) is type(old) or point is Point.POST_TOOL_CALL:
        return value  # a tool's result may have any form
    raise UnclearContext("content that is not a text cannot be replaced by a text")


_MAX_SLUG: Final = 200
_MAX_REASON: Final = 2000
#: Failures of the judgement itself: they are not the agent's doing.
_FAULTS: Final = {
    "host_error:interceptor_failed": "An interceptor failed",
    "host_error:interceptor_timeout": "An interceptor did not answer in time",
    "host_error:verdict_invalid": "An interceptor did not answer a verdict",
    "host_error:transform_invalid": "An interceptor asked for a change that cannot be made",
    "host_error:transform_target_forbidden": "An interceptor asked to change what must not be changed here",
    "host_error:approval_resolver_failed": "Approval could not be asked for",
    "host_error:approval_identity_mismatch": "The approval was given to something else",
    "host_error:no_interceptor": "There is no interceptor",
}
_OTHER_ERRORS: Final = {
    "host_error:context_invalid": "This cannot be put before the interceptors",
    "host_error:transform_conflict": "Two interceptors want it changed into different things",
    "host_error:composition_disagreement": "The interceptors do not agree",
    "host_error:approval_unresolved": "Nobody has approved it",
}


class Deciding:
    """Makes decisions in the name of the policy ``name``."""

    def __init__(self, name: str, mode: EnforcementMode) -> None:
        self._name = name
        self._observe_only = mode is EnforcementMode.EVALUATE_ONLY

    def of(
        self, action: Action, sent: Mapping[str, Any], context: Mapping[str, Any], record: InterceptionRecord
    ) -> Decision:
        """The decision on ``action``: ``sent`` is its context as it was, ``context`` as the interceptors left it."""
        verdict = record.verdict
        if self._observe_only:
            if verdict.decision is TheirDecision.ALLOW:
                return self._named(Effect.ALLOW, verdict.reason, verdict.message)
            effect = Effect.TRANSFORM if verdict.decision is TheirDecision.TRANSFORM else Effect.DENY
            return self._shadowed(self._named(effect, verdict.reason, verdict.message))
        if verdict.decision is TheirDecision.DENY:
            return self._denied(verdict)
        try:
            arguments, text = replaced(action, sent, context)
        except UnclearContext as error:
            return self.unclear(error)
        warned = [self._named(Effect.WARN, warning.reason, warning.message) for warning in verdict.warnings]
        if arguments is None and text is None:
            if not warned:
                return self._named(Effect.ALLOW, verdict.reason, verdict.message)
            first, parts = warned[0], tuple(warned) if len(warned) > 1 else ()
            return Decision(Effect.WARN, self._name, first.rule, first.reason, parts=parts)
        named = self._named(Effect.TRANSFORM, verdict.reason, verdict.message)
        changed = replace(named, arguments=arguments, text=text)
        return replace(changed, parts=(changed, *warned)) if warned else changed

    def _denied(self, verdict: Verdict) -> Decision:
        slug = verdict.reason or ""
        if slug in _FAULTS:
            detail = f" ({verdict.message[:_MAX_SLUG]})" if verdict.message else ""
            return fault(self._name, slug, f"{_FAULTS[slug]}{detail}")
        effect = Effect.ESCALATE if verdict.approval is not None else Effect.DENY
        return self._named(effect, slug, _OTHER_ERRORS.get(slug) or verdict.message, Severity.HIGH)

    def _shadowed(self, would: Decision) -> Decision:
        reason = "The interceptors are in evaluate_only mode; nothing is blocked."
        parts = (would.changed(shadowed=True),)
        return Decision(Effect.ALLOW, self._name, "evaluate-only", reason, parts=parts, shadowed=True)

    def _named(
        self, effect: Effect, slug: str | None, message: str | None, severity: Severity = Severity.LOW
    ) -> Decision:
        reason = message or slug or f"The interceptors answer {effect.label}."
        return Decision(effect, self._name, (slug or effect.label)[:_MAX_SLUG], reason[:_MAX_REASON], severity)

    def unclear(self, error: UnclearContext) -> Decision:
        """The decision on what has no form in the contract, or in lgov."""
        reason = f"It cannot be judged: {error}."
        denied = Decision(Effect.DENY, self._name, "not-expressible", reason, Severity.HIGH)
        return self._shadowed(denied) if self._observe_only else denied


#: Open sessions of which the state is kept; beyond it the oldest is forgotten.
MAX_SESSIONS: Final = 4096


class LgovInterceptor:
    """Has ``governor`` (or a governor made of policies) judge what a host of AGENT-HOOKS-0.1 is about to do::

        emitter = InterceptionEmitter().register(LgovInterceptor(load_policy_file("policy.yaml")))

    Each context becomes an `Action` with the agent, the session, the call id and the operation id (the same before and
    after one call); ``context["user_text"]`` is what the user has written in the session. The decision becomes a verdict:
    deny; escalate is a deny with approval; transform; warn is an allow with a warning; ``evidence.artefact`` is the id of
    the entry in the audit record. The result of a tool call is recorded as an outcome, so that budgets, rewards and
    stateful policies work as under an adapter of lgov's own. ``abort`` is a deny like any other: the host decides whether a
    run ends.

    A host has one transform a verdict: where a decision changes both the text and the proposed calls of a reply, the reply
    is replaced as a whole. A change that the target has no place for is a deny.

    May be called from any threads and tasks at once. A context that cannot be read or judged is a deny; nothing is raised,
    except that a cancelled task is cancelled. Fails closed.
    """

    def __init__(self, governor: Governor | Policy | Iterable[Policy]) -> None:
        if not isinstance(governor, Governor):
            policies = [governor] if isinstance(governor, Policy) else list(governor)
            if not policies:
                raise PolicyError("LgovInterceptor has no policies", hint="give it a policy set or a governor")
            governor = Governor(policies)
        self.governor = governor
        self._lock = Lock()
        self._sessions: BoundedDict[str, HooksSession] = BoundedDict(MAX_SESSIONS)

    async def intercept(self, context: Mapping[str, Any], /) -> Verdict:
        """The verdict on one context, in the running event loop."""
        return await arun_flow(self._steps(context))

    def intercept_sync(self, context: Mapping[str, Any], /) -> Verdict:
        """As `intercept`, for synchronous hosts."""
        return run_flow(self._steps(context))

    def _steps(self, context: Mapping[str, Any]) -> Flow[Verdict]:
        try:
            point = Point(context["interception_point"])
            session_id = string_of(context["session"]["id"], "session.id")
            with self._lock:
                session = self._sessions.get(session_id) or HooksSession()
                self._sessions.put(session_id, session)
            action = action_of(context, point, session_id, session)
            if point is Point.POST_TOOL_CALL:
                outcome = outcome_of(action, context, session.decision_on(action.operation_id))
                yield from self.governor.record_flow(outcome)
            if point is Point.AGENT_SHUTDOWN:
                self._sessions.pop(session_id)
            decision = yield from self.governor.decision_flow(action)
            if point in BEFORE and decision.blocks:
                session.end(BEFORE[point], action.call_id)
                if point is Point.PRE_TOOL_CALL:
                    yield from self.governor.record_flow(ToolOutcome(action, "denied", decision=decision))
            elif point in BEFORE:
                session.decided(action.operation_id, decision)
            return verdict_of(action, context, decision)
        except Exception as error:  # noqa: BLE001 - any failure is a deny
            # The class is named; a message may hold what the tool was called with. Ours never do.
            detail = str(error) if isinstance(error, UnclearContext) else type(error).__name__
            return Verdict(TheirDecision.DENY, "lgov:bridge-error", f"DENIED: this could not be judged ({detail}).")
