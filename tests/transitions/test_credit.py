"""Credit schemes, channels, masks and weights."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lgov_core.errors import TransitionError
from lgov_core.train.algorithms.algorithms import ALGORITHMS
from lgov_core.transitions import CreditRules, DataFinding, TransitionSet, assign_credit, rollout_returns

#: No bound on AIR, for round numbers.
from tests.transitions.credit_parts import OPEN, credit, group, turn


def test_identical_gives_every_turn_the_return() -> None:
    # Returns 3, 0, 0: mean 1.
    data = group([1.0, 2.0], [0.0], [0.0, 0.0, 0.0])
    assert credit(data, replace(OPEN, scheme="identical")) == [[2, 2], [-1], [-1, -1, -1]]
    # Left out: 3 - 0, 0 - 1.5, 0 - 1.5.
    assert credit(data, replace(OPEN, scheme="identical", leave_one_out=True)) == [[3, 3], [-1.5], [-1.5] * 3]
    assert credit(data, replace(OPEN, scheme="identical", baseline="none")) == [[3, 3], [0], [0, 0, 0]]


def test_leaving_one_out_compares_a_turn_with_the_others_that_reached_it() -> None:
    # To go: a 3, 2; b 1, 1; c 4. Turn 0: 3 - 2.5, 1 - 3.5, 4 - 2. Turn 1: 2 - 1, 1 - 2.
    data = group([1.0, 2.0], [0.0, 1.0], [4.0])
    rules = replace(OPEN, leave_one_out=True)
    assert credit(data, rules) == [[0.5, 1.0], [-2.5, -1.0], [2.0]]
    # Turn 2 of a alone: less the mean return of the others, (1 + 4) / 2.
    longer = group([1.0, 2.0, 6.0], [0.0, 1.0], [4.0])
    assert credit(longer, rules)[0][2] == 6.0 - 2.5
    # With all in the mean, a turn that nobody else reached earns nothing.
    assert credit(longer, OPEN)[0][2] == 0.0


def test_step_credits_what_the_turn_itself_earned() -> None:
    # Turn 0: 1, 0 -> mean 0.5; turn 1: 2 alone.
    data = group([1.0, 2.0], [0.0])
    assert credit(data, replace(OPEN, scheme="step")) == [[0.5, 0.0], [-0.5]]
    # Mean reward a turn: 1.5 and 0 -> 0.75.
    assert credit(data, replace(OPEN, scheme="step", baseline="rollout")) == [[0.25, 1.25], [-0.75]]
    assert credit(data, replace(OPEN, scheme="step", baseline="none")) == [[1.0, 2.0], [0.0]]


def states(*rollouts: Sequence[tuple[int, float]], agent: str | None = None) -> TransitionSet:
    """Rollouts of (state, reward)."""
    return TransitionSet(
        tuple(
            turn("abcdef"[n], at, earned, prompt=(state,), agent=agent)
            for n, rollout in enumerate(rollouts)
            for at, (state, earned) in enumerate(rollout)
        )
    )


def test_gigpo_adds_groups_of_equal_states() -> None:
    # a: states 1, 2 and return 1 at the end; b: states 1, 3, return 0. Episodes: mean 0.5 -> +0.5, -0.5.
    # State 1: to go 1 (a) and 0 (b), mean 0.5 -> +0.5, -0.5. States 2 and 3 have one visit each: nothing.
    data = states([(1, 0.0), (2, 1.0)], [(1, 0.0), (3, 0.0)])
    rules = replace(OPEN, scheme="gigpo")
    assert credit(data, rules) == [[1.0, 0.5], [-1.0, -0.5]]
    assert credit(data, replace(rules, step_weight=0.5)) == [[0.75, 0.5], [-0.75, -0.5]]
    # Discount counts in the states' returns and not in the episodes': to go 0.5 and 0, mean 0.25.
    assert credit(data, replace(rules, discount=0.5)) == [[0.75, 0.5], [-0.75, -0.5]]
    # Left out: episodes 1 - 0, 0 - 1; state 1 the same.
    assert credit(data, replace(rules, leave_one_out=True)) == [[2.0, 1.0], [-2.0, -1.0]]


def test_gigpo_counts_every_visit_of_a_state_unless_its_own_are_left_out() -> None:
    # a is in state 1 twice (to go 1 and 1), b once (0): mean 2/3.
    data = states([(1, 0.0), (1, 1.0)], [(1, 0.0)])
    rules = replace(OPEN, scheme="gigpo")
    assert credit(data, rules)[0] == pytest.approx([0.5 + 1 / 3, 0.5 + 1 / 3])
    assert credit(data, rules)[1] == pytest.approx([-0.5 - 2 / 3])
    assert credit(data, replace(rules, leave_one_out=True)) == [[2.0, 2.0], [-2.0]]
    # Twice in a state in which nobody else was: its own visits are no comparison.
    alone = states([(5, 0.0), (5, 1.0)], [(1, 0.0)])
    assert credit(alone, replace(rules, leave_one_out=True)) == [[1.0, 1.0], [-1.0]]


def test_gigpo_knows_a_state_by_agent_and_exact_tokens_or_by_what_is_new_in_the_prompt() -> None:
    first = [turn("a", 0, 1.0, prompt=(1, 2), agent="x"), turn("b", 0, 0.0, prompt=(1, 2), agent="y")]
    rules = replace(OPEN, scheme="gigpo")
    assert credit(TransitionSet(tuple(first)), rules) == [[0.5], [-0.5]]
    # Replies are (0, 1). Both second prompts go on from the first with the observation 7; what came before differs.
    chats = [
        turn("a", 0, 0.0, prompt=(3,)),
        turn("a", 1, 1.0, prompt=(3, 0, 1, 7)),
        turn("b", 0, 0.0, prompt=(4,)),
        turn("b", 1, 0.0, prompt=(4, 0, 1, 7)),
    ]
    assert credit(TransitionSet(tuple(chats)), rules) == [[0.5, 0.5], [-0.5, -0.5]]
    seen = credit(TransitionSet(tuple(chats)), replace(rules, state="observation"))
    assert seen == [[0.5, 1.0], [-0.5, -1.0]]


def test_flow_grpo_is_the_outcome_in_deviations_and_weighs_rollouts_turns_and_tokens_in_turn() -> None:
    # Returns 1, 0, 0, 0: mean 1/4, deviation sqrt(3)/4 -> sqrt(3), -1/sqrt(3).
    data = TransitionSet(
        (
            turn("a", 0, 0.0, mask=(1, 1, 1)),
            turn("a", 1, 1.0, mask=(1, 0)),
            *(turn(name, 0, 0.0, mask=(1, 1)) for name in "bcd"),
        )
    )
    credited = assign_credit(data, replace(OPEN, scheme="flow_grpo")).transitions
    assert credited[0].advantages == pytest.approx((math.sqrt(3),) * 3)
    assert credited[1].advantages == pytest.approx((math.sqrt(3), 0.0))
    assert credited[2].advantages == pytest.approx((-1 / math.sqrt(3),) * 2)
    # 1 / (4 rollouts x 2 turns x 3 tokens), 1 / (4 x 2 x 1 token that counts), 1 / (4 x 1 x 2).
    assert [one.loss_weight for one in credited[:3]] == pytest.approx([1 / 24, 1 / 8, 1 / 8])
    assert [one.value_to_go for one in credited[:3]] == [1.0, 1.0, 0.0]
    # Its return is undiscounted, so a discount changes neither the credit nor the return that is shown.
    assert assign_credit(data, replace(OPEN, scheme="flow_grpo", discount=0.5)).transitions == credited


@given(st.lists(st.lists(st.integers(-8, 8), min_size=1, max_size=4), min_size=2, max_size=5))
def test_the_defaults_are_the_formula_written_out(rewards: list[list[int]]) -> None:
    found = credit(group(*rewards), CreditRules())
    to_go = [[sum(row[at:]) for at in range(len(row))] for row in rewards]
    for row, credits in zip(to_go, found, strict=True):
        for at, value in enumerate(row):
            mean = statistics.fmean(other[at] for other in to_go if len(other) > at)
            assert credits[at] == pytest.approx(value - mean, abs=1e-12)


def test_channels_are_normalised_apart_so_that_a_penalty_does_not_drown_the_task() -> None:
    # task 1, 0, 1, 0: deviation 0.5. compliance 0, 0, 0, -100: mean -25, deviation 25 sqrt(3).
    data = group([{"task": 1.0}], [{"task": 0.0}], [{"task": 1.0}], [{"task": 0.0, "compliance": -100.0}])
    rules = replace(OPEN, scheme="identical", std_floor=0.01)
    apart = [row[0] for row in credit(data, rules)]
    third = 1 / math.sqrt(3)
    assert apart == pytest.approx([1 + third, -1 + third, 1 + third, -1 - 3 * third])
    together = [row[0] for row in credit(data, replace(rules, apart=False))]
    assert together[0] - together[1] < 0.03 < 2 == pytest.approx(apart[0] - apart[1])


def test_weights_of_channels_multiply_their_credit() -> None:
    data = group([{"task": 1.0, "air": 0.2}], [{"task": 0.0, "air": 0.0}])
    for rules, air in ((OPEN, 0.1), (replace(OPEN, std_floor=0.05), 1.0)):
        task = 0.5 if rules.std_floor is None else 1.0
        weighted = credit(data, replace(rules, channel_weights={"air": 0.5, "unheard_of": 3.0}))
        assert weighted == [[pytest.approx(task + 0.5 * air)], [pytest.approx(-task - 0.5 * air)]]


@given(
    st.lists(
        st.lists(st.tuples(st.integers(-4, 4), st.integers(-4, 4)), min_size=1, max_size=3), min_size=2, max_size=4
    ),
    st.sampled_from(["identical", "return_to_go", "step", "gigpo"]),
)
def test_where_nothing_is_divided_the_credit_of_the_sum_is_the_sum_of_the_credits(
    rewards: list[list[tuple[int, int]]], scheme: str
) -> None:
    rules = replace(OPEN, scheme=scheme)
    both = credit(group(*[[{"task": a, "air": b} for a, b in row] for row in rewards]), rules)
    alone = [
        credit(group(*[[{name: pair[at]} for pair in row] for row in rewards]), rules)
        for at, name in enumerate(("task", "air"))
    ]
    for total, first, second in zip(both, *alone, strict=True):
        assert total == pytest.approx([a + b for a, b in zip(first, second, strict=True)], abs=1e-12)


def test_a_bound_scales_a_channel_of_one_rollout_and_no_other() -> None:
    # Absolute sum of air in a: 0.4 -> scaled by 0.25; in b 0.05, left alone.
    data = group([{"air": 0.3}, {"air": -0.1, "task": 1.0}], [{"air": 0.05}])
    assert list(rollout_returns(data.transitions).values()) == pytest.approx([0.25 * 0.2 + 1.0, 0.05])
    capped = CreditRules(air_cap=None, caps={"air": 0.2, "task": 0.5})
    assert list(rollout_returns(data.transitions, capped).values()) == pytest.approx([0.5 * 0.2 + 0.5, 0.05])


#: By rollout and turn: the task's reward and AIR, of which one rollout may earn far more than its bound.
earnings = st.lists(
    st.lists(st.tuples(st.sampled_from([0.0, 0.0, 0.5, 1.0]), st.floats(-5, 5)), min_size=1, max_size=3),
    min_size=2,
    max_size=5,
)


@settings(deadline=None)  # the first example imports
@given(earnings, st.sampled_from(sorted(ALGORITHMS)))
def test_air_moves_an_advantage_by_twice_its_bound_at_most_in_every_algorithm(
    earned: list[list[tuple[float, float]]], name: str
) -> None:
    rules = ALGORITHMS[name]().credit
    data, without = (
        group(*([{"task": task, "air": air * paid} for task, air in row] for row in earned)) for paid in (1.0, 0.0)
    )
    if rules.scheme == "gae":
        data, without = (
            replace(one, transitions=tuple(replace(turn, value=0.3) for turn in one.transitions))
            for one in (data, without)
        )
    assert rules.air_cap is not None
    for with_air, alone in zip(credit(data, rules), credit(without, rules), strict=True):
        assert all(abs(one - other) <= 2 * rules.air_cap + 1e-9 for one, other in zip(with_air, alone, strict=True))


@settings(deadline=None)
@given(st.lists(st.floats(-0.1, 0.1), min_size=2, max_size=5), st.sampled_from(sorted(ALGORITHMS)))
def test_rollouts_that_differ_in_air_alone_are_alike_unless_that_is_asked_for(air: list[float], name: str) -> None:
    rules = ALGORITHMS[name]().credit
    if not rules.compares_groups:
        return
    data = group(*([{"air": value}, {"task": 1.0}] for value in air))
    assert credit(data, rules) == [[0.0, 0.0]] * len(air)
    assert assign_credit(data, rules).counts() == {DataFinding.EQUAL_GROUP: 1}
    asked = credit(data, replace(rules, air_cap=None, caps={"air": 0.1}))
    if max(air) - min(air) > 0.01:
        assert any(map(any, asked))


def test_air_counts_alone_where_it_is_asked_for_or_nothing_else_is_earned() -> None:
    by_air = group([{"task": 1.0, "air": 0.05}], [{"task": 1.0, "air": -0.05}])
    assert credit(by_air, CreditRules()) == [[0.0], [0.0]]
    assert credit(by_air, OPEN) == [[pytest.approx(0.05)], [pytest.approx(-0.05)]]
    assert credit(by_air, CreditRules(air_cap=None, caps={"air": 0.02})) == [
        [pytest.approx(0.02)],
        [pytest.approx(-0.02)],
    ]
    assert credit(group([{"air": 0.05}], [{"air": -0.05}]), CreditRules()) == [[0.05], [-0.05]]
    # The batch has another reward, though not this group.
    beside = replace(turn("x", 0, {"task": 1.0}, task="other"), rollout_id="x")
    both = group([{"air": 0.05}], [{"air": -0.05}])
    assert credit(replace(both, transitions=(*both.transitions, beside)), CreditRules())[:2] == [[0.0], [0.0]]


def test_a_bounded_channel_is_added_in_deviations_of_the_rest() -> None:
    data = group([{"task": 0.0, "air": 0.1}], [{"task": 0.02}])
    assert credit(data, CreditRules(std_floor=1e-6)) == [[pytest.approx(-1 + 0.05)], [pytest.approx(1 - 0.05)]]
    batch = credit(data, CreditRules(normalise_batch=True, baseline="none", min_group=1))
    assert batch == [
        [pytest.approx(-math.sqrt(0.75) + 0.05, rel=1e-2)],
        [pytest.approx(math.sqrt(0.75) - 0.05, rel=1e-2)],
    ]
    # A critic says what the rest is worth: AIR is not in what it learns.
    valued = replace(data, transitions=tuple(replace(one, value=0.0) for one in data.transitions))
    taught = assign_credit(valued, ALGORITHMS["ppo"]().credit).transitions
    assert [one.value_to_go for one in taught] == [0.0, 0.02]


def test_tokens_that_the_model_did_not_choose_get_no_credit() -> None:
    data = TransitionSet((turn("a", 0, 1.0, mask=(1, 0, 1)), turn("b", 0, 0.0, mask=(0, 1))))
    credited = assign_credit(data).transitions
    assert [one.advantages for one in credited] == [(0.5, 0.0, 0.5), (0.0, -0.5)]
    assert [one.credit for one in credited] == [0.5, -0.5]


def splits() -> list[TransitionSet]:
    """The same six tokens of rollout a in one row, in two and in six; rollout b has three."""
    other = turn("b", 0, 0.0, mask=(1, 1, 1))
    return [
        TransitionSet((*(turn("a", at, 0.0, mask=(1,) * size) for at, size in enumerate(sizes)), other))
        for sizes in ((6,), (3, 3), (1,) * 6)
    ]


@pytest.mark.parametrize(
    ("loss", "a", "b"),
    [("tokens", 1 / 9, 1 / 9), ("rollouts", 1 / 2, 1 / 2), ("rollout_tokens", 1 / 12, 1 / 6), ("turns", 1 / 12, 1 / 6)],
)
def test_loss_weights_do_not_change_when_a_rollout_is_split_into_more_rows(loss: Any, a: float, b: float) -> None:
    for data in splits():
        weights = [(one.rollout_id, one.loss_weight) for one in assign_credit(data, CreditRules(loss=loss)).transitions]
        assert weights == [(name, pytest.approx({"a": a, "b": b}[name])) for name, _ in weights]


def test_the_weights_of_turns_sum_to_the_rollouts_share_however_uneven_the_turns_are() -> None:
    data = TransitionSet(
        (turn("a", 0, mask=(1,) * 5), turn("a", 1, mask=(1, 0)), turn("a", 2, mask=(0, 0)), turn("b", 0))
    )
    credited = assign_credit(data, CreditRules(loss="turns")).transitions
    shares = {
        name: sum(one.loss_weight * sum(one.response_mask) for one in credited if one.rollout_id == name)
        for name in "ab"
    }
    assert shares == {"a": pytest.approx(0.5), "b": pytest.approx(0.5)}
    assert credited[2].loss_weight == 0.0


@pytest.mark.parametrize("scheme", ["identical", "return_to_go", "step", "gigpo", "flow_grpo"])
@pytest.mark.parametrize("leave_one_out", [False, True])
@pytest.mark.parametrize("std_floor", [None, 1e-9])
def test_a_group_in_which_all_are_alike_learns_nothing_and_says_so(
    scheme: str, leave_one_out: bool, std_floor: float | None
) -> None:
    # Three times 0.1 divided by three is not 0.1 in floating point.
    data = group(*[[{"task": 0.1, "air": 0.3}]] * 3)
    rules = CreditRules(scheme=scheme, leave_one_out=leave_one_out, std_floor=std_floor)
    credited = assign_credit(data, rules)
    assert {one.advantages for one in credited.transitions} == {(0.0, 0.0)}
    assert credited.counts() == {DataFinding.EQUAL_GROUP: 1}


def test_sums_of_the_same_rewards_in_another_order_are_alike() -> None:
    data = group([{"task": 0.1, "style": 0.2}], [{"task": 0.3}])  # 0.1 + 0.2 is not 0.3 in floating point
    credited = assign_credit(data, CreditRules(std_floor=1e-6, deviation="sample", apart=False))
    assert {one.advantages for one in credited.transitions} == {(0.0, 0.0)}
    assert credited.counts() == {DataFinding.EQUAL_GROUP: 1}


@pytest.mark.parametrize("scheme", ["return_to_go", "step"])
def test_a_channel_that_sums_to_nothing_is_not_divided_by_nothing(scheme: str) -> None:
    """AIR is taken back when an attempt ends: whole returns are alike, and those from the second turn on are not."""
    data = group([{"air": 0.05}, {"air": -0.05, "task": 1.0}], [{}, {"task": 1.0}])
    found = credit(data, CreditRules(scheme=scheme, air_cap=None, std_floor=1e-6, deviation="sample", apart=False))
    assert all(abs(value) < 2 for row in found for value in row)
    assert found[0][1] == pytest.approx(-math.sqrt(2 / 3))


@pytest.mark.parametrize("scheme", ["return_to_go", "step"])
def test_an_outcome_alone_is_divided_by_the_deviation_of_returns(scheme: str) -> None:
    """As in GRPO, however many turns a rollout has."""
    data = group([{"task": 1.0}], [{}, {}, {"task": 0.0}], [{}, {"task": 0.0}])
    found = credit(data, CreditRules(scheme=scheme, std_floor=1e-6, deviation="sample", baseline="rollout"))
    plain = credit(data, CreditRules(scheme=scheme, baseline="rollout"))
    deviation = statistics.stdev([1.0, 0.0, 0.0])
    assert found == [[pytest.approx(value / deviation) for value in row] for row in plain]


@pytest.mark.parametrize("scheme", ["identical", "return_to_go", "step", "gigpo", "flow_grpo"])
def test_a_group_of_one_has_nothing_to_compare_and_says_so(scheme: str) -> None:
    rules = CreditRules(scheme=scheme)
    credited = assign_credit(group([1.0, 0.0]), rules)
    assert {one.advantages for one in credited.transitions} == {(0.0, 0.0)}
    assert credited.counts() == {DataFinding.SMALL_GROUP: 1}
    both = assign_credit(group([1.0], [0.0]), replace(rules, min_group=3))
    assert both.counts() == {DataFinding.SMALL_GROUP: 1}


def test_groups_do_not_mix() -> None:
    data = TransitionSet(
        (turn("a", 0, 1.0), turn("b", 0, 0.0), turn("c", 0, 9.0, task="u"), turn("d", 0, 5.0, task="u"))
    )
    assert credit(data, CreditRules()) == [[0.5], [-0.5], [2.0], [-2.0]]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_reward_that_is_not_finite_is_refused(value: float) -> None:
    with pytest.raises(TransitionError, match="rollout b"):
        assign_credit(group([0.0, 1.0], [0.0, value]))


@pytest.mark.parametrize("scheme", ["gigpo", "flow_grpo"])
def test_rewards_that_are_finite_and_their_differences_not_are_refused(scheme: str) -> None:
    with pytest.raises(TransitionError, match="task t are too large"):
        assign_credit(group([1.7e308], [-1.7e308]), CreditRules(scheme=scheme))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scheme": ""}, "name"),
        ({"discount": 1.5}, "discount is 1.5"),
        ({"discount": math.nan}, "discount is nan"),
        ({"baseline": "median"}, "baseline is 'median'"),
        ({"std_floor": 0.0}, "std_floor is 0"),
        ({"std_floor": -1.0}, "std_floor is -1"),
        ({"air_cap": -0.1}, "air_cap is -0.1"),
        ({"caps": {"task": math.inf}}, r"caps\[task\] is inf"),
        ({"caps": {"air": 0.2}}, "bounded twice"),
        ({"channel_weights": {"air": -1}}, r"channel_weights\[air\] is -1"),
        ({"min_group": 0}, "min_group is 0"),
        ({"state": "mood"}, "state is 'mood'"),
        ({"step_weight": True}, "step_weight is True"),
        ({"loss": "rows"}, "loss is 'rows'"),
    ],
)
def test_rules_without_meaning_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TransitionError, match=message):
        CreditRules(**changes)
