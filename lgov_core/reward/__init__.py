"""Rewards from tool outcomes, model calls and policy decisions."""

from lgov_core.errors import PolicyViolationError
from lgov_core.reward import air
from lgov_core.reward.air.outcome_rewards import AirPlugin
from lgov_core.reward.air.rules import AirRule, AirRules, RuleSet
from lgov_core.reward.channel_advantages import group_advantages
from lgov_core.reward.composite import CompositeReward
from lgov_core.reward.config import RewardConfig
from lgov_core.reward.policy_reward import PolicyReward, create_policy_reward, policy_penalty
from lgov_core.reward.potential_shaping import shaping
from lgov_core.reward.violation import violation_of
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
