"""Sequences that are being written, and how their next tokens are drawn.

Imports torch; import it only where it is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from lgov_core.gateway.engine.reply_grammar import GrammarConstraint

#: A uniform number is kept this far below 1, so that the last token of the distribution is not overshot.
_ALMOST_ONE = 1.0 - 2.0**-40


@dataclass(slots=True, eq=False)
class Row:
    """One sequence on its way.

    ``uniforms`` (float64 [max_new_tokens], in [0, 1)) decides its draws, so that its tokens do not depend on what
    else is in the batch. ``policy`` names the adapter that writes it, "" for the model itself. ``finish`` is "" until it
    is stop or length. ``abandoned`` may be set by any thread: its result is no longer needed.
    """

    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    temperature: float
    top_p: float
    uniforms: torch.Tensor
    stop: tuple[str, ...] = ()
    policy: str = ""
    constraint: GrammarConstraint | None = None
    response_ids: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    finish: str = ""
    abandoned: bool = False

    @property
    def done(self) -> bool:
        """True where it needs no more tokens."""
        return self.abandoned or bool(self.finish)


def draw_uniforms(seed: int, count: int) -> torch.Tensor:
    """``count`` numbers in [0, 1), float64, from a generator of their own."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, generator=generator, dtype=torch.float64).clamp_(max=_ALMOST_ONE)


def draw(logits: torch.Tensor, rows: Sequence[Row]) -> tuple[torch.Tensor, torch.Tensor]:
    """One token a row: ids int64 [rows] and log-probabilities float32 [rows] at the row's temperature.

    ``logits`` is float32 [rows, vocabulary]. Temperature 0 takes the likeliest token and reports its log-probability at
    temperature 1. ``top_p`` and a constraint narrow the choice; the log-probability stays that of the whole distribution.
    """
    device = logits.device
    warmth = torch.tensor([row.temperature or 1.0 for row in rows], device=device)
    logprobs = torch.log_softmax(logits / warmth[:, None], dim=-1)
    greedy = torch.tensor([row.temperature == 0.0 for row in rows], device=device)
    held = [(index, row.constraint) for index, row in enumerate(rows) if row.constraint is not None]
    allowed = logprobs.clone() if held else logprobs
    for index, constraint in held:
        mask = constraint.allowed(logits.shape[-1]).to(device)
        # Shifted to the likeliest of those that are left: what the model finds improbable may be all there is.
        row = allowed[index].masked_fill(~mask, float("-inf"))
        allowed[index] = row - row.max()
    ids = allowed.argmax(dim=-1)
    if not bool(greedy.all()):
        weights = allowed.double().exp_()
        if any(row.top_p < 1.0 for row in rows):
            _narrow(weights, torch.tensor([row.top_p for row in rows], dtype=torch.float64, device=device))
        steps = [min(len(row.response_ids), len(row.uniforms) - 1) for row in rows]
        uniforms = torch.stack([row.uniforms[step] for row, step in zip(rows, steps, strict=True)]).to(device)
        total = weights.cumsum_(dim=-1)
        drawn = torch.searchsorted(total, (uniforms * total[:, -1])[:, None], right=True)[:, 0]
        ids = torch.where(greedy, ids, drawn.clamp_(max=logits.shape[-1] - 1))
    return ids, logprobs.gather(-1, ids[:, None])[:, 0]


def _narrow(weights: torch.Tensor, top_p: torch.Tensor) -> None:
    """Sets to zero what is outside the smallest set of tokens that holds ``top_p`` of the weight (float64 [rows])."""
    ordered, places = weights.sort(dim=-1, descending=True)
    sums = ordered.cumsum(dim=-1)
    # Of the weight that there is: a constrained row's is not 1. The likeliest is never outside.
    outside = (sums - ordered) >= (top_p * sums[:, -1])[:, None]
    outside[:, 0] = False
    # A row that is not narrowed keeps everything, whatever rounding makes of its sum.
    outside &= (top_p < 1.0)[:, None]
    weights.scatter_(-1, places, ordered.masked_fill(outside, 0.0))
