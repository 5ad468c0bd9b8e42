"""From recorded calls and rewards to rows that a trainer can execute."""

from lgov_core.transitions.build import assemble, build_transitions
from lgov_core.transitions.credit import assign_credit, rollout_returns
from lgov_core.transitions.credit_rules import CreditRules
from lgov_core.transitions.credit_schemes import SCHEMES
from lgov_core.transitions.export import write_parquet
from lgov_core.transitions.values import Diagnostic, Finding, Transition, TransitionSet

__all__ = [
    "SCHEMES",
    "CreditRules",
    "Diagnostic",
    "Finding",
    "Transition",
    "TransitionSet",
    "assemble",
    "assign_credit",
    "build_transitions",
    "rollout_returns",
    "write_parquet",
]
