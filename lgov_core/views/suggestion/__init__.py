"""The least-privilege policy that recorded tool calls need: `suggest` proposes it and proves it by replay."""

from lgov_core.views.suggestion.suggest import Suggestion, suggest

__all__ = ["Suggestion", "suggest"]
