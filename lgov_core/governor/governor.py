"""The front door for adapters: judge an action before it happens, record what came of it.

A `Governor` walks the decision hooks itself, folds transforms, takes the most severe verdict, and commits the decision to
the audit record before it answers. Whatever breaks on the way (a policy that raises or does not answer in time, a record
that cannot be written, no policy at all) is a deny. `Governor.decide` serves synchronous agents, `Governor.adecide`
asynchronous ones; an asynchronous agent that runs its tools in threads uses both at once.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

import pluggy

from lgov_core.errors import AuditError, PolicyDenied, PolicyError
from lgov_core.governor.dispatch import Dispatcher, Evaluator, denied, verdicts
from lgov_core.governor.reward_hooks import (
    check_single_denial_penalty,
    collect_span_rewards,
    collect_tool_rewards,
    for_a_rollout,
)
from lgov_core.plugins import check_hooks, make_plugin_manager, register
from lgov_core.policies.base import ObservingPolicy, Policy
from lgov_core.policies.combine import combine, fault, fold
from lgov_core.policies.options import positive_number
from lgov_core.scope import RolloutScope, current_scope, enter_scope
from lgov_core.types import ALLOW, Action, Decision, Effect, Point, Reward, Severity, Span, ToolOutcome, new_id

#: A transform is judged again in its new form; one that still changes after so many rounds is denied.
MAX_TRANSFORM_ROUNDS = 4

#: The answer of a governor that only watches.
NOT_EVALUATED = Decision(Effect.ALLOW, policy="lgov", rule="only-watches", reason="Nobody judges here.")

_AFTER_A_CALL = frozenset({Point.POST_MODEL_CALL, Point.POST_TOOL_CALL})


class AuditRecord(Protocol):
    """Where decisions are made durable. Both methods raise `AuditError` when they cannot."""

    def commit(self, action: Action, decision: Decision) -> str:
        """Makes the decision durable and returns its entry's id."""
        ...

    def commit_outcome(self, outcome: ToolOutcome, decision_id: str | None) -> str:
        """Appends what came of the action as an entry of its own."""
        ...


@dataclass(frozen=True, slots=True)
class ObservedDecision:
    """A decision that was taken and committed; ``at`` is Unix time in seconds."""

    action: Action
    decision: Decision
    at: float


@dataclass(frozen=True, slots=True)
class PluginFailure:
    """A plugin that raised outside a decision: ``hook`` and ``plugin`` say where, ``error`` what."""

    hook: str
    plugin: str
    error: str


