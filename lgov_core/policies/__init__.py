"""Policies: the protocol, the built-in policies, how they are combined into sets, and policy files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lgov_core.governor.conditions import Condition, ConditionError, condition_of
from lgov_core.governor.judging import combine, fold
from lgov_core.governor.options import dry_run
from lgov_core.governor.rules import Rule
from lgov_core.policies.approvals.policy import ApprovalPolicy
from lgov_core.policies.approvals.requests import ApprovalRequest, ApprovalRequests
from lgov_core.policies.base import BoundedPolicy
from lgov_core.policies.budgets.cost import CostControlPolicy, Spent
from lgov_core.policies.budgets.counting import LoopPolicy, RateLimitPolicy
from lgov_core.policies.content.pii import PIIPolicy
from lgov_core.policies.content.secrets import SecretsPolicy
from lgov_core.policies.flow import FlowPolicy, ProvenancePolicy
from lgov_core.policies.loader import load_policies, load_policy_file
from lgov_core.policies.network.egress import EgressPolicy, PinnedURL
from lgov_core.policies.options import digest_of
from lgov_core.policies.order import EarlierCall, EarlierResult, OrderPolicy
from lgov_core.policies.path import PathPolicy
from lgov_core.policies.pins import PinnedToolsPolicy
from lgov_core.policies.policy_set import ConstantPolicy, PolicySet
from lgov_core.policies.presets import PRESETS, preset
from lgov_core.policies.registry import BUILTIN_POLICIES, available_policies
from lgov_core.policies.reload import ReloadingPolicySet
from lgov_core.policies.shell import ShellPolicy
from lgov_core.policies.sql.policy import SQLPolicy, guard_sqlite
from lgov_core.policies.tools import ToolPolicy
from lgov_core.types import ObservingPolicy, Policy, PolicyFactory

if TYPE_CHECKING:
    from lgov_core.policies.network.fetch import guarded_connect, guarded_opener

__all__ = [
    "BUILTIN_POLICIES", "PRESETS", "ApprovalPolicy", "ApprovalRequest", "ApprovalRequests", "BoundedPolicy",
    "Condition", "ConditionError", "ConstantPolicy", "CostControlPolicy", "EarlierCall", "EarlierResult",
    "EgressPolicy", "FlowPolicy", "LoopPolicy", "ObservingPolicy", "OrderPolicy", "PIIPolicy", "PathPolicy",
    "PinnedToolsPolicy", "PinnedURL", "Policy", "PolicyFactory", "PolicySet", "ProvenancePolicy", "RateLimitPolicy",
    "ReloadingPolicySet", "Rule", "SQLPolicy", "SecretsPolicy", "ShellPolicy", "Spent", "ToolPolicy",
    "available_policies", "combine", "condition_of", "digest_of", "dry_run", "fold", "guard_sqlite",
    "guarded_connect", "guarded_opener", "load_policies", "load_policy_file", "preset",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    # TLS and HTTP load with the first connection, not with the policies.
    if name in ("guarded_connect", "guarded_opener"):
        from lgov_core.policies.network import fetch

        return getattr(fetch, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
