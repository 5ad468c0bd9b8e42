"""The policy update: a clipped ratio against the recorded log-probabilities, with a KL term to a reference.

The loss of a trained token with advantage A, recorded log-probability l₀, current l and weight w is

    -w · min(r·A, clip(r, 1 - ε_low, 1 + ε_high)·A) + w · β · (exp(l_ref - l) - (l_ref - l) - 1),   r = exp(l - l₀)

(GRPO: Shao et al. 2024, arXiv 2402.03300, eq. 3 and 4; the asymmetric clip: DAPO, Yu et al. 2025, arXiv 2503.14476,
eq. 10; advantages without division by the group's deviation: Dr. PolicyUpdate, Liu et al. 2025, arXiv 2503.20783.)
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from lgov_core.errors import TrainError
from lgov_core.train.config import UpdateConfig
from lgov_core.train.layouts import Layout
from lgov_core.train.logprobs import trained_column
from lgov_core.train.packing import layout_for
from lgov_core.train.rows import TrainRow


@dataclass(frozen=True, slots=True)
class UpdateMetrics:
    """What one update did. Means are over trained tokens, of the first epoch; ``clip_fraction`` is of the last.

    ``entropy`` is the mean of -log p over the tokens that were sampled; ``logprob_drift`` the mean absolute difference
    between recorded and recomputed log-probabilities before the first step. ``tokens_run`` is on how many tokens, padding
    included, one pass over the rows runs the model; ``tokens_saved`` how many fewer those are than the prompts and replies
    of all calls, each by itself.
    """

    rows: int
    tokens: int
    loss: float
    kl: float
    entropy: float
    clip_fraction: float
    grad_norm: float
    logprob_drift: float
    tokens_run: int = 0
    tokens_saved: int = 0


class PolicyUpdate:
    """Updates ``module`` in place. Not safe to call from several threads.

    ``reference`` gives the reference log-probabilities: a context manager factory under which ``module`` *is* the reference
    (for LoRA: adapters switched off), or another module. It may be None only with ``kl`` 0. ``layout`` says how tokens are
    laid out for a pass (None: as ``config.packing`` says).
    """

    def __init__(
        self,
        module: Any,
        config: UpdateConfig,
        *,
        reference: Any | None = None,
        reference_mode: Callable[[], contextlib.AbstractContextManager[Any]] | None = None,
        layout: Layout | None = None,
    ) -> None:
        if config.kl > 0 and reference is None and reference_mode is None:
            raise TrainError("kl > 0 needs a reference model", hint="pass reference= or reference_mode=, or set kl=0")
        self.module = module
        self.config = config
        self.reference = reference
        self.reference_mode = reference_mode
        self.layout: Layout = layout or layout_for(config.packing, module)
        self.parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=config.learning_rate, betas=(0.9, 0.95), weight_decay=0.0
        )

    def update(self, rows: Sequence[TrainRow], progress: Callable[[int, int], None] | None = None) -> UpdateMetrics:
        """One iteration on ``rows``. Rows whose advantages are all 0 are left out: they only cost time.

        ``progress(done, total)`` is called after every forward pass. Raises `TrainError` when the loss or gradient is not
        finite; the weights are then as they were before the step that failed.
        """
        kept = [row for row in rows if row.informative]
        if not kept:
            return UpdateMetrics(0, 0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
        batches = self.layout.batches(kept, self.config.tokens_per_batch)
        references = self._references(batches)
        done, total = 0, len(batches) * self.config.epochs
        first = last = None
        for _ in range(self.config.epochs):
            self.optimizer.zero_grad(set_to_none=True)
            sums: dict[str, float] = {}
            for batch, reference in zip(batches, references, strict=True):
                for name, value in self._backward(batch, reference).items():
                    sums[name] = sums.get(name, 0.0) + value
                done += 1
                if progress is not None:
                    progress(done, total)
            norm = float(torch.nn.utils.clip_grad_norm_(self.parameters, self.config.max_grad_norm))
            if not (math.isfinite(norm) and math.isfinite(sums["loss"])):
                self.optimizer.zero_grad(set_to_none=True)
                raise TrainError(
                    f"the update is not finite (loss {sums['loss']}, gradient norm {norm})",
                    hint="lower the learning rate; the weights before this step are kept",
                )
            self.optimizer.step()
            last = _metrics(len(kept), sums, norm)
            first = first or last
        if first is None or last is None:  # pragma: no cover - epochs >= 1
            raise TrainError("no epoch was run")
        # Before the first step every ratio is 1: clipping only shows in the last pass.
        run = self.layout.work(batches)
        saved = sum(row.called for row in kept) - run
        return replace(first, clip_fraction=last.clip_fraction, tokens_run=run, tokens_saved=saved)

    def state_dict(self) -> dict[str, Any]:
        """All that the next update depends on beside the weights: tensors and plain values only."""
        return {"optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Puts back what `state_dict` gave. Raises `TrainError` when it is not of such an update."""
        try:
            self.optimizer.load_state_dict(dict(state["optimizer"]))
        except (LookupError, TypeError, ValueError) as error:
            raise TrainError(
                f"the optimiser's state does not fit: {error}", hint="it was saved by an update with other settings"
            ) from error

    def _references(self, batches: Sequence[Sequence[TrainRow]]) -> list[torch.Tensor | None]:
        if self.config.kl == 0:
            return [None] * len(batches)
        mode = self.reference_mode() if self.reference_mode is not None else contextlib.nullcontext()
        module = self.reference if self.reference is not None else self.module
        with torch.no_grad(), mode:
            return [self.layout.logprobs(module, batch) for batch in batches]

    def _backward(self, rows: Sequence[TrainRow], reference: torch.Tensor | None) -> dict[str, float]:
        config = self.config
        logprobs = self.layout.logprobs(self.module, rows)
        device = logprobs.device

        def column(name: str) -> torch.Tensor:
            return torch.tensor(trained_column(rows, name), dtype=torch.float32, device=device)

        old, advantages, weights = column("logprobs"), column("advantages"), column("weights")
        ratio = torch.exp(logprobs - old)
        clipped = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
        surrogate = torch.minimum(ratio * advantages, clipped * advantages)
        loss = -(surrogate * weights).sum()
        kl = torch.zeros_like(logprobs)
        if reference is not None:
            gap = reference - logprobs
            kl = gap.exp() - gap - 1
            loss = loss + config.kl * (kl * weights).sum()
        loss.backward()
        with torch.no_grad():
            return {
                "loss": float(loss),
                "tokens": float(len(logprobs)),
                "kl": float(kl.sum()),
                "entropy": float(-logprobs.sum()),
                "clipped": float((surrogate < ratio * advantages).sum()),
                "drift": float((logprobs - old).abs().sum()),
            }


def _metrics(rows: int, sums: dict[str, float], norm: float) -> UpdateMetrics:
    tokens = max(sums["tokens"], 1.0)
    return UpdateMetrics(
        rows=rows,
        tokens=int(sums["tokens"]),
        loss=sums["loss"],
        kl=sums["kl"] / tokens,
        entropy=sums["entropy"] / tokens,
        clip_fraction=sums["clipped"] / tokens,
        grad_norm=norm,
        logprob_drift=sums["drift"] / tokens,
    )
