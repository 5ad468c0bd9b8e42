"""Rewards for tool calls cannot be farmed by default, and can be where each call is simply paid.

The agent sits at a farm with two tools, both harmless and always successful: ``look``, which leads nowhere, and ``file``,
without which the task cannot be solved. It may answer at any time, which ends the rollout and is worth 1 if it has
filed. Rollouts are played through a real governor; what is recorded becomes transitions and returns as in training.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest

from lgov_core.governor import Governor
from lgov_core.hookspecs import hookimpl
from lgov_core.plugins import make_plugin_manager
from lgov_core.reward import AirPlugin, AirRules, RuleSet, shaping
from lgov_core.scope import RolloutScope
from lgov_core.transitions import CreditRules, Transition, TransitionSet, assign_credit, rollout_returns
from lgov_core.types import Action, Attempt, CapturedCall, Outcome, Point, Reward, Rollout, ToolOutcome
from tests.transitions.assembled import assemble

LOOK, FILE, ANSWER = range(3)
TOOLS = {LOOK: "look", FILE: "file"}
HORIZON = 20
#: What a success is worth by default.
WORTH = AirRules().tool_success
#: No bound where credit is assigned: it would hide what the rewards themselves do.
UNBOUNDED = CreditRules(air_cap=None)


class Farm:
    """Plays rollouts under a governor with ``plugin`` and keeps what is recorded."""

    def __init__(self, plugin: AirPlugin) -> None:
        self.rewards: list[Reward] = []
        self.governor = Governor(plugins=[plugin, self], manager=make_plugin_manager(builtin=(), third_party=False))
        self.count = 0

    @hookimpl
    def lgov_observe(self, event: Any) -> None:
        if isinstance(event, Reward):
            self.rewards.append(event)

    def play(self, choose: Callable[[bool], int], horizon: int = HORIZON) -> list[Transition]:
        """One rollout. ``choose`` is told whether the agent has filed; a call's only token is what it chose."""
        self.count += 1
        name, calls, filed, solved = f"r{self.count}", [], False, False
        self.rewards.clear()
        with self.governor.rollout(RolloutScope(name)):
            for number in range(horizon):
                chosen = choose(filed)
                calls.append(captured(name, number, chosen, filed))
                if chosen == ANSWER:
                    solved = filed
                    break
                action = Action(Point.PRE_TOOL_CALL, TOOLS[chosen], call_id=f"{name}-tool-{number}")
                self.governor.record(ToolOutcome(action, "ok"))
                filed = filed or chosen == FILE
        rewards = [*self.rewards, Reward(float(solved), "task", name, 1)]
        outcome = Outcome.SUCCEEDED if solved else Outcome.FAILED
        data = assemble([Rollout(name, "farm", "run", {})], [Attempt(name, 1, 0.0, 1.0, outcome)], calls, rewards)
        assert len(data.transitions) == len(calls)
        return list(data.transitions)

    def worth(self, *chosen: int, rules: CreditRules = UNBOUNDED) -> float:
        """The return of a rollout that chooses so, the last choice for ever."""
        following = iter([*chosen, *[chosen[-1]] * HORIZON])
        (value,) = rollout_returns(self.play(lambda _filed: next(following)), rules).values()
        return value


def captured(rollout: str, number: int, chosen: int, filed: bool) -> CapturedCall:
    return CapturedCall(
        response_id=f"{rollout}-{number}",
        model="m",
        request={},
        response={},
        prompt_ids=(10 + filed,),
        response_ids=(chosen,),
        logprobs=(-1.0,),
        finish_reason="stop",
        weights_version=0,
        temperature=1.0,
        top_p=1.0,
        started_at=float(number),
        ended_at=number + 0.5,
        rollout_id=rollout,
        attempt=1,
        tool_call_ids=(f"{rollout}-tool-{number}",),
    )


def naive(success: float = 0.1) -> AirPlugin:
    """Pays every successful call, for ever."""
    return AirPlugin(RuleSet(base=AirRules(tool_success=success, shaped=False), cap=None))


# ---------------------------------------------------------------------- the attack, and what stops it


def test_a_reward_for_each_call_makes_looking_for_ever_worth_more_than_solving_the_task() -> None:
    farm = Farm(naive())
    assert farm.worth(LOOK) == pytest.approx(0.1 * HORIZON)
    assert farm.worth(FILE, ANSWER) == pytest.approx(1.1)
    assert farm.worth(LOOK) > farm.worth(FILE, ANSWER)
    # And solving it is worth the more the longer it is put off.
    assert farm.worth(FILE, *[LOOK] * (HORIZON - 2), ANSWER) > farm.worth(FILE, ANSWER)


def test_by_default_looking_for_ever_is_worth_nothing() -> None:
    farm = Farm(AirPlugin())
    assert farm.worth(LOOK) == 0.0
    assert farm.worth(FILE) == 0.0
    assert farm.worth(FILE, ANSWER) == 1.0
    assert farm.worth(LOOK, FILE, *[LOOK] * 5, ANSWER) == 1.0


def test_the_return_of_every_rollout_is_that_of_its_task() -> None:
    farm = Farm(AirPlugin())
    for length in range(1, 6):
        for chosen in itertools.product(range(3), repeat=length):
            if ANSWER in chosen[:-1]:
                continue
            solved = chosen[-1] == ANSWER and FILE in chosen
            assert farm.worth(*chosen) == pytest.approx(float(solved), abs=1e-12), chosen


