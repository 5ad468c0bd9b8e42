"""How long and how hard a setting is trained."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from lgov_core.train.algorithms.config import UpdateConfig
from settings.setting import Setting


@dataclass(frozen=True)
class Plan:
    """One plan. ``tasks`` groups of ``group`` rollouts make an update; ``evaluations`` held-out tasks are run before the first
    update, after every ``evaluate_every`` and after the last, the same ones each time.
    """

    model: str
    warm_seed: int
    warm_steps: int
    warm_batch: int
    warm_rate: float
    updates: int
    tasks: int
    group: int
    evaluations: int
    evaluate_every: int
    update: UpdateConfig
    concurrency: int
    max_new_tokens: int
    max_batch: int = 128
    layers: int = 3


TINY = Plan(
    model="tiny",
    warm_seed=0,
    warm_steps=150,
    warm_batch=32,
    warm_rate=3e-3,
    updates=24,
    tasks=8,
    group=8,
    evaluations=96,
    evaluate_every=6,
    update=UpdateConfig(learning_rate=4e-4, epochs=2, kl=0.02),
    concurrency=48,
    max_new_tokens=48,
)

#: SmolLM2-135M-Instruct, low-rank adapters: a few updates, because each takes minutes on a processor.
REAL = Plan(
    model="smollm2",
    warm_seed=0,
    warm_steps=10,
    warm_batch=4,
    warm_rate=1e-3,
    updates=2,
    tasks=2,
    group=4,
    evaluations=12,
    evaluate_every=2,
    update=UpdateConfig(learning_rate=3e-4, epochs=1, kl=0.02, tokens_per_batch=1024),
    concurrency=12,
    max_new_tokens=64,
    max_batch=12,
)


def plan_for(setting: Setting, *, quick: bool, real: bool, **changes: Any) -> Plan:
    """The plan of a setting. ``quick`` shows that everything works, not that anything is learnt."""
    plan = replace(REAL if real else TINY, **({} if real else dict(setting.plan)))
    if quick and real:
        plan = replace(plan, warm_steps=1, warm_batch=2, updates=1, tasks=1, group=2, evaluations=2, evaluate_every=1)
    elif quick:
        plan = replace(plan, warm_steps=30, warm_batch=16, updates=2, tasks=2, group=4, evaluations=4, evaluate_every=1)
    return replace(plan, **{name: value for name, value in changes.items() if value is not None})
