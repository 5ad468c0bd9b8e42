"""Sections 3 and 4 of the tutorial: PolicyReward and RewardConfig."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("gymnasium", reason="needs the extra gym")
import lgov_core
from tests.rl_governance.tutorial_code import run

BASIC = """
from agent_lightning_gov import PolicyReward

# Define your base task reward
def task_reward(rollout):
    if rollout.success and rollout.task_output:
        return rollout.task_output.accuracy  # 0.0–1.0
    return 0.0

# Wrap it with policy awareness
reward_fn = PolicyReward(kernel, base_reward_fn=task_reward)

# Score a rollout
reward = reward_fn(rollout)
"""
MULTIPLICATIVE = """
from agent_lightning_gov.reward import RewardConfig

config = RewardConfig(
    multiplicative=True,
    multiplicative_factor=0.5,  # halve reward on any violation
)

reward_fn = PolicyReward(kernel, config=config)

# If base_reward = 0.9 and there's a violation:
# final = 0.9 * 0.5 = 0.45 (instead of 0.9 + penalty)
"""
REWARD_STATS = """
stats = reward_fn.get_stats()
print(stats)
# {
#     "total_rewards": 500,
#     "total_penalties": -1240.0,
#     "avg_penalty": -2.48,
#     "violation_rate": 0.032,
#     "clean_rate": 0.968,
# }

# Reset between phases
reward_fn.reset_stats()
"""
PENALTY = """
from agent_lightning_gov import policy_penalty

penalty = policy_penalty(
    rollout.violations,
    critical_penalty=-200.0,
    high_penalty=-80.0,
    medium_penalty=-15.0,
    low_penalty=-2.0,
)
final_reward = base_reward + penalty
"""
COMPOSITE = """
from agent_lightning_gov.reward import CompositeReward

reward = CompositeReward(
    components=[
        (accuracy_reward, 1.0),     # task accuracy (weight 1.0)
        (policy_reward, 0.5),       # governance penalty (weight 0.5)
        (efficiency_reward, 0.3),   # speed bonus (weight 0.3)
    ],
    normalize=False,  # True → weights sum to 1.0
)

score = reward(rollout)  # weighted sum of all components
"""
FACTORY = """
from agent_lightning_gov.reward import create_policy_reward

reward_fn = create_policy_reward(
    kernel,
    base_reward_fn=accuracy_reward,
    severity_penalties={
        "critical": -200.0,
        "high": -80.0,
        "medium": -15.0,
        "low": -2.0,
    },
    clean_bonus=10.0,
    multiplicative=False,
)
"""


def test_3_1_and_3_2_base_plus_penalty_plus_bonus(scored: dict[str, Any]) -> None:
    run(BASIC, scored)
    assert scored["reward"] == 0.85 + 5.0
    assert scored["reward_fn"](scored["bad"]) == -100.0
    plain = lgov_core.PolicyReward(scored["kernel"])
    assert (plain(scored["good"]), plain(scored["bad"])) == (6.0, -100.0)


def test_3_3_multiplicative_mode_halves_the_reward(scored: dict[str, Any]) -> None:
    run(MULTIPLICATIVE, scored)
    reward_fn = lgov_core.PolicyReward(scored["kernel"], lambda _: 0.9, scored["config"])
    assert reward_fn(scored["bad"]) == pytest.approx(0.45)
    assert scored["reward_fn"](scored["bad"]) == 0.0


def test_3_4_statistics_of_rewards(scored: dict[str, Any]) -> None:
    run(BASIC, scored)
    scored["reward_fn"](scored["bad"])
    run(REWARD_STATS, scored)
    assert scored["stats"] == {
        "total_rewards": 2, "total_penalties": -100.0, "avg_penalty": -50.0, "violation_rate": 0.5, "clean_rate": 0.5
    }  # fmt: skip
    assert scored["reward_fn"].get_stats()["total_rewards"] == 0


def test_3_5_the_penalty_helper(scored: dict[str, Any]) -> None:
    scored |= {"base_reward": 0.5, "rollout": scored["bad"]}
    run(PENALTY, scored)
    assert (scored["penalty"], scored["final_reward"]) == (-200.0, -199.5)


def test_3_6_a_composite_is_a_weighted_sum(scored: dict[str, Any]) -> None:
    scored |= {"policy_reward": lgov_core.PolicyReward(scored["kernel"]), "efficiency_reward": lambda _: 1.0}
    run(COMPOSITE, scored)
    assert scored["score"] == pytest.approx(0.85 + 0.5 * 6.0 + 0.3)
    assert scored["reward"](scored["bad"]) == pytest.approx(0.5 * -100.0 + 0.3)


def test_3_7_the_factory(scored: dict[str, Any]) -> None:
    run(FACTORY, scored)
    assert scored["reward_fn"](scored["good"]) == 10.85
    assert scored["reward_fn"](scored["bad"]) == -100.0  # the documented floor


# ---------------------------------------------------------------------- 4. RewardConfig

FULL_CONFIG = """
from agent_lightning_gov.reward import RewardConfig

config = RewardConfig(
    # Per-severity penalties (additive mode)
    critical_penalty=-100.0,   # default: -100.0
    high_penalty=-50.0,        # default: -50.0
    medium_penalty=-10.0,      # default: -10.0
    low_penalty=-1.0,          # default: -1.0

    # Clean-execution bonus
    clean_bonus=5.0,           # default: 5.0

    # Multiplicative mode
    multiplicative=False,      # default: False
    multiplicative_factor=0.5, # default: 0.5 — only used when multiplicative=True

    # Reward bounds
    min_reward=-100.0,         # default: -100.0 — floor (None to disable)
    max_reward=100.0,          # default: 100.0 — ceiling (None to disable)
)
"""
TUNING = """
conservative = RewardConfig(
    critical_penalty=-200.0,
    high_penalty=-100.0,
    medium_penalty=-30.0,
    low_penalty=-5.0,
    clean_bonus=10.0,
)

lenient = RewardConfig(
    critical_penalty=-50.0,
    high_penalty=-20.0,
    medium_penalty=-5.0,
    low_penalty=-0.5,
    clean_bonus=2.0,
)
"""


def test_4_the_reference_shows_the_defaults(scored: dict[str, Any]) -> None:
    run(FULL_CONFIG, scored)
    assert scored["config"] == scored["RewardConfig"]()
    run(TUNING, scored)
    scores = {
        name: lgov_core.PolicyReward(None, None, scored[name])(scored["bad"])
        for name in ("conservative", "config", "lenient")
    }
    assert scores == {"conservative": -100.0, "config": -100.0, "lenient": -50.0}
