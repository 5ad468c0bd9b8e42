"""Layouts: how the tokens of rows are laid out for a forward pass. The learning does not depend on it, only the work.

Whatever the layout, the update sees the trained tokens of the rows it asked for as one flat list: row after row, and in each
row token after token (a token is trained where the row's ``mask`` is 1). A token that occurs in several rows, because they
share a prefix that was trained on in each, is there once for each of them, with its own advantage.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from lgov_core.train.layout.logprobs import head_scores, row_states
from lgov_core.train.layout.rows import TrainRow, batches_by_length

Tensor = torch.Tensor


class Layout(Protocol):
    """Runs a causal language model on rows. Gradients flow unless the caller switched them off.

    It may keep what it worked out for rows of the last `batches`; nothing that changes results.
    """

    def batches(self, rows: Sequence[TrainRow], tokens: int) -> list[list[TrainRow]]:
        """Splits ``rows`` into those that are run in one pass each, of at most ``tokens`` tokens where that can be.

        Every row is in exactly one batch, in any order.
        """
        ...

    def work(self, batches: Sequence[Sequence[TrainRow]]) -> int:
        """How many tokens one pass over ``batches`` runs the model on, padding included."""
        ...

    def states(self, module: Any, rows: Sequence[TrainRow]) -> Tensor:
        """The last hidden state from which each trained token of ``rows`` was chosen: shape (trained tokens, width).

        It is that of the token before, so the first state of a call is that of its prompt's last token.
        """
        ...

    def logprobs(self, module: Any, rows: Sequence[TrainRow]) -> Tensor:
        """The log-probability of each trained token of ``rows`` at its row's temperature: (trained tokens,).

        They are float32, float64 for a model of that type.
        """
        return head_scores(module, self.states(module, rows), rows)[0]


class PaddedRows(Layout):
    """One row after the other, padded to the longest of a pass; rows of similar length go together."""

    def batches(self, rows: Sequence[TrainRow], tokens: int) -> list[list[TrainRow]]:
        """See `Layout.batches`; ``tokens`` counts the padding."""
        return list(batches_by_length(rows, tokens))

    def work(self, batches: Sequence[Sequence[TrainRow]]) -> int:
        """See `Layout.work`."""
        return sum(len(batch) * max(len(row.ids) for row in batch) for batch in batches)

    def states(self, module: Any, rows: Sequence[TrainRow]) -> Tensor:
        """See `Layout.states`."""
        return row_states(module, rows)
