"""Settings of the two ways to change weights. Loads nothing heavy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

from lgov_core.errors import TrainError

#: Forms of the policy's loss; each is a function of `lgov_core.train.algorithms.losses`.
LossForm = Literal["clip", "sequence", "cispo", "plain"]
Schedule = Literal["constant", "linear", "cosine"]
Precision = Literal["float32", "bfloat16", "auto"]
Correction = Literal["stale", "always", "never"]
#: How the rows of an update are laid out: a trie of tokens where that pays, always, or never.
PACKINGS = ("auto", "tree", "rows")

_CHOICES = {
    name: get_args(kind)
    for name, kind in (("loss", LossForm), ("schedule", Schedule), ("precision", Precision), ("correction", Correction))
}
#: Whole numbers, and the least that each may be.
_WHOLE = {
    "epochs": 1,
    "minibatches": 1,
    "tokens_per_batch": 1,
    "value_width": 1,
    "warmup_steps": 0,
    "total_steps": 1,
    "drop_older_than": 0,
}
#: What may be None.
_OPTIONAL = {"stop_kl", "value_clip", "dual_clip", "total_steps", "drop_older_than"}


@dataclass(frozen=True, slots=True)
class UpdateConfig:
    """Settings of the update. The defaults held on every seed tried; see docs/training.md for those that collapsed.

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

    learning_rate: float = 2e-4
    epochs: int = 2
    kl: float = 0.02
    clip_low: float = 0.2
    clip_high: float = 0.28
    max_grad_norm: float = 1.0
    tokens_per_batch: int = 2048
    loss: LossForm = "clip"
    dual_clip: float | None = None
    entropy: float = 0.0
    minibatches: int = 1
    stop_kl: float | None = None
    beta1: float = 0.9
    beta2: float = 0.95
    weight_decay: float = 0.0
    schedule: Schedule = "constant"
    warmup_steps: int = 0
    total_steps: int | None = None
    final_rate: float = 0.1
    precision: Precision = "float32"
    correction: Correction = "stale"
    importance_cap: float = 2.0
    drop_older_than: int | None = None
    max_kl: float = 5.0
    critic: bool = False
    value_clip: float | None = 0.2
    value_rate: float = 1e-3
    value_width: int = 64
    seed: int = 0
    packing: str = "auto"

    def __post_init__(self) -> None:
        for name in (
            "learning_rate",
            "max_grad_norm",
            "max_kl",
            "value_rate",
            "importance_cap",
            "stop_kl",
            "value_clip",
        ):
            self._number(name, above=0.0)
        for name in ("kl", "entropy", "clip_low", "clip_high", "weight_decay", "final_rate", "beta1", "beta2"):
            self._number(name, least=0.0)
        self._number("dual_clip", above=1.0)
        for name, least in _WHOLE.items():
            self._whole(name, least)
        for name, known in _CHOICES.items():
            if getattr(self, name) not in known:
                raise TrainError(f"UpdateConfig.{name} is {getattr(self, name)!r}", hint=f"one of {', '.join(known)}")
        if max(self.beta1, self.beta2) >= 1:
            raise TrainError("UpdateConfig.beta1 and beta2 must be below 1")
        if self.packing not in PACKINGS:
            raise TrainError(f"there is no packing {self.packing!r}", hint=f"one of {', '.join(PACKINGS)}")
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
        left = 1 - done if self.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
        return warm * (self.final_rate + (1 - self.final_rate) * left)

    def _number(self, name: str, *, least: float = 0.0, above: float | None = None) -> None:
        value: Any = getattr(self, name)
        if value is None and name in _OPTIONAL:
            return
        bound = f"{least:g} or more" if above is None else f"above {above:g}"
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
            raise TrainError(f"UpdateConfig.{name} must be {bound}, not {value!r}")
        if value < least or (above is not None and value <= above):
            raise TrainError(f"UpdateConfig.{name} must be {bound}, not {value:g}")

    def _whole(self, name: str, least: int) -> None:
        value: Any = getattr(self, name)
        if value is None and name in _OPTIONAL:
            return
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise TrainError(f"UpdateConfig.{name} must be a whole number, {least} or more, not {value!r}")


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
