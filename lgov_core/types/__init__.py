"""The values that flow through lgov: actions, decisions, outcomes, rewards, spans and what is recorded of them.

They are not changed once made, so threads and tasks may share them. Ids are strings chosen by their creator; times are
Unix seconds as ``float``; durations are seconds unless the name says otherwise.
"""

from lgov_core.types.actions import Action, JSONValue, Kind, Point, new_id
from lgov_core.types.decisions import ALLOW, Decision, Effect, Severity
from lgov_core.types.outcomes import ModelCallFailed, Outcome, Reward, ToolOutcome, ToolStatus
from lgov_core.types.records import Attempt, CapturedCall, Rollout, Span, SpanEvent

__all__ = [
    "ALLOW",
    "Action",
    "Attempt",
    "CapturedCall",
    "Decision",
    "Effect",
    "JSONValue",
    "Kind",
    "ModelCallFailed",
    "Outcome",
    "Point",
    "Reward",
    "Rollout",
    "Severity",
    "Span",
    "SpanEvent",
    "ToolOutcome",
    "ToolStatus",
    "new_id",
]
