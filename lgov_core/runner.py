"""`GovernedRunner`: runs tasks through a kernel and records on each rollout what the policies found."""

from lgov_core.errors import PolicyViolationError
from lgov_core.rl_governance.rollouts import GovernedRollout
from lgov_core.rl_governance.runner import AgentOSRunner, GovernedRunner
from lgov_core.types import PolicyViolation, PolicyViolationType

__all__ = [
    "AgentOSRunner",
    "GovernedRollout",
    "GovernedRunner",
    "PolicyViolation",
    "PolicyViolationError",
    "PolicyViolationType",
]
