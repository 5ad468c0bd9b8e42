"""Values without meaning are refused, and no violation pays."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reward_cases import Run, violation

from lgov_core import LgovError, Outcome
from lgov_core.errors import RewardError
from lgov_core.reward import (
    CompositeReward,
    PolicyReward,
    RewardConfig,
    create_policy_reward,
    policy_penalty,
)

SEVERITIES = ("critical", "high", "medium", "low")


numbers = st.floats(-1e6, 1e6)


penalties = st.floats(-1e6, 0)


@st.composite
def configs(draw: st.DrawFn) -> RewardConfig:
    bounds = draw(st.sampled_from([(None, None), (-100.0, 100.0), (-1.0, 1.0), (None, 10.0)]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return RewardConfig(
            *(draw(penalties) for _ in SEVERITIES),
            clean_bonus=draw(st.floats(0, 100)),
            multiplicative=draw(st.booleans()),
            multiplicative_factor=draw(st.floats(0, 1)),
            min_reward=bounds[0],
            max_reward=bounds[1],
            bonus_needs_success=draw(st.booleans()),
            task_bounds=draw(st.sampled_from([None, (-1.0, 1.0)])),
            compliance_floor=draw(st.sampled_from([None, -1.0])),
        )


@given(
    config=configs(),
    base=numbers,
    success=st.booleans(),
    outcome=st.sampled_from([None, *Outcome]),
    found=st.lists(st.sampled_from(SEVERITIES), max_size=4),
    more=st.sampled_from(SEVERITIES),
    own=st.one_of(st.none(), st.floats(0, 1e6)),
)
def test_another_violation_never_improves_the_reward(
    config: RewardConfig, base: float, success: bool, outcome: Outcome, found: list[str], more: str, own: float | None
) -> None:
    reward = PolicyReward(base_reward_fn=lambda _: base, config=config)
    run = Run(success, [violation(one) for one in found], outcome=outcome)
    worse = replace(run, violations=[*run.violations, violation(more, **({} if own is None else {"penalty": own}))])
    assert reward(worse) <= reward(run)


def test_a_floor_that_limits_penalties_warns() -> None:
    with pytest.warns(UserWarning, match=r"min_reward -100 takes back .* \(-200\)"):
        config = RewardConfig(critical_penalty=-200.0)
    assert PolicyReward(config=config)(Run(False, [violation()])) == -100.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        RewardConfig(critical_penalty=-200.0, min_reward=None)
        RewardConfig.for_training()


@pytest.mark.parametrize(
    "wrong",
    [
        *({name: value} for name in ("critical_penalty", "low_penalty", "clean_bonus", "min_reward", "max_reward")
          for value in (math.nan, math.inf, -math.inf, "5", True)),
        {"critical_penalty": 100.0},
        {"clean_bonus": -1.0},
        {"multiplicative_factor": 1.5},
        {"multiplicative_factor": -0.5},
        {"min_reward": 5.0, "max_reward": 5.0},
        {"multiplicative": "yes"},
        {"task_bounds": (1.0, -1.0)},
        {"compliance_floor": math.nan},
    ],
    ids=str,
)  # fmt: skip
def test_a_configuration_without_meaning_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(RewardError, match=next(iter(wrong))) as raised:
        RewardConfig(**wrong)
    assert isinstance(raised.value, LgovError)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None, "1.0", b"1", [], object(), 10**400])
def test_a_base_reward_must_be_finite(value: Any) -> None:
    reward = PolicyReward(base_reward_fn=lambda _: value)
    with pytest.raises(RewardError, match="base reward"):
        reward(Run())
    assert reward.get_stats()["total_rewards"] == 0


def test_an_asynchronous_base_reward_is_refused_with_a_hint() -> None:
    async def base(_: Any) -> float:
        return 1.0

    with pytest.raises(RewardError, match="plain functions"):
        PolicyReward(base_reward_fn=base)(Run())  # type: ignore[arg-type]


def test_what_the_base_reward_raises_is_raised() -> None:
    with pytest.raises(AttributeError, match="accuracy"):
        PolicyReward(base_reward_fn=lambda run: run.task_output.accuracy)(Run(task_output="text"))


@pytest.mark.parametrize(
    ("run", "base"),
    [
        (None, 0.0),
        (object(), 0.0),
        (SimpleNamespace(success=True), 1.0),
        (Run(violations=None), 1.0),
        (Run(violations=""), 1.0),
    ],  # type: ignore[arg-type]
)
def test_a_rollout_without_violations_field_is_not_clean(run: Any, base: float) -> None:
    with pytest.warns(UserWarning, match="no bonus"):
        assert PolicyReward()(run) == base


@pytest.mark.parametrize("run", [Run(success=unclear) for unclear in ("False", None, [], 2)])  # type: ignore[arg-type]
def test_a_rollout_with_an_unclear_success_is_refused(run: Any) -> None:
    with pytest.raises(RewardError, match="cannot be scored"):
        PolicyReward()(run)


@pytest.mark.parametrize("found", [object(), SimpleNamespace(severity="awful"), {"severity": "awful"}])
def test_a_violation_of_unknown_severity_costs_as_much_as_medium(found: Any) -> None:
    assert policy_penalty([found]) == -10.0


def test_another_violation_class_is_charged_by_severity() -> None:
    assert policy_penalty([SimpleNamespace(severity="HIGH", penalty=0.0)]) == -50.0
    assert policy_penalty([SimpleNamespace(severity="high")]) == -50.0
    assert policy_penalty([SimpleNamespace(severity="high", penalty=3)]) == -3.0
    with pytest.raises(RewardError, match="penalty"):
        policy_penalty([SimpleNamespace(severity="high", penalty=-3)])


def test_a_penalty_helper_that_would_pay_is_refused() -> None:
    assert math.copysign(1, policy_penalty([])) == 1.0
    with pytest.raises(RewardError, match="low_penalty"):
        policy_penalty([violation()], low_penalty=2.0)


@pytest.mark.filterwarnings("ignore:RewardConfig:UserWarning")
def test_the_factory_takes_severities_and_fields() -> None:
    reward = create_policy_reward("kernel", lambda _: 2.0, {"critical": -200.0, "LOW": -2.0}, clean_bonus=10.0)
    assert reward(Run()) == 12.0
    assert reward(Run(violations=[violation("low")])) == 0.0
    assert reward(Run(violations=[violation()])) == -100.0
    assert reward.config.high_penalty == -50.0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"severity_penalties": {"low": 1.0}}, "low_penalty"),
        ({"severity_penalties": {"low": -1.0}, "low_penalty": -2.0}, "twice"),
        ({"clean_bonsu": 1.0}, "clean_bonsu"),
    ],
)
def test_the_factory_refuses_what_it_does_not_know(options: dict[str, Any], said: str) -> None:
    with pytest.raises(RewardError, match=said):
        create_policy_reward("kernel", **options)


def test_a_composite_is_the_weighted_sum() -> None:
    parts = [(lambda _: 1.0, 1.0), (lambda _: -10.0, 0.5), (lambda _: 2.0, 0.5)]
    assert CompositeReward(parts)(Run()) == -3.0
    normal = CompositeReward(parts, normalize=True)
    assert normal.weights == (0.5, 0.25, 0.25)
    assert normal(Run()) == -1.5
    assert CompositeReward([(PolicyReward(), 0.5), (normal, 1.0)])(Run()) == 1.5


@pytest.mark.parametrize(
    "components",
    [
        [(len, math.nan)],
        [(len, "1")],
        [("len", 1.0)],
        [len],
        [(len, 1e308), (len, 1e308)],
    ],
    ids=str,
)
def test_a_composite_without_meaning_is_refused(components: list[Any]) -> None:
    with pytest.raises(RewardError):
        CompositeReward(components)


def test_a_component_that_is_not_finite_is_named() -> None:
    def speed(_: Any) -> float:
        return math.nan

    with pytest.raises(RewardError, match="speed"):
        CompositeReward([(speed, 0.0), (lambda _: 1.0, 1.0)])(Run())
