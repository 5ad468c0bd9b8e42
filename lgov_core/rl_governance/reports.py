"""Reports of a kernel: the violations that policies found, and the signals that stop, resume or end a rollout.

A signal takes effect at the next governed point. Callbacks get both.
"""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from lgov_core.errors import ArgumentError
from lgov_core.flow import Flow, finished, wait
from lgov_core.governor import Governor, in_scope
from lgov_core.policies.base import BoundedPolicy
from lgov_core.types import (
    Action,
    Decision,
    Effect,
    Outcome,
    Point,
    Policy,
    PolicyViolation,
    PolicyViolationType,
    Severity,
)

#: The name under which a signal's denials are recorded.
SIGNAL_POLICY = "kernel-signal"


class AgentSignal(StrEnum):
    """A signal to a rollout or an agent; a member equals its name, ``AgentSignal.SIGSTOP == "SIGSTOP"``.

    ``SIGSTOP``: the next governed point waits for ``SIGCONT``, and is denied when none comes in time. ``SIGCONT`` resumes
    what was stopped. ``SIGTERM``: the next act is denied and the rollout asked to end; its output and its end are still
    judged as usual. ``SIGKILL``: every further point is denied at once, also those that wait. Neither of the last two
    can be taken back by ``SIGCONT``.
    """

    SIGSTOP = "SIGSTOP"
    SIGCONT = "SIGCONT"
    SIGTERM = "SIGTERM"
    SIGKILL = "SIGKILL"

    @classmethod
    def of(cls, name: str) -> AgentSignal:
        """The signal called ``name``. Raises `ArgumentError`."""
        try:
            return cls(name)
        except ValueError:
            raise ArgumentError(f"there is no signal {name!r}", hint=f"send one of {', '.join(cls)}") from None


_LETS_PASS_AFTER_TERM = (Point.POST_MODEL_CALL, Point.POST_TOOL_CALL, Point.OUTPUT, Point.AGENT_SHUTDOWN)


@dataclass(slots=True)
class _Box:
    """The signals of one target (a rollout or an agent)."""

    stopped: bool = False
    expired: bool = False
    ended_by: AgentSignal | None = None
    automatic: bool = False
    waiting: list[Future[None]] = field(default_factory=list["Future[None]"])