@pytest.mark.parametrize("rules", [CreditRules(), CreditRules(discount=0.9), CreditRules(scheme="identical")])
def test_nor_do_the_bounds_of_credit_let_it_pay(rules: CreditRules) -> None:
    for plugin in (AirPlugin(), AirPlugin(AirRules(shaped=False))):
        farm = Farm(plugin)
        assert farm.worth(LOOK, rules=rules) <= 0.1 + 1e-12 < 0.9 < farm.worth(FILE, ANSWER, rules=rules)


def test_the_payments_are_the_differences_of_the_potential() -> None:
    farm = Farm(AirPlugin())
    for chosen in itertools.product((LOOK, FILE), repeat=4):
        following = iter(chosen)
        earned = [turn.rewards.get("air", 0.0) for turn in farm.play(lambda _filed: next(following), horizon=4)]  # noqa: B023
        potentials = [WORTH * len(set(chosen[:at])) for at in range(4)]
        assert earned == pytest.approx(shaping(potentials), abs=1e-12), chosen


# ---------------------------------------------------------------------- the best policies stay the best

State = tuple[int, bool, bool]  # calls made, looked, filed


def potential(state: State) -> float:
    return WORTH * (state[1] + state[2])


def step(state: State, action: int) -> tuple[State | None, float]:
    """The next state (None: the end) and the task's reward."""
    made, looked, filed = state
    if action == ANSWER:
        return None, float(filed)
    following = (made + 1, looked or action == LOOK, filed or action == FILE)
    return (None if following[0] == HORIZON else following), 0.0


def best(discount: float, extra: Callable[[State, int, State | None], float]) -> dict[State, list[float]]:
    """The value of each action in each state if all that follows is done as well as possible, by dynamic programming."""

    @cache
    def values(state: State) -> tuple[float, ...]:
        found = []
        for action in range(3):
            following, reward = step(state, action)
            later = 0.0 if following is None else max(values(following))
            found.append(reward + extra(state, action, following) + discount * later)
        return tuple(found)

    reached: list[State] = [(0, False, False)]
    for state in reached:
        following = (step(state, action)[0] for action in range(3))
        reached += [one for one in following if one is not None and one not in reached]
    return {state: list(values(state)) for state in reached}


def best_actions(values: Sequence[float]) -> set[int]:
    return {action for action, value in enumerate(values) if value > max(values) - 1e-12}


@pytest.mark.parametrize("discount", [1.0, 0.9, 0.5])
def test_shaping_changes_no_best_action_and_moves_every_value_by_the_potential(discount: float) -> None:
    def shaped(state: State, action: int, following: State | None) -> float:
        return discount * (0.0 if following is None else potential(following)) - potential(state)

    plain, moved = best(discount, lambda *_: 0.0), best(discount, shaped)
    assert len(plain) > 50
    for state, values in plain.items():
        assert moved[state] == pytest.approx([value - potential(state) for value in values], abs=1e-12)
        assert best_actions(moved[state]) == best_actions(values)


def test_a_reward_for_each_call_changes_the_best_actions() -> None:
    plain = best(1.0, lambda *_: 0.0)
    paid = best(1.0, lambda _state, action, _following: 0.1 * (action != ANSWER))
    begun = (1, False, True)
    assert ANSWER in best_actions(plain[begun])
    assert best_actions(paid[begun]) == {LOOK, FILE}


def test_shaping_takes_what_has_a_meaning_only() -> None:
    assert shaping([]) == []
    assert shaping([0.0, 1.0, 3.0], 0.5) == [0.5, 0.5, -3.0]
    for potentials, discount in (([math.nan], 1.0), ([1.0], 1.5), ([1.0], math.nan)):
        with pytest.raises(ValueError, match=r"potential|discount"):
            shaping(potentials, discount)


# ---------------------------------------------------------------------- and what is learned


def learned(plugin: AirPlugin, seed: int) -> dict[str, float]:
    """Policy gradient on a softmax over actions by whether the agent has filed; what the learned policy then does."""
    chance, farm = random.Random(seed), Farm(plugin)
    logits = [[0.0] * 3, [0.0] * 3]
    rules = CreditRules(air_cap=None, leave_one_out=True, loss="rollouts")

    def chances(filed: bool) -> list[float]:
        weights = [math.exp(value) for value in logits[filed]]
        return [weight / sum(weights) for weight in weights]

    def choose(filed: bool) -> int:
        return chance.choices(range(3), chances(filed))[0]

    for _ in range(60):
        group = TransitionSet(tuple(turn for _ in range(12) for turn in farm.play(choose, horizon=10)))
        gradient = [[0.0] * 3, [0.0] * 3]
        for turn in assign_credit(group, rules).transitions:
            assert turn.credit is not None
            filed = turn.prompt_ids[0] == 11
            for action, probability in enumerate(chances(filed)):
                gradient[filed][action] += (
                    turn.loss_weight * turn.credit * ((action == turn.response_ids[0]) - probability)
                )
        for row, change in zip(logits, gradient, strict=True):
            for action, value in enumerate(change):
                row[action] += 1.5 * value
    rollouts = [farm.play(choose, horizon=10) for _ in range(100)]
    return {
        "solved": sum(turns[-1].rewards["task"] for turns in rollouts) / 100,
        "calls": sum(len(turns) for turns in rollouts) / 100,
    }


@pytest.mark.parametrize("seed", [0, 1])
def test_a_policy_learns_to_farm_what_is_paid_by_the_call_and_to_solve_by_default(seed: int) -> None:
    farmed, solved = learned(naive(0.3), seed), learned(AirPlugin(AirRules(tool_success=0.3)), seed)
    assert farmed["solved"] < 0.2
    assert farmed["calls"] > 9
    assert solved["solved"] > 0.8
    assert solved["calls"] < 9
