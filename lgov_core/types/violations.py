"""A policy violation as the training side sees it: what was found, how bad it is, and what it costs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, cast

from lgov_core.types.decisions import Severity
from lgov_core.types.errors import RewardError

#: What a violation costs by its severity, as a positive number.
SEVERITY_PENALTIES: Final[Mapping[str, float]] = MappingProxyType(
    {"critical": 100.0, "high": 50.0, "medium": 10.0, "low": 1.0}
)


class PolicyViolationType(StrEnum):
    """What the policy did about the act: blocked, changed, allowed with a warning, or stopped by a signal."""

    BLOCKED = "blocked"
    MODIFIED = "modified"
    WARNED = "warned"
    SIGNAL_SENT = "signal_sent"


@dataclass(unsafe_hash=True)
class PolicyViolation:
    """One act in which a policy found something.

    ``severity`` is critical, high, medium or low, in any case; it is kept in lower case. ``action_blocked`` is True for
    the type BLOCKED unless it is given. ``penalty`` is 100, 50, 10 or 1 by severity unless it is given; it is what the
    violation costs, finite and 0 or more. The timestamp does not count when violations are compared. May be
    shared between threads.

    Raises `RewardError` for another severity, type or penalty: what cannot be weighed must not pass for harmless.
    """

    violation_type: PolicyViolationType
    policy_name: str
    description: str
    severity: str
    timestamp: datetime = field(default_factory=lambda: datetime.now(UTC), compare=False)
    action_blocked: bool = cast(bool, None)  # None: by the type; set in __post_init__
    penalty: float = cast(float, None)  # None: by the severity; set in __post_init__

    def __post_init__(self) -> None:
        try:
            kind = PolicyViolationType(self.violation_type)
        except ValueError as error:
            known = ", ".join(PolicyViolationType)
            raise RewardError(f"violation type {self.violation_type!r} is unknown", hint=f"write {known}") from error
        self.violation_type = kind
        self.severity = severity_of(self.severity)
        blocked: Any = self.action_blocked
        self.action_blocked = kind is PolicyViolationType.BLOCKED if blocked is None else blocked
        price: Any = SEVERITY_PENALTIES[self.severity] if cast(Any, self.penalty) is None else self.penalty
        if isinstance(price, bool) or not isinstance(price, int | float) or not math.isfinite(price) or price < 0:
            raise RewardError(
                f"the penalty of a violation must be a finite number, 0 or more, not {price!r}",
                hint="it is what the violation costs; rewards subtract it",
            )
        self.penalty = float(price)


def severity_of(severity: object) -> str:
    """The severity in lower case. Raises `RewardError` for one that does not exist."""
    written = severity.strip().lower() if isinstance(severity, str) else severity
    if written not in tuple(Severity):
        raise RewardError(f"severity {severity!r} is unknown", hint=f"write {', '.join(reversed(Severity))}")
    return str(written)
