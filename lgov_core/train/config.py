"""Settings of the two ways to change weights. Loads nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass

from lgov_core.errors import TrainError

#: How the rows of an update are laid out: a trie of tokens where that pays, always, or never.
PACKINGS = ("auto", "tree", "rows")


@dataclass(frozen=True, slots=True)
class UpdateConfig:
    """Settings of the update. The defaults held on every seed tried; see docs/training.md for those that collapsed.

    ``learning_rate`` is constant; ``epochs`` passes are made over the rows of one iteration, one optimiser step each;
    ``kl`` is β; ``clip_low`` and ``clip_high`` bound the ratio to [1 - low, 1 + high]; ``max_grad_norm`` clips the
    gradient; ``tokens_per_batch`` bounds the tokens of one forward pass, padding included (memory, not
    learning). ``packing`` is ``auto``, ``tree`` (what rows begin with in common is computed once) or ``rows``.
    """

    learning_rate: float = 2e-4
    epochs: int = 2
    kl: float = 0.02
    clip_low: float = 0.2
    clip_high: float = 0.28
    max_grad_norm: float = 1.0
    tokens_per_batch: int = 2048
    packing: str = "auto"

    def __post_init__(self) -> None:
        for name in ("learning_rate", "max_grad_norm"):
            if not getattr(self, name) > 0:
                raise TrainError(f"UpdateConfig.{name} must be above 0, not {getattr(self, name)}")
        if self.kl < 0 or self.epochs < 1:
            raise TrainError("UpdateConfig needs kl >= 0 and epochs >= 1")
        if self.packing not in PACKINGS:
            raise TrainError(f"there is no packing {self.packing!r}", hint=f"one of {', '.join(PACKINGS)}")


@dataclass(frozen=True, slots=True)
class SupervisedConfig:
    """``steps`` optimiser steps of ``batch`` rows; linear warm-up over 10 steps, then linear decay to a tenth.

    ``bf16`` computes in bfloat16 (weights stay as they are): faster on CPUs that have it. ``tokens_per_pass`` bounds the
    padded tokens of one forward pass (speed and memory, not learning).
    """

    steps: int = 300
    batch: int = 64
    learning_rate: float = 2e-3
    max_grad_norm: float = 1.0
    bf16: bool = False
    tokens_per_pass: int = 1024
