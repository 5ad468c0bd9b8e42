"""Events of a governor: who sees them, what they earn, and the rollouts in which they happen."""

from __future__ import annotations

import asyncio
import math
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import pluggy

from lgov_core._util.containers import BoundedDict
from lgov_core.errors import PluginError, PolicyDenied, RewardError
from lgov_core.flow import Flow, arun_flow, run_flow
from lgov_core.scope import RolloutScope, enter_scope
from lgov_core.types import Action, Decision, ObservingPolicy, Point, Policy, Reward, Span, ToolOutcome

#: Called with a failure: the hook, the plugin and the error.
Fail: TypeAlias = Callable[[str, str, Exception], None]
_Earned: TypeAlias = "list[tuple[str, Reward]]"


@dataclass(frozen=True, slots=True)
class ObservedDecision:
    """A decision that was taken and committed; ``at`` is Unix time in seconds, ``commit_s`` how long the commit took."""

    action: Action
    decision: Decision
    at: float
    commit_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PluginFailure:
    """A plugin that raised outside a decision: in ``hook``, with the message ``error``."""

    hook: str
    plugin: str
    error: str


def collect_tool_rewards(manager: pluggy.PluginManager, outcome: ToolOutcome, fail: Fail) -> list[Reward]:
    """The rewards of a tool call's outcome, on that call where the plugin left it open. A denial is charged once."""
    if not manager.hook.lgov_reward.get_hookimpls():
        return []

    def address(reward: Reward) -> Reward:
        if reward.rollout_id is not None:
            return reward
        action = outcome.action
        unplaced = reward.response_id is None and reward.tool_call_id is None
        call_id = action.call_id if unplaced else reward.tool_call_id
        return replace(reward, rollout_id=action.rollout_id, attempt=action.attempt, tool_call_id=call_id)

    earned = _collected(manager, "lgov_reward", {"outcome": outcome}, address, fail)
    return [reward for _, reward in (_charged_once(earned, fail) if outcome.status == "denied" else earned)]


def collect_span_rewards(manager: pluggy.PluginManager, span: Span, fail: Fail) -> list[Reward]:
    """The rewards of a span of a rollout, each on a call of its attempt."""

    def address(reward: Reward) -> Reward:
        if reward.response_id is None and reward.tool_call_id is None:
            raise RewardError(f"a reward for {span.name} names no response id and no tool call")
        return replace(reward, rollout_id=span.rollout_id, attempt=span.attempt)

    return [reward for _, reward in _collected(manager, "lgov_span_reward", {"span": span}, address, fail)]


def collect_rollout_rewards(manager: pluggy.PluginManager, rollout: RolloutScope, fail: Fail) -> list[Reward]:
    """The rewards and penalties of an attempt that has ended."""

    def address(reward: Reward) -> Reward:
        return replace(reward, rollout_id=rollout.rollout_id, attempt=rollout.attempt)

    return [reward for _, reward in _collected(manager, "lgov_rollout_reward", {"rollout": rollout}, address, fail)]


def check_single_denial_penalty(manager: pluggy.PluginManager) -> None:
    """Raises `PluginError` when two plugins of ``manager`` say that they charge denials (``charges_denials``)."""
    charging = [plugin for plugin in manager.get_plugins() if getattr(plugin, "charges_denials", False) is True]
    if len(charging) > 1:
        names = " and ".join(sorted(type(plugin).__name__ for plugin in charging))
        raise PluginError(
            f"{names} would each charge the same denial",
            hint="leave it to one: AirPlugin(AirRules(denied=0.0)) charges none",
        )


def _collected(
    manager: pluggy.PluginManager,
    hook: str,
    arguments: Mapping[str, Any],
    address: Callable[[Reward], Reward],
    fail: Fail,
) -> _Earned:
    earned: _Earned = []
    for impl in reversed(getattr(manager.hook, hook).get_hookimpls()):
        try:
            answer: Any = impl.function(**(arguments if impl.argnames else {}))
            earned += [(impl.plugin_name, _finite(address(reward))) for reward in answer or ()]
        except Exception as error:  # noqa: BLE001 - a reward rule must not break the agent
            fail(hook, impl.plugin_name, error)
    return earned


def _charged_once(earned: _Earned, fail: Fail) -> _Earned:
    """Of several plugins that charged one denial the first; `check_single_denial_penalty` could not know that they would."""
    charging = list(dict.fromkeys(name for name, reward in earned if reward.dimension == "compliance"))
    for name in charging[1:]:
        fail("lgov_reward", name, RewardError(f"{charging[0]} has charged this denial already"))
    return [entry for entry in earned if entry[1].dimension != "compliance" or entry[0] not in charging[1:]]


def _finite(reward: Reward) -> Reward:
    if isinstance(reward.value, bool) or not math.isfinite(reward.value):
        raise RewardError(f"a reward of {reward.value!r} is not a finite number")
    return reward


