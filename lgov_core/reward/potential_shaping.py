"""Potential-based shaping: intermediate rewards that change no optimal policy."""

from __future__ import annotations

from collections.abc import Sequence

from lgov_core.errors import RewardError
from lgov_core.reward.finite import finite


def shaping(potentials: Sequence[float], discount: float = 1.0) -> list[float]:
    """What shaping pays at each step of one episode: F[t] = γ Φ(s[t+1]) - Φ(s[t]), with Φ = 0 after the last.

    ``potentials`` are Φ(s[0]) … Φ(s[T-1]), of the states in which the T steps were taken. Source: Ng, Harada and Russell
    1999, "Policy invariance under reward transformations"; that Φ must be 0 at the end of an episode: Grześ 2017. The
    discounted sum from step t on is -Φ(s[t]) whatever is done from there, so every policy loses the same and the optimal
    ones stay optimal. Raises `RewardError` for numbers that are not finite and a discount outside 0 to 1.
    """
    if not 0 <= finite("the discount", discount) <= 1:
        raise RewardError(f"the discount is {discount:g}", hint="it is within 0 and 1")
    values = [finite("a potential", value) for value in potentials]
    following = [*values[1:], 0.0][: len(values)]
    return [discount * after - before for before, after in zip(values, following, strict=True)]
