"""The result of one task that a runner ran."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

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
