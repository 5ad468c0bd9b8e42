"""From recorded calls and rewards to rows that a trainer can execute."""

from lgov_core.transitions.batches import CreditedBatch, RecordedBatch, RewardedBatch, TokenBatch
from lgov_core.transitions.build import assemble, build_transitions, make_transitions
from lgov_core.transitions.chains import Chain, make_chains
from lgov_core.transitions.credit import assign_credit, rollout_returns
from lgov_core.transitions.credit_rules import CreditRules
from lgov_core.transitions.credit_schemes import SCHEMES
from lgov_core.transitions.export import read_parquet, write_parquet
from lgov_core.transitions.records import Records, join, read_spans, read_store
from lgov_core.transitions.select import Selection
from lgov_core.transitions.tree import TokenTree, make_tree
from lgov_core.transitions.values import Diagnostic, Finding, Transition, TransitionSet

__all__ = [
    "SCHEMES",
    "Chain",
    "CreditRules",
    "CreditedBatch",
    "Diagnostic",
    "Finding",
    "RecordedBatch",
    "Records",
    "RewardedBatch",
    "Selection",
    "TokenBatch",
    "TokenTree",
    "Transition",
    "TransitionSet",
    "assemble",
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
