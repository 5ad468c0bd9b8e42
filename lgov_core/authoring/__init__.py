"""Writes policies and tests them: from programs, from what was recorded, and by labelled cases."""

from lgov_core.authoring.starting_policy import starting_policy
from lgov_core.authoring.suggest import Suggestion, suggest

__all__ = ["Suggestion", "starting_policy", "suggest"]
