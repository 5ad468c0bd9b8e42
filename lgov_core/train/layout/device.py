"""The precision of passes, and the error of a pass that does not fit into memory."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any

import torch

from lgov_core.errors import TrainError
from lgov_core.models.precision import computes_bfloat16


def autocast(device: str, precision: str) -> contextlib.AbstractContextManager[Any]:
    """A context in which passes compute in ``precision``; weights, gradients and log-probabilities stay as they are."""
    chosen = precision == "bfloat16" or (precision == "auto" and computes_bfloat16(device))
    return torch.autocast(device, dtype=torch.bfloat16) if chosen else contextlib.nullcontext()


@contextlib.contextmanager
def memory_errors(tokens_per_batch: int) -> Generator[list[str]]:
    """Turns running out of memory into a `TrainError` that says what to lower.

    What is being done when it happens is the last entry of the list that the context gives.
    """
    doing: list[str] = []
    try:
        yield doing
    except (MemoryError, RuntimeError) as error:
        if not _is_memory(error):
            raise
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        what = doing[-1] if doing else "the update"
        raise TrainError(
            f"out of memory in {what}; the weights are as they were before this step",
            hint=f"lower tokens_per_batch, which is {tokens_per_batch}; or the group or batch size; "
            "bfloat16 and adapters (LoRA) need less too",
        ) from error


def _is_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    words = str(error).lower()
    return any(phrase in words for phrase in ("can't allocate memory", "not enough memory", "out of memory"))
