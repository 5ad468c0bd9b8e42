"""Advantages out of reward channels, each normalised on its own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from lgov_core.errors import RewardError
from lgov_core.reward.finite import finite


def group_advantages(
    rollouts: Sequence[Mapping[str, float]],
    *,
    weights: Mapping[str, float] | None = None,
    std_floor: float = 0.1,
) -> list[float]:
    """One advantage a rollout, for the rollouts of one task.

    ``rollouts`` are their channels (`PolicyReward.channels`). Of each channel the group's mean is taken away and the rest
    is divided by its standard deviation (of the population), but never by less than ``std_floor`` (above 0), so that noise
    in a channel in which all are alike stays small. Then the channels are added, ``weights`` (1 unless given; 0 or more)
    times. So a rare, large penalty cannot drown the difference between solved and failed, nor the other way round.

    A group of one has nothing to compare: 0. Raises `RewardError` for values that are not finite, and when the rollouts do
    not have the same channels.
    """
    if not rollouts:
        return []
    names = list(rollouts[0])
    if any(set(channels) != set(names) for channels in rollouts):
        raise RewardError("the rollouts of a group must have the same channels", hint=f"the first has {names}")
    if not (math.isfinite(std_floor) and std_floor > 0):
        raise RewardError(f"std_floor must be above 0, not {std_floor!r}")
    if unknown := sorted(set(weights or {}) - set(names)):
        raise RewardError(f"there is no channel {unknown[0]!r}", hint=f"there are {names}")
    advantages = [0.0] * len(rollouts)
    for name in names:
        weight = finite(f"the weight of {name}", (weights or {}).get(name, 1.0))
        if weight < 0:
            raise RewardError(f"the weight of {name} is {weight:g}", hint="weights are 0 or more")
        values = [finite(name, channels[name]) for channels in rollouts]
        mean = math.fsum(values) / len(values)
        spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))
        for at, value in enumerate(values):
            advantages[at] += weight * (value - mean) / max(spread, std_floor)
    return advantages
