"""Calls and rewards become transitions; credit is worked out by hand here."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lgov_core.transitions import CreditRules, DataFinding, Selection, TransitionSet, assign_credit, write_parquet
from lgov_core.types import Attempt, CapturedCall, Outcome, Reward, Rollout
from tests.transitions.assembled import assemble


def rollout(name: str, task: str = "t") -> Rollout:
    return Rollout(name, task, "run", {}, 0.0)


def attempt(name: str, number: int = 1, outcome: Outcome | None = Outcome.FAILED) -> Attempt:
    return Attempt(name, number, 0.0, None if outcome is None else 1.0, outcome)


def captured(
    name: str,
    turn: int,
    *,
    number: int = 1,
    prompt: Sequence[int] | None = (1, 2),
    reply: Sequence[int] | None = (3, 4),
    logprobs: Sequence[float] | None = (-0.5, -0.25),
    finish: str = "stop",
    version: int = 0,
) -> CapturedCall:
    return CapturedCall(
        response_id=f"{name}-{number}-{turn}",
        model="m",
        request={},
        response={},
        prompt_ids=tuple(prompt) if prompt is not None else None,
        response_ids=tuple(reply) if reply is not None else None,
        logprobs=tuple(logprobs) if logprobs is not None else None,
        finish_reason=finish,
        weights_version=version,
        temperature=1.0,
        top_p=1.0,
        started_at=0.0,
        ended_at=0.0,
        rollout_id=name,
        attempt=number,
        tool_call_ids=(f"tool-{name}-{number}-{turn}",),
    )


def task_reward(name: str, value: float, number: int = 1) -> Reward:
    return Reward(value, "task", name, number)


def tool_reward(name: str, turn: int, value: float, dimension: str = "air", number: int = 1) -> Reward:
    return Reward(value, dimension, name, number, tool_call_id=f"tool-{name}-{number}-{turn}")


def two_turn_rollout(
    name: str, *, air: float, task: float
) -> tuple[Rollout, Attempt, list[CapturedCall], list[Reward]]:
    calls = [captured(name, 0), captured(name, 1)]
    return rollout(name), attempt(name), calls, [tool_reward(name, 0, air), task_reward(name, task)]


def build(*parts: tuple[Rollout, Attempt, list[CapturedCall], list[Reward]]) -> TransitionSet:
    return assemble(
        [p[0] for p in parts],
        [p[1] for p in parts],
        [call for p in parts for call in p[2]],
        [reward for p in parts for reward in p[3]],
    )


def test_rewards_land_on_the_call_that_their_target_names() -> None:
    data = build(two_turn_rollout("a", air=0.05, task=1.0))
    assert [dict(t.rewards) for t in data.transitions] == [{"air": 0.05}, {"task": 1.0}]
    assert [t.turn for t in data.transitions] == [0, 1]
    assert data.diagnostics == ()


@given(st.randoms(use_true_random=False))
def test_the_order_in_which_rewards_arrive_changes_nothing(chance: random.Random) -> None:
    rewards = [tool_reward("a", 0, 0.1), tool_reward("a", 0, 0.2), tool_reward("a", 1, 0.3), task_reward("a", 0.7)]
    calls = [captured("a", 0), captured("a", 1)]
    expected = assemble([rollout("a")], [attempt("a")], calls, rewards).transitions
    chance.shuffle(rewards)
    assert assemble([rollout("a")], [attempt("a")], calls, rewards).transitions == expected


@pytest.mark.parametrize("outcome", [Outcome.INFRASTRUCTURE, Outcome.TIMEOUT])
def test_an_attempt_that_the_machines_ended_is_never_a_reward_of_zero(outcome: Outcome) -> None:
    data = assemble([rollout("a")], [attempt("a", outcome=outcome)], [captured("a", 0)], [])
    assert data.transitions == ()
    assert data.counts() == {DataFinding.EXCLUDED_OUTCOME: 1}


def test_only_the_last_attempt_counts() -> None:
    data = assemble(
        [rollout("a")],
        [attempt("a", 1, Outcome.INFRASTRUCTURE), attempt("a", 2, Outcome.SUCCEEDED)],
        [captured("a", 0, number=1), captured("a", 0, number=2)],
        [task_reward("a", 1.0, number=2)],
    )
    assert [(t.attempt, t.response_id, dict(t.rewards)) for t in data.transitions] == [(2, "a-2-0", {"task": 1.0})]


@pytest.mark.parametrize(
    ("call", "finding"),
    [
        (captured("a", 0, prompt=None), DataFinding.NO_TOKEN_IDS),
        (captured("a", 0, reply=None), DataFinding.NO_TOKEN_IDS),
        (captured("a", 0, logprobs=None), DataFinding.NO_LOGPROBS),
        (captured("a", 0, logprobs=(-0.1,)), DataFinding.LENGTHS_DIFFER),
        (captured("a", 0, logprobs=(-0.1, float("nan"))), DataFinding.LENGTHS_DIFFER),
        (captured("a", 0, finish="cancelled"), DataFinding.CANCELLED_REPLY),
    ],
)
def test_a_call_that_cannot_be_trained_on_is_a_finding(call: CapturedCall, finding: DataFinding) -> None:
    data = assemble([rollout("a")], [attempt("a")], [call, captured("a", 1)], [task_reward("a", 1.0)])
    assert [t.response_id for t in data.transitions] == ["a-1-1"]
    assert data.counts()[finding] == 1


@pytest.mark.parametrize(
    ("logprobs", "said"),
    [((-0.1,), "2 tokens, 1 log-probabilities"), ((-0.1, float("-inf")), "a log-probability is not finite")],
)
def test_it_says_why_log_probabilities_cannot_be_used(logprobs: tuple[float, ...], said: str) -> None:
    call = captured("a", 0, logprobs=logprobs)
    data = assemble([rollout("a")], [attempt("a")], [call, captured("a", 1)], [task_reward("a", 1.0)])
    assert [one.detail for one in data.diagnostics if one.finding is DataFinding.LENGTHS_DIFFER] == [said]


def test_unknown_targets_missing_rewards_truncation_and_mixed_weights_are_findings() -> None:
    data = assemble(
        [rollout("a")],
        [attempt("a")],
        [captured("a", 0, finish="length"), captured("a", 1, version=1)],
        [tool_reward("a", 9, 0.5)],
    )
    assert data.counts() == {
        DataFinding.UNKNOWN_REWARD_TARGET: 1,
        DataFinding.NO_FINAL_REWARD: 1,
        DataFinding.TRUNCATED_REPLY: 1,
        DataFinding.MIXED_WEIGHTS: 1,
    }
    assert [t.truncated for t in data.transitions] == [True, False]


def test_each_model_has_versions_of_its_own() -> None:
    calls = [captured("a", 0), replace(captured("a", 1, version=7), model="other"), captured("a", 2)]
    assert DataFinding.MIXED_WEIGHTS not in assemble([rollout("a")], [attempt("a")], calls, []).counts()


def test_what_a_call_earned_that_cannot_be_trained_on_is_told_and_what_was_not_selected_is_not() -> None:
    calls = [captured("a", 0), replace(captured("a", 1), prompt_ids=None), replace(captured("a", 2), model="other")]
    rewards = [tool_reward("a", turn, 0.5) for turn in range(3)]
    data = assemble([rollout("a")], [attempt("a")], calls, rewards, selection=Selection(models=("m",)))
    assert data.unassigned == (rewards[1],)
    assert data.counts()[DataFinding.UNASSIGNED_REWARD] == 1


def test_open_attempts_and_rollouts_without_calls_are_findings() -> None:
    data = assemble([rollout("a"), rollout("b")], [attempt("a", outcome=None), attempt("b")], [], [])
    assert data.counts() == {DataFinding.OPEN_ATTEMPT: 1, DataFinding.NO_CALLS: 1}


def test_return_to_go_minus_the_mean_of_the_rollouts_that_reached_the_turn() -> None:
    # a: turn 0 earns 0.05, turn 1 earns 1 -> returns 1.05, 1.    b: -0.05, 0 -> returns -0.05, 0.
    # c: one turn that earns 0.5 -> return 0.5.  Means: turn 0 (1.05 - 0.05 + 0.5) / 3 = 0.5; turn 1 (1 + 0) / 2 = 0.5.
    single = (rollout("c"), attempt("c"), [captured("c", 0)], [task_reward("c", 0.5)])
    data = build(two_turn_rollout("a", air=0.05, task=1.0), two_turn_rollout("b", air=-0.05, task=0.0), single)
    credited = assign_credit(data)
    assert [t.value_to_go for t in credited.transitions] == pytest.approx([1.05, 1.0, -0.05, 0.0, 0.5])
    assert [t.advantages[0] for t in credited.transitions if t.advantages] == pytest.approx(
        [0.55, 0.5, -0.55, -0.5, 0.0]
    )


def test_discount_identical_credit_and_rollout_baseline() -> None:
    data = build(two_turn_rollout("a", air=0.1, task=1.0), two_turn_rollout("b", air=0.0, task=0.0))
    discounted = assign_credit(data, CreditRules(discount=0.5))
    assert [t.value_to_go for t in discounted.transitions][:2] == pytest.approx([0.1 + 0.5, 1.0])
    identical = assign_credit(data, CreditRules(scheme="identical"))
    assert [t.advantages[0] for t in identical.transitions if t.advantages] == pytest.approx([0.55, 0.55, -0.55, -0.55])
    baseline = assign_credit(data, CreditRules(baseline="rollout"))
    assert [t.advantages[0] for t in baseline.transitions if t.advantages] == pytest.approx([0.55, 0.45, -0.55, -0.55])


def test_the_mean_counts_rollouts_not_rows() -> None:
    # a has four rows and return 1, b one row and return 0: the mean is 0.5, not 0.8.
    long = (rollout("a"), attempt("a"), [captured("a", n) for n in range(4)], [task_reward("a", 1.0)])
    short = (rollout("b"), attempt("b"), [captured("b", 0)], [task_reward("b", 0.0)])
    credited = assign_credit(build(long, short), CreditRules(baseline="rollout"))
    assert {t.advantages[0] for t in credited.transitions if t.advantages} == {0.5, -0.5}


def test_air_cannot_outweigh_the_task_however_often_it_is_earned() -> None:
    calls = [captured("a", n) for n in range(40)]
    farming = (
        rollout("a"),
        attempt("a"),
        calls,
        [tool_reward("a", n, 0.05) for n in range(40)] + [task_reward("a", 0)],
    )
    solving = (rollout("b"), attempt("b"), [captured("b", 0)], [task_reward("b", 1.0)])
    credited = assign_credit(build(farming, solving))
    first = {t.rollout_id: t.value_to_go for t in credited.transitions if t.turn == 0}
    assert first["a"] == pytest.approx(0.1)
    assert first["b"] == 1.0
    unbounded = assign_credit(build(farming, solving), CreditRules(air_cap=None))
    assert unbounded.transitions[0].value_to_go == pytest.approx(2.0)


def test_compliance_is_not_scaled_by_the_air_bound() -> None:
    part = (
        rollout("a"),
        attempt("a"),
        [captured("a", 0)],
        [tool_reward("a", 0, -0.5, "compliance"), tool_reward("a", 0, 0.4), task_reward("a", 0.0)],
    )
    assert assign_credit(build(part)).transitions[0].value_to_go == pytest.approx(-0.5 + 0.1)


def test_a_tiny_deviation_is_not_blown_up() -> None:
    data = build(two_turn_rollout("a", air=0.02, task=0.0), two_turn_rollout("b", air=0.0, task=0.0))
    plain, floored, divided = (
        assign_credit(data, CreditRules(air_cap=None, std_floor=floor)).transitions[0].advantages
        for floor in (None, 0.1, 1e-4)
    )
    assert plain is not None
    assert floored is not None
    assert divided is not None
    assert plain[0] == pytest.approx(0.01)
    assert floored[0] == pytest.approx(0.1)
    # By the deviation over both turns: the second turns are alike.
    assert divided[0] == pytest.approx(2 / math.sqrt(3))


def test_a_group_of_one_has_nothing_to_be_compared_with() -> None:
    credited = assign_credit(build(two_turn_rollout("a", air=0.05, task=1.0)))
    assert all(not any(t.advantages or ()) for t in credited.transitions)
    assert credited.counts() == {DataFinding.SMALL_GROUP: 1}


def test_loss_weights_do_not_change_when_a_rollout_is_split_into_more_rows() -> None:
    one = (
        rollout("a"),
        attempt("a"),
        [captured("a", 0, reply=(3, 4, 5, 6), logprobs=(-1,) * 4)],
        [task_reward("a", 1)],
    )
    split = (rollout("a"), attempt("a"), [captured("a", 0), captured("a", 1)], [task_reward("a", 1)])
    other = two_turn_rollout("b", air=0.0, task=0.0)
    weights = [{t.loss_weight for t in assign_credit(build(part, other)).transitions} for part in (one, split)]
    assert weights[0] == weights[1]


def test_parquet_holds_what_the_transitions_hold(tmp_path: object) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason='Parquet needs the extra "train"')
    parquet = pytest.importorskip("pyarrow.parquet")
    data = assign_credit(build(two_turn_rollout("a", air=0.05, task=1.0), two_turn_rollout("b", air=0, task=0)))
    table = parquet.read_table(write_parquet(data.transitions, f"{tmp_path}/x/t.parquet"))
    rows = table.to_pylist()
    assert [row["prompt_ids"] for row in rows] == [[1, 2]] * 4
    assert rows[0]["logprobs"] == [-0.5, -0.25]
    assert rows[0]["rewards"] == [{"dimension": "air", "value": 0.05}]
    assert rows[0]["return"] == pytest.approx(1.05)
    assert set(table.column_names) == set(data.transitions[0].as_row())
    assert not any(pyarrow.types.is_map(kind) for kind in table.schema.types), "datasets.load_dataset reads no maps"


def test_what_air_takes_back_at_the_end_is_no_final_reward() -> None:
    taken = Reward(-0.1, "air", "a", 1, source="air:end")
    data = build((rollout("a"), attempt("a"), [captured("a", 0)], [tool_reward("a", 0, 0.1), taken]))
    assert data.counts() == {DataFinding.NO_FINAL_REWARD: 1}
    assert data.transitions[0].rewards == {"air": 0.0}


@pytest.mark.parametrize("value", [1.7e308, -1e200, math.inf, math.nan])
def test_a_reward_that_cannot_be_compared_is_a_finding(value: float) -> None:
    rewards = [Reward(value, "task", "r", 1, reward_id="odd"), Reward(1e100, "task", "r", 1, reward_id="large")]
    data = build((rollout("r"), attempt("r"), [captured("r", 0)], rewards))
    assert data.counts() == {DataFinding.INVALID_REWARD: 1}
    assert data.transitions[0].rewards == {"task": 1e100}
