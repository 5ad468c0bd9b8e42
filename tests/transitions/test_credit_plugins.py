"""Credit schemes of one's own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

from lgov_core.errors import TransitionError
from lgov_core.transitions import CreditRules, Transition, TransitionSet, assign_credit
from tests.transitions.credit_parts import group, turn


def last(rollouts: Sequence[Sequence[Transition]], rules: CreditRules) -> Any:
    """Credits the last turn of a rollout with its return."""
    return [[0.0] * (len(rollout) - 1) + [sum(one.reward for one in rollout)] for rollout in rollouts]


def answers(answer: Any) -> Any:
    """A scheme that answers just this."""

    def mine(rollouts: Any, rules: CreditRules) -> Any:
        return answer

    return mine


def test_a_scheme_of_ones_own_answers_and_masks_and_weights_are_kept() -> None:
    data = TransitionSet((turn("a", 0, 1.0), turn("a", 1, 2.0, mask=(1, 0)), turn("b", 0, 5.0)))
    credited = assign_credit(data, CreditRules(scheme=last, loss="rollouts"))
    assert [one.advantages for one in credited.transitions] == [(0.0, 0.0), (3.0, 0.0), (5.0, 5.0)]
    assert [one.loss_weight for one in credited.transitions] == [0.5] * 3
    assert [one.value_to_go for one in credited.transitions] == [3.0, 2.0, 5.0]


def test_a_scheme_may_credit_each_token() -> None:
    credited = assign_credit(group([1.0], [2.0]), CreditRules(scheme=answers([[(0.25, -0.5)], [2.0]])))
    assert [one.advantages for one in credited.transitions] == [(0.25, -0.5), (2.0, 2.0)]
    assert [one.credit for one in credited.transitions] == [-0.125, 2.0]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ([[0.0, 0.0]], "1 values for 2 rollouts"),
        (3.0, "a float for 2 rollouts"),
        ({"a": 1, "b": 2}, "a dict for 2 rollouts"),
        ([[0.0], [0.0]], "1 values for the 2 turns of rollout a"),
        ([0.0, 0.0], "a float for the 2 turns of rollout a"),
        ([[0.0, (1.0, 2.0, 3.0)], [0.0]], "3 for the 2 tokens of turn 1 of a"),
        ([[0.0, math.nan], [0.0]], "nan for turn 1 of rollout a"),
        ([[0.0, 0.0], ["1"]], "'1' for turn 0 of rollout b"),
        ([[0.0, 0.0], [(1.0, math.inf)]], "inf"),
    ],
)
def test_a_scheme_that_answers_amiss_is_an_error_that_names_it(answer: Any, said: str) -> None:
    with pytest.raises(TransitionError) as raised:
        assign_credit(group([1.0, 0.0], [0.0]), CreditRules(scheme=answers(answer)))
    assert str(raised.value).startswith("mine returned")
    assert said in str(raised.value)


def test_a_scheme_that_nobody_knows_is_an_error_that_says_which_there_are() -> None:
    with pytest.raises(TransitionError, match=r"no credit scheme 'lats' .*return_to_go, step, gigpo, flow_grpo"):
        assign_credit(group([1.0], [0.0]), CreditRules(scheme="lats"))
