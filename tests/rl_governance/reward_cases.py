"""Rollouts and violations for the tests of rewards."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lgov_core import Outcome
from lgov_core.reward import (
    PolicyViolation,
    PolicyViolationType,
)


def violation(severity: str = "critical", **fields: Any) -> PolicyViolation:
    return PolicyViolation(PolicyViolationType.BLOCKED, "SQLPolicy", "no", severity, **fields)


@dataclass
class Run:
    """What a reward reads of a rollout."""

    success: bool = True
    violations: list[Any] = field(default_factory=list)
    task_output: Any = None
    outcome: Outcome | None = None
    error: str | None = None
    rollout_id: str = "r1"
