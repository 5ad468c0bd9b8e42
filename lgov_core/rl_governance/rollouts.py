"""The result of one task that a runner ran."""

from __future__ import annotations

import inspect
import logging
import threading
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from lgov_core._util.doubles import answers_to_anything
from lgov_core.errors import ArgumentError
from lgov_core.scope import current_scope
from lgov_core.types import Outcome, PolicyViolation, PolicyViolationType, Severity


@dataclass
class GovernedRollout:
    """One task that was run. ``total_penalty`` is always the sum of the violations' penalties, at least 0.

    ``success`` means that the task ran to its end and its answer was allowed; a denial of the task, an exception and an
    infrastructure failure are not a success. ``outcome`` says which of them it was (``Outcome.trainable``: whether it is
    training data), ``error`` is the message of what was raised. ``governed`` is False where the kernel has neither a hook
    nor a method that runs acts, or is a test double. A violation that is reported after the end is added.
    """

    task_input: Any
    task_output: Any = None
    success: bool = False
    violations: list[PolicyViolation] = field(default_factory=lambda: [])
    signals_sent: list[str] = field(default_factory=lambda: [])
    total_penalty: float = 0.0
    execution_time_ms: float = 0.0
    outcome: Outcome | None = None
    error: str | None = None
    rollout_id: str = ""
    mode: str = "train"
    governed: bool = True

    def __post_init__(self) -> None:
        self.total_penalty = total_penalty(self.violations)
        if self.outcome is None:
            blocked = any(violation.blocks for violation in self.violations)
            self.outcome = Outcome.SUCCEEDED if self.success else Outcome.BLOCKED if blocked else Outcome.FAILED


def total_penalty(violations: list[PolicyViolation]) -> float:
    """The sum of the penalties."""
    return float(sum(violation.penalty for violation in violations))


_SEVERITIES: Final = frozenset(severity.value for severity in Severity)
_RUNS: Final = ("execute", "execute_async")
_HOOKS: Final = ("on_policy_violation", "on_signal")

_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class Collected:
    """The reports for one rollout so far, in order."""

    rollout_id: str
    violations: list[PolicyViolation] = field(default_factory=lambda: [])
    signals: list[str] = field(default_factory=lambda: [])


class RolloutWatch:
    """Registers with a kernel and collects its reports by the rollout that they belong to.

    The kernel may be any object; ``on_policy_violation`` and ``on_signal`` are used where they are there. One without
    these and without ``execute`` or ``execute_async`` governs nothing: it is warned about once, and ``governed`` is
    False, as for a test double. A report may be a `PolicyViolation`, an object or a
    mapping with its fields, or ``(policy_name, description, severity, blocked)``. It belongs to the ``rollout_id`` that
    it names (an attribute, a key or a keyword argument), else to the rollout of the running code. ``report`` is called
    with each violation, its rollout's id and whether that rollout is being collected here. A report that cannot be
    understood counts as a blocked violation of high severity. Raises `ArgumentError` when a hook raises.
    """

    def __init__(
        self,
        kernel: Any,
        *,
        report: Callable[[PolicyViolation, str | None, bool], None],
    ) -> None:
        self._kernel, self._report = kernel, report
        methods = [method for name in (*_RUNS, *_HOOKS) if callable(method := method_of(kernel, name))]
        double = any(answers_to_anything(part) for part in (kernel, *methods))
        self.governed = bool(methods) and not double and not inspect.isclass(kernel)
        if not self.governed and not double:
            self._warn("has neither a hook nor execute: nothing is governed")
        self._open: dict[str, Collected] = {}
        self._lock = threading.Lock()
        self._removals: list[Any] | None = None
        self.listen()

    def listen(self) -> None:
        """Registers with the kernel, unless that is done. Raises `ArgumentError` when it does not accept callbacks."""
        if self._removals is not None:
            return
        removals: list[Any] = []
        try:
            for hook, callback in zip(_HOOKS, (self._violation, self._signal), strict=True):
                if callable(register := method_of(self._kernel, hook)):
                    removals.append(self._registered(hook, register, callback))
        except BaseException:
            for removal in removals:
                if callable(removal):
                    removal()
            raise
        self._removals = [removal for removal in removals if callable(removal)]

    def _registered(self, hook: str, register: Callable[..., Any], callback: Callable[..., Any]) -> Any:
        try:
            removal = register(callback)
        except Exception as error:
            raise ArgumentError(
                f"a {type(self._kernel).__name__} cannot govern: its {hook} does not register a callback: {error}"
            ) from error
        if inspect.isawaitable(removal):
            if inspect.iscoroutine(removal):
                removal.close()
            if self.governed:
                self._warn(f"has an asynchronous {hook}, which is never awaited: its reports are missing")
            self.governed = False
            return None
        self.governed = self.governed and not answers_to_anything(removal)
        return removal

    def _warn(self, what: str) -> None:
        warnings.warn(f"the kernel {type(self._kernel).__name__} {what}", UserWarning, stacklevel=4)

    def poll(self, collected: Collected) -> None:
        """Collects ``get_recent_violations()`` of a kernel without ``on_policy_violation``."""
        if callable(method_of(self._kernel, "on_policy_violation")):
            return
        recent = method_of(self._kernel, "get_recent_violations")
        if not callable(recent):
            return
        try:
            found = [polled_violation(one) for one in recent() or ()]  # pyright: ignore[reportGeneralTypeIssues]
        except Exception:  # noqa: BLE001 - as documented: what cannot be read counts nothing
            _LOG.exception("get_recent_violations of %s failed", type(self._kernel).__name__)
            return
        collected.violations.extend(found)

    def stop(self) -> None:
        """Takes back what was registered. A kernel whose hooks return no removal goes on reporting."""
        if not self._removals:
            return
        for removal in self._removals:
            removal()
        self._removals = None

    def begin(self, rollout_id: str) -> Collected | None:
        """Starts to collect for a rollout; None when that is being done already."""
        with self._lock:
            if rollout_id in self._open:
                return None
            collected = self._open[rollout_id] = Collected(rollout_id)
            return collected

    def end(self, rollout_id: str) -> None:
        """Stops collecting for a rollout."""
        with self._lock:
            self._open.pop(rollout_id, None)

    def _violation(self, *report: Any, **named: Any) -> None:
        rollout_id = _named_rollout(report, named)
        violation = as_violation(*report, **{key: value for key, value in named.items() if key != "rollout_id"})
        with self._lock:
            collected = self._open.get(rollout_id) if rollout_id is not None else None
            if collected is not None:
                collected.violations.append(violation)
        self._report(violation, rollout_id, collected is not None)

    def _signal(self, *report: Any, **named: Any) -> None:
        rollout_id = _named_rollout(report, named)
        what = report[0] if report else named.get("signal", "")
        name = what if isinstance(what, str) else getattr(what, "name", what)
        with self._lock:
            collected = self._open.get(rollout_id) if rollout_id is not None else None
            if collected is not None:
                collected.signals.append(str(name))


