"""The parts of `KernelSpace`, `GovernedRunner` and `GovernedEnvironment`: one execution under policy, signals, violations,
task sources and workers.
"""

from lgov_core.kernel.space import KernelSpace

__all__ = ["KernelSpace"]
