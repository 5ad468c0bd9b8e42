"""What a governor writes to its audit record and shows to its observers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from lgov_core.types import Action, Decision, ToolOutcome


class AuditRecord(Protocol):
    """Where decisions are made durable. Both methods raise `AuditError` when they cannot."""

    def commit(self, action: Action, decision: Decision) -> str:
        """Makes the decision durable and returns its entry's id."""
        ...

    def commit_outcome(self, outcome: ToolOutcome, decision_id: str | None) -> str:
        """Appends the outcome of a tool call as an entry of its own."""
        ...


@dataclass(frozen=True, slots=True)
class ObservedDecision:
    """A decision that was taken and committed; ``at`` is Unix time in seconds, ``commit_s`` how long the commit took."""

    action: Action
    decision: Decision
    at: float
    commit_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PluginFailure:
    """A plugin that raised outside a decision: in ``hook``, with the message ``error``."""

    hook: str
    plugin: str
    error: str