class SignalPolicy(BoundedPolicy):
    """Denies what a signal has stopped or ended; has no opinion on anything else.

    A target is the id of a rollout or the name of an agent. `wait_flow` holds an action of a stopped target
    for ``stop_timeout_s`` seconds at most; one that was not resumed in that time is denied, and so is everything of that
    target until ``SIGCONT``: fails closed. `judge` itself never waits. May be called from several threads and tasks.
    """

    default_points = tuple(Point)

    def __init__(self, *, stop_timeout_s: float = 30.0, name: str = SIGNAL_POLICY) -> None:
        # A bool is a number to Python, and a NaN passes every comparison: neither is a duration.
        number = isinstance(stop_timeout_s, int | float) and not isinstance(stop_timeout_s, bool)  # pyright: ignore[reportUnnecessaryIsInstance]
        if not number or not 0 <= stop_timeout_s < float("inf"):
            raise ArgumentError(f"stop_timeout_s must be seconds, 0 or more, not {stop_timeout_s!r}")
        self.name = name
        self.stop_timeout_s = stop_timeout_s
        self._boxes: dict[str, _Box] = {}
        self._lock = threading.Lock()

    # ------------------------------------------------------------------ sending

    def send(self, target: str, signal: AgentSignal, *, automatic: bool = False) -> None:
        """Takes effect at the target's next governed point. ``automatic`` marks what `forget` may forget by itself."""
        with self._lock:
            box = self._boxes.setdefault(target, _Box(automatic=automatic))
            box.automatic = box.automatic and (automatic or signal is AgentSignal.SIGCONT)
            if signal is AgentSignal.SIGSTOP:
                box.stopped, box.expired = True, False
            elif signal is AgentSignal.SIGCONT:
                box.stopped = box.expired = False
            elif box.ended_by is not AgentSignal.SIGKILL:
                box.ended_by = signal
            released = [] if box.stopped and box.ended_by is None else box.waiting[:]
            if box.ended_by is None and not box.stopped:
                del self._boxes[target]
        _release(released)

    def forget(self, target: str, *, automatic_only: bool = False) -> None:
        """Forgets what ``target`` was sent; with ``automatic_only`` only what the kernel sent by itself."""
        with self._lock:
            box = self._boxes.get(target)
            if box is None or (automatic_only and not box.automatic):
                return
            del self._boxes[target]
            released = box.waiting[:]
        _release(released)

    def forget_automatic(self) -> None:
        """Forgets everything that the kernel sent by itself."""
        with self._lock:
            targets = [target for target, box in self._boxes.items() if box.automatic]
        for target in targets:
            self.forget(target, automatic_only=True)

    # ------------------------------------------------------------------ taking effect

    def judge(self, action: Action) -> Decision | None:
        """A denial that asks for the end of the run, or None."""
        if not self._boxes:
            return None
        with self._lock:
            for target in (action.rollout_id, action.agent):
                box = self._boxes.get(target) if target is not None else None
                if box is not None and (denial := self._denial(box, action.point)) is not None:
                    return denial
        return None

    def _denial(self, box: _Box, point: Point) -> Decision | None:
        if point is Point.AGENT_SHUTDOWN:
            return None
        if box.ended_by is AgentSignal.SIGKILL:
            return self._stop("sigkill", "The run was killed.")
        if box.ended_by is AgentSignal.SIGTERM and point not in _LETS_PASS_AFTER_TERM:
            return self._stop("sigterm", "The run was asked to end; finish without further calls.")
        if box.expired:
            return self._stop("sigstop", f"The run was stopped and not resumed within {self.stop_timeout_s:g} s.")
        return None

    def _stop(self, rule: str, reason: str) -> Decision:
        return replace(self.deny(rule, reason, Severity.LOW), abort=True)

    def wait_flow(self, action: Action) -> Flow[None]:
        """Ends when nothing holds ``action`` any more, or it has waited long enough to be denied."""
        until = time.monotonic() + self.stop_timeout_s
        while self._boxes:
            released: Future[None] = Future()
            box = self._holding(action, released)
            if box is None:
                return
            try:
                yield from wait(finished(released, max(0.0, until - time.monotonic())))
            except TimeoutError:
                with self._lock:
                    box.expired = box.stopped
            finally:
                with self._lock:
                    if released in box.waiting:
                        box.waiting.remove(released)

    def _holding(self, action: Action, released: Future[None]) -> _Box | None:
        """The box that makes ``action`` wait, with ``released`` put into it; None when nothing does."""
        if action.point is Point.AGENT_SHUTDOWN:
            return None
        with self._lock:
            boxes = [self._boxes.get(target) for target in (action.rollout_id, action.agent) if target is not None]
            if any(box is not None and box.ended_by is not None for box in boxes):
                return None
            for box in boxes:
                if box is not None and box.stopped and not box.expired:
                    box.waiting.append(released)
                    return box
        return None


class SignalledGovernor(Governor):
    """A governor at which every action of a stopped rollout waits; then the signals judge it before the policies."""

    def __init__(self, signals: SignalPolicy, policies: Any, **options: Any) -> None:
        super().__init__((signals, policies), **options)
        self._signals = signals

    def decision_flow(self, action: Action) -> Flow[Decision]:
        """As `Governor.decision_flow`, once nothing holds the rollout or the agent any more."""
        action = in_scope(action)
        yield from self._signals.wait_flow(action)
        return (yield from super().decision_flow(action))


def _release(waiting: list[Future[None]]) -> None:
    for released in waiting:
        with suppress(InvalidStateError):  # cancelled: its action waits no longer
            released.set_result(None)


_RANK: Final = {severity: rank for rank, severity in enumerate(Severity)}
_TYPES: Final = {
    Effect.WARN: PolicyViolationType.WARNED,
    Effect.TRANSFORM: PolicyViolationType.MODIFIED,
    Effect.DENY: PolicyViolationType.BLOCKED,
}


def violation_of(decision: Decision, names: Mapping[str, str] | None = None) -> PolicyViolation | None:
    """The one violation that ``decision`` is, or None.

    None for an allow, also of a set in shadow mode, for a fault, which is not the agent's doing, and for an escalation: a
    request for approval that has no answer yet is not a finding. Of several
    policies that had the winning effect, the most severe is named. ``names`` maps names of policies to those in violations.
    """
    if decision.effect not in _TYPES or decision.fault:
        return None
    equal = [part for part in decision.parts if not part.shadowed and not part.fault and part.effect is decision.effect]
    worst = max(equal, key=lambda part: _RANK[part.severity], default=decision)  # max keeps the first of equals
    return PolicyViolation(
        violation_type=_TYPES[decision.effect],
        policy_name=(names or {}).get(worst.policy, worst.policy),
        description=worst.reason or worst.rule or decision.effect.label,
        severity=worst.severity,
        action_blocked=decision.blocks,
    )


