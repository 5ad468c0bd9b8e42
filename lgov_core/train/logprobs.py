"""Log-probabilities of chosen tokens under a causal language model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lgov_core.train.rows import TrainRow

Tensor = torch.Tensor


def pad(values: Sequence[Sequence[float]], *, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Right-pads with zeros. Returns shape (rows, longest)."""
    longest = max(len(row) for row in values)
    return torch.tensor([[*row, *([0] * (longest - len(row)))] for row in values], dtype=dtype, device=device)


def row_logprobs(module: Any, rows: Sequence[TrainRow]) -> tuple[Tensor, Tensor]:
    """Log-probabilities of all trained tokens of ``rows``, and where they stand.

    Returns ``(logprobs, mask)``: ``mask`` is bool of shape (rows, longest - 1), true where the *next* token is trained;
    ``logprobs`` is float32 of shape (number of true entries,), in row-major order, at each row's temperature.
    Only the trained positions go through the output layer, which for a large vocabulary is most of the work.
    ``module`` is a transformers causal language model (or a PEFT model around one). Gradients flow as usual.
    """
    device = next(module.parameters()).device
    ids = pad([row.ids for row in rows], dtype=torch.long, device=device)
    mask = pad([row.mask for row in rows], dtype=torch.bool, device=device)[:, 1:]
    attention = pad([[1] * len(row.ids) for row in rows], dtype=torch.long, device=device)
    temperature = torch.tensor([row.temperature or 1.0 for row in rows], device=device)[:, None].expand(mask.shape)[
        mask
    ]
    inner = module.get_base_model() if hasattr(module, "get_base_model") else module
    hidden = inner.get_decoder()(input_ids=ids, attention_mask=attention, use_cache=False).last_hidden_state
    logits = inner.get_output_embeddings()(hidden[:, :-1][mask]).float() / temperature[:, None]
    chosen = logits.gather(-1, ids[:, 1:][mask][:, None])[:, 0]
    return chosen - logits.logsumexp(-1), mask
