"""What a step's rollouts amounted to, as JSON values. Pure."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from lgov_core.train.figures import step_figures
from lgov_core.train.jobs import JobResult
from lgov_core.transitions import CreditRules, TransitionSet, rollout_returns


def figures(
    data: TransitionSet, results: Sequence[JobResult], rules: CreditRules, *, dropped_spans: int = 0
) -> dict[str, Any]:
    """Figures of one step: those that every run has of its rollouts (`step_figures`), and these.

    ``reward`` is the mean of the task's reward over the rollouts that count, ``reward_air`` and the like those of the other
    channels, each with half the width of its 95 % interval (normal). ``mean_return`` is after the bounds of the channels.
    ``weights_versions`` counts the calls that each version of the weights answered, ``counts`` what governors counted in the
    rollouts that can be trained on: ``tool_calls`` asked for, those of them ``denied`` (the others were executed), and so on.
    """
    earned: dict[str, dict[tuple[str, int], float]] = defaultdict(lambda: defaultdict(float))
    for one in data.transitions:
        for channel, value in one.rewards.items():
            earned[channel][one.rollout_id, one.attempt] += value
    keys = list(dict.fromkeys((one.rollout_id, one.attempt) for one in data.transitions))
    found: dict[str, Any] = {"rollouts": len(results), "usable": len(keys)}
    for channel, values in sorted(earned.items()):
        name = "reward" if channel == "task" else f"reward_{channel}"
        found[name], found[f"{name}_half_width"] = _mean([values[key] for key in keys])
    returns = rollout_returns(data.transitions, rules)
    counts: Counter[str] = Counter()
    for result in results:
        if result.outcome.trainable:
            counts.update({name: int(count) for name, count in result.counts.items()})
    return {
        **found,
        **step_figures(data, results, returns=returns, dropped_spans=dropped_spans),
        "mean_return": sum(returns.values()) / len(returns) if returns else 0.0,
        "outcomes": dict(Counter(result.outcome.value for result in results)),
        "counts": dict(counts),
        "transitions": len(data.transitions),
        "weights_versions": dict(Counter(str(one.weights_version) for one in data.transitions)),
        "diagnostics": data.counts(),
    }


def _mean(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and half the width of its 95 % interval."""
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, 0.0
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return mean, 1.959964 * math.sqrt(variance / len(values))
