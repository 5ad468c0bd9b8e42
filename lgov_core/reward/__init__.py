"""Rewards from what tools and policies said."""

from lgov_core.reward.air import AirPlugin, AirRules
from lgov_core.reward.channels import group_advantages
from lgov_core.reward.composite import CompositeReward
from lgov_core.reward.config import RewardConfig
from lgov_core.reward.policy import PolicyReward, create_policy_reward, policy_penalty
from lgov_core.reward.violation import PolicyViolation, PolicyViolationError, PolicyViolationType, violation_of

__all__ = [
    "AirPlugin",
    "AirRules",
    "CompositeReward",
    "PolicyReward",
    "PolicyViolation",
    "PolicyViolationError",
    "PolicyViolationType",
    "RewardConfig",
    "create_policy_reward",
    "group_advantages",
    "policy_penalty",
    "violation_of",
]
