"""Rewards find what they name. A target is a call, a tool call or an attempt; nothing is guessed from order or time."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from lgov_core.transitions.transition_set import Diagnostic, Finding
from lgov_core.types import CapturedCall, Reward

#: Where a reward goes that names a call without a transition: one that cannot be trained on, or was not selected.
UNUSABLE: Final = -1
NOT_SELECTED: Final = -2

#: The dimension of intermediate rewards.
INTERMEDIATE: Final = "air"
#: Rewards beyond this cannot be compared: their squares are no longer numbers.
_MOST: Final = 1e100

#: A call of the attempt, and the index of its transition or one of the two above.
PlacedCall: TypeAlias = tuple[CapturedCall, int]

#: Where a reward goes: an index as above, None to another attempt, else what is wrong with it and why.
_Target: TypeAlias = int | tuple[Finding, str] | None


def distinct(rewards: Iterable[Reward], diagnostics: list[Diagnostic]) -> list[Reward]:
    """Rewards without those that came twice. One id with different contents is a finding, and both stay."""
    rewards = list(rewards)
    if len({reward.reward_id for reward in rewards}) == len(rewards):
        return rewards
    by_id: dict[str, Reward] = {}
    kept: list[Reward] = []
    for reward in rewards:
        first = by_id.setdefault(reward.reward_id, reward)
        if first is not reward:
            if first == reward or any(other == reward for other in kept if other.reward_id == reward.reward_id):
                continue
            # What is not a number is never equal to itself.
            if math.isnan(first.value) and math.isnan(reward.value):
                continue
            diagnostics.append(
                Diagnostic(Finding.DUPLICATE_REWARD, reward.reward_id, "two different rewards of one id")
            )
        kept.append(reward)
    return kept


def owners_of_targets(calls_of: Mapping[tuple[str, int], Sequence[CapturedCall]]) -> dict[tuple[str, str], set[str]]:
    """The rollouts that have each call (``("call", response id)``) and tool call (``("tool", id)``)."""
    owners: dict[tuple[str, str], set[str]] = {}
    for (rollout_id, _), calls in calls_of.items():
        for call in calls:
            owners.setdefault(("call", call.response_id), set()).add(rollout_id)
            for tool_call in call.tool_call_ids:
                owners.setdefault(("tool", tool_call), set()).add(rollout_id)
    return owners


def rollout_of(reward: Reward, owners: Mapping[tuple[str, str], set[str]]) -> str | None:
    """The one rollout that has the target of a reward without a rollout; None where there is none or several."""
    target = ("tool", reward.tool_call_id or "") if reward.response_id is None else ("call", reward.response_id)
    rollout_ids = owners.get(target, ())
    return next(iter(rollout_ids)) if len(rollout_ids) == 1 else None


class RewardTargets:
    """The targets of the rewards of one attempt.

    ``placed`` are the calls of the attempt in their order, ``last`` the index of the last transition (None without
    any), ``elsewhere`` the calls of the rollout's other attempts: their rewards went with them. ``aside`` are the choices
    (response id and choice) that the attempt did not go on with.
    """

    def __init__(
        self,
        rollout_id: str,
        attempt: int,
        placed: Sequence[PlacedCall],
        last: int | None,
        elsewhere: Sequence[CapturedCall],
        other_attempts: Iterable[int],
        aside: Container[tuple[str, int]] = (),
    ) -> None:
        self._rollout_id = rollout_id
        self._attempt = attempt
        self._last = last
        self._aside = aside
        self._elsewhere = elsewhere
        self._others = frozenset(other_attempts)
        self._calls: dict[str, list[PlacedCall]] = {}
        self._tools: dict[str, list[PlacedCall]] = {}
        for placed_call in placed:
            call = placed_call[0]
            self._calls.setdefault(call.response_id, []).append(placed_call)
            for tool_call in call.tool_call_ids:
                self._tools.setdefault(tool_call, []).append(placed_call)

    def assign(
        self, rewards: Iterable[Reward], diagnostics: list[Diagnostic], unassigned: list[Reward]
    ) -> dict[int, dict[str, float]]:
        """The rewards of each transition (by index), by dimension. What finds no transition is reported and kept apart.

        Sums are exact (`math.fsum`), so no order of rewards changes them.
        """
        earned: dict[int, dict[str, list[float]]] = {}
        final = False
        for reward in rewards:
            if not abs(reward.value) <= _MOST:  # not a number, either
                target = Finding.INVALID_REWARD, f"its value is {reward.value}"
            elif reward.response_id is None and reward.tool_call_id is None:
                target = self._of_attempt(reward)
                # What AIR takes back at the end of an attempt says nothing about how the task went.
                final = final or (isinstance(target, int) and reward.dimension != INTERMEDIATE)
            else:
                target = self._of_call(reward, diagnostics)
            if isinstance(target, tuple):
                finding, why = target
                diagnostics.append(Diagnostic(finding, reward.reward_id, f"{self._rollout_id}: {why}"))
                unassigned.append(reward)
            elif target is not None and target >= 0:
                earned.setdefault(target, {}).setdefault(reward.dimension, []).append(float(reward.value))
        if not final and self._last is not None:
            diagnostics.append(Diagnostic(Finding.NO_FINAL_REWARD, self._rollout_id))
        return {
            target: {name: math.fsum(values) for name, values in sorted(parts.items())}
            for target, parts in earned.items()
        }

    def _of_attempt(self, reward: Reward) -> _Target:
        if reward.attempt is not None and reward.attempt != self._attempt:
            if reward.attempt in self._others:
                return None
            return Finding.UNKNOWN_REWARD_TARGET, f"there is no attempt {reward.attempt}"
        if self._last is None:
            return Finding.UNASSIGNED_REWARD, "no transition of the attempt"
        return self._last

    def _of_call(self, reward: Reward, diagnostics: list[Diagnostic]) -> _Target:
        if reward.response_id is not None:
            meant = self._calls.get(reward.response_id, [])
        else:
            meant = self._tools.get(reward.tool_call_id or "", [])
        here = reward.attempt == self._attempt or reward.attempt is None
        if len(meant) == 1 and here and reward.choice is None and meant[0][1] != UNUSABLE:
            return meant[0][1]
        what = f"tool call {reward.tool_call_id}" if reward.response_id is None else f"call {reward.response_id}"
        # Ids may come again in a retry: of two calls of one id the one in the attempt that the reward names is meant.
        if meant and not here and self._was_elsewhere(reward, reward.attempt):
            return None
        if reward.response_id is not None and len({call.choice for call, _ in meant}) > 1:
            choice = reward.choice
            if choice is None:
                # One of them the attempt has gone on with: not all are set aside.
                choice = min(call.choice for call, _ in meant if (call.response_id, call.choice) not in self._aside)
                detail = f"{what} has several choices and the reward names none: it goes to choice {choice}"
                diagnostics.append(Diagnostic(Finding.AMBIGUOUS_REWARD_TARGET, reward.reward_id, detail))
            meant = [candidate for candidate in meant if candidate[0].choice == choice]
        elif reward.choice is not None:
            meant = [candidate for candidate in meant if candidate[0].choice == reward.choice]
        elif len(meant) > 1:
            # Tools run for the choice that was gone on with, whatever ids the others gave theirs.
            used = [
                candidate for candidate in meant if (candidate[0].response_id, candidate[0].choice) not in self._aside
            ]
            meant = used if len(used) == 1 else meant
        if len(meant) == 1:
            target = meant[0][1]
            return (Finding.UNASSIGNED_REWARD, f"{what} has no transition") if target == UNUSABLE else target
        if meant:
            return Finding.AMBIGUOUS_REWARD_TARGET, f"{len(meant)} calls answer to {what}"
        if self._was_elsewhere(reward):
            return None
        chosen = "" if reward.choice is None else f"choice {reward.choice} of "
        return Finding.UNKNOWN_REWARD_TARGET, f"there is no {chosen}{what}"

    def _was_elsewhere(self, reward: Reward, attempt: int | None = None) -> bool:
        """Returns whether another attempt (only ``attempt``, where that is given) has the call that ``reward`` names."""
        calls = [call for call in self._elsewhere if attempt is None or (call.attempt or 1) == attempt]
        if reward.response_id is not None:
            return any(call.response_id == reward.response_id for call in calls)
        return any(reward.tool_call_id in call.tool_call_ids for call in calls)