class Governor:
    """Dispatcher and records for one process, or one part of it.

    ``policies`` judge first, in their order; then the plugins' decision hooks. ``audit`` is where decisions are
    committed; without it nothing is recorded, which only tests and dry runs should want. ``timeout_s`` bounds each
    voice that does not promise bounded cost: such a voice runs in a watched thread (or, if it is a coroutine, under a
    deadline) and counts as a deny when it is late. One that waits for people says so by a longer ``timeout_s`` of its
    own. Voices with ``deferred`` are asked when all others have spoken and none has denied. ``capture_content`` lets
    adapters put prompts, arguments and results on the spans they show; without it no such text is on a span.

    ``observe_only`` makes it one that never judges: everything is allowed, no decision is taken, and adapters skip what
    only policies read; spans, tool outcomes, rewards and failures are shown to the plugins as ever. It has to be asked
    for, and takes neither policies, nor plugins that judge, nor an audit record.

    With no policy and no plugin that judges, every act (``pre_tool_call``) is denied. All methods may be called from any
    thread and from any number of tasks. Fails closed. Raises `PolicyError` for what cannot be meant.
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
        self.timeout_s = positive_number("governor", "timeout_s", timeout_s)  # without an end a voice may hang for ever
        self.policies: tuple[Policy, ...] = (policies,) if isinstance(policies, Policy) else _several(policies)
        # A policy set in which nobody keeps count has no use for what it would hear.
        self._observing = tuple(
            policy
            for policy in self.policies
            if isinstance(policy, ObservingPolicy) and getattr(policy, "stateful", True)
        )
        self.manager = manager if manager is not None else make_plugin_manager()
        for plugin in plugins:
            register(self.manager, plugin)
        check_hooks(self.manager)
        check_single_denial_penalty(self.manager)
        self.audit = audit
        self.capture_content = capture_content
        #: Whether the spans of what it governs are also those of the program's OpenTelemetry; self-tests switch it off.
        self.exports_spans = True
        self.failures: Counter[str] = Counter()
        self.effects: Counter[str] = Counter()
        self._count_lock = threading.Lock()
        self._judges = Dispatcher(self.policies, self.manager, self.timeout_s)
        self._counting: bool | None = None
        self._only_watches = observe_only
        if observe_only:
            self._refuse_judges()

    @property
    def observe_only(self) -> bool:
        """Whether nothing is judged here."""
        return self._only_watches

    def evaluates(self, point: Point) -> bool:
        """Whether any policy or plugin is asked at ``point``; with none at all, ``pre_tool_call`` is a denial, so True."""
        return not self._only_watches and (point is Point.PRE_TOOL_CALL or bool(self._judges.of(point)))

    def _refuse_judges(self) -> None:
        """Raises `PolicyError` when somebody wants to judge where nobody is asked: a missing judge must not pass unseen."""
        judging = [policy.name for policy in self.policies]
        judging += [judge.name for point in Point for judge in self._judges.of(point)]
        if self.audit is not None:
            judging.append("an audit record")
        if judging:
            raise PolicyError(
                f"a governor that only watches asks nobody, but was given {', '.join(dict.fromkeys(judging))}",
                hint="leave them out, or leave out observe_only",
            )

    # ------------------------------------------------------------------ decisions

    def decide(self, action: Action) -> Decision:
        """Dispatcher ``action`` for a synchronous agent. The decision is durable when this returns; nothing is raised.

        Coroutine hooks are run to their end on an event loop of their own in a watched thread.
        """
        if self._only_watches:
            if action.point is Point.AGENT_SHUTDOWN:
                self._settle(in_scope(action))
            return NOT_EVALUATED
        action, began = in_scope(action, self._counts()), time.perf_counter()
        rounds: list[dict[Evaluator, Decision]] = []
        current = action
        while True:
            before = current
            taken: dict[Evaluator, Decision] = {}
            for judge in self._judges.of(action.point):
                if judge.deferred and denied(taken):
                    continue
                decision = self._judges.ask(judge, current)
                if decision is not None:
                    taken[judge] = decision
                    current = fold(current, decision)
            rounds.append(taken)
            if _settled(before, current) or len(rounds) == MAX_TRANSFORM_ROUNDS:
                break
        concluded = self._conclude(action, before, current, rounds, began)
        if action.point is Point.AGENT_SHUTDOWN:
            self._settle(action)
        return concluded

    async def adecide(self, action: Action) -> Decision:
        """Dispatcher ``action`` for an asynchronous agent. As `decide`; the event loop is not held up by slow policies."""
        if self._only_watches:
            if action.point is Point.AGENT_SHUTDOWN:
                await asyncio.to_thread(self._settle, in_scope(action))
            return NOT_EVALUATED
        action, began = in_scope(action, self._counts()), time.perf_counter()
        rounds: list[dict[Evaluator, Decision]] = []
        current = action
        while True:
            before = current
            taken: dict[Evaluator, Decision] = {}
            for judge in self._judges.of(action.point):
                if judge.deferred and denied(taken):
                    continue
                if judge.bounded and not judge.is_async:  # nothing to wait for, as a rule
                    answer = self._judges.told(judge, current)
                    told = answer is None or type(answer) is Decision
                    decision = answer if told else await self._judges.awaited(judge, answer)
                else:
                    decision = await self._judges.aask(judge, current)
                if decision is not None:
                    taken[judge] = decision
                    current = fold(current, decision)
            rounds.append(taken)
            if _settled(before, current) or len(rounds) == MAX_TRANSFORM_ROUNDS:
                break
        concluded = self._conclude(action, before, current, rounds, began)
        if action.point is Point.AGENT_SHUTDOWN and self.manager.hook.lgov_rollout_reward.get_hookimpls():
            await asyncio.to_thread(self._settle, action)
        return concluded

    def _counts(self) -> bool:
        """Whether anyone who judges keeps count, and so has to know one action from another."""
        if self._counting is None:
            plugins = (plugin for plugin in self.manager.get_plugins() if getattr(plugin, "stateful", False) is True)
            self._counting = bool(self._observing) or next(plugins, None) is not None
        return self._counting

    def plugins_changed(self) -> None:
        """Must be called after plugins were registered or removed on ``manager`` once decisions have been taken."""
        check_single_denial_penalty(self.manager)
        self._judges.changed()
        self._counting = None
        if self._only_watches:
            self._refuse_judges()

    def _conclude(
        self,
        action: Action,
        before: Action,
        final: Action,
        rounds: Sequence[Mapping[Evaluator, Decision]],
        began: float,
    ) -> Decision:
        settled = _settled(before, final)
        decisions = verdicts(rounds, settled)
        if not settled:
            reason = f"the transforms of this action did not settle in {len(rounds)} rounds"
            decisions.append(fault("lgov", "transform-unsettled", reason))
        elif not decisions and action.point is Point.PRE_TOOL_CALL:
            reason = "no policy covers this act"
            decisions.append(Decision(Effect.DENY, "lgov", "no-policy", reason, Severity.CRITICAL))
        latency_us = (time.perf_counter() - began) * 1e6
        if final is action and len(rounds[0]) == 1 and next(iter(rounds[0])).combines:
            # The set has just made it, for this caller alone: it needs no second making, only the time.
            (decision,) = decisions
            object.__setattr__(decision, "latency_us", latency_us)
        else:
            decision = combine(decisions, original=action, folded=final, latency_us=latency_us)
        if self.audit is not None:
            try:
                decision_id = self.audit.commit(action, decision)
                if decision is ALLOW:  # everybody's; any other was made just now
                    decision = decision.changed(decision_id=decision_id)
                else:
                    object.__setattr__(decision, "decision_id", decision_id)
            except Exception as error:  # noqa: BLE001 - whatever the record raises, nothing is on it
                self._count(self.failures, "audit")
                said = str(error) if isinstance(error, AuditError) else type(error).__name__
                decision = replace(
                    fault("lgov", "audit-failed", "the decision could not be recorded, so nothing may be done"),
                    parts=(*decision.parts, fault("lgov", "audit-failed", said)),
                    latency_us=latency_us,
                )
        self._count(self.effects, decision.effect.label)
        if self._observed():
            self.observe(ObservedDecision(action, decision, time.time()))
        return decision

    def _observed(self) -> bool:
        return bool(self._observing or self.manager.hook.lgov_observe.get_hookimpls())

    # ------------------------------------------------------------------ outcomes, rewards, events

    def record(self, outcome: ToolOutcome) -> list[Reward]:
        """Records what came of a tool call and returns the intermediate rewards it earned.

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
                self._fail("commit_outcome", "audit", error)
        rewards = collect_tool_rewards(self.manager, outcome, self._fail)
        self.observe(outcome)
        for reward in rewards:
            self.observe(reward)
        return rewards

    def _settle(self, action: Action) -> None:
        """Collects what plugins pay, or take back, at the end of an attempt."""
        if action.rollout_id is None:
            return
        scope = RolloutScope(action.rollout_id, action.attempt or 1, action.session_id)
        for reward in for_a_rollout(self.manager, scope, self._fail):
            self.observe(reward)

    async def arecord(self, outcome: ToolOutcome) -> list[Reward]:
        """As `record`; where rewards are made and stored, in a thread, so that the store does not hold up the event loop."""
        if not self.manager.hook.lgov_reward.get_hookimpls():
            return self.record(outcome)  # nothing waits for a store: a thread would cost more than the work
        return await asyncio.to_thread(self.record, outcome)

    def observe(self, event: Any) -> None:
        """Shows ``event`` to the policies that keep count and to every observer.

        One that raises is counted; the others still see it.
        """
        for policy in self._observing:
            try:
                policy.observe(event)
            except Exception as error:  # noqa: BLE001 - as below
                self._unseen(policy.name, error, event)
        for impl in reversed(self.manager.hook.lgov_observe.get_hookimpls()):
            try:
                impl.function(event) if impl.argnames else impl.function()
            except Exception as error:  # noqa: BLE001 - observers are isolated from the agent and from each other
                self._unseen(impl.plugin_name, error, event)
        if isinstance(event, Span) and event.rollout_id is not None:
            for reward in collect_span_rewards(self.manager, event, self._fail):
                self.observe(reward)

    def _unseen(self, observer: str, error: Exception, event: Any) -> None:
        self._count(self.failures, f"lgov_observe:{observer}")
        if not isinstance(event, PluginFailure):
            self.observe(PluginFailure("lgov_observe", observer, f"{type(error).__name__}: {error}"))

    def _fail(self, hook: str, plugin: str, error: Exception) -> None:
        self._count(self.failures, f"{hook}:{plugin}")
        self.observe(PluginFailure(hook, plugin, f"{type(error).__name__}: {error}"))

    def _count(self, counter: Counter[str], key: str) -> None:
        with self._count_lock:
            counter[key] += 1

    # ------------------------------------------------------------------ rollouts

    @contextmanager
    def rollout(self, scope: RolloutScope) -> Generator[RolloutScope]:
        """Runs the block as one attempt at a rollout.

        ``agent_startup`` is judged on entry and raises `PolicyDenied` when it is denied; ``agent_shutdown`` is judged on
        exit, then too, for the record: its argument ``reason`` is ``completed``, ``error`` (the block raised, or was not
        begun) or ``cancelled``.
        """
        with enter_scope(scope):
            decision = self.decide(_life(Point.AGENT_STARTUP, scope))
            ended = "error"
            try:
                if decision.blocks:
                    raise PolicyDenied(decision)
                yield scope
                ended = "completed"
            except asyncio.CancelledError:
                ended = "cancelled"
                raise
            finally:
                self.decide(_life(Point.AGENT_SHUTDOWN, scope, reason=ended))

    @asynccontextmanager
    async def arollout(self, scope: RolloutScope) -> AsyncGenerator[RolloutScope]:
        """As `rollout`, for asynchronous agents."""
        with enter_scope(scope):
            decision = await self.adecide(_life(Point.AGENT_STARTUP, scope))
            ended = "error"
            try:
                if decision.blocks:
                    raise PolicyDenied(decision)
                yield scope
                ended = "completed"
            except asyncio.CancelledError:
                ended = "cancelled"
                raise
            finally:
                await self.adecide(_life(Point.AGENT_SHUTDOWN, scope, reason=ended))

    def close(self) -> None:
        """Gives the watched threads back; a policy that hangs keeps its own. Decisions may still be asked for."""
        self._judges.close()


