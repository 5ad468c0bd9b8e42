"""lgov's policies as an interceptor of AGENT-HOOKS-0.1, for hosts that lgov has no adapter for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from agent_hooks import Decision as TheirDecision
from agent_hooks import Verdict

from lgov_core.agent_hooks.contexts import Unclear
from lgov_core.agent_hooks.readings import BEFORE, Session, action_of, outcome_of, string_of
from lgov_core.agent_hooks.sessions import Remembered
from lgov_core.agent_hooks.verdicts import verdict_of
from lgov_core.errors import PolicyError
from lgov_core.governor import Governor
from lgov_core.policies.base import Policy
from lgov_core.types import Action, Decision, Point, ToolOutcome


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
        self._sessions: Remembered[Session] = Remembered()

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
        session_id = string_of(context["session"]["id"], "session.id")
        session = self._sessions.get_or_make(session_id, Session)
        action = action_of(context, point, session_id, session)
        outcome = None
        if point is Point.POST_TOOL_CALL:
            outcome = outcome_of(action, context, session.decision_on(action.operation_id))
        if point is Point.AGENT_SHUTDOWN:
            self._sessions.drop(session_id)
        return _Seen(action, session, outcome)

    def _settled(self, seen: _Seen, decision: Decision) -> ToolOutcome | None:
        """Notes the decision on a call; the outcome to be recorded of one that does not run."""
        action = seen.action
        if action.point not in BEFORE:
            return None
        if decision.blocks:
            seen.session.end(BEFORE[action.point], action.call_id)
            return ToolOutcome(action, "denied", decision=decision) if action.point is Point.PRE_TOOL_CALL else None
        seen.session.decided(action.operation_id, decision)
        return None


@dataclass(frozen=True, slots=True)
class _Seen:
    action: Action
    session: Session
    outcome: ToolOutcome | None


def _broken(error: Exception) -> Verdict:
    # The class is named; a message may hold what the tool was called with. Ours never do.
    said = str(error) if isinstance(error, Unclear) else type(error).__name__
    return Verdict(TheirDecision.DENY, "lgov:bridge-error", f"DENIED: this could not be judged ({said}).")
