"""How long and how hard the demo trains, by model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from lgov_core.train.algorithms.algorithms import UpdateConfig

#: The share of the log that reads the answers.
PEEKS = 0.13


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """One training plan. ``tasks`` groups of ``group`` rollouts make an iteration; ``evaluations`` held-out rollouts are run
    before and after. ``max_batch`` bounds the embedded engine's micro-batch. ``keep_weights``
    keeps every version of the weights, so that the whole capture can be recomputed (``lgov demo --verify``). ``threads`` is
    the number of torch threads (None: torch's choice): a tiny model's threads would mostly wait for one another.
    ``peeks`` is the share of the warm start's log that reads the answers.
    """

    model: str
    warm_steps: int
    iterations: int
    tasks: int
    group: int
    evaluations: int
    update: UpdateConfig
    concurrency: int
    max_batch: int
    workers: int = 1
    max_new_tokens: int = 48
    keep_weights: bool = False
    threads: int | None = None
    peeks: float = PEEKS


TINY = DemoPlan(
    model="tiny",
    warm_steps=250,
    iterations=30,
    tasks=16,
    group=8,
    evaluations=256,
    update=UpdateConfig(learning_rate=4e-4, epochs=2, kl=0.02),
    concurrency=64,
    max_batch=128,
    workers=2,
    threads=1,
    peeks=0.2,
)

SMOLLM2 = DemoPlan(
    model="smollm2",
    warm_steps=30,
    iterations=7,
    tasks=6,
    group=8,
    evaluations=64,
    update=UpdateConfig(learning_rate=3e-4, epochs=1, kl=0.02, tokens_per_batch=2048),
    concurrency=64,
    max_batch=64,
    keep_weights=True,
)


def plan_for(
    model: str,
    *,
    quick: bool = False,
    iterations: int | None = None,
    warm_steps: int | None = None,
    keep_weights: bool = False,
) -> DemoPlan:
    """The plan of a model; ``quick`` is short enough for a test and still learns."""
    plan = {"tiny": TINY, "smollm2": SMOLLM2}[model]
    if quick:
        plan = replace(plan, iterations=min(plan.iterations, 15), evaluations=min(plan.evaluations, 128))
    options: dict[str, Any] = {"iterations": iterations, "warm_steps": warm_steps, "keep_weights": keep_weights or None}
    return replace(plan, **{name: value for name, value in options.items() if value is not None})
