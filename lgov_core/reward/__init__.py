"""Rewards from what tools and policies said."""

from lgov_core.reward.air import AirPlugin, AirRules
from lgov_core.reward.violation import PolicyViolation, PolicyViolationError, PolicyViolationType, violation_of

__all__ = ["AirPlugin", "AirRules", "PolicyViolation", "PolicyViolationError", "PolicyViolationType", "violation_of"]
