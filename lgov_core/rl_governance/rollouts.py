"""Rollouts of a runner or an environment: the result of one, and the reports of a kernel by the rollout they belong to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lgov_core.rl_governance.adapt import AdaptedKernel, reported_violation
from lgov_core.scope import current_scope
from lgov_core.types import Outcome, PolicyViolation


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


@dataclass(slots=True)
class Collected:
    """The reports for one rollout so far, in order."""

    rollout_id: str
    violations: list[PolicyViolation] = field(default_factory=lambda: [])
    signals: list[str] = field(default_factory=lambda: [])


class RolloutWatch:
    """Registers with a kernel and collects its reports by the rollout that they belong to.

    A report (`reported_violation`) belongs to the ``rollout_id`` that it names (an attribute, a key or a keyword argument),
    else to the rollout of the running code. ``report`` is called with each violation, its rollout's id and whether that
    rollout is being collected here. Raises `ArgumentError` when a hook raises.
    """

    def __init__(self, kernel: AdaptedKernel, *, report: Callable[[PolicyViolation, str | None, bool], None]) -> None:
        self._kernel, self._report = kernel, report
        self._open: dict[str, Collected] = {}
        self._lock = threading.Lock()
        self._removals: list[Callable[[], Any]] | None = None
        self.listen()

    def listen(self) -> None:
        """Registers with the kernel, unless that is done. Raises `ArgumentError` when it does not accept callbacks."""
        if self._removals is not None:
            return
        removals: list[Callable[[], Any]] = []
        try:
            for hook, callback in (("on_policy_violation", self._violation), ("on_signal", self._signal)):
                removal = self._kernel.register(hook, callback)
                if removal is not None:
                    removals.append(removal)
        except BaseException:
            for removal in removals:
                removal()
            raise
        self._removals = removals

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
        violation = reported_violation(*report, **{key: value for key, value in named.items() if key != "rollout_id"})
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


def _named_rollout(report: tuple[Any, ...], named: Mapping[str, Any]) -> str | None:
    for source in (named, *report):
        rollout_id = source.get("rollout_id") if isinstance(source, Mapping) else getattr(source, "rollout_id", None)
        if isinstance(rollout_id, str):
            return rollout_id
    scope = current_scope()
    return None if scope is None else scope.rollout_id
