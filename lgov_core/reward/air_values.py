"""AirRules: what each kind of tool outcome is worth where no rule covers it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lgov_core.errors import RewardError
from lgov_core.reward.policy import finite


@dataclass(frozen=True, slots=True)
class AirRules:
    """How much each kind of tool outcome is worth.

    ``tool_success`` and ``tool_error`` go to the dimension ``air``; ``denied`` goes to ``compliance``, so that a penalty is
    never averaged away by tool rewards. A tool that timed out is an infrastructure problem: no
    reward. So does a denial because a policy failed or the record could not be written (`Decision.fault`).

    ``shaped`` pays ``air`` as a difference of potentials that is taken back when the attempt ends (see `AirPlugin`): a
    policy cannot gain by calling tools for their reward. False pays each call anew; then only bounds hold it:
    `lgov_core.transitions.CreditRules.air_cap`. Raises `RewardError` (a `ValueError`) for values that are not finite.
    """

    tool_success: float = 0.05
    tool_error: float = -0.05
    denied: float = -0.5
    shaped: bool = True

    def __post_init__(self) -> None:
        for name in ("tool_success", "tool_error", "denied"):
            number(f"AirRules.{name}", getattr(self, name))
        if not isinstance(self.shaped, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise RewardError(f"AirRules.shaped must be True or False, not {self.shaped!r}")


def number(what: str, value: Any) -> float:
    """``value`` as a finite float. Raises `RewardError`, naming ``what``, for anything else, a truth value included."""
    if isinstance(value, bool):
        raise RewardError(f"{what} is {value}, not a finite number", hint="return how much it earns")
    return finite(what, value)