class Observers:
    """Whoever gets the events of a governor: its ``policies`` that keep count, and the plugins of ``manager``.

    One that raises is counted in ``failures``, shown to the others as a `PluginFailure`, and skipped. Any thread may call it.
    """

    def __init__(self, policies: Sequence[Policy], manager: pluggy.PluginManager) -> None:
        self.manager, self._policies = manager, policies
        # Events are of no use to a policy set without stateful policies.
        self._observing = tuple(
            policy for policy in policies if isinstance(policy, ObservingPolicy) and getattr(policy, "stateful", True)
        )
        self.failures: Counter[str] = Counter()
        self.effects: Counter[str] = Counter()
        #: What an adapter remembers of the last calls that its framework may execute again.
        self.executed_calls: BoundedDict[tuple[str, ...], Any] = BoundedDict(10_000)
        self._count_lock = threading.Lock()

    def observe(self, event: Any) -> None:
        """Shows ``event`` to the stateful policies and to every observer. One that raises is counted, and skipped."""
        for policy in self._observing:
            try:
                policy.observe(event)
            except Exception as error:  # noqa: BLE001 - as below
                self._observer_failed(policy.name, error, event)
        for impl in reversed(self.manager.hook.lgov_observe.get_hookimpls()):
            try:
                impl.function(event) if impl.argnames else impl.function()
            except Exception as error:  # noqa: BLE001 - observers are isolated from the agent and from each other
                self._observer_failed(impl.plugin_name, error, event)
        if isinstance(event, Span) and event.rollout_id is not None:
            for reward in collect_span_rewards(self.manager, event, self._plugin_failed):
                self.observe(reward)

    def _flush(self) -> None:
        """Has each policy with a ``flush`` write what it could not before."""
        for policy in self._policies:
            try:
                getattr(policy, "flush", lambda: None)()
            except Exception as error:  # noqa: BLE001 - the others write all the same
                self._plugin_failed("flush", policy.name, error)

    def _show_outcome(self, outcome: ToolOutcome) -> list[Reward]:
        """Shows the outcome of a tool call, then the rewards that it earned, and returns these. A pause is none yet."""
        if outcome.status == "paused":
            return []
        rewards = collect_tool_rewards(self.manager, outcome, self._plugin_failed)
        self.observe(outcome)
        for reward in rewards:
            self.observe(reward)
        return rewards

    def _settle(self, action: Action) -> None:
        """Collects and shows the rewards of an attempt that has ended."""
        if action.rollout_id is None:
            return
        scope = RolloutScope(action.rollout_id, action.attempt or 1, action.session_id)
        for reward in collect_rollout_rewards(self.manager, scope, self._plugin_failed):
            self.observe(reward)

    def _observer_failed(self, observer: str, error: Exception, event: Any) -> None:
        self._count(self.failures, f"lgov_observe:{observer}")
        if not isinstance(event, PluginFailure):
            self.observe(PluginFailure("lgov_observe", observer, f"{type(error).__name__}: {error}"))

    def _plugin_failed(self, hook: str, plugin: str, error: Exception) -> None:
        self._count(self.failures, f"{hook}:{plugin}")
        self.observe(PluginFailure(hook, plugin, f"{type(error).__name__}: {error}"))

    def _count(self, counter: Counter[str], key: str) -> None:
        with self._count_lock:
            counter[key] += 1


class RolloutContext(AbstractContextManager[RolloutScope, None], AbstractAsyncContextManager[RolloutScope, None]):
    """See `Governor.rollout`."""

    def __init__(self, decide: Callable[[Action], Flow[Decision]], scope: RolloutScope) -> None:
        self._decide = decide
        self._scope = scope
        self._entered = enter_scope(scope)

    def __enter__(self) -> RolloutScope:
        return run_flow(self._begin())

    def __exit__(self, _type: Any, error: BaseException | None, _traceback: Any) -> None:
        run_flow(self._end(error))

    async def __aenter__(self) -> RolloutScope:
        return await arun_flow(self._begin())

    async def __aexit__(self, _type: Any, error: BaseException | None, _traceback: Any) -> None:
        await arun_flow(self._end(error))

    def _begin(self) -> Flow[RolloutScope]:
        with enter_scope(self._scope):
            decision = yield from self._decide(self._action(Point.AGENT_STARTUP))
            if decision.blocks:
                yield from self._decide(self._action(Point.AGENT_SHUTDOWN, reason="error"))
                raise PolicyDenied(decision)
        self._entered.__enter__()
        return self._scope

    def _end(self, error: BaseException | None) -> Flow[None]:
        cancelled = isinstance(error, asyncio.CancelledError)
        reason = "completed" if error is None else "cancelled" if cancelled else "error"
        try:
            yield from self._decide(self._action(Point.AGENT_SHUTDOWN, reason=reason))
        finally:
            self._entered.__exit__(None, None, None)

    def _action(self, point: Point, **arguments: Any) -> Action:
        return Action(point, name=self._scope.task_id or self._scope.rollout_id, kind="agent", arguments=arguments)
