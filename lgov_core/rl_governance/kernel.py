"""KernelSpace: runs an agent, or any callable, under policies."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Final, TypedDict, Unpack, cast

from lgov_core.errors import AuditError, KernelError
from lgov_core.flow import Flow, arun_flow, run_flow
from lgov_core.governor import AuditRecord, Governor, ObservedDecision
from lgov_core.governor.options import require_declared
from lgov_core.hookspecs import hookimpl
from lgov_core.policies import Policy, Rule
from lgov_core.policies.presets import policy_set_of
from lgov_core.policies.reload import ReloadingPolicySet
from lgov_core.rl_governance.adapt import require_record
from lgov_core.rl_governance.execution import (
    AgentCall,
    Function,
    KernelExecution,
    execution_flow,
    function_of,
    is_async,
    prepare,
    refuse_running_loop,
    rollout_action,
    target_id,
)
from lgov_core.rl_governance.flight_recorder import FlightRecorder
from lgov_core.rl_governance.reports import (
    AgentSignal,
    Listeners,
    SignalledGovernor,
    SignalPolicy,
    found_by,
    shown_name,
)
from lgov_core.scope import RolloutScope, carry_into_threads, current_scope, enter_scope
from lgov_core.types import Action, Decision, Outcome, Point, PolicyViolation, Severity, ToolOutcome, new_id

#: How many violations `KernelSpace.get_recent_violations` remembers.
RECENT_VIOLATIONS: Final = 1000

_MISSING: Final[Any] = object()


class GovernorOptions(TypedDict, total=False):
    """Options that a `KernelSpace` hands to its `Governor`."""

    plugins: Iterable[object]
    timeout_s: float


class KernelSpace:
    """Runs an agent callable under policies, and reports what they found.

    - ``policy``: a policy, several of them, a `PolicySet`, a `ReloadingPolicySet`, the name of a preset (``"strict"``,
      ``"read_only"``, ``"guarded"``, ``"permissive"``) or the path of a policy file. Without one every action is denied.
    - ``recorder``: where decisions are committed before the action runs: a `FlightRecorder`, an `AuditLog` or an object with
      their two methods. None keeps the record in memory.
    - ``executor``: runs the actions that `execute` gets without an agent. ``dialect``: that of the database behind them.
    - ``critical_signal``: sent to a rollout after a critical violation (None: nothing is sent). ``stop_timeout_s``: how long
      a stopped rollout waits to be resumed.
    - ``plugins`` and ``timeout_s``: those of the `Governor`. The adapters of frameworks use it as the attribute ``governor``;
      its decisions obey the same signals and are reported in the same way.

    A denied action never runs and has no result. All methods may be called from any thread and any number of tasks. Threads
    get the rollout of the thread that started them (`carry_into_threads`), in the whole process. Fails closed.

    Raises `PolicyError` or `ArgumentError` when made with invalid arguments.
    """

    def __init__(
        self,
        policy: Policy | Iterable[Policy] | str | os.PathLike[str] | None = None,
        recorder: AuditRecord | None = None,
        *,
        executor: Function | None = None,
        dialect: str | None = None,
        critical_signal: str | None = AgentSignal.SIGTERM,
        stop_timeout_s: float = 30.0,
        **options: Unpack[GovernorOptions],
    ) -> None:
        require_declared("KernelSpace", options, GovernorOptions)
        self.policy_set = policy_set_of(policy, dialect)
        if recorder is None:
            recorder = FlightRecorder(policy_digest=lambda: self.policy_set.digest)
        require_record(recorder)
        self.recorder = recorder
        self.dialect = dialect
        self.critical_signal = None if critical_signal is None else AgentSignal.of(critical_signal)
        self.signals = SignalPolicy(stop_timeout_s=stop_timeout_s)
        self._executor = None if executor is None else function_of(executor)
        self._recent: deque[PolicyViolation] = deque(maxlen=RECENT_VIOLATIONS)
        self._on_violation, self._on_signal = Listeners(), Listeners()
        self._running: list[_Place] = []
        self._lock = threading.Lock()
        self.governor: Governor = SignalledGovernor(
            self.signals,
            self.policy_set,
            plugins=[_Watch(self), *options.get("plugins", ())],
            audit=self.recorder,
            timeout_s=options.get("timeout_s", 2.0),
        )
        carry_into_threads()

    # ------------------------------------------------------------------ running

    def execute(self, agent_or_input: Any, input: Any = _MISSING) -> Any:
        """Judges ``input`` as an act of ``agent``, runs it when it is allowed, judges the answer and returns it.

        With one argument that is the input, and the kernel's executor runs it; without an executor the answer is a
        `Judged`. An agent is a function or an object with ``run``, ``invoke``, ``execute``, ``__call__``,
        ``get_action`` or ``ainvoke``, and gets the input alone, as the policies left it. It runs in the calling thread.
        A mapping is judged as the act's arguments; anything else as the argument ``input``.

        Returns None when the act or its answer was denied: see `run` for why. What the agent raises is recorded and
        raised. Raises `KernelError` for what cannot be run, such as a coroutine inside a running event loop.
        """
        return self.run(agent_or_input, input).output

    async def execute_async(self, agent_or_input: Any, input: Any = _MISSING) -> Any:
        """As `execute`, for coroutine functions too. A plain function holds up the event loop, as it would anywhere."""
        return (await self.run_async(agent_or_input, input)).output

    def run(self, agent_or_input: Any, input: Any = _MISSING, *, scope: RolloutScope | None = None) -> KernelExecution:
        """As `execute`, but returns the `KernelExecution`, which tells a denial from an agent that returned None.

        With ``scope`` it is a rollout of its own, with those ids. Without one it is part of the current rollout, if there
        is one, and else a rollout of its own too. The beginning and the end of a rollout of its own are judged as well.
        """
        call = self._prepare(agent_or_input, input, prefer_async=False)
        if call.function is not None and is_async(call.function):
            refuse_running_loop(call.action.name)
        with self._in_rollout(call, scope) as place:
            return _marked(run_flow(self._flow(call, place)), place)

    async def run_async(
        self, agent_or_input: Any, input: Any = _MISSING, *, scope: RolloutScope | None = None
    ) -> KernelExecution:
        """As `run`, for coroutine functions too."""
        call = self._prepare(agent_or_input, input, prefer_async=True)
        with self._in_rollout(call, scope) as place:
            return _marked(await arun_flow(self._flow(call, place)), place)

    def _flow(self, call: AgentCall, place: _Place) -> Flow[KernelExecution]:
        return execution_flow(call, self.governor, rollout=place.own, not_run=self.policy_set.observe)

    def check(self, input: Any) -> Decision:
        """Judges an input or an `Action` without running it: recorded, but no violation and no signal to anyone."""
        action = input if isinstance(input, Action) else prepare(input, dialect=self.dialect).action
        token = _CHECKING.set(True)
        try:
            decision = self.governor.decide(action)
        finally:
            _CHECKING.reset(token)
        if not decision.blocks:
            # Policies give back what they reserved for the act. Not recorded: what was not run has no outcome.
            self.policy_set.observe(ToolOutcome(action, "denied", decision=decision, error="only checked"))
        return decision

    def _prepare(self, first: Any, second: Any, *, prefer_async: bool) -> AgentCall:
        if second is _MISSING:
            if callable(first):
                raise KernelError("an agent was given, but no input", hint="write execute(agent, input)")
            return prepare(first, executor=self._executor, dialect=self.dialect)
        if first is None:
            return prepare(second, executor=self._executor, dialect=self.dialect)
        return prepare(second, agent=first, prefer_async=prefer_async, dialect=self.dialect)

    @contextmanager
    def _in_rollout(self, call: AgentCall, scope: RolloutScope | None) -> Generator[_Place]:
        """Inside the current rollout, or else (also when one is given) in one that is over afterwards."""
        outer = current_scope()
        own = scope if scope is not None or outer is not None else RolloutScope(new_id("rollout"))
        place = _Place(call.action.agent, cast(RolloutScope, own if own is not None else outer), own)
        with self._lock:
            self._running.append(place)
        try:
            with enter_scope(place.scope):
                yield place
        finally:
            with self._lock:
                self._running.remove(place)
            if own is not None:
                self.signals.forget(own.rollout_id)

    def begin_rollout(self, scope: RolloutScope) -> Decision:
        """Judges the beginning of a rollout of several acts; when the decision blocks it must not begin.

        `run` and `execute` do this by themselves, unless they are called inside a rollout.
        """
        with enter_scope(scope):
            return self.governor.decide(rollout_action(scope, Point.AGENT_STARTUP))

    def end_rollout(self, scope: RolloutScope) -> None:
        """Judges the end of a rollout, for the record, and forgets its signals."""
        with enter_scope(scope):
            self.governor.decide(rollout_action(scope, Point.AGENT_SHUTDOWN))
        self.signals.forget(scope.rollout_id)

    # ------------------------------------------------------------------ what policies found

    def on_policy_violation(self, callback: Callable[..., Any]) -> Callable[[], None]:
        """Calls ``callback`` with each `PolicyViolation`; returns a function that ends this.

        It is called on the thread of the decision, before the decision is answered, inside the rollout that the act
        belongs to (`current_scope`). A callback that requires four arguments gets ``policy_name, description,
        severity, blocked`` instead. What it raises is counted in ``governor.failures``; the decision is unchanged.
        """
        return self._on_violation.add(callback, 4)

    def on_signal(self, callback: Callable[..., Any]) -> Callable[[], None]:
        """Calls ``callback`` with each `AgentSignal`, inside the rollout it is for; returns a function that ends this.

        A callback that requires two arguments gets the signal and its target. What it raises is not caught when the
        signal was sent by hand, and counted in ``governor.failures`` when the kernel sent it.
        """
        return self._on_signal.add(callback, 2)

    def get_recent_violations(self) -> list[PolicyViolation]:
        """The violations since the last `reset`, oldest first; of more than 1000 the last ones."""
        with self._lock:
            return list(self._recent)

    @property
    def policies(self) -> tuple[Policy, ...]:
        """The policies, each once, in the order in which they judge."""
        return tuple({id(rule.policy): rule.policy for rule in self._rules()}.values())

    def _rules(self) -> tuple[Rule, ...]:
        policy_set = self.policy_set
        return (policy_set.current if isinstance(policy_set, ReloadingPolicySet) else policy_set).rules

    def _names(self) -> dict[str, str]:
        """The names of the rules in violations: their own, or the class of a policy that was given none."""
        return {
            rule.name: shown_name(rule.policy) if rule.name == rule.policy.name else rule.name for rule in self._rules()
        }

    def get_policies(self) -> list[str]:
        """The names of the policies in violations: ``["SQLPolicy", "CostControlPolicy"]``."""
        return list(self._names().values())

    def _decided(self, event: ObservedDecision) -> None:
        """Reports a committed decision that found something."""
        if _CHECKING.get():
            return
        action = event.action
        if event.decision.fault:
            with self._lock:
                for place in self._running:
                    place.disturbed = place.disturbed or place.scope.rollout_id == action.rollout_id
        violation = found_by(event.decision, self._names())
        if violation is None:
            return
        with self._lock:
            self._recent.append(violation)
        here = current_scope()
        if action.rollout_id is not None and (here is None or here.rollout_id != action.rollout_id):
            here = RolloutScope(action.rollout_id, action.attempt or 1, session_id=action.session_id)
        with enter_scope(here):  # the rollout that the action names, which may not be the one of the running code
            failed = self._on_violation.call(
                violation, violation.policy_name, violation.description, violation.severity, violation.blocks
            )
            if (
                self.critical_signal is not None
                and violation.severity == Severity.CRITICAL
                and action.rollout_id is not None
            ):
                failed += self._dispatch(action.rollout_id, self.critical_signal, automatic=True)
        if failed:
            raise failed[0]

    # ------------------------------------------------------------------ signals

    def signal(self, target: Any, signal: str, *, automatic: bool = False) -> None:
        """Sends ``SIGSTOP``, ``SIGCONT``, ``SIGTERM`` or ``SIGKILL``; it takes effect at the next governed point.

        ``target`` is the id of a rollout, a scope or whatever else has a ``rollout_id``, an agent, or an agent's name.
        See `AgentSignal` for what each does. An act that is running already is not interrupted. ``automatic`` marks what
        the next `reset` may forget, which is not so for what a person sent. A recorder with ``log_signal`` (a
        `FlightRecorder`) keeps it; a SIGCONT that cannot be recorded is not sent, anything else is. Raises
        `ArgumentError`, and `AuditError` when it could not be recorded.
        """
        failed = self._dispatch(target_id(target), AgentSignal.of(signal), automatic=automatic)
        if failed:
            raise failed[0]

    def forget_signals(self, target: Any, *, automatic_only: bool = False) -> None:
        """Forgets what ``target`` was sent, for example when its rollout is over.

        With ``automatic_only`` only what the kernel sent by itself, on a critical violation.
        """
        self.signals.forget(target_id(target), automatic_only=automatic_only)

    def _dispatch(self, target: str, signal: AgentSignal, *, automatic: bool) -> list[Exception]:
        failed: list[Exception] = []
        if signal is AgentSignal.SIGCONT:
            self._log_signal(target, signal, automatic)  # what resumes is on record before it does; what stops, after
            self.signals.send(target, signal)
        else:
            self.signals.send(target, signal, automatic=automatic)
            try:
                self._log_signal(target, signal, automatic)
            except AuditError as error:
                failed.append(error)
        with self._lock:
            reached = {
                running.scope: None for running in self._running if target in (running.agent, running.scope.rollout_id)
            }
        here = current_scope()
        for scope in reached or (here if here is not None and here.rollout_id == target else None,):
            with enter_scope(scope):
                failed += self._on_signal.call(signal, signal, target)
        return failed

    def _log_signal(self, target: str, signal: AgentSignal, automatic: bool) -> None:
        log = getattr(self.recorder, "log_signal", None)
        if callable(log):
            here = current_scope()
            is_rollout = automatic or (here is not None and here.rollout_id == target)
            reason = "sent by the kernel" if automatic else "sent by hand"
            log(target, signal.value, reason=reason, rollout_id=target if is_rollout else None)

    # ------------------------------------------------------------------ life

    def reset(self) -> None:
        """Forgets the recent violations, and the signals that the kernel sent by itself.

        Signals sent by hand stay, and so does what policies have counted: a new rollout has its own account anyway.
        """
        with self._lock:
            self._recent.clear()
        self.signals.forget_automatic()

    def close(self) -> None:
        """Shuts the governor's threads down. The recorder stays open: close it where it was made."""
        self.governor.close()


@dataclass(slots=True, eq=False)
class _Place:
    """A running execution.

    ``own`` is the scope when the rollout ends with the execution; ``disturbed`` is set once judging or recording failed
    in it.
    """

    agent: str | None
    scope: RolloutScope
    own: RolloutScope | None
    disturbed: bool = False


def _marked(execution: KernelExecution, place: _Place) -> KernelExecution:
    """The execution; a success becomes an infrastructure outcome when judging or recording failed in it."""
    if place.disturbed and execution.outcome is Outcome.SUCCEEDED:
        return replace(execution, outcome=Outcome.INFRASTRUCTURE)
    return execution


class _Watch:
    """The kernel as a plugin of its governor: gets decisions once they are committed."""

    def __init__(self, kernel: KernelSpace) -> None:
        self._kernel = kernel

    @hookimpl
    def lgov_observe(self, event: Any) -> None:
        """See `lgov_core.hookspecs.lgov_observe`."""
        if isinstance(event, ObservedDecision):
            self._kernel._decided(event)


_CHECKING: ContextVar[bool] = ContextVar("lgov_checking", default=False)
