"""Rewards from tool outcomes, model calls and policy decisions."""

from lgov_core import air
from lgov_core.air import AirPlugin, AirRule, AirRules, RuleSet
from lgov_core.errors import PolicyViolationError
from lgov_core.rl_governance.reports import violation_of
from lgov_core.rl_governance.reward import (
    CompositeReward,
    PolicyReward,
    RewardConfig,
    create_policy_reward,
    group_advantages,
    policy_penalty,
    shaping,
)
from lgov_core.types import PolicyViolation, PolicyViolationType

__all__ = [
    "AirPlugin",
    "AirRule",
    "AirRules",
    "CompositeReward",
    "PolicyReward",
    "PolicyViolation",
    "PolicyViolationError",
    "PolicyViolationType",
    "RewardConfig",
    "RuleSet",
    "air",
    "create_policy_reward",
    "group_advantages",
    "policy_penalty",
    "shaping",
    "violation_of",
]
