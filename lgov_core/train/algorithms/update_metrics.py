"""The effect of one update, as numbers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class UpdateMetrics:
    """The effect of one update. Means are over trained tokens.

    Of the first epoch: ``loss``, ``kl`` (to the reference, k3; None where there is none), ``entropy`` (the mean of -log p over
    the tokens that were sampled), ``grad_norm`` (before clipping) and ``logprob_drift``, the mean absolute difference
    between recorded and recomputed log-probabilities before the first step, of tokens that are not stale. Of the last:
    ``clip_fraction`` and ``moved``, how far the policy was from where the update began before each step (k3, nats a token).

    ``steps`` counts the optimiser's steps, ``learning_rate`` is that of this update. ``stale_tokens`` were sampled by older
    weights than those at the start; ``importance`` is the mean weight that the corrected ones got, and ``dropped_tokens``
    were too old to be trained on. With a critic, ``value_loss``, and ``explained_variance``: what part of the variance of
    its targets it had foreseen (1 is all; 0 no better than their mean). ``tokens_run`` is on how many tokens, padding
    included, one pass over the rows runs the model; ``tokens_saved`` how many fewer those are than the prompts and replies
    of all calls, each by itself.
    """

    rows: int = 0
    tokens: int = 0
    loss: float = 0.0
    kl: float | None = None
    entropy: float = 0.0
    clip_fraction: float = 0.0
    grad_norm: float = 0.0
    logprob_drift: float = 0.0
    moved: float = 0.0
    steps: int = 0
    learning_rate: float = 0.0
    stale_tokens: int = 0
    importance: float = 1.0
    dropped_tokens: int = 0
    value_loss: float = 0.0
    explained_variance: float = 0.0
    tokens_run: int = 0
    tokens_saved: int = 0


class Sums(defaultdict[str, float]):
    """Numbers of several passes, added up; 0 for a name that was not added."""

    def __init__(self) -> None:
        super().__init__(float)

    def add(self, values: Mapping[str, float]) -> None:
        """Adds the numbers of one pass."""
        for name, value in values.items():
            self[name] += value

    def mean(self, name: str, over: str = "tokens") -> float:
        """The sum of ``name`` divided by that of ``over``."""
        return self[name] / max(self[over], 1.0)
