"""From a decision to its policy violation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lgov_core.types import Decision, Effect, PolicyViolation, PolicyViolationType, Severity

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
