"""The decision path: judges an action before it happens, and records its outcome.

A `Governor` runs the policies and decision hooks, folds transforms, takes the most severe effect, and commits the
decision to the audit record before it answers. Any failure on the way (a policy that raises or times out, a record that
cannot be written, no policy at all) is a deny. `Governor.decide` serves synchronous agents, `Governor.adecide`
asynchronous ones; an asynchronous agent that runs its tools in threads uses both at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import pluggy

from lgov_core.errors import AuditError, PolicyError
from lgov_core.flow import Flow, arun_flow, either, in_thread, run_flow, wait
from lgov_core.governor.judging import Judges, fault
from lgov_core.governor.options import positive_number, several_policies
from lgov_core.governor.rollouts import ObservedDecision, Observers, RolloutContext, check_single_denial_penalty
from lgov_core.plugins import check_hooks, make_plugin_manager, register
from lgov_core.scope import RolloutScope, current_scope
from lgov_core.types import Action, Decision, Effect, Point, Reward, ToolOutcome, new_id
from lgov_core.types.extensions import Policy


class AuditRecord(Protocol):
    """Where decisions are made durable. Both methods raise `AuditError` when they cannot."""

    def commit(self, action: Action, decision: Decision) -> str:
        """Makes the decision durable and returns its entry's id."""
        ...

    def commit_outcome(self, outcome: ToolOutcome, decision_id: str | None) -> str:
        """Appends the outcome of a tool call as an entry of its own."""
        ...


_AFTER_A_CALL = frozenset({Point.POST_MODEL_CALL, Point.POST_TOOL_CALL})


def in_scope(action: Action, *, identify: bool = False) -> Action:
    """The action with the ids of the current rollout where it has none.

    ``identify`` also gives it an operation id where the adapter gave none, so that stateful policies recognise it when a
    transform has it judged again. Not after a call: which call that was is unknown there.
    """
    changes: dict[str, Any] = {}
    if identify and action.operation_id is None and action.point not in _AFTER_A_CALL:
        changes["operation_id"] = new_id("op")
    scope = current_scope() if action.rollout_id is None else None
    if scope is not None:
        session = action.session_id or scope.session_id
        changes |= {"rollout_id": scope.rollout_id, "attempt": scope.attempt, "session_id": session}
    return action.changed(**changes) if changes else action


#: The decision of a governor that only observes.
NOT_EVALUATED = Decision(Effect.ALLOW, policy="lgov", rule="observe-only", reason="This governor only observes.")