def method_of(kernel: Any, name: str) -> Any:
    """The attribute ``name`` of a kernel, or None. Raises `ArgumentError` where asking for it raises."""
    try:
        return getattr(kernel, name, None)
    except Exception as error:
        raise ArgumentError(
            f"a {type(kernel).__name__} cannot govern: its {name} raised {type(error).__name__}: {error}"
        ) from error


def polled_violation(found: Any) -> PolicyViolation:
    """A violation out of an entry of ``get_recent_violations``: a mapping or an object. Severity is low unless named."""
    if isinstance(found, PolicyViolation):
        return found

    def named(kind: type, default: Any, *names: str) -> Any:
        values = (found.get(name) if isinstance(found, Mapping) else getattr(found, name, None) for name in names)
        return next((value for value in values if isinstance(value, kind)), default)

    blocked = named(bool, False, "blocked", "action_blocked")
    return PolicyViolation(
        violation_type=PolicyViolationType.BLOCKED if blocked else PolicyViolationType.WARNED,
        policy_name=named(str, "unknown", "policy", "policy_name"),
        description=named(str, "", "description"),
        severity=named(str, Severity.LOW.value, "severity"),
        action_blocked=blocked,
    )


def as_violation(*report: Any, **named: Any) -> PolicyViolation:
    """A `PolicyViolation` out of whatever a kernel reports; see `RolloutWatch`."""
    if len(report) == 1 and isinstance(report[0], PolicyViolation):
        return report[0]
    source: dict[str, Any] = dict(named)
    if len(report) == 1:
        only = report[0]
        if isinstance(only, Mapping):
            source |= {str(key): value for key, value in only.items()}
        else:
            for key in ("policy_name", "policy", "description", "severity", "action_blocked", "blocked", "penalty"):
                if hasattr(only, key):
                    source[key] = getattr(only, key)
    else:
        source |= dict(zip(("policy_name", "description", "severity", "blocked"), report, strict=False))
    policy = source.get("policy_name", source.get("policy"))
    given: Any = source.get("severity")
    written: Any = getattr(given, "value", given)
    severity: Any = written.strip().lower() if isinstance(written, str) else None
    blocked = source.get("action_blocked", source.get("blocked"))
    if policy is None or severity not in _SEVERITIES or not isinstance(blocked, bool):
        # An unclear report must not count as harmless.
        what = ", ".join(repr(part)[:200] for part in report) or repr(source)[:200]
        return PolicyViolation(
            violation_type=PolicyViolationType.BLOCKED,
            policy_name=str(policy or "unknown"),
            description=f"The kernel reported something unclear: {what}",
            severity=severity if severity in _SEVERITIES else Severity.HIGH.value,
            action_blocked=True,
        )
    return PolicyViolation(
        violation_type=PolicyViolationType.BLOCKED if blocked else PolicyViolationType.WARNED,
        policy_name=str(policy),
        description=str(source.get("description", "")),
        severity=severity,
        action_blocked=blocked,
    )


def _named_rollout(report: tuple[Any, ...], named: Mapping[str, Any]) -> str | None:
    for source in (named, *report):
        found = source.get("rollout_id") if isinstance(source, Mapping) else getattr(source, "rollout_id", None)
        if isinstance(found, str):
            return found
    scope = current_scope()
    return None if scope is None else scope.rollout_id
