"""What a step's rollouts amounted to, as JSON values. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from lgov_core.train.loop.figures import earned_figures, step_figures
from lgov_core.train.workers.jobs import JobResult
from lgov_core.transitions import CreditRules, TransitionSet, rollout_returns


def figures(
    data: TransitionSet, results: Sequence[JobResult], rules: CreditRules, *, dropped_spans: int = 0
) -> dict[str, Any]:
    """Figures of one step: those that every run has of its rollouts (`step_figures`, `earned_figures`), and these.

    ``mean_return`` is after the bounds of the channels, ``weights_versions`` counts the calls that each version of the
    weights answered.
    """
    keys = list(dict.fromkeys((one.rollout_id, one.attempt) for one in data.transitions))
    earned = (
        ((one.rollout_id, one.attempt), channel, value)
        for one in data.transitions
        if not one.set_aside
        for channel, value in one.rewards.items()
    )
    returns = rollout_returns(data.transitions, rules)
    return {
        **earned_figures(results, keys, earned),
        **step_figures(data, results, returns=returns, dropped_spans=dropped_spans),
        "mean_return": sum(returns.values()) / len(returns) if returns else 0.0,
        "transitions": len(data.transitions),
        "weights_versions": dict(Counter(str(one.weights_version) for one in data.transitions)),
        "diagnostics": data.counts(),
    }
