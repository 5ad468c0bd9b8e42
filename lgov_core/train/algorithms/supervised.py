"""A short supervised warm start: next-token cross-entropy on the assistant's tokens of logged conversations."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from lgov_core.errors import TrainError
from lgov_core.train.algorithms.config import SupervisedConfig
from lgov_core.train.layout.logprobs import row_logprobs
from lgov_core.train.layout.rows import TrainRow, batches_by_length


def supervised(
    module: Any,
    draw: Callable[[int], list[TrainRow]],
    config: SupervisedConfig,
    progress: Callable[[int, int, float], None] | None = None,
) -> float:
    """Trains ``module`` in place on rows from ``draw(count)``; returns the last loss (mean over trained tokens).

    ``progress(step, steps, loss)`` is called after every step. Raises `TrainError` when the loss is not finite.
    """
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=config.learning_rate, weight_decay=0.0)
    device = next(module.parameters()).device.type
    cast = torch.autocast(device, dtype=torch.bfloat16) if config.bf16 else contextlib.nullcontext()
    loss_value = 0.0
    module.train()
    for step in range(config.steps):
        rate = min(1.0, (step + 1) / 10) * (0.1 + 0.9 * (1 - step / config.steps))
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate * rate
        rows = draw(config.batch)
        trained = sum(sum(row.mask) for row in rows)
        optimizer.zero_grad(set_to_none=True)
        loss_value = 0.0
        # Rows of like length together: padding would be most of the work. The gradient is that of one large batch.
        for batch in batches_by_length(rows, config.tokens_per_pass):
            with cast:
                logprobs = row_logprobs(module, batch)
            loss = -logprobs.sum() / trained
            loss.backward()
            loss_value += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(parameters, config.max_grad_norm)
        optimizer.step()
        if loss_value != loss_value:
            raise TrainError("the warm start's loss is not a number", hint="lower its learning rate")
        if progress is not None:
            progress(step + 1, config.steps, loss_value)
    module.eval()
    return loss_value
