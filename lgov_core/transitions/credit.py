"""Credit: what each turn's tokens are worth. Pure functions of transitions; a trainer only executes the result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from lgov_core.transitions.values import Diagnostic, Finding, Transition, TransitionSet, by_rollout


@dataclass(frozen=True, slots=True)
class CreditRules:
    """How rewards become advantages.

    ``scheme``: ``return_to_go`` credits a turn with the discounted rewards from it on; ``identical`` credits every turn with
    the whole return (the Agent Lightning paper's choice). ``baseline``: ``turn`` subtracts the mean over the group's
    rollouts that reached the turn, each rollout once; ``rollout`` subtracts the group's mean return. ``std_floor``
    None leaves the result as it is; a number divides by the group's standard deviation of returns, but never by less
    than the floor: dividing by a tiny deviation blows AIR noise up to full-size advantages, and runs collapsed.
    ``air_cap`` bounds the absolute sum of a rollout's ``air`` rewards, scaling them together, so that they never
    outweigh the task; None switches the bound off. ``min_group`` is the fewest rollouts that can be compared.
    """

    scheme: Literal["return_to_go", "identical"] = "return_to_go"
    discount: float = 1.0
    baseline: Literal["turn", "rollout"] = "turn"
    std_floor: float | None = None
    air_cap: float | None = 0.1
    min_group: int = 2


def assign_credit(data: TransitionSet, rules: CreditRules | None = None) -> TransitionSet:
    """Fills ``value_to_go``, ``advantages`` and ``loss_weight`` of every transition.

    Groups are compared per rollout, never per row: a long rollout does not weigh more in the mean than a short one. A
    group with fewer than ``min_group`` rollouts gets advantages of 0 and a diagnostic, for there is nothing to compare.
    The loss weight is the same for every token: 1 / (tokens that may be trained on), so it depends neither on how many
    rows a rollout was split into nor on how many rollouts failed to compare.
    """
    rules = rules or CreditRules()
    found = list(data.diagnostics)
    tokens = sum(sum(transition.response_mask) for transition in data.transitions)
    weight = 1.0 / tokens if tokens else 0.0
    filled: list[Transition] = []
    for task, rollouts in data.groups().items():
        returns = [_returns(rollout, rules) for rollout in rollouts]
        if len(rollouts) < rules.min_group:
            found.append(Diagnostic(Finding.SMALL_GROUP, task, f"{len(rollouts)} rollouts"))
            scores = [[0.0] * len(values) for values in returns]
        else:
            scores = _advantages(returns, rules)
        for rollout, values, credit in zip(rollouts, returns, scores, strict=True):
            for transition, value, advantage in zip(rollout, values, credit, strict=True):
                filled.append(
                    replace(
                        transition,
                        value_to_go=value,
                        credit=advantage,
                        advantages=tuple(advantage * mask for mask in transition.response_mask),
                        loss_weight=weight,
                    )
                )
    return TransitionSet(tuple(filled), tuple(found), data.unassigned)


def rollout_returns(
    transitions: Sequence[Transition], rules: CreditRules | None = None
) -> dict[tuple[str, int], float]:
    """The undiscounted return of each (rollout, attempt), with the AIR bound applied."""
    rules = replace(rules or CreditRules(), discount=1.0, scheme="return_to_go")
    return {key: _returns(rollout, rules)[0] for key, rollout in by_rollout(transitions).items()}


def _returns(rollout: Sequence[Transition], rules: CreditRules) -> list[float]:
    """The return of each turn: from it on, or the whole return for every turn."""
    rewards = _bounded(rollout, rules.air_cap)
    value, values = 0.0, [0.0] * len(rewards)
    for turn in range(len(rewards) - 1, -1, -1):
        value = rewards[turn] + rules.discount * value
        values[turn] = value
    return [values[0]] * len(values) if rules.scheme == "identical" else values


def _bounded(rollout: Sequence[Transition], cap: float | None) -> list[float]:
    """Each turn's reward, its ``air`` part scaled so that the rollout's absolute AIR stays within ``cap``."""
    total = sum(abs(transition.rewards.get("air", 0.0)) for transition in rollout)
    scale = 1.0 if cap is None or total <= cap else cap / total
    return [transition.reward + (scale - 1.0) * transition.rewards.get("air", 0.0) for transition in rollout]


def _advantages(returns: Sequence[Sequence[float]], rules: CreditRules) -> list[list[float]]:
    firsts = [values[0] for values in returns]
    mean = sum(firsts) / len(firsts)
    if rules.baseline == "rollout" or rules.scheme == "identical":
        scores = [[value - mean for value in values] for values in returns]
    else:
        turns = max(len(values) for values in returns)
        means: list[float] = []
        for turn in range(turns):
            reached = [values[turn] for values in returns if len(values) > turn]
            means.append(sum(reached) / len(reached))
        scores = [[value - means[turn] for turn, value in enumerate(values)] for values in returns]
    if rules.std_floor is not None:
        spread = math.sqrt(sum((value - mean) ** 2 for value in firsts) / len(firsts))
        divisor = max(spread, rules.std_floor)
        scores = [[score / divisor for score in values] for values in scores]
    return scores
