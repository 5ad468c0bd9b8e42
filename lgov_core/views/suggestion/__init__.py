"""Policies that are proposed: `suggest` from recorded tool calls, proved by replay; `starting_policy` from a program."""

from lgov_core.views.suggestion.starting_policy import starting_policy
from lgov_core.views.suggestion.suggest import Suggestion, suggest

__all__ = ["Suggestion", "starting_policy", "suggest"]
