"""Values and helpers of these tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lgov_core.transitions import CreditRules, Transition, TransitionSet, assign_credit
from lgov_core.types import Outcome

#: No bound on AIR, for round numbers.
OPEN = CreditRules(air_cap=None)


def turn(
    rollout: str,
    number: int,
    rewards: Mapping[str, float] | float = 0.0,
    *,
    prompt: Sequence[int] = (1,),
    mask: Sequence[int] = (1, 1),
    agent: str | None = None,
    task: str = "t",
) -> Transition:
    return Transition(
        run_id="run",
        weights_version=0,
        model="m",
        task_id=task,
        rollout_id=rollout,
        attempt=1,
        turn=number,
        response_id=f"{rollout}-{number}",
        agent=agent,
        prompt_ids=tuple(prompt),
        response_ids=tuple(range(len(mask))),
        response_mask=tuple(mask),
        logprobs=(-1.0,) * len(mask),
        temperature=1.0,
        finish_reason="stop",
        outcome=Outcome.FAILED,
        rewards=dict(rewards) if isinstance(rewards, Mapping) else {"task": rewards},
    )


def group(*rollouts: Sequence[Mapping[str, float] | float]) -> TransitionSet:
    names = "abcdefgh"
    return TransitionSet(
        tuple(turn(names[n], at, earned) for n, rollout in enumerate(rollouts) for at, earned in enumerate(rollout))
    )


def credit(data: TransitionSet, rules: CreditRules, **given: Any) -> list[list[float]]:
    """Each rollout's advantages, by turn (the first token's: all are the same here)."""
    found: dict[str, list[float]] = {}
    for one in assign_credit(data, rules, **given).transitions:
        assert one.advantages is not None
        found.setdefault(one.rollout_id, []).append(one.advantages[0])
    return list(found.values())
