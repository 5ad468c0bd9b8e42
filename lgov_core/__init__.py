"""lgov governs, rewards, trains and audits existing agents without editing them.

Start with `Governor` and a policy file::

    from lgov_core import AuditLog, Governor, load_policy_file

    governor = Governor(load_policy_file("policy.yaml"), audit=AuditLog("audit.db"))

Names are looked up when they are first used, so ``import lgov_core`` loads nothing else.

PYTEST_DONT_REWRITE: where lgov governs pytest, this is imported before pytest is.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lgov_core import air
    from lgov_core.audit import AuditLog
    from lgov_core.client import Client
    from lgov_core.emitter import FlightRecorderEmitter
    from lgov_core.environment import EnvironmentConfig, GovernedEnvironment
    from lgov_core.errors import LgovError, PolicyDenied
    from lgov_core.governor import Governor
    from lgov_core.hookspecs import hookimpl
    from lgov_core.kernel import KernelSpace
    from lgov_core.policies import PolicySet, SQLPolicy, ToolPolicy, load_policy_file
    from lgov_core.reward import PolicyReward, PolicyViolation, PolicyViolationError, RewardConfig, policy_penalty
    from lgov_core.rl_governance.flight_recorder import FlightRecorder
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

_NAMES = {
    "audit": ("AuditLog",),
    "client": ("Client",),
    "emitter": ("FlightRecorderEmitter",),
    "environment": ("EnvironmentConfig", "GovernedEnvironment"),
    "errors": ("LgovError", "PolicyDenied"),
    "governor": ("Governor",),
    "hookspecs": ("hookimpl",),
    "kernel": ("KernelSpace",),
    "policies": ("PolicySet", "SQLPolicy", "ToolPolicy", "load_policy_file"),
    "reward": ("PolicyReward", "PolicyViolation", "PolicyViolationError", "RewardConfig", "air", "policy_penalty"),
    "rl_governance.flight_recorder": ("FlightRecorder",),
    "runner": ("GovernedRollout", "GovernedRunner"),
    "scope": ("RolloutScope", "carry_into_threads", "current_scope"),
    "settings": ("Settings", "load_settings"),
    "store": ("TraceStore", "open_store"),
    "trainer": ("Trainer",),
    "types": ("Action", "Decision", "Effect", "Outcome", "Point", "Reward", "Severity", "Span", "ToolOutcome"),
}
_HOMES = {name: f"lgov_core.{home}" for home, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
