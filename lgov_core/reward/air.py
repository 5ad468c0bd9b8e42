"""Automatic intermediate rewards (AIR): what a tool or a policy said becomes a small reward on the call that caused it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lgov_core.hookspecs import hookimpl
from lgov_core.types import Reward, ToolOutcome

#: Statuses that mean the call itself was bad, whoever noticed.
_ERRORS = frozenset({"error", "invalid_args", "unknown_tool"})


@dataclass(frozen=True, slots=True)
class AirRules:
    """How much each kind of tool outcome is worth.

    ``tool_success`` and ``tool_error`` go to the dimension ``air``; ``denied`` goes to ``compliance``, so that a penalty is
    never averaged away by tool rewards. A tool that timed out says something about the machines, not about the call: no
    reward. So does a denial because a policy failed or the record could not be written (`Decision.fault`). Values must be
    finite. How far a rollout's AIR can add up is bounded where credit is assigned
    (`lgov_core.transitions.CreditRules.air_cap`).
    """

    tool_success: float = 0.05
    tool_error: float = -0.05
    denied: float = -0.5

    def __post_init__(self) -> None:
        for name in ("tool_success", "tool_error", "denied"):
            if not math.isfinite(getattr(self, name)):
                raise ValueError(f"AirRules.{name} must be a finite number, not {getattr(self, name)}")


class AirPlugin:
    """Rewards tool outcomes by `AirRules`. Stateless; safe from any thread."""

    def __init__(self, rules: AirRules | None = None) -> None:
        self.rules = rules or AirRules()

    @hookimpl
    def lgov_reward(self, outcome: ToolOutcome) -> Sequence[Reward]:
        """One reward for a success, an error or a denial; none for a timeout, a fault or a rule worth 0."""
        if outcome.status == "ok":
            value, dimension = self.rules.tool_success, "air"
        elif outcome.status in _ERRORS:
            value, dimension = self.rules.tool_error, "air"
        elif outcome.status == "denied" and outcome.decision is not None and outcome.decision.fault:
            return []
        elif outcome.status == "denied":
            value, dimension = self.rules.denied, "compliance"
        else:
            return []
        if value == 0.0:
            return []
        return [Reward(value, dimension, source=f"air:{outcome.status}")]
