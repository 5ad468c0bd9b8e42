"""95 % intervals of means and shares. Pure functions of numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_Z = 1.959964


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean (or a share) with its 95 % interval, over ``count`` independent values. All NaN where there were none.

    ``low`` and ``high`` are minus and plus infinity where one value says nothing about the spread.
    """

    mean: float
    low: float
    high: float
    count: int

    def as_json(self) -> dict[str, float | int | None]:
        """As JSON values: what is not finite is null."""
        numbers = {"mean": self.mean, "low": self.low, "high": self.high}
        return {
            **{name: value if math.isfinite(value) else None for name, value in numbers.items()},
            "count": self.count,
        }


def mean_interval(values: Sequence[float]) -> Estimate:
    """The mean of independent values with Student's t interval."""
    count = len(values)
    if count == 0:
        return Estimate(math.nan, math.nan, math.nan, 0)
    mean = math.fsum(values) / count
    if count == 1:
        return Estimate(mean, -math.inf, math.inf, 1)
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    half = t_quantile(count - 1) * math.sqrt(variance / count)
    return Estimate(mean, mean - half, mean + half, count)


def grouped_interval(groups: Mapping[str, Sequence[float]]) -> Estimate:
    """The mean over groups of each group's mean: values of one group (rollouts of one task) are not independent.

    ``count`` is the number of groups that have any value.
    """
    return mean_interval([math.fsum(values) / len(values) for values in groups.values() if values])


def share_interval(groups: Mapping[str, Sequence[bool]]) -> Estimate:
    """The share of true values: Wilson's interval where every group has one value, else `grouped_interval`."""
    if any(len(values) > 1 for values in groups.values()):
        interval = grouped_interval({name: [float(value) for value in values] for name, values in groups.items()})
        return Estimate(interval.mean, max(interval.low, 0.0), min(interval.high, 1.0), interval.count)
    values = [value for group in groups.values() for value in group]
    if not values:
        return Estimate(math.nan, math.nan, math.nan, 0)
    low, high = wilson_interval(sum(values), len(values))
    return Estimate(sum(values) / len(values), low, high, len(values))


def wilson_interval(successes: int, count: int) -> tuple[float, float]:
    """The 95 % Wilson score interval of a share (Wilson 1927)."""
    share, square = successes / count, _Z * _Z
    centre = (share + square / (2 * count)) / (1 + square / count)
    half = _Z * math.sqrt(share * (1 - share) / count + square / (4 * count * count)) / (1 + square / count)
    # At a share of 0 or 1 the bound is exact; rounding must not push it past.
    low = 0.0 if successes == 0 else centre - half
    high = 1.0 if successes == count else centre + half
    return low, high


def t_quantile(freedom: int) -> float:
    """The 97.5 % quantile of Student's t distribution with the given degrees of freedom (1 or more), to 0.2 % or better.

    Exact for one and two degrees; else the expansion of Fisher and Cornish (Abramowitz and Stegun, 26.7.5).
    """
    if freedom == 1:
        return math.tan(math.pi * 0.475)
    if freedom == 2:
        return 0.95 * math.sqrt(2 / (1 - 0.95**2))
    z, v = _Z, float(freedom)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / v**power for power, term in enumerate(terms, 1))