def _life(point: Point, scope: RolloutScope, **arguments: Any) -> Action:
    return Action(point, name=scope.task_id or scope.rollout_id, kind="agent", arguments=arguments)


def in_scope(action: Action, counted: bool = False) -> Action:
    """The action with the ids of the running rollout where it has none.

    ``counted`` also gives it an operation id where the adapter gave none, so that whoever keeps count knows it again when
    a transform has it judged once more. Not after a call: there it would pretend to know which call that was.
    """
    operation = action.operation_id
    if counted and operation is None and action.point not in _AFTER_A_CALL:
        operation = new_id("op")
    scope = current_scope() if action.rollout_id is None else None
    if scope is None and operation is action.operation_id:
        return action
    return Action(  # dataclasses.replace would take several times as long, on the path of every decision
        action.point,
        action.name,
        action.kind,
        action.arguments,
        action.text,
        action.agent,
        action.framework,
        action.session_id if scope is None else action.session_id or scope.session_id,
        action.rollout_id if scope is None else scope.rollout_id,
        action.attempt if scope is None else scope.attempt,
        action.call_id,
        action.parent_id,
        operation,
        action.context,
        action.native,
        action.span_id,
    )


def _settled(before: Action, after: Action) -> bool:
    return before is after or (before.arguments == after.arguments and before.text == after.text)


def _several(policies: Any) -> tuple[Policy, ...]:
    """The policies in ``policies``. Raises `PolicyError` when something else is among them."""
    if isinstance(policies, str) or not isinstance(policies, Iterable):
        raise PolicyError(f"{policies!r} is no policy and no list of policies", hint="pass policies or a PolicySet")
    found = tuple(cast("Iterable[Any]", policies))
    for one in found:
        if inspect.isclass(one) or not isinstance(one, Policy):
            raise PolicyError(f"{one!r} is no policy (a policy has a name and judge())")
    return found
