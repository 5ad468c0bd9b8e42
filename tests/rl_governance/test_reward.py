"""PolicyReward: what rollouts and calls earn; statistics; rewards for training; what a configuration may say."""

from __future__ import annotations

import math
import threading
import warnings
from dataclasses import fields, replace
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reward_cases import Run, violation

from lgov_core import Governor, LgovError, Outcome, Reward, RolloutScope, SQLPolicy
from lgov_core.errors import RewardError
from lgov_core.governor.judging import fault
from lgov_core.reward import (
    AirPlugin,
    AirRules,
    CompositeReward,
    PolicyReward,
    RewardConfig,
    create_policy_reward,
    group_advantages,
    policy_penalty,
)
from lgov_core.scope import enter_scope
from lgov_core.types import ALLOW, Action, Decision, Effect, Point, Severity, ToolOutcome


def test_the_defaults_are_the_documented_ones() -> None:
    documented = {
        "critical_penalty": -100.0,
        "high_penalty": -50.0,
        "medium_penalty": -10.0,
        "low_penalty": -1.0,
        "clean_bonus": 5.0,
        "multiplicative": False,
        "multiplicative_factor": 0.5,
        "min_reward": -100.0,
        "max_reward": 100.0,
    }
    config = RewardConfig()
    assert {name: getattr(config, name) for name in documented} == documented
    assert {one.name: one.default for one in fields(RewardConfig) if one.name in documented} == documented
    assert [one.name for one in fields(RewardConfig)][: len(documented)] == list(documented)


@pytest.mark.parametrize(
    ("run", "reward"),
    [
        (Run(), 6.0),
        (Run(success=False), 5.0),  # as documented: no violation, and it ran to its end
        (Run(violations=[violation("low")]), 0.0),
        (Run(violations=[violation("medium"), violation("low")]), -10.0),
        (Run(success=False, violations=[violation("high")]), -50.0),
        (Run(success=False, violations=[violation()]), -100.0),
        (Run(violations=[violation()] * 3), -100.0),  # the documented floor
    ],
)
def test_base_plus_penalties_plus_bonus_within_the_bounds(run: Run, reward: float) -> None:
    assert PolicyReward("kernel")(run) == reward


def test_both_bounds_hold_and_can_be_switched_off() -> None:
    assert PolicyReward(base_reward_fn=lambda _: 1e6)(Run()) == 100.0
    unbounded = RewardConfig(min_reward=None, max_reward=None)
    assert PolicyReward(base_reward_fn=lambda _: 1e6, config=unbounded)(Run()) == 1e6 + 5
    assert PolicyReward(config=unbounded)(Run(False, [violation()] * 3)) == -300.0


@pytest.mark.parametrize("outcome", [Outcome.INFRASTRUCTURE, Outcome.TIMEOUT, Outcome.TRUNCATED, Outcome.BLOCKED])
@pytest.mark.parametrize("config", [RewardConfig(), RewardConfig.for_training(refuse_untrainable=False)])
def test_what_did_not_run_to_its_end_earns_no_bonus(config: RewardConfig, outcome: Outcome) -> None:
    assert PolicyReward(config=config)(Run(success=False, outcome=outcome)) == 0.0


def test_numbers_of_other_libraries_are_numbers() -> None:
    config = RewardConfig(critical_penalty=Fraction(-8), clean_bonus=Fraction(2))  # type: ignore[arg-type]
    assert (config.critical_penalty, PolicyReward(config=config)(Run())) == (-8.0, 3.0)


def test_what_raised_earns_no_bonus() -> None:
    assert PolicyReward()(Run(success=False, outcome=Outcome.FAILED, error="ValueError: no")) == 0.0


