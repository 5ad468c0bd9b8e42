"""Transitions as rows of tokens that a model can be run on, and the log-probabilities that it gives them."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lgov_core.errors import TrainError, TransitionError
from lgov_core.models.load import computes_bfloat16
from lgov_core.transitions.tokens import Chain, Link, make_chains
from lgov_core.transitions.transition_set import Transition


@dataclass(frozen=True, slots=True)
class RowCall:
    """One model call in a row: its reply is at ``start`` to ``stop`` (without) of the row's tokens.

    ``weights_version`` is that of the weights that wrote it, None where it is not known. ``value`` is what a critic
    expected of it before the update, None where there is no critic; ``target`` is what it should have expected.
    """

    start: int
    stop: int
    weights_version: int | None = None
    value: float | None = None
    target: float | None = None


@dataclass(frozen=True, slots=True)
class TrainRow:
    """One sequence of tokens, all lists of length N.

    ``mask`` is 1 where the token is trained on (never at index 0: nothing predicts it); ``logprobs``, ``advantages`` and
    ``weights`` are only meaningful there and 0.0 elsewhere. ``logprobs`` were recorded at ``temperature``. ``calls`` are the
    model calls in it, in the order of their tokens and without overlap: every trained token is in one of them. Without
    any, the row is one call. ``task_id`` names the group and ``rollout_id`` with ``attempt`` the rollout it is of;
    ``model`` is the name that the model was asked by.
    """

    ids: tuple[int, ...]
    mask: tuple[int, ...]
    logprobs: tuple[float, ...]
    advantages: tuple[float, ...]
    weights: tuple[float, ...]
    temperature: float
    calls: tuple[RowCall, ...] = ()
    task_id: str = ""
    rollout_id: str = ""
    attempt: int = 0
    model: str = ""

    @property
    def informative(self) -> bool:
        """True where any trained token has an advantage other than 0."""
        return any(advantage != 0.0 for advantage, kept in zip(self.advantages, self.mask, strict=True) if kept)

    @property
    def spans(self) -> tuple[RowCall, ...]:
        """The calls in it; one over the whole row where none are named."""
        return self.calls or (RowCall(0, len(self.ids)),)

    @property
    def trained(self) -> int:
        """How many tokens are trained on."""
        return sum(self.mask)

    @property
    def called(self) -> int:
        """How many tokens the prompts and replies of its calls have, each call by itself."""
        return sum(call.stop for call in self.calls) if self.calls else len(self.ids)


def make_rows(transitions: Sequence[Transition]) -> list[TrainRow]:
    """One row per chain: turns of one agent whose tokens extend one another share a row, others get their own.

    Every call keeps its own advantage and weight, so the loss is the same as with one row per call; only the repeated
    prefixes are saved. Raises `TransitionError` for transitions without credit or log-probabilities, and for one that has
    no prompt: nothing predicts its first token.
    """
    for turn in transitions:
        if turn.advantages is None:
            raise TransitionError(f"transition {turn.response_id} has no credit", hint="call assign_credit first")
        if turn.logprobs is None:
            raise TransitionError(
                f"transition {turn.response_id} has no log-probabilities", hint="build transitions with need_logprobs"
            )
        if not turn.prompt_ids:
            raise TransitionError(f"transition {turn.response_id} has no prompt", hint="leave the call out")
    return [_row(chain) for chain in make_chains(transitions)]


def batches_by_length(rows: Sequence[TrainRow], tokens: int) -> Iterator[list[TrainRow]]:
    """Rows of similar length together, each batch of at most ``tokens`` padded tokens (or one row)."""
    batch: list[TrainRow] = []
    for row in sorted(rows, key=lambda row: len(row.ids)):
        if batch and (len(batch) + 1) * len(row.ids) > tokens:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def _row(chain: Chain) -> TrainRow:
    return TrainRow(
        chain.ids,
        chain.mask,
        chain.logprobs or (),
        chain.advantages or (),
        chain.weights or (),
        chain.temperature,
        tuple(map(_call, chain.links)),
        chain.task_id,
        chain.rollout_id,
        chain.attempt,
        chain.model,
    )


def _call(link: Link) -> RowCall:
    transition = link.transition
    return RowCall(link.start, link.stop, transition.weights_version, transition.value, transition.value_to_go)


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
