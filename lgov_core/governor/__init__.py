"""The decision path: `Governor` judges each action by policies and decision hooks, records it, and shows it to observers."""

from lgov_core.governor.events import AuditRecord, ObservedDecision, PluginFailure
from lgov_core.governor.governor import NOT_EVALUATED, Governor
from lgov_core.governor.rollout import in_scope

__all__ = ["NOT_EVALUATED", "AuditRecord", "Governor", "ObservedDecision", "PluginFailure", "in_scope"]
