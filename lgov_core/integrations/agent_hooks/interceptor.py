"""lgov's policies as an interceptor of AGENT-HOOKS-0.1, for hosts that lgov has no adapter for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from threading import Lock
from typing import Any, Final

from agent_hooks import Decision as TheirDecision
from agent_hooks import Verdict

from lgov_core._util.containers import BoundedDict
from lgov_core.errors import PolicyError
from lgov_core.flow import Flow, arun_flow, run_flow
from lgov_core.governor import Governor
from lgov_core.integrations.agent_hooks.contexts import Unclear
from lgov_core.integrations.agent_hooks.readings import BEFORE, Session, action_of, outcome_of, string_of
from lgov_core.integrations.agent_hooks.verdicts import verdict_of
from lgov_core.types import Point, Policy, ToolOutcome

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
        self._sessions: BoundedDict[str, Session] = BoundedDict(MAX_SESSIONS)

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
            session = self._session(session_id)
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
            detail = str(error) if isinstance(error, Unclear) else type(error).__name__
            return Verdict(TheirDecision.DENY, "lgov:bridge-error", f"DENIED: this could not be judged ({detail}).")

    def _session(self, session_id: str) -> Session:
        with self._lock:
            session = self._sessions.get(session_id)
            if session is None:
                session = Session()
                self._sessions.put(session_id, session)
            return session
