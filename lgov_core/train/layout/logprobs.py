"""Log-probabilities of chosen tokens under a causal language model, the precision of passes, and what a full memory says."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence
from typing import Any

import torch

from lgov_core.errors import TrainError
from lgov_core.models.load import computes_bfloat16
from lgov_core.train.layout.rows import TrainRow

Tensor = torch.Tensor


def pad(values: Sequence[Sequence[float]], *, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Right-pads with zeros. Returns shape (rows, longest)."""
    longest = max(len(row) for row in values)
    return torch.tensor([[*row, *([0] * (longest - len(row)))] for row in values], dtype=dtype, device=device)


def row_logprobs(module: Any, rows: Sequence[TrainRow]) -> Tensor:
    """Log-probabilities of all trained tokens, row after row, at each row's temperature: float32, (trained tokens,).

    Only the trained positions go through the output layer, which for a large vocabulary is most of the work.
    ``module`` is a transformers causal language model (or a PEFT model around one). Gradients flow as usual.
    """
    return head_scores(module, row_states(module, rows), rows)[0]


def row_states(module: Any, rows: Sequence[TrainRow]) -> Tensor:
    """The last hidden states from which the trained tokens of ``rows`` are chosen: shape (trained tokens, width).

    Rows are padded to the longest and run in one pass.
    """
    device = next(module.parameters()).device
    ids = pad([row.ids for row in rows], dtype=torch.long, device=device)
    mask = pad([row.mask for row in rows], dtype=torch.bool, device=device)[:, 1:]
    attention = pad([[1] * len(row.ids) for row in rows], dtype=torch.long, device=device)
    hidden = base_model(module).get_decoder()(input_ids=ids, attention_mask=attention, use_cache=False)
    return hidden.last_hidden_state[:, :-1][mask]


def head_scores(
    module: Any, states: Tensor, rows: Sequence[TrainRow], *, entropy: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Scores each trained token of ``rows`` by the output layer, given its ``states`` (trained tokens, width).

    Returns the log-probability of the token that was chosen, at its row's temperature, and with ``entropy`` the entropy in
    nats of the whole distribution there: both float32 (float64 for a model of that type) of shape (trained tokens,).
    """
    device = states.device
    chosen = torch.tensor(trained_column(rows, "ids"), dtype=torch.long, device=device)
    logits = base_model(module).get_output_embeddings()(states)
    if logits.dtype != torch.float64:
        logits = logits.float()
    temperatures = [row.temperature or 1.0 for row in rows for _ in range(row.trained)]
    if any(temperature != 1.0 for temperature in temperatures):
        logits = logits / torch.tensor(temperatures, device=device)[:, None]
    normaliser = logits.logsumexp(-1)
    logprobs = logits.gather(-1, chosen[:, None])[:, 0] - normaliser
    if not entropy:
        return logprobs, None
    return logprobs, normaliser - (logits.softmax(-1) * logits).sum(-1)


def trained_column(rows: Sequence[TrainRow], name: str) -> list[Any]:
    """The entries of the column ``name`` (``ids``, ``advantages``, ...) of all trained tokens, row after row."""
    return [value for row in rows for value, kept in zip(getattr(row, name), row.mask, strict=True) if kept]


def base_model(module: Any) -> Any:
    """The transformers model inside a PEFT model, or ``module`` itself."""
    return module.get_base_model() if hasattr(module, "get_base_model") else module


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
