"""Writes policies and tests them: from what was recorded, by labelled cases, and by what the arguments of tools mean."""

from lgov_core.authoring.suggest import Suggestion, suggest

__all__ = ["Suggestion", "suggest"]
