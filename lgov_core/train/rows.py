"""Transitions as rows of tokens that a model can be run on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lgov_core.errors import TransitionError
from lgov_core.transitions.values import Transition, by_rollout


@dataclass(frozen=True, slots=True)
class TrainRow:
    """One sequence of tokens, all lists of length N.

    ``mask`` is 1 where the token is trained on (never at index 0: nothing predicts it); ``logprobs``, ``advantages`` and
    ``weights`` are only meaningful there and 0.0 elsewhere. ``logprobs`` were recorded at ``temperature``.
    """

    ids: tuple[int, ...]
    mask: tuple[int, ...]
    logprobs: tuple[float, ...]
    advantages: tuple[float, ...]
    weights: tuple[float, ...]
    temperature: float

    @property
    def informative(self) -> bool:
        """Whether any trained token has an advantage other than 0."""
        return any(advantage != 0.0 for advantage, kept in zip(self.advantages, self.mask, strict=True) if kept)


def make_rows(transitions: Sequence[Transition]) -> list[TrainRow]:
    """One row per chain: transitions of a rollout whose tokens extend one another share a row, others get their own.

    Every call keeps its own advantage and weight, so the loss is the same as with one row per call; only the repeated
    prefixes are saved. Raises `TransitionError` for transitions without credit or log-probabilities.
    """
    rows: list[TrainRow] = []
    for turns in by_rollout(transitions).values():
        chains: list[_Chain] = []
        for turn in turns:
            for chain in reversed(chains):
                if chain.extends_to(turn):
                    chain.add(turn)
                    break
            else:
                chains.append(_Chain(turn))
        rows += [chain.row() for chain in chains]
    return rows


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


class _Chain:
    def __init__(self, first: Transition) -> None:
        self.ids: list[int] = []
        self.mask: list[int] = []
        self.logprobs: list[float] = []
        self.advantages: list[float] = []
        self.weights: list[float] = []
        self.temperature = first.temperature
        self.add(first)

    def extends_to(self, turn: Transition) -> bool:
        prefix = tuple(self.ids)
        return turn.temperature == self.temperature and turn.prompt_ids[: len(prefix)] == prefix

    def add(self, turn: Transition) -> None:
        if turn.advantages is None:
            raise TransitionError(f"transition {turn.response_id} has no credit", hint="call assign_credit first")
        if turn.logprobs is None:
            raise TransitionError(
                f"transition {turn.response_id} has no log-probabilities", hint="build transitions with need_logprobs"
            )
        observed = turn.prompt_ids[len(self.ids) :]
        self.ids += [*observed, *turn.response_ids]
        self.mask += [*([0] * len(observed)), *turn.response_mask]
        blank = [0.0] * len(observed)
        self.logprobs += [*blank, *turn.logprobs]
        self.advantages += [*blank, *turn.advantages]
        self.weights += [*blank, *([turn.loss_weight] * len(turn.response_ids))]

    def row(self) -> TrainRow:
        return TrainRow(
            tuple(self.ids),
            tuple(self.mask),
            tuple(self.logprobs),
            tuple(self.advantages),
            tuple(self.weights),
            self.temperature,
        )
