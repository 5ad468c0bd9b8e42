"""Transitions as rows of tokens that a model can be run on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lgov_core.errors import TransitionError
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
