"""Rewards from tool outcomes, model calls and policy decisions."""

from lgov_core.reward import air
from lgov_core.reward.air_plugin import AirPlugin
from lgov_core.reward.air_rules import AirRule, RuleSet
from lgov_core.reward.air_values import AirRules
from lgov_core.reward.channels import group_advantages
from lgov_core.reward.composite import CompositeReward
from lgov_core.reward.config import RewardConfig
from lgov_core.reward.policy import PolicyReward, create_policy_reward, policy_penalty
from lgov_core.reward.potential import shaping
from lgov_core.reward.violation import PolicyViolation, PolicyViolationError, PolicyViolationType, violation_of

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
