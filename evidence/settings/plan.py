"""How long and how hard a setting is trained."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lgov_core.train.algorithms.algorithms import UpdateConfig
from settings.setting import Setting


@dataclass(frozen=True)
class Plan:
    """One plan. ``tasks`` groups of ``group`` rollouts make an update.

    Before the first update and after the last the same tasks are run: ``fixed_tasks`` training tasks with ``fixed_group``
    rollouts each, and of every split in ``judged`` ``held_out_tasks`` with ``held_out_group`` each. ``gated``: nothing is
    trained where the warm start does not pass the gate. ``threads`` are those of torch in the process of endpoint and trainer.
    ``shaped``: AIR is taken back at the end, as it is by default; else it is paid per call, within `CreditRules.air_cap`.
    """

    model: str
    warm_seed: int
    warm_steps: int
    warm_batch: int
    warm_rate: float
    updates: int
    tasks: int
    group: int
    fixed_tasks: int
    fixed_group: int
    held_out_tasks: int
    held_out_group: int
    update: UpdateConfig
    concurrency: int
    max_new_tokens: int
    max_batch: int = 128
    layers: int = 3
    judged: tuple[str, ...] = ("values", "forms")
    gated: bool = True
    threads: int = 1
    shaped: bool = False


#: At a constant learning rate some runs lost near their end what they had learnt (text-to-SQL, one of three seeds).
TINY = Plan(
    model="tiny",
    warm_seed=0,
    warm_steps=600,
    warm_batch=32,
    warm_rate=3e-3,
    updates=10,
    tasks=16,
    group=8,
    fixed_tasks=32,
    fixed_group=8,
    held_out_tasks=96,
    held_out_group=2,
    update=UpdateConfig(learning_rate=4e-4, epochs=2, minibatches=2, kl=0.02, schedule="linear", total_steps=10),
    concurrency=48,
    max_new_tokens=48,
)

#: SmolLM2-135M-Instruct with low-rank adapters. Where few rollouts solve their task, groups differ in AIR only, if it is
#: paid per call: in a first trial (maths, seed 0) the model learnt to call the calculator to the last turn. So AIR is shaped.
SMOLLM2 = Plan(
    model="smollm2",
    warm_seed=0,
    warm_steps=48,
    warm_batch=16,
    warm_rate=1e-3,
    updates=12,
    tasks=6,
    group=8,
    fixed_tasks=32,
    fixed_group=4,
    held_out_tasks=64,
    held_out_group=1,
    update=UpdateConfig(learning_rate=3e-4, epochs=1, minibatches=2, kl=0.02, tokens_per_batch=1024, precision="auto"),
    concurrency=12,
    max_new_tokens=64,
    max_batch=12,
    gated=False,
    threads=2,
    shaped=True,
)
PLANS = {plan.model: plan for plan in (TINY, SMOLLM2)}


def plan_for(
    setting: Setting,
    model: str,
    *,
    quick: bool = False,
    judged: tuple[str, ...] | None = None,
    updates: int | None = None,
) -> Plan:
    """The plan of a setting for ``tiny`` or ``smollm2``. ``quick`` shows that everything works, not that anything is learnt;
    ``judged`` and ``updates`` stand in place of the plan's.
    """
    plan = replace(PLANS[model], **{**setting.sizes, **setting.plans.get(model, {})})
    if quick:
        warm = {"warm_steps": 30, "warm_batch": 16} if model == "tiny" else {"warm_steps": 1, "warm_batch": 2}
        sizes = {"tasks": 2, "group": 4, "fixed_tasks": 2, "fixed_group": 2, "held_out_tasks": 3, "held_out_group": 2}
        plan = replace(plan, updates=2 if model == "tiny" else 1, gated=False, **warm, **sizes)
    changes = {"judged": judged, "updates": updates}
    plan = replace(plan, **{name: value for name, value in changes.items() if value is not None})
    return replace(plan, update=replace(plan.update, total_steps=plan.updates))
