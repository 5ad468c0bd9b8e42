"""A model that computes in double precision throughout: what others are compared with."""

from __future__ import annotations

from typing import Any

import torch


def double(module: Any) -> Any:
    """``module`` itself, changed. Transformers' own norm computes in single precision whatever the model's type."""
    for name, part in list(module.named_modules()):
        if type(part).__name__.endswith("RMSNorm"):
            norm = torch.nn.RMSNorm(part.weight.shape, eps=part.variance_epsilon)
            norm.weight = part.weight
            module.set_submodule(name, norm)
    return module.double()
