"""Settings of the two ways to change weights. Loads nothing heavy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from lgov_core.errors import TrainError
from lgov_core.train.sections import FINITE, Above0, AtLeast0, Count, Whole, check_values


@dataclass(frozen=True, slots=True)
class UpdateConfig:
    """Settings of the update. The defaults held on every seed tried; docs/evidence/measurements.md has those that collapsed.

    **Loss.** ``loss`` is its form: ``clip`` (PPO's), ``sequence`` (GSPO's ratio of a whole call), ``cispo`` or ``plain`` (no
    ratio); formulas in `lgov_core.train.algorithms.losses`. ``clip_low`` and ``clip_high`` bound the ratio to [1 -
    low, 1 + high];
    ``dual_clip`` is the second bound where the advantage is negative (None: none). ``kl`` is β, the weight of the KL to the
    reference, ``entropy`` that of an entropy bonus. How tokens, calls and rollouts count is not set here but by
    `CreditRules.loss`.

    **Steps.** ``epochs`` passes are made over the rows of one update, each in ``minibatches`` steps of the optimiser
    (whole rollouts, in an order drawn from ``seed``). ``stop_kl`` ends the epochs early once the policy is that far, in
    nats a token, from where the update began. ``tokens_per_batch`` bounds the tokens of one forward pass: gradients are
    accumulated over as many as it takes, so it is memory, not learning. ``packing`` is ``auto``, ``tree`` (what rows begin
    with in common is computed once) or ``rows``.

    **Optimiser.** AdamW (Loshchilov and Hutter 2019, arXiv 1711.05101) with ``learning_rate``, ``beta1``, ``beta2`` and
    ``weight_decay``. The rate rises over ``warmup_steps`` updates from a first fraction of it, then stays (``constant``), or
    falls to ``final_rate`` of it over ``total_steps`` updates (``linear``, ``cosine``). ``max_grad_norm`` clips the gradient.
    ``precision`` is what passes compute in; weights and optimiser stay as they are. ``auto`` is bfloat16 where the device
    computes with it, else float32.

    **Off-policy.** Each token's ratio is taken to its recorded log-probability. A token that older weights sampled is
    corrected: its ratio is taken to the weights at the start of the update, and it counts by how much more likely they
    make it than it was, at most ``importance_cap`` times (``correction`` ``always``: all tokens, ``never``: none). Tokens of
    weights more than ``drop_older_than`` versions old are left out (None: none are).

    **Safety.** A KL to the reference above ``max_kl`` nats a token, on average, is an error before the step.

    **Critic.** With ``critic`` a value head is trained beside the policy: ``value_clip`` bounds how far its values move in one
    update (None: not at all), ``value_rate`` is its learning rate, ``value_width`` the width of its hidden layer.

    Raises `TrainError` for a value without meaning.
    """

    learning_rate: Above0 = 2e-4
    epochs: Count = 2
    kl: AtLeast0 = 0.02
    clip_low: AtLeast0 = 0.2
    clip_high: AtLeast0 = 0.28
    max_grad_norm: Above0 = 1.0
    tokens_per_batch: Count = 2048
    loss: Literal["clip", "sequence", "cispo", "plain"] = "clip"
    dual_clip: Annotated[float, Meta(gt=1.0, le=FINITE)] | None = None
    entropy: AtLeast0 = 0.0
    minibatches: Count = 1
    stop_kl: Above0 | None = None
    beta1: Annotated[float, Meta(ge=0.0, lt=1.0)] = 0.9
    beta2: Annotated[float, Meta(ge=0.0, lt=1.0)] = 0.95
    weight_decay: AtLeast0 = 0.0
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: Whole = 0
    total_steps: Count | None = None
    final_rate: AtLeast0 = 0.1
    precision: Literal["float32", "bfloat16", "auto"] = "float32"
    correction: Literal["stale", "always", "never"] = "stale"
    importance_cap: Above0 = 2.0
    drop_older_than: Whole | None = None
    max_kl: Above0 = 5.0
    critic: bool = False
    value_clip: Above0 | None = 0.2
    value_rate: Above0 = 1e-3
    value_width: Count = 64
    seed: int = 0
    packing: Literal["auto", "tree", "rows"] = "auto"

    def __post_init__(self) -> None:
        check_values(self)
        if self.schedule != "constant" and self.total_steps is None:
            raise TrainError(
                f"UpdateConfig.schedule {self.schedule} needs total_steps", hint="give the number of updates of the run"
            )

    def rate_at(self, step: int) -> float:
        """The fraction of the learning rate that update number ``step`` (from 0) uses."""
        warm = min(1.0, (step + 1) / (self.warmup_steps + 1))
        if self.schedule == "constant" or self.total_steps is None:
            return warm
        span = max(1, self.total_steps - self.warmup_steps)
        done = min(1.0, max(0, step - self.warmup_steps) / span)
        remaining = 1 - done if self.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
        return warm * (self.final_rate + (1 - self.final_rate) * remaining)


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