def test_multiplicative_mode_halves_a_reward_never_a_loss() -> None:
    config = RewardConfig(multiplicative=True, multiplicative_factor=0.5)
    bad = [violation("low")]
    assert PolicyReward(base_reward_fn=lambda _: 0.9, config=config)(Run(violations=bad)) == pytest.approx(0.45)
    assert PolicyReward(base_reward_fn=lambda _: 0.9, config=config)(Run()) == pytest.approx(5.9)
    assert PolicyReward(base_reward_fn=lambda _: -10.0, config=config)(Run(violations=bad)) == -15.0


def test_an_explicit_penalty_is_charged_as_given() -> None:
    config = RewardConfig(critical_penalty=-80.0)
    assert policy_penalty([violation(penalty=7.0)]) == -7.0
    assert policy_penalty([violation(penalty=0.0)]) == 0.0
    assert PolicyReward(config=config)(Run(violations=[violation(penalty=7.0)])) == -6.0
    assert PolicyReward(config=config)(Run(violations=[violation()])) == -79.0


def test_statistics_have_five_keys_and_can_be_reset() -> None:
    reward = PolicyReward()
    empty = {"total_rewards": 0, "total_penalties": 0.0, "avg_penalty": 0.0, "violation_rate": 0.0, "clean_rate": 0.0}
    assert reward.get_stats() == empty
    for run in (
        Run(),
        Run(),
        Run(violations=[violation("high"), violation("low")]),
        Run(violations=[violation("low")]),
    ):
        reward(run)
    assert reward.get_stats() == {
        "total_rewards": 4,
        "total_penalties": -52.0,
        "avg_penalty": -13.0,
        "violation_rate": 0.5,
        "clean_rate": 0.5,
    }
    reward.reset_stats()
    assert reward.get_stats() == empty


