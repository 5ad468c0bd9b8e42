"""The settings of a `GovernedEnvironment`."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lgov_core.errors import ArgumentError


@dataclass(unsafe_hash=True)
class EnvironmentConfig:
    """How steps are rewarded and when episodes end. Raises `ArgumentError` (a ValueError) for a value out of range.

    A violation costs ``violation_penalty`` times 10 (critical), 5 (high) or 1 (medium, low); every step earns
    ``step_penalty``, and one that succeeded without violation ``success_bonus`` too. The penalties are 0 or negative:
    no violation ever pays. ``terminate_on_critical`` ends the episode on a critical violation; ``max_steps`` truncates
    it. ``reset_kernel_state`` calls the kernel's ``reset`` at the beginning of each episode.
    """

    max_steps: int = 100
    violation_penalty: float = -10.0
    terminate_on_critical: bool = True
    step_penalty: float = -0.1
    success_bonus: float = 10.0
    reset_kernel_state: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.max_steps, bool) or not isinstance(self.max_steps, int) or self.max_steps < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ArgumentError(f"max_steps must be a whole number, 1 or more, not {self.max_steps!r}")
        for name, sign in (("violation_penalty", -1), ("step_penalty", -1), ("success_bonus", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise ArgumentError(f"{name} must be a finite number, not {value!r}")
            if value * sign < 0:
                what = "0 or less" if sign < 0 else "0 or more"
                raise ArgumentError(f"{name} must be {what}, not {value!r}", hint=f"write {-value!r}")
        for name in ("terminate_on_critical", "reset_kernel_state"):
            if not isinstance(getattr(self, name), bool):
                raise ArgumentError(f"{name} must be True or False, not {getattr(self, name)!r}")
