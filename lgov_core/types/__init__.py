"""The values that flow through lgov: actions, decisions, outcomes, rewards, spans and what is recorded of them.

They are not changed once made, so threads and tasks may share them. Ids are strings chosen by their creator; times are
Unix seconds as ``float``; durations are seconds unless the name says otherwise.
"""

from lgov_core.types.actions import Action, JSONValue, Kind, Point, Source, new_id
from lgov_core.types.adapters import Adapter, Conflict, Gap, Surface
from lgov_core.types.credit_rules import CreditRules
from lgov_core.types.decisions import ALLOW, BLOCKING, Decision, Effect, Severity
from lgov_core.types.outcomes import ModelCallFailed, Outcome, Reward, ToolOutcome, ToolStatus
from lgov_core.types.policies import ObservingPolicy, Policy, PolicyFactory
from lgov_core.types.records import TRAIN_MODE, Attempt, CapturedCall, Rollout, Span, SpanEvent
from lgov_core.types.transitions import SCHEMA_VERSION, Transition
from lgov_core.types.violations import SEVERITY_PENALTIES, PolicyViolation, PolicyViolationType

__all__ = [
    "ALLOW",
    "BLOCKING",
    "SCHEMA_VERSION",
    "SEVERITY_PENALTIES",
    "TRAIN_MODE",
    "Action",
    "Adapter",
    "Attempt",
    "CapturedCall",
    "Conflict",
    "CreditRules",
    "Decision",
    "Effect",
    "Gap",
    "JSONValue",
    "Kind",
    "ModelCallFailed",
    "ObservingPolicy",
    "Outcome",
    "Point",
    "Policy",
    "PolicyFactory",
    "PolicyViolation",
    "PolicyViolationType",
    "Reward",
    "Rollout",
    "Severity",
    "Source",
    "Span",
    "SpanEvent",
    "Surface",
    "ToolOutcome",
    "ToolStatus",
    "Transition",
    "new_id",
]
