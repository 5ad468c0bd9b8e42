"""`KernelSpace`: runs an agent, or any callable, under policies."""

from lgov_core.rl_governance.kernel import KernelSpace

__all__ = ["KernelSpace"]