class Governor(Observers):
    """The policies, plugins and records of one process, or one part of it.

    ``policies`` judge first, in their order; then the plugins' decision hooks. ``audit`` is where decisions are
    committed; without it nothing is recorded, which only tests and dry runs should want. ``timeout_s`` bounds each
    evaluator that does not promise bounded cost: it runs in a thread (or, if it is a coroutine, on the event loop) and
    counts as a deny when it takes longer. One that waits for people has a longer ``timeout_s`` of its own. Evaluators
    with ``deferred`` run last, and only when none has denied. ``capture_content`` lets adapters put prompts, arguments
    and results on spans; without it no such text is on a span.

    ``observe_only`` evaluates nothing: every decision is `NOT_EVALUATED`, an allow that is neither recorded nor shown;
    spans, tool outcomes, rewards and failures are shown to the plugins as usual. It takes neither policies, nor plugins
    with decision hooks, nor an audit record.

    With no policy and no plugin that judges, every act (``pre_tool_call``) is denied. All methods may be called from any
    thread and from any number of tasks. Fails closed. Raises `PolicyError` for arguments that contradict each other.
    """

    def __init__(
        self,
        policies: Policy | Iterable[Policy] = (),
        *,
        plugins: Iterable[object] = (),
        audit: AuditRecord | None = None,
        timeout_s: float = 2.0,
        manager: pluggy.PluginManager | None = None,
        capture_content: bool = False,
        observe_only: bool = False,
    ) -> None:
        self.timeout_s = positive_number("governor", "timeout_s", timeout_s)
        self.policies: tuple[Policy, ...] = (policies,) if isinstance(policies, Policy) else several_policies(policies)
        super().__init__(self.policies, manager if manager is not None else make_plugin_manager())
        for plugin in plugins:
            register(self.manager, plugin)
        check_hooks(self.manager)
        self.audit = audit
        self.capture_content = capture_content
        #: Whether its spans are also spans of the program's OpenTelemetry; self-tests switch it off.
        self.exports_spans = True
        self._judges = Judges(self.policies, self.manager, self.timeout_s)
        self.observe_only = observe_only
        self.plugins_changed()

    @property
    def policy_digest(self) -> str:
        """The digest of its policy set now; of several, those that have one, joined by commas."""
        digests = (getattr(policy, "digest", None) for policy in self.policies)
        return ",".join(digest for digest in digests if isinstance(digest, str))

    def evaluates(self, point: Point) -> bool:
        """Returns whether any policy or plugin is asked at ``point``; an act no policy covers is denied, so it counts too."""
        return not self.observe_only and (point is Point.PRE_TOOL_CALL or bool(self._judges.rules(point)))

    def covers(self, point: Point) -> bool:
        """Returns whether any rule or plugin can answer at ``point``: unlike `evaluates` it looks into policy sets."""
        return not self.observe_only and self._judges.covers(point)

    def reads_replies(self) -> bool:
        """Returns whether a policy or plugin reads what models write: a streamed text must wait for its decision then."""
        return not self.observe_only and self._judges.reads_replies()

    def plugins_changed(self) -> None:
        """Must be called after plugins were registered or removed on ``manager`` once decisions have been taken."""
        check_single_denial_penalty(self.manager)
        self._judges.plugins_changed()
        self._identifies: bool | None = None
        if self.observe_only:
            self._refuse_evaluators()

    def _refuse_evaluators(self) -> None:
        """Raises `PolicyError` if a policy, a decision hook or an audit record would be silently ignored."""
        ignored = [rule.name for point in Point for rule in self._judges.rules(point)]
        if self.audit is not None:
            ignored.append("an audit record")
        if ignored:
            raise PolicyError(
                f"a governor with observe_only=True evaluates nothing, but was given {', '.join(dict.fromkeys(ignored))}",
                hint="leave them out, or leave out observe_only",
            )

    # ------------------------------------------------------------------ decisions

    def decide(self, action: Action) -> Decision:
        """Judges ``action`` for a synchronous agent. The decision is durable when this returns; nothing is raised.

        Coroutine hooks run on an event loop of their own in a thread.
        """
        return run_flow(self.decision_flow(action))

    async def adecide(self, action: Action) -> Decision:
        """Judges ``action`` for an asynchronous agent. As `decide`; slow policies do not hold up the event loop."""
        return await arun_flow(self.decision_flow(action))

    def decision_flow(self, action: Action) -> Flow[Decision]:
        """The flow of `decide` and `adecide`, for flows that judge an action on their way."""
        action = in_scope(action, identify=self._needs_ids())
        decision = NOT_EVALUATED
        if not self.observe_only:
            decision = self._taken(action, (yield from self._judges.judge(action)))
        if action.point is Point.AGENT_SHUTDOWN and self.manager.hook.lgov_rollout_reward.get_hookimpls():
            yield from wait(in_thread(self._settle, action))
        return decision

    def _needs_ids(self) -> bool:
        """Returns whether a policy or plugin is stateful, and so has to recognise an action."""
        if self._identifies is None:
            stateful = (getattr(plugin, "stateful", False) is True for plugin in self.manager.get_plugins())
            self._identifies = bool(self._observing) or any(stateful)
        return self._identifies

    def refuse(self, action: Action, rule: str, reason: str, *, is_fault: bool = True) -> Decision:
        """Denies ``action`` without asking a policy, because it cannot be read for certain; on record as any decision.

        ``is_fault`` is false where the agent itself wrote what cannot be read.
        """
        denial = fault("lgov", rule, reason) if is_fault else Decision(Effect.DENY, "lgov", rule, reason)
        return self._taken(in_scope(action, identify=self._needs_ids()), denial)

    def take(self, action: Action, decision: Decision) -> Decision:
        """Takes ``decision``, made about this very call before, without asking a policy; on record as any decision."""
        return self._taken(in_scope(action), decision)

    def _taken(self, action: Action, decision: Decision) -> Decision:
        began = time.perf_counter()
        decision = self._committed(action, decision)
        commit_s = time.perf_counter() - began
        with self._count_lock:
            self.effects[decision.effect.label] += 1
        if self._observing or self.manager.hook.lgov_observe.get_hookimpls():
            self.observe(ObservedDecision(action, decision, time.time(), commit_s))
        return decision

    def _committed(self, action: Action, decision: Decision) -> Decision:
        """The decision with the id of its audit entry, or the denial that takes its place when it was not recorded."""
        try:
            if self.audit is not None:
                decision = decision.changed(policy_digest=self.policy_digest)
                decision.decision_id = self.audit.commit(action, decision)
            return decision
        except Exception as error:  # noqa: BLE001 - whatever the record raises, nothing is on it
            self._count(self.failures, "audit")
            cause = str(error) if isinstance(error, AuditError) else type(error).__name__
            denial = fault("lgov", "audit-failed", "the decision could not be recorded, so nothing may be done")
            parts = (*decision.parts, fault("lgov", "audit-failed", cause))
            return denial.changed(parts=parts, latency_us=decision.latency_us)

    # ------------------------------------------------------------------ outcomes

    def record(self, outcome: ToolOutcome) -> list[Reward]:
        """Records the outcome of a tool call and returns the intermediate rewards it earned.

        The outcome is appended to the audit record as an entry of its own; the rewards of every plugin are collected,
        addressed to the call, and shown to every observer (the store among them). Never raises: the act has happened. A
        failing plugin or record is counted in ``failures`` and shown as a `PluginFailure`.
        """
        action = in_scope(outcome.action)
        if action is not outcome.action:
            outcome = replace(outcome, action=action)
        if self.audit is not None:
            try:
                self.audit.commit_outcome(outcome, outcome.decision.decision_id if outcome.decision else None)
            except Exception as error:  # noqa: BLE001 - the act has happened, whatever the record raises
                self._plugin_failed("commit_outcome", "audit", error)
        return self._show_outcome(outcome)

    async def arecord(self, outcome: ToolOutcome) -> list[Reward]:
        """As `record`; with reward plugins in a thread, so that storing the rewards does not hold up the event loop."""
        if not self.manager.hook.lgov_reward.get_hookimpls():
            return self.record(outcome)
        return await asyncio.to_thread(self.record, outcome)

    def record_flow(self, outcome: ToolOutcome) -> Flow[list[Reward]]:
        """The flow of `record` and `arecord`, for flows that record an outcome on their way."""
        return (yield from wait(either(partial(self.record, outcome), partial(self.arecord, outcome))))

    # ------------------------------------------------------------------ rollouts

    def rollout(self, scope: RolloutScope) -> RolloutContext:
        """Runs the block as one attempt at a rollout: ``with governor.rollout(scope):``, or ``async with``.

        ``agent_startup`` is judged on entry and raises `PolicyDenied` when it is denied; ``agent_shutdown`` is judged on
        exit, also after a denied entry, for the record: its argument ``reason`` is ``completed``, ``error`` (the block
        raised, or was not entered) or ``cancelled``.
        """
        return RolloutContext(self.decision_flow, scope)

    arollout = rollout

    def close(self) -> None:
        """Shuts the threads of slow policies down; one that hangs keeps its own. Decisions may still be asked for."""
        self._judges.close()
        self._flush()