def found_by(decision: Decision, names: Mapping[str, str]) -> PolicyViolation | None:
    """`violation_of`, with the type SIGNAL_SENT where a signal stopped the act."""
    violation = violation_of(decision, names)
    if violation is None or violation.policy_name != SIGNAL_POLICY:
        return violation
    return replace(violation, violation_type=PolicyViolationType.SIGNAL_SENT)


def violation_as_json(violation: PolicyViolation) -> dict[str, Any]:
    """A violation as plain JSON: ``policy``, ``description``, ``severity``, ``type``, ``blocked`` and ``penalty``."""
    return {
        "type": violation.violation_type.value,
        "policy": violation.policy_name,
        "description": violation.description,
        "severity": violation.severity,
        "blocked": violation.blocks,
        "penalty": violation.penalty,
    }


def outcome_of(decision: Decision) -> Outcome:
    """The outcome of an attempt that ended with this denial."""
    return Outcome.INFRASTRUCTURE if decision.fault else Outcome.BLOCKED


def shown_name(policy: Policy) -> str:
    """The name of a policy in violations: the one it was given, or its class where it was given none."""
    try:
        default = inspect.signature(type(policy)).parameters["name"].default
    except (KeyError, TypeError, ValueError):
        return policy.name
    return type(policy).__name__ if policy.name == default else policy.name


class Listeners:
    """Callbacks for events of one kind, which get the event, or its parts where they require several arguments."""

    def __init__(self) -> None:
        self._calls: tuple[Callable[[Any, tuple[Any, ...]], Any], ...] = ()
        self._lock = threading.Lock()

    def add(self, callback: Callable[..., Any], width: int) -> Callable[[], None]:
        """Adds a callback; one that requires ``width`` arguments gets them, any other gets one. Returns its removal.

        Raises `ArgumentError` for a callback that cannot be called so, see `require_callback`.
        """
        require_callback(callback, width)
        try:
            parameters = inspect.signature(callback).parameters.values()
        except (TypeError, ValueError):  # a built-in without a signature gets one argument
            parameters = ()
        by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        required = [name for name in parameters if name.kind in by_position and name.default is inspect.Parameter.empty]
        takes_parts = len(required) == width

        def call(event: Any, parts: tuple[Any, ...]) -> Any:
            return callback(*parts) if takes_parts else callback(event)

        with self._lock:
            self._calls = (*self._calls, call)

        def remove() -> None:
            with self._lock:
                self._calls = tuple(other for other in self._calls if other is not call)

        return remove

    def call(self, event: Any, *parts: Any) -> list[Exception]:
        """Calls every callback and returns what they raised."""
        failed: list[Exception] = []
        for call in self._calls:
            try:
                require_done(call(event, parts))
            except Exception as error:  # noqa: BLE001 - the others are called all the same
                failed.append(error)
        return failed


def require_callback(callback: Any, width: int = 1) -> None:
    """Raises `ArgumentError` unless ``callback`` can be called with one argument, or with ``width`` of them.

    A coroutine function is refused: nothing here awaits it.
    """
    if not callable(callback):
        raise ArgumentError(f"{callback!r} cannot be called", hint="pass a function")
    if inspect.iscoroutinefunction(callback) or inspect.iscoroutinefunction(type(callback).__call__):
        raise ArgumentError(f"{callback!r} is asynchronous and would never be awaited", hint="pass a plain function")
    try:
        signature = inspect.signature(callback)
    except (TypeError, ValueError):  # a built-in without a signature
        return
    for count in {1, width}:
        try:
            signature.bind(*range(count))
        except TypeError:
            continue
        return
    raise ArgumentError(f"{callback!r} does not take one argument", hint="give it one parameter")


def require_done(answer: Any) -> None:
    """Raises `ArgumentError` when a callback or a hook returned something that has to be awaited."""
    if inspect.isawaitable(answer):
        if inspect.iscoroutine(answer):
            answer.close()
        raise ArgumentError("it is asynchronous and would never be awaited", hint="make it a plain function")