def test_no_rollout_is_lost_when_many_threads_score() -> None:
    reward = PolicyReward()
    runs = [Run(), Run(violations=[violation("low")])]
    together = threading.Barrier(8)

    def score() -> None:
        together.wait()
        for _ in range(500):
            for run in runs:
                reward(run)

    threads = [threading.Thread(target=score) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stats = reward.get_stats()
    assert (stats["total_rewards"], stats["total_penalties"], stats["clean_rate"]) == (8000, -4000.0, 0.5)


def test_for_training_rewards_are_bounded() -> None:
    reward = PolicyReward(base_reward_fn=lambda run: 50.0 if run.success else -50.0, config=RewardConfig.for_training())
    assert reward(Run()) == pytest.approx(1.05)
    assert reward(Run(success=False)) == -1.0
    assert reward(Run(violations=[violation()])) == 0.0
    assert reward(Run(violations=[violation()] * 40)) == 0.0
    assert reward(Run(success=False, violations=[violation()])) == -2.0
    assert RewardConfig.for_training(clean_bonus=0.0).clean_bonus == 0.0


@pytest.mark.parametrize("outcome", [Outcome.INFRASTRUCTURE, Outcome.TIMEOUT])
def test_for_training_what_the_machines_ended_is_refused(outcome: Outcome) -> None:
    reward = PolicyReward(config=RewardConfig.for_training())
    for score in (reward, reward.channels):
        with pytest.raises(RewardError, match=str(outcome)):
            score(Run(success=False, outcome=outcome))


def test_channels_hold_the_air_of_their_rollout_only() -> None:
    reward = PolicyReward(config=RewardConfig.for_training())
    said = [
        Reward(0.05, "air", rollout_id="r1"),
        Reward(-0.02, "air", rollout_id="r1"),
        Reward(9.0, "air", rollout_id="other"),
        Reward(-0.5, "compliance", rollout_id="r1"),
    ]
    assert reward.channels(Run(), said) == {"task": 1.0, "compliance": 0.05, "air": pytest.approx(0.03)}
    assert reward.channels(Run(violations=[violation("high")])) == {"task": 1.0, "compliance": -0.5, "air": 0.0}
    assert reward.get_stats()["total_rewards"] == 0


def test_a_rare_violation_does_not_drown_solved_against_failed() -> None:
    group = [Run(), Run(), Run(), Run(False), Run(False), Run(False), Run(False), Run(False, [violation()])]
    # What group normalisation makes of the documented sum: the gap all but vanishes.
    scores = [PolicyReward(config=RewardConfig(clean_bonus=0.0))(run) for run in group]
    summed = group_advantages([{"reward": score} for score in scores])
    assert summed[0] - summed[3] < 0.05
    training = PolicyReward(config=RewardConfig.for_training(clean_bonus=0.0))
    apart = group_advantages([training.channels(run) for run in group])
    assert apart[0] - apart[3] > 1.9
    assert min(apart) == apart[-1] < apart[3] - 1.0
    assert sum(apart) == pytest.approx(0.0)


def test_noise_in_a_channel_in_which_all_are_alike_stays_small() -> None:
    group = [{"task": 1.0, "compliance": 0.001 * (at == 0)} for at in range(4)]
    assert max(map(abs, group_advantages(group))) < 0.01
    assert group_advantages(group[:1]) == [0.0]
    assert group_advantages([]) == []
    assert group_advantages([{"a": 0.0, "b": 1.0}, {"a": 1.0, "b": 0.0}], weights={"b": 0.0}) == [-1.0, 1.0]


@pytest.mark.parametrize(
    ("group", "options"),
    [
        ([{"a": 1.0}, {"b": 1.0}], {}),
        ([{"a": math.nan}], {}),
        ([{"a": 1.0}], {"std_floor": 0.0}),
        ([{"a": 1.0}], {"weights": {"b": 1.0}}),
        ([{"a": 1.0}], {"weights": {"a": -1.0}}),
    ],
)
def test_groups_that_cannot_be_compared_are_an_error(group: Any, options: Any) -> None:
    with pytest.raises(RewardError):
        group_advantages(group, **options)


def sql(statement: str, call_id: str) -> Action:
    return Action(Point.PRE_TOOL_CALL, "run_sql", arguments={"query": statement}, call_id=call_id)


def test_the_penalty_lands_on_the_call_that_offended() -> None:
    rule = PolicyReward(config=RewardConfig.for_training())
    seen: list[Reward] = []

    class Sink:
        from lgov_core import hookimpl

        @hookimpl
        def lgov_observe(self, event: Any) -> None:
            if isinstance(event, Reward):
                seen.append(event)

    governor = Governor(SQLPolicy(dialect="sqlite"), plugins=[rule, AirPlugin(AirRules(0.0, 0.0, 0.0)), Sink()])
    with enter_scope(RolloutScope("r9", 3)):
        for call_id, statement in (("call-1", "SELECT 1"), ("call-2", "DROP TABLE users"), ("call-3", "SELECT 2")):
            action = sql(statement, call_id)
            decision = governor.decide(action)
            governor.record(ToolOutcome(action, "denied" if decision.blocks else "ok", decision=decision))
    assert [(one.rollout_id, one.attempt, one.tool_call_id, one.dimension, one.value) for one in seen] == [
        ("r9", 3, "call-2", "compliance", -1.0)
    ]
    assert seen[0].source == "policy:critical"


@pytest.mark.parametrize("decision", [None, ALLOW, fault("p", "policy-error", "it failed")])
def test_a_call_in_which_nothing_was_found_costs_nothing(decision: Decision | None) -> None:
    assert PolicyReward().lgov_reward(ToolOutcome(sql("x", "c"), "denied", decision=decision)) == []


def test_warnings_and_changes_cost_what_their_severity_costs() -> None:
    for effect in (Effect.WARN, Effect.TRANSFORM):
        decision = Decision(effect, "p", "r", "why", Severity.MEDIUM, arguments={})
        (reward,) = PolicyReward().lgov_reward(ToolOutcome(sql("x", "c"), "ok", decision=decision))
        assert (reward.value, reward.tool_call_id) == (-10.0, "c")


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
