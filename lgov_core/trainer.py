"""`Trainer`: trains a model from what a runner's rollouts earn, on one machine, in one process."""

from lgov_core.rl_governance.trainer import Trainer, current_resource

__all__ = ["Trainer", "current_resource"]
