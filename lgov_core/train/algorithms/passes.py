"""The rows, steps and tensors that an update prepares before its passes, and the critic that values their turns.

The critic of PPO is a small head on the policy's own hidden states.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from lgov_core.errors import TrainError
from lgov_core.train.layout.layouts import Layout
from lgov_core.train.layout.rows import RowCall, TrainRow, trained_column
from lgov_core.transitions.tokens import make_chains
from lgov_core.transitions.transition_set import Transition

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class TokenColumns:
    """The trained tokens of some rows: tensors of shape (T,), in a layout's order.

    ``old`` are the recorded log-probabilities, ``base`` those that ratios are taken to (float32, as ``advantages`` and
    ``weights``); ``sequences`` the number of each token's call (int64); ``stale`` is true where older weights sampled the
    token.
    """

    old: Tensor
    base: Tensor
    advantages: Tensor
    weights: Tensor
    sequences: Tensor
    stale: Tensor


@dataclass(frozen=True, slots=True)
class Part:
    """The rows of one step of the optimiser; their weights are to be multiplied by ``scale``."""

    rows: Sequence[TrainRow]
    scale: float = 1.0


def columns_of(rows: Sequence[TrainRow], version: int | None, device: torch.device) -> TokenColumns:
    """The columns of ``rows``; ``version`` is that of the weights as they are now, None where it is not known.

    Raises `TrainError` when a trained token is in none of its row's calls.
    """

    def column(name: str) -> Tensor:
        return torch.tensor(trained_column(rows, name), dtype=torch.float32, device=device)

    sequences: list[int] = []
    stale: list[bool] = []
    number = 0
    for row in rows:
        for call in row.spans:
            count = sum(row.mask[call.start : call.stop])
            sequences += [number] * count
            stale += [bool(_age(call, version))] * count
            number += 1
    old = column("logprobs")
    if len(sequences) != len(old):
        raise TrainError(
            f"{len(old) - len(sequences)} trained tokens are in no call of their row", hint="make rows with make_rows"
        )
    return TokenColumns(
        old,
        old,
        column("advantages"),
        column("weights"),
        torch.tensor(sequences, dtype=torch.long, device=device),
        torch.tensor(stale, dtype=torch.bool, device=device),
    )


def fresh_rows(
    rows: Sequence[TrainRow], version: int | None, drop_older_than: int | None
) -> tuple[list[TrainRow], int]:
    """``rows`` without the calls that weights more than ``drop_older_than`` versions before ``version`` wrote.

    Returns what is left, and how many tokens are not trained on because of it. Calls of an unknown version stay.
    """
    if version is None or drop_older_than is None:
        return list(rows), 0
    kept: list[TrainRow] = []
    for row in rows:
        mask = list(row.mask)
        for call in row.spans:
            if (_age(call, version) or 0) > drop_older_than:
                mask[call.start : call.stop] = [0] * (call.stop - call.start)
        if any(mask):
            kept.append(replace(row, mask=tuple(mask)) if sum(mask) < row.trained else row)
    return kept, sum(row.trained for row in rows) - sum(row.trained for row in kept)


def split_rows(rows: Sequence[TrainRow], parts: int, order: torch.Generator) -> list[Part]:
    """Deals ``rows`` out to ``parts`` steps in an order drawn from ``order``: whole groups, or rollouts if there are too few.

    The weights of a part are scaled by rollouts in all / rollouts in the part, so that its gradient is an unbiased estimate
    of the whole one. There are fewer parts where there are fewer rollouts.
    """
    if parts == 1:
        return [Part(rows)]
    keys: list[Hashable] = [row.task_id for row in rows]
    if len(set(keys)) < parts:
        keys = [_rollout(row, number) for number, row in enumerate(rows)]
    distinct = list(dict.fromkeys(keys))
    drawn = torch.randperm(len(distinct), generator=order).tolist()
    part_of = {distinct[at]: number % parts for number, at in enumerate(drawn)}
    dealt: list[list[TrainRow]] = [[] for _ in range(parts)]
    for row, key in zip(rows, keys, strict=True):
        dealt[part_of[key]].append(row)
    count = _rollouts(rows)
    return [Part(share, count / _rollouts(share)) for share in dealt if share]


def check_finite(rows: Sequence[TrainRow]) -> None:
    """Raises `TrainError` for a trained token whose advantage, weight or log-probability is not a finite number."""
    for name in ("advantages", "weights", "logprobs"):
        for row in rows:
            if not all(map(math.isfinite, trained_column([row], name))):
                raise TrainError(
                    f"{name} of rollout {row.rollout_id or '(unnamed)'} are not finite numbers",
                    hint="look for the reward or the engine that made them; the weights are as they were",
                )


def explained_variance(calls: Sequence[RowCall]) -> float:
    """1 - Var(target - value) / Var(target) over ``calls``; 0 where the targets do not differ."""
    pairs = [(call.target, call.value) for call in calls if call.target is not None and call.value is not None]
    spread = _variance([target for target, _ in pairs])
    return 1.0 - _variance([target - value for target, value in pairs]) / spread if spread > 0 else 0.0


def _variance(values: Sequence[float]) -> float:
    if not values or all(value == values[0] for value in values):
        return 0.0
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** 2 for value in values) / len(values)


def _age(call: RowCall, version: int | None) -> int | None:
    if version is None or call.weights_version is None:
        return None
    return max(0, version - call.weights_version)


def _rollout(row: TrainRow, number: int) -> Hashable:
    return (row.rollout_id, row.attempt) if row.rollout_id else number


def _rollouts(rows: Sequence[TrainRow]) -> int:
    return len({_rollout(row, number) for number, row in enumerate(rows)})


class ValueHead(torch.nn.Module):
    """One hidden layer on states of width ``width``; float32, and 0 for every state when it is made.

    The states are taken without their gradient: the critic reads what the policy knows and does not change it, so a bad
    critic makes noisy advantages but no bad policy. Weights are drawn from ``seed``.
    """

    def __init__(self, width: int, hidden: int, *, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.inner = torch.nn.Linear(width, hidden)
        self.outer = torch.nn.Linear(hidden, 1)
        with torch.no_grad():
            self.inner.weight.normal_(0.0, width**-0.5, generator=generator)
            self.inner.bias.zero_()
            self.outer.weight.zero_()
            self.outer.bias.zero_()

    def forward(self, states: Tensor) -> Tensor:
        """The values of ``states`` (count, width): float32, shape (count,)."""
        plain = states.detach().to(torch.float32)
        # States of a large model are large: without this one learning rate would not do for all.
        plain = torch.nn.functional.layer_norm(plain, plain.shape[-1:])
        return self.outer(torch.tanh(self.inner(plain)))[:, 0]


def with_values(
    head: ValueHead, module: Any, layout: Layout, transitions: Sequence[Transition], tokens: int
) -> tuple[Transition, ...]:
    """``transitions`` with the ``value`` that ``head`` gives each prompt; passes are of at most ``tokens`` tokens.

    One without a prompt stays without a value.
    """
    rows, order = value_rows(transitions)
    values: dict[int, list[float]] = {}
    with torch.no_grad():
        for batch in layout.batches(rows, tokens):
            estimates = head(layout.states(module, batch)).tolist()
            for row in batch:
                values[id(row)], estimates = estimates[: row.trained], estimates[row.trained :]
    flat = [value for row in rows for value in values[id(row)]]
    by_call = {id(transition): value for transition, value in zip(order, flat, strict=True)}
    return tuple(replace(transition, value=by_call.get(id(transition))) for transition in transitions)


def value_rows(transitions: Sequence[Transition]) -> tuple[list[TrainRow], list[Transition]]:
    """Rows in which the first token of each reply is marked, and the transitions in the order of these tokens.

    The hidden state from which a layout says such a token is chosen is that of the transition's prompt. Transitions need
    neither credit nor log-probabilities.
    """
    rows: list[TrainRow] = []
    order: list[Transition] = []
    for chain in make_chains([transition for transition in transitions if transition.prompt_ids]):
        starts = {link.start for link in chain.links}
        # An empty reply at the end: any token is a placeholder for the missing one.
        ids = (*chain.ids, chain.ids[-1]) if len(chain.ids) in starts else chain.ids
        mask = tuple(int(at in starts) for at in range(len(ids)))
        zeros = (0.0,) * len(ids)
        row = TrainRow(ids, mask, zeros, zeros, zeros, chain.temperature, task_id=chain.task_id)
        rows.append(replace(row, rollout_id=chain.rollout_id, attempt=chain.attempt))
        order += [link.transition for link in chain.links]
    return rows, order


def call_starts(rows: Sequence[TrainRow]) -> tuple[list[int], list[RowCall]]:
    """Where among the trained tokens of ``rows`` each call with a ``value`` begins, and these calls.

    Calls whose first token is not trained are left out: the state of their prompt was not computed.
    """
    starts: list[int] = []
    calls: list[RowCall] = []
    at = 0
    for row in rows:
        for call in row.spans:
            if call.value is not None and row.mask[call.start]:
                starts.append(at)
                calls.append(call)
            at += sum(row.mask[call.start : call.stop])
    return starts, calls
