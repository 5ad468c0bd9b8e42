"""CompositeReward: several rewards as one weighted sum."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

from lgov_core.errors import RewardError
from lgov_core.reward.finite import finite


class CompositeReward:
    """The weighted sum of several reward functions.

    ``components`` are (function of a rollout, weight) pairs. Weights are finite; a negative one, which turns a penalty into
    a reward, is warned about. With ``normalize`` they are scaled so that they sum to 1. What a function raises is raised.
    Safe to call from many threads when the functions are.

    Raises `RewardError` for weights that are not finite, and when a component is not finite.
    """

    def __init__(self, components: Iterable[tuple[Callable[[Any], float], float]], normalize: bool = False) -> None:
        self.components: list[tuple[Callable[[Any], float], float]] = []
        for component in components:
            try:
                function, weight = component
            except (TypeError, ValueError) as error:
                raise RewardError(f"{component!r} is not a component", hint="write (function, weight)") from error
            if not callable(function):
                raise RewardError(f"{function!r} cannot be called", hint="write (function, weight)")
            weight = finite(f"the weight of {_named(function)}", weight)
            if weight < 0:
                warnings.warn(f"the weight {weight:g} of {_named(function)} turns penalties into rewards", stacklevel=2)
            self.components.append((function, weight))
        total = finite("the sum of the weights", sum(weight for _, weight in self.components))
        if normalize and total > 0:
            self.components = [(function, weight / total) for function, weight in self.components]

    @property
    def weights(self) -> tuple[float, ...]:
        """The weights as they are used, in the order of the components."""
        return tuple(weight for _, weight in self.components)

    def __call__(self, rollout: Any) -> float:
        """The weighted sum for ``rollout``."""
        parts = [weight * finite(_named(function), function(rollout)) for function, weight in self.components]
        return finite("the weighted sum", sum(parts))


def _named(function: Any) -> str:
    return getattr(function, "__name__", None) or type(function).__name__
