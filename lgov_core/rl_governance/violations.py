"""From a decision to its policy violation."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from lgov_core.errors import ArgumentError
from lgov_core.rl_governance.signals import SIGNAL_POLICY
from lgov_core.types import Decision, Effect, Outcome, Policy, PolicyViolation, PolicyViolationType, Severity

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
        takes_parts = _required(callback) == width

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


def _required(callback: Callable[..., Any]) -> int:
    """How many positional arguments must be given; -1 where it cannot be known."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        parameters = inspect.signature(callback).parameters.values()
    except (TypeError, ValueError):
        return -1
    return sum(parameter.kind in kinds and parameter.default is inspect.Parameter.empty for parameter in parameters)
