"""Rewards from what tools and policies said."""

from lgov_core.reward.air import AirPlugin, AirRules

__all__ = ["AirPlugin", "AirRules"]
