"""The judges: what they share (`Policy`, `Decision` making), the built-in ones, their combination and their files."""

from __future__ import annotations

from lgov_core.policies.base import BoundedPolicy, ObservingPolicy, Policy
from lgov_core.policies.combine import combine, fold
from lgov_core.policies.conditions import Condition, ConditionError, condition_of
from lgov_core.policies.digest import digest_of
from lgov_core.policies.held_text import HeldText
from lgov_core.policies.loader import load_policies, load_policy_file
from lgov_core.policies.pii import PIIPolicy
from lgov_core.policies.policy_set import ConstantPolicy, PolicySet
from lgov_core.policies.presets import PRESETS, preset
from lgov_core.policies.provenance import ProvenancePolicy
from lgov_core.policies.registry import BUILTIN_POLICIES, PolicyFactory, available_policies
from lgov_core.policies.reload import ReloadingPolicySet
from lgov_core.policies.rule import Rule
from lgov_core.policies.secrets import SecretsPolicy
from lgov_core.policies.sql import SQLPolicy
from lgov_core.policies.tool import ToolPolicy

__all__ = [
    "BUILTIN_POLICIES",
    "PRESETS",
    "BoundedPolicy",
    "Condition",
    "ConditionError",
    "ConstantPolicy",
    "HeldText",
    "ObservingPolicy",
    "PIIPolicy",
    "Policy",
    "PolicyFactory",
    "PolicySet",
    "ProvenancePolicy",
    "ReloadingPolicySet",
    "Rule",
    "SQLPolicy",
    "SecretsPolicy",
    "ToolPolicy",
    "available_policies",
    "combine",
    "condition_of",
    "digest_of",
    "fold",
    "load_policies",
    "load_policy_file",
    "preset",
]
