"""From recorded calls and rewards to rows that a trainer can execute."""

from lgov_core.transitions.advantages import assign_credit, rollout_returns
from lgov_core.transitions.build import build_transitions, make_transitions
from lgov_core.transitions.calls import Selection
from lgov_core.transitions.records import Records, join, read_spans, read_store
from lgov_core.transitions.rows import read_parquet, write_parquet
from lgov_core.transitions.schemes import SCHEMES
from lgov_core.transitions.tokens import Chain, TokenTree, make_chains, make_tree
from lgov_core.transitions.transition_set import DataFinding, Diagnostic, TransitionSet
from lgov_core.types import CreditRules, Transition

__all__ = [
    "SCHEMES",
    "Chain",
    "CreditRules",
    "DataFinding",
    "Diagnostic",
    "Records",
    "Selection",
    "TokenTree",
    "Transition",
    "TransitionSet",
    "assign_credit",
    "build_transitions",
    "join",
    "make_chains",
    "make_transitions",
    "make_tree",
    "read_parquet",
    "read_spans",
    "read_store",
    "rollout_returns",
    "write_parquet",
]
