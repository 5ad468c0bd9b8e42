"""What stands behind `KernelSpace` and `GovernedRunner`: running an agent function under policy, signals, violations
and task sources.
"""

from lgov_core.kernel.space import KernelSpace

__all__ = ["KernelSpace"]
