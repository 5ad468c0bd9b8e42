"""Credit and export of rollouts with several choices of one reply. Numbers are worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from lgov_core.errors import TransitionError
from lgov_core.transitions import (
    CreditRules,
    Transition,
    assign_credit,
    make_chains,
    read_parquet,
    rollout_returns,
    write_parquet,
)
from lgov_core.transitions.advantages import penalise_length
from lgov_core.transitions.messages import preference_pairs, sft_records, totals_of
from lgov_core.transitions.rows import trl_rollouts
from lgov_core.transitions.transition_set import line_of
from tests.transitions.alternatives_parts import (
    ASK,
    NEXT,
    NO_CAP,
    THREE,
    call,
    credits,
    final,
    made,
    on,
    said,
    two_rollouts,
)


def test_a_choice_shares_its_reward_with_no_alternative() -> None:
    data = two_rollouts(
        [on("a", 0, 0.25), on("a", 1, 0.5), on("b", 0, 0.125), final(1.0)], [on("sa", 1, 0.25, "s"), final(0.0, "s")]
    )
    returns = [one.value_to_go for one in assign_credit(data, NO_CAP).transitions]
    assert returns == [0.25, 1.625, 0.0, 1.125, 0.0, 0.25, 0.0, 0.0]
    assert rollout_returns(data.transitions) == {("r", 1): 1.625, ("s", 1): 0.25}
    # Turn 0: mean (1.625 + 0.25) / 2. Turn 1: mean 1.125 / 2. Choices 0 and 1 of a: mean 0.375.
    assert credits(data) == {
        ("r", "a", 0): -0.125,
        ("r", "a", 1): 0.6875,
        ("r", "a", 2): 0.0,
        ("r", "b", 0): 0.5625,
        ("s", "sa", 0): 0.0,
        ("s", "sa", 1): -0.6875,
        ("s", "sa", 2): 0.0,
        ("s", "sb", 0): -0.5625,
    }


def test_a_call_of_several_choices_is_one_turn_to_the_discount() -> None:
    data = two_rollouts([final(1.0)], [final(0.0, "s")])
    found = assign_credit(data, CreditRules(discount=0.5)).transitions
    assert [one.value_to_go for one in found if one.rollout_id == "r"] == [0.0, 0.5, 0.0, 1.0]


def lengths(rollouts: Sequence[Sequence[Transition]], rules: CreditRules) -> list[list[float]]:
    return [[float(len(rollout))] * len(rollout) for rollout in rollouts]


RULES = {
    "return_to_go": CreditRules(),
    "identical": CreditRules(scheme="identical", discount=0.9),
    "step": CreditRules(scheme="step"),
    "gigpo": CreditRules(scheme="gigpo", std_floor=0.1),
    "flow_grpo": CreditRules(scheme="flow_grpo"),
    "left-out": CreditRules(leave_one_out=True, caps={"task": 0.5}),
    "batch": CreditRules(normalise_batch=True),
    "gae": CreditRules(scheme="gae"),
    "own": CreditRules(scheme=lengths),
}


@pytest.mark.parametrize("rules", RULES.values(), ids=list(RULES))
def test_the_line_is_credited_as_if_there_were_no_alternatives(rules: CreditRules) -> None:
    data = two_rollouts(
        [on("a", 0, 0.25), on("a", 1, 0.5), on("a", 2, 8.0), final(1.0)], [on("sa", 1, 0.25, "s"), final(0.0, "s")]
    )
    data = replace(data, transitions=tuple(replace(one, value=0.5) for one in data.transitions))
    alone = replace(data, transitions=tuple(line_of(data.transitions)))
    both = assign_credit(data, rules).transitions
    expected = assign_credit(alone, rules).transitions
    line = line_of(both)
    assert [(one.credit, one.value_to_go) for one in line] == [(one.credit, one.value_to_go) for one in expected]
    aside = [one.credit for one in both if one.set_aside]
    assert aside[2:] == [0.0, 0.0]  # of s nobody named them
    assert aside[0] is not None
    assert aside[1] is not None
    assert aside[1] > 0 > aside[0]


def test_of_what_was_set_aside_the_critic_learns_nothing_and_the_batch_takes_no_mean() -> None:
    data = two_rollouts([on("a", 0, 0.25), on("a", 1, 0.5), on("a", 2, 8.0), final(1.0)], [final(0.0, "s")])
    data = replace(data, transitions=tuple(replace(turn, value=0.5) for turn in data.transitions))
    plain = assign_credit(data, CreditRules(scheme="gae")).transitions
    assert {turn.value_to_go for turn in plain if turn.set_aside} == {0.5}
    normal = assign_credit(data, CreditRules(scheme="gae", normalise_batch=True)).transitions
    ratios = [
        after.credit / before.credit
        for before, after in zip(plain, normal, strict=True)
        if before.set_aside and before.credit and after.credit is not None
    ]
    assert len(ratios) == 2
    assert ratios[0] == pytest.approx(ratios[1])


def test_a_critic_that_missed_a_turn_counts_for_none() -> None:
    data = two_rollouts([on("a", 1, 0.5), final(1.0)], [final(0.0, "s")])
    first = line_of(data.transitions)[0]
    turns = tuple(replace(turn, value=None if turn == first else 0.5) for turn in data.transitions)
    with pytest.raises(TransitionError, match="scheme gae has no values"):
        assign_credit(replace(data, transitions=turns), CreditRules(scheme="gae"))


def test_where_credit_is_in_deviations_that_of_choices_is_too() -> None:
    data = two_rollouts([on("a", 0, 0.5), on("a", 1, 0.0), final(1.0)], [final(0.0, "s")])
    # 0.5 and 0 are one deviation from their mean, and so are the rollouts' 1 and 0.
    found = credits(data, CreditRules(scheme="flow_grpo"))
    assert (found["r", "a", 0], found["r", "a", 1], found["s", "sa", 1]) == (1.0, 1.0, -1.0)


def test_choices_are_compared_without_the_final_reward() -> None:
    # Both are worth the same: the final reward, which the first has, says nothing of the second.
    calls = [call("a", 0), call("a", 1), call("b", 0, reply=(7,), rollout="s")]
    data = made(calls, [on("a", 0, 0.1), on("a", 1, 0.1), final(1.0), final(0.0, "s")])
    assert data.transitions[0].rewards == {"task": 1.1}
    assert credits(data)["r", "a", 1] == 0.0
    pairs = preference_pairs(assign_credit(data, NO_CAP), calls).records
    assert [(one["chosen_response_id"], one["rejected_response_id"]) for one in pairs] == [("a", "b")]


def test_a_group_of_one_rollout_is_not_compared() -> None:
    assert set(credits(made(THREE, [on("a", 0, 1.0), on("a", 1, 0.0)])).values()) == {0.0}


def test_a_penalty_on_length_is_of_each_choice_itself() -> None:
    data = made([call("a", 0, reply=(5,) * 4), call("a", 1)], [on("a", 0, 0.5), final(1.0)])
    first = penalise_length(data, limit=4, margin=2).transitions[0]
    assert first.own_rewards == {"task": 0.5, "length": -1.0}
    assert first.rewards == {"task": 1.5, "length": -1.0}


# ---------------------------------------------------------------------- export


def test_alternatives_do_not_break_the_chain() -> None:
    before = call("z", prompt=(1,), reply=(2,), at=-1.0)
    several = [call("a", choice, prompt=(1, 2, 3)) for choice in range(3)]
    chains = make_chains(made([before, *several, call("b", prompt=(1, 2, 3, 11, 5), at=1.0)]).transitions)
    assert [[(link.transition.response_id, link.transition.choice) for link in chain.links] for chain in chains] == [
        [("z", 0), ("a", 1), ("b", 0)],
        [("a", 0)],
        [("a", 2)],
    ]


def test_choices_of_one_call_that_earned_differently_are_a_pair() -> None:
    calls = [*THREE, NEXT]
    data = assign_credit(made(calls, [on("a", 0, 0.75), on("a", 1, 0.25), final(1.0)]))
    found = preference_pairs(data, calls)
    (pair,) = found.records
    # By what each earned itself: that choice 1 went on to earn 1 says nothing of choice 0; of choice 2 nobody said anything.
    assert (pair["chosen"], pair["rejected"]) == ([said("a/0")], [said("a/1")])
    assert (pair["chosen_return"], pair["rejected_return"]) == (0.75, 0.25)
    assert found.left_out == {"prompt_seen_once": 2}


def test_what_was_set_aside_is_not_worth_imitating() -> None:
    calls = [*THREE, replace(NEXT, request={"messages": [*ASK, said("a/1"), *ASK]})]
    data = made(calls, [on("a", 0, 5.0), final(1.0)])
    found = sft_records(data, calls)
    (record,) = found.records
    assert [one.get("content") for one in record["messages"]] == ["Who?", "a/1", "Who?", "b/0"]
    assert (record["rewards"], record["response_ids"]) == ({"task": 1.0}, ["a", "b"])
    assert found.left_out == {"set_aside": 2}
    assert totals_of(data.transitions) == {"task": 1.0}


def test_a_rollout_with_alternatives_has_a_place_in_trl() -> None:
    found = trl_rollouts(made([*THREE, NEXT], [on("a", 0, 5.0), final(1.0)]))
    assert not found.left_out
    assert found.columns["completion_ids"] == [[11, 5, 10]]
    assert found.columns["reward_task"] == [1.0]


def test_a_row_says_what_was_set_aside(tmp_path: Path) -> None:
    transitions = assign_credit(made([*THREE, NEXT])).transitions
    assert [one.as_row()["set_aside"] for one in transitions] == [True, False, True, False]
    pytest.importorskip("pyarrow")
    read = read_parquet(write_parquet(transitions, tmp_path / "t.parquet"))
    assert [one.set_aside for one in read] == [True, False, True, False]
