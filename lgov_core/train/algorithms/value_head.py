"""The critic of PPO: a small head on the policy's own hidden states that says what a turn will earn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from lgov_core.train.layout.layouts import Layout
from lgov_core.train.layout.rows import RowCall, TrainRow
from lgov_core.transitions.tokens import make_chains
from lgov_core.transitions.transition_set import Transition

Tensor = torch.Tensor


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
