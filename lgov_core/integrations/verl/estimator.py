"""The advantage estimator that lgov registers with verl: it computes nothing. Importing this module imports verl."""

# pyright: reportMissingImports=false, reportUntypedFunctionDecorator=false
from __future__ import annotations

from typing import Any

import torch
from verl.trainer.ppo.core_algos import register_adv_est

from lgov_core.integrations.verl.hydra_config import ESTIMATOR


@register_adv_est(ESTIMATOR)
def precomputed(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, **_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """The advantages in ``token_level_rewards``, float32 of (rows, tokens), 0 where the mask is 0; twice,
    because verl wants returns too. Every row's own: nothing is summed over a row or taken from a rollout's last one.
    """
    advantages = token_level_rewards.float() * response_mask
    return advantages, advantages
