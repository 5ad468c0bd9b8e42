"""lgov governs, rewards, trains and audits existing agents without editing them.

Start with `Governor` and a policy file::

    from lgov_core import AuditLog, Governor, load_policy_file

    governor = Governor(load_policy_file("policy.yaml"), audit=AuditLog("audit.db"))

Names are looked up when they are first used, so ``import lgov_core`` loads nothing else.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lgov_core.audit import AuditLog, FlightRecorder
    from lgov_core.client import Client
    from lgov_core.emitter import FlightRecorderEmitter
    from lgov_core.environment import EnvironmentConfig, GovernedEnvironment
    from lgov_core.errors import LgovError, PolicyDenied
    from lgov_core.governor import Governor
    from lgov_core.hookspecs import hookimpl
    from lgov_core.kernel import KernelSpace
    from lgov_core.policies import PolicySet, SQLPolicy, ToolPolicy, load_policy_file
    from lgov_core.reward import PolicyReward, RewardConfig, air, policy_penalty
    from lgov_core.reward.violation import PolicyViolation, PolicyViolationError
    from lgov_core.runner import GovernedRollout, GovernedRunner
    from lgov_core.scope import RolloutScope, carry_into_threads, current_scope
    from lgov_core.settings import Settings, load_settings
    from lgov_core.store import TraceStore, open_store
    from lgov_core.trainer import Trainer
    from lgov_core.types import Action, Decision, Effect, Outcome, Point, Reward, Severity, Span, ToolOutcome

__version__ = "0.1.0"

__all__ = [
    "Action",
    "AuditLog",
    "Client",
    "Decision",
    "Effect",
    "EnvironmentConfig",
    "FlightRecorder",
    "FlightRecorderEmitter",
    "GovernedEnvironment",
    "GovernedRollout",
    "GovernedRunner",
    "Governor",
    "KernelSpace",
    "LgovError",
    "Outcome",
    "Point",
    "PolicyDenied",
    "PolicyReward",
    "PolicySet",
    "PolicyViolation",
    "PolicyViolationError",
    "Reward",
    "RewardConfig",
    "RolloutScope",
    "SQLPolicy",
    "Settings",
    "Severity",
    "Span",
    "ToolOutcome",
    "ToolPolicy",
    "TraceStore",
    "Trainer",
    "air",
    "carry_into_threads",
    "current_scope",
    "hookimpl",
    "load_policy_file",
    "load_settings",
    "open_store",
    "policy_penalty",
]

_HOMES = {
    "KernelSpace": "lgov_core.kernel",
    "GovernedRunner": "lgov_core.runner",
    "GovernedRollout": "lgov_core.runner",
    "GovernedEnvironment": "lgov_core.environment",
    "EnvironmentConfig": "lgov_core.environment",
    "FlightRecorderEmitter": "lgov_core.emitter",
    "PolicyReward": "lgov_core.reward",
    "RewardConfig": "lgov_core.reward",
    "policy_penalty": "lgov_core.reward",
    "air": "lgov_core.reward",
    "PolicyViolation": "lgov_core.reward.violation",
    "PolicyViolationError": "lgov_core.reward.violation",
    "AuditLog": "lgov_core.audit",
    "Client": "lgov_core.client",
    "FlightRecorder": "lgov_core.audit",
    "LgovError": "lgov_core.errors",
    "PolicyDenied": "lgov_core.errors",
    "Governor": "lgov_core.governor",
    "hookimpl": "lgov_core.hookspecs",
    "PolicySet": "lgov_core.policies",
    "SQLPolicy": "lgov_core.policies",
    "ToolPolicy": "lgov_core.policies",
    "load_policy_file": "lgov_core.policies",
    "RolloutScope": "lgov_core.scope",
    "carry_into_threads": "lgov_core.scope",
    "current_scope": "lgov_core.scope",
    "Settings": "lgov_core.settings",
    "load_settings": "lgov_core.settings",
    "TraceStore": "lgov_core.store",
    "open_store": "lgov_core.store",
    "Trainer": "lgov_core.trainer",
    **dict.fromkeys(
        ("Action", "Decision", "Effect", "Outcome", "Point", "Reward", "Severity", "Span", "ToolOutcome"),
        "lgov_core.types",
    ),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
