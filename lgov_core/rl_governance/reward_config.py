"""RewardConfig: what violations cost, what clean work earns, and between which bounds."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Final, Self, cast

from lgov_core.air.rules import amount
from lgov_core.errors import RewardError
from lgov_core.rl_governance.adapt import priced_violation
from lgov_core.types import SEVERITY_PENALTIES
from lgov_core.types.actions import known_severity

_PENALTIES: Final = tuple(f"{severity}_penalty" for severity in SEVERITY_PENALTIES)


@dataclass(unsafe_hash=True)
class RewardConfig:
    """The price of violations, the bonus of clean work, and the bounds of both.

    ``*_penalty`` is added for each violation of that severity: finite, 0 or less. ``clean_bonus`` (0 or more) is added when
    a rollout came to its end without any violation; with ``bonus_needs_success`` only when it also succeeded. With
    ``multiplicative`` a rollout with violations keeps ``multiplicative_factor`` (0 to 1) of its base reward instead; of a
    negative base reward the same share is taken on top, so that a violation never pays.

    ``min_reward`` and ``max_reward`` bound the result; None switches a bound off. A floor above a penalty takes the penalty
    back: there is a warning. ``task_bounds`` bounds the base reward before anything is added to it. With
    ``refuse_untrainable`` a rollout that ended because of the machines (`Outcome.trainable`) raises instead of being scored.

    Raises `RewardError` for a value without meaning. See `for_training`.
    """

    critical_penalty: float = -100.0
    high_penalty: float = -50.0
    medium_penalty: float = -10.0
    low_penalty: float = -1.0
    clean_bonus: float = 5.0
    multiplicative: bool = False
    multiplicative_factor: float = 0.5
    min_reward: float | None = -100.0
    max_reward: float | None = 100.0
    bonus_needs_success: bool = False
    task_bounds: tuple[float, float] | None = None
    compliance_floor: float | None = None
    refuse_untrainable: bool = False

    def __post_init__(self) -> None:
        for name in (*_PENALTIES, "clean_bonus", "multiplicative_factor"):
            setattr(self, name, amount(name, getattr(self, name)))
        for name in _PENALTIES:
            if (value := getattr(self, name)) > 0:
                raise RewardError(f"{name} {value:g} would pay for violations", hint=f"write {-value:g}")
        if self.clean_bonus < 0:
            raise RewardError(f"clean_bonus {self.clean_bonus:g} would punish clean work", hint="write 0 or more")
        if not 0 <= self.multiplicative_factor <= 1:
            raise RewardError(
                f"multiplicative_factor {self.multiplicative_factor:g} is not within 0 and 1",
                hint="it is the share of the base reward that a rollout with violations keeps",
            )
        for name in ("multiplicative", "bonus_needs_success", "refuse_untrainable"):
            if not isinstance(getattr(self, name), bool):
                raise RewardError(f"{name} must be True or False, not {getattr(self, name)!r}")
        self._check_bounds()

    def _check_bounds(self) -> None:
        lowest = min(getattr(self, name) for name in _PENALTIES)
        for name in ("min_reward", "max_reward"):
            if getattr(self, name) is not None:
                setattr(self, name, amount(name, getattr(self, name)))
        if self.min_reward is not None and self.max_reward is not None and self.min_reward >= self.max_reward:
            raise RewardError(f"min_reward {self.min_reward:g} is not below max_reward {self.max_reward:g}")
        if self.compliance_floor is not None:
            self.compliance_floor = amount("compliance_floor", self.compliance_floor)
        for name in ("min_reward", "compliance_floor"):
            floor = getattr(self, name)
            if not self.multiplicative and floor is not None and floor > lowest:
                warnings.warn(
                    f"RewardConfig: {name} {floor:g} takes back what penalties below it ask for ({lowest:g})",
                    stacklevel=4,
                )
        if self.task_bounds is not None:
            low, high = (amount("task_bounds", value) for value in self.task_bounds)
            if low >= high:
                raise RewardError(f"task_bounds {self.task_bounds} must be (lowest, highest)")
            self.task_bounds = (low, high)

    @classmethod
    def for_training(cls, **changes: Any) -> Self:
        """A configuration on the scale that policy-gradient training wants.

        The task's reward is bounded to [-1, 1]; violations cost -1, -0.5, -0.1 and -0.01 by severity, together no more
        than -1; a clean success earns 0.05, a failure no bonus. Rollouts that the machines ended are refused. Task and
        compliance are channels of their own (`PolicyReward.channels`) to be normalised apart (`group_advantages`): in a
        sum, one violation of -100 would make the difference between solved and failed vanish in the group's spread.
        As a plugin (`PolicyReward`) it puts each penalty on the call that offended. ``changes`` are fields of the class.
        """
        fields: dict[str, Any] = {
            "critical_penalty": -1.0,
            "high_penalty": -0.5,
            "medium_penalty": -0.1,
            "low_penalty": -0.01,
            "clean_bonus": 0.05,
            "min_reward": None,
            "max_reward": None,
            "compliance_floor": -1.0,
            "bonus_needs_success": True,
            "task_bounds": (-1.0, 1.0),
            "refuse_untrainable": True,
        }
        return cls(**(fields | changes))

    def charge(self, violation: Any) -> float:
        """The charge that one violation adds to a reward, 0 or less.

        A penalty of its own, other than that of its severity, is charged as given; else the one configured for the
        severity, and that of medium for one that does not exist. ``violation`` is a `PolicyViolation`, or an object or a
        mapping with ``severity`` and ``penalty``. Raises `RewardError` for a penalty without meaning.
        """
        raw_severity, own = priced_violation(violation)
        severity = known_severity(raw_severity)
        if own is not None:
            price = amount("the penalty of a violation", own)
            if price < 0:
                raise RewardError(f"the penalty of a violation must be 0 or more, not {price:g}")
            if price != SEVERITY_PENALTIES[severity]:
                return 0.0 - price
        return cast(float, getattr(self, f"{severity}_penalty"))

    def floored(self, penalty: float) -> float:
        """``penalty`` at or above ``compliance_floor``."""
        return penalty if self.compliance_floor is None else max(penalty, self.compliance_floor)

    def clamp(self, value: float) -> float:
        """``value`` within ``min_reward`` and ``max_reward``."""
        if self.max_reward is not None:
            value = min(value, self.max_reward)
        return value if self.min_reward is None else max(value, self.min_reward)
