"""The decision path: `Governor` judges each action by policies and decision hooks, records the decision, and tells
observers.
"""

from lgov_core.governor.governor import AuditRecord, Governor, ObservedDecision, PluginFailure

__all__ = ["AuditRecord", "Governor", "ObservedDecision", "PluginFailure"]
