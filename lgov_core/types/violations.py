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
    """The policy's treatment of the act: blocked, changed, allowed with a warning, or stopped by a signal."""

    BLOCKED = "blocked"
    MODIFIED = "modified"
    WARNED = "warned"
    SIGNAL_SENT = "signal_sent"


@dataclass(unsafe_hash=True)
class PolicyViolation:
    """One call in which a policy found a violation.

    ``severity`` is critical, high, medium or low, in any case; it is kept in lower case. Another one costs as much as
    medium. ``penalty`` is 100, 50, 10 or 1 by severity unless it is given; it is what the violation costs, finite and 0
    or more. ``blocks`` is True for an act that was blocked, by ``action_blocked`` or by the type. The timestamp does not
    count when violations are compared. May be shared between threads.

    Raises `RewardError` for another type or penalty.
    """

    violation_type: PolicyViolationType
    policy_name: str
    description: str
    severity: str
    timestamp: datetime = field(default_factory=lambda: datetime.now(UTC), compare=False)
    action_blocked: bool = False
    penalty: float = cast(float, None)  # None: by the severity; set in __post_init__

    def __post_init__(self) -> None:
        try:
            kind = PolicyViolationType(self.violation_type)
        except ValueError as error:
            names = ", ".join(PolicyViolationType)
            raise RewardError(f"violation type {self.violation_type!r} is unknown", hint=f"write {names}") from error
        self.violation_type = kind
        self.severity = severity_of(self.severity)
        price: Any = default_penalty(self.severity) if cast(Any, self.penalty) is None else self.penalty
        if isinstance(price, bool) or not isinstance(price, int | float) or not math.isfinite(price) or price < 0:
            raise RewardError(
                f"the penalty of a violation must be a finite number, 0 or more, not {price!r}",
                hint="it is what the violation costs; rewards subtract it",
            )
        self.penalty = float(price)

    @property
    def blocks(self) -> bool:
        """True where the act was blocked."""
        return bool(self.action_blocked) or self.violation_type is PolicyViolationType.BLOCKED


def severity_of(severity: object) -> str:
    """The severity as text, in lower case."""
    return str(getattr(severity, "value", severity)).strip().lower()


def known_severity(severity: object) -> str:
    """The severity that ``severity`` is weighed as: one that does not exist as medium."""
    written = severity_of(severity)
    return written if written in SEVERITY_PENALTIES else Severity.MEDIUM.value


def default_penalty(severity: object) -> float:
    """The cost of a violation of this severity."""
    return SEVERITY_PENALTIES[known_severity(severity)]
