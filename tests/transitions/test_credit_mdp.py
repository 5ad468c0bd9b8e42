"""Which credit schemes give the true policy gradient: exactly, over every group of rollouts of a small problem."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from lgov_core.transitions import CreditRules
from tests.bench import credit_bias
from tests.bench.credit_bias import (
    BIASED,
    LOGITS,
    PLAIN,
    SHRUNK,
    UNBIASED,
    bias,
    exact_gradient,
    expected_estimate,
    expected_return,
    flat,
    paths,
    sampled_estimate,
)


def named(rules: CreditRules) -> str:
    found = bias(rules, 2)
    return f"{found.scheme}, {found.options}, {found.loss}"


def test_the_problem_is_whole_and_its_gradient_is_that_of_the_expected_return() -> None:
    assert sum(path.probability for path in paths()) == pytest.approx(1.0, abs=1e-15)
    assert {len(path.calls) for path in paths()} == {1, 2, 3}
    assert any(len({call.seen for call in path.calls}) < len(path.calls) for path in paths()), "one is seen twice"
    step, at = 1e-6, 0
    for row, logits in enumerate(LOGITS):
        for action in range(len(logits)):
            moved = []
            for sign in (step, -step):
                table = [list(values) for values in LOGITS]
                table[row][action] += sign
                moved.append(expected_return(table))
            assert (moved[0] - moved[1]) / (2 * step) == pytest.approx(exact_gradient()[at], abs=1e-9)
            at += 1
    assert max(map(abs, exact_gradient())) > 0.1


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("rules", UNBIASED, ids=named)
def test_a_scheme_that_claims_to_be_unbiased_gives_the_gradient_itself(rules: CreditRules, size: int) -> None:
    assert expected_estimate(rules, size) == pytest.approx(exact_gradient(), abs=1e-12)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("rules", SHRUNK, ids=named)
def test_a_mean_of_which_the_rollout_is_one_shrinks_the_gradient_by_its_share(rules: CreditRules, size: int) -> None:
    shrunk = [(size - 1) / size * value for value in exact_gradient()]
    assert expected_estimate(rules, size) == pytest.approx(shrunk, abs=1e-12)


@pytest.mark.parametrize("rules", BIASED, ids=named)
def test_the_others_point_elsewhere_and_the_measure_sees_it(rules: CreditRules) -> None:
    found = bias(rules, 2)
    assert found.off > 0.02
    assert found.scale > 0.1  # but not backwards


def test_without_a_discount_below_one_the_share_of_a_turn_is_what_biases_the_turn_baseline() -> None:
    # The default compares a turn with all rollouts that reached it; the more there are, the smaller the bias.
    off = [bias(replace(PLAIN, baseline="turn"), size).off for size in (2, 3, 4)]
    assert off[0] > off[1] > off[2] > 0.05


def test_sampled_groups_agree_within_their_error_bars_and_tell_a_biased_scheme() -> None:
    true = exact_gradient()

    def furthest(rules: CreditRules) -> float:
        means, errors = sampled_estimate(rules, 4, 1500, seed=7)
        return max(abs(mean - value) / error for mean, value, error in zip(means, true, errors, strict=True) if error)

    for rules in UNBIASED[:3]:
        assert furthest(rules) <= 4.0, rules
    for rules in (replace(PLAIN, scheme="step"), replace(PLAIN, scheme="flow_grpo", loss=None), BIASED[0]):
        assert furthest(rules) > 8.0, rules


def test_the_table_is_printed_and_is_json_when_asked(capsys: pytest.CaptureFixture[str]) -> None:
    credit_bias.main(["--json"])
    rows = json.loads(capsys.readouterr().out)
    assert {row["scheme"] for row in rows} == {"identical", "return_to_go", "step", "gigpo", "flow_grpo"}
    assert max(row["off"] for row in rows if row["claim"] == "unbiased") < 1e-12
    credit_bias.main([])
    assert len(capsys.readouterr().out.splitlines()) == len(rows) + 1
    assert len(flat(LOGITS)) == 7
