"""The decision path: `Governor` judges each action by policies and decision hooks, records it, and shows it to observers."""

from lgov_core.governor.governor import NOT_EVALUATED, AuditRecord, Governor, in_scope
from lgov_core.governor.rollouts import ObservedDecision, PluginFailure

__all__ = ["NOT_EVALUATED", "AuditRecord", "Governor", "ObservedDecision", "PluginFailure", "in_scope"]
