"""Kernels, tasks and violations for the tests of the runner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernel_cases import DROP

from lgov_core.runner import (
    PolicyViolation,
    PolicyViolationType,
)
from lgov_core.types import Rollout


def violation(severity: str = "high", *, blocked: bool = True) -> PolicyViolation:
    kind = PolicyViolationType.BLOCKED if blocked else PolicyViolationType.WARNED
    return PolicyViolation(kind, "test", "found", severity, action_blocked=blocked)


class ForeignKernel:
    """A kernel that is not ours: it reports in one of several forms and runs what it likes."""

    def __init__(self, *report: Any, **named: Any) -> None:
        self.given, self.named = report, named
        self.callbacks: list[Callable[..., Any]] = []

    def on_policy_violation(self, callback: Callable[..., Any]) -> None:
        self.callbacks.append(callback)

    def report(self, *report: Any, **named: Any) -> None:
        for callback in self.callbacks:
            callback(*report, **named)

    def execute(self, agent: Any, given: Any) -> Any:
        if self.given or self.named:
            self.report(*self.given, **self.named)
        return agent(given)


def tasks(count: int) -> list[Rollout]:
    return [
        Rollout(
            f"r{number}", task_id=f"t{number}", run_id="run", input={"input": DROP if number % 5 == 0 else "SELECT 1"}
        )
        for number in range(count)
    ]
