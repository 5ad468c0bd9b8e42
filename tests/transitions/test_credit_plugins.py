"""Credit schemes of plugins."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

from lgov_core.errors import TransitionError
from lgov_core.hookspecs import hookimpl
from lgov_core.plugins import make_plugin_manager
from lgov_core.transitions import CreditRules, Transition, TransitionSet, assign_credit

#: No bound on AIR, for round numbers.
from tests.transitions.credit_parts import credit, group, turn


class Last:
    """Credits the last turn of a rollout with its return, in a scheme called ``last``."""

    @hookimpl
    def lgov_assign_credit(self, scheme: str, rollouts: Sequence[Sequence[Transition]]) -> Any:
        if scheme != "last":
            return None
        return [[0.0] * (len(rollout) - 1) + [sum(one.reward for one in rollout)] for rollout in rollouts]


class Answers:
    """Answers whatever it was made with."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    @hookimpl
    def lgov_assign_credit(self, scheme: str, rollouts: Any, rules: CreditRules) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def asked(*plugins: Any) -> Any:
    manager = make_plugin_manager(builtin=(), third_party=False)
    for plugin in plugins:
        manager.register(plugin, name=type(plugin).__name__)
    return manager


def test_a_plugin_answers_for_its_own_scheme_and_masks_and_weights_are_kept() -> None:
    data = TransitionSet((turn("a", 0, 1.0), turn("a", 1, 2.0, mask=(1, 0)), turn("b", 0, 5.0)))
    credited = assign_credit(data, CreditRules(scheme="last", loss="rollouts"), manager=asked(Last()))
    assert [one.advantages for one in credited.transitions] == [(0.0, 0.0), (3.0, 0.0), (5.0, 5.0)]
    assert [one.loss_weight for one in credited.transitions] == [0.5] * 3
    assert [one.value_to_go for one in credited.transitions] == [3.0, 2.0, 5.0]


def test_a_plugin_may_credit_each_token_and_the_first_answer_counts() -> None:
    data = group([1.0], [2.0])
    tokens = Answers([[(0.25, -0.5)], [2.0]])
    rules = CreditRules(scheme="mine")
    # pluggy asks the plugin that was registered last first; one that answers None is passed over.
    credited = assign_credit(data, rules, manager=asked(Last(), tokens))
    assert [one.advantages for one in credited.transitions] == [(0.25, -0.5), (2.0, 2.0)]
    assert [one.credit for one in credited.transitions] == [-0.125, 2.0]
    assert assign_credit(data, rules, manager=asked(tokens, Last())).transitions == credited.transitions


def test_a_built_in_scheme_is_never_asked_of_a_plugin() -> None:
    broken = asked(Answers(RuntimeError("asked")))
    assert credit(group([1.0], [0.0]), CreditRules(), manager=broken) == [[0.5], [-0.5]]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (RuntimeError("no idea"), "raised RuntimeError: no idea"),
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
def test_a_plugin_that_fails_or_answers_amiss_is_an_error_that_names_it(answer: Any, said: str) -> None:
    with pytest.raises(TransitionError) as raised:
        assign_credit(group([1.0, 0.0], [0.0]), CreditRules(scheme="mine"), manager=asked(Answers(answer)))
    assert "plugin Answers" in str(raised.value)
    assert said in str(raised.value)


def test_a_scheme_that_nobody_knows_is_an_error_that_says_which_there_are() -> None:
    for manager in (None, asked(Last())):
        with pytest.raises(TransitionError, match=r"no credit scheme 'lats' .*return_to_go, step, gigpo, flow_grpo"):
            assign_credit(group([1.0], [0.0]), CreditRules(scheme="lats"), manager=manager)
