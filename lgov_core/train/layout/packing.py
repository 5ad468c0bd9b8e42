"""Which layout an update uses: the trie of tokens where it pays, padded rows where it does not or cannot be.

Measured on CPU, forward and backward, on models of 0.12 to 135 million parameters: what a trie does beside its tokens costs
at each of its nodes as much as 1 (large models) to 16 (the smallest) further tokens do. So it is used when it saves
more than `NODE_TOKENS` tokens a node. ``python -m tests.bench.packing`` prints both layouts beside each other.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch

from lgov_core.errors import TrainError
from lgov_core.train.layout.layouts import Layout, PaddedRows
from lgov_core.train.layout.logprobs import base_model
from lgov_core.train.layout.rows import TrainRow
from lgov_core.train.layout.tree_layout import TokenTrie

#: What a node of a trie costs beside its tokens, as tokens of a forward and backward pass; the most that was measured.
NODE_TOKENS = 16


def layout_for(packing: str, module: Any) -> Layout:
    """The layout that ``packing`` names: auto, tree or rows. Raises `TrainError` when tree cannot run ``module``."""
    if packing == "rows":
        return PaddedRows()
    if packing == "auto":
        return CheaperLayout(module)
    if reason := why_not_packed(module):
        raise TrainError(f"this model cannot be run on a trie of tokens: {reason}", hint='set packing to "auto"')
    return TokenTrie()


class CheaperLayout(Layout):
    """Decides between `TokenTrie` and `PaddedRows`, by the tokens that the one saves: for rows together how they are cut into
    batches, and for each batch how it is run.

    Where ``module`` cannot be run on a trie it is always padded rows. Not safe to call from several threads.
    """

    def __init__(self, module: Any) -> None:
        self._module = module
        self._rows, self._trie = PaddedRows(), TokenTrie()

    def batches(self, rows: Sequence[TrainRow], tokens: int) -> list[list[TrainRow]]:
        """See `Layout.batches`."""
        padded, packed = self._rows.batches(rows, tokens), self._trie.batches(rows, tokens)
        return packed if self._pays(self._rows.work(padded), packed) else padded

    def layout_of(self, batch: Sequence[TrainRow]) -> Layout:
        """How a batch is run."""
        return self._trie if self._pays(self._rows.work([batch]), [batch]) else self._rows

    def work(self, batches: Sequence[Sequence[TrainRow]]) -> int:
        """See `Layout.work`."""
        return sum(self.layout_of(batch).work([batch]) for batch in batches)

    def states(self, module: Any, rows: Sequence[TrainRow]) -> torch.Tensor:
        """See `Layout.states`."""
        return self.layout_of(rows).states(module, rows)

    def _pays(self, padded: int, packed: Sequence[Sequence[TrainRow]]) -> bool:
        nodes = sum(self._trie.pack(batch).segments.count for batch in packed)
        saved = padded - self._trie.work(packed)
        return saved > NODE_TOKENS * nodes and why_not_packed(self._module) is None


def why_not_packed(module: Any) -> str | None:
    """Why ``module`` cannot be run on a trie of tokens; None when it can.

    Whatever its configuration says, the model is run once on a trie of a few tokens and on the same rows.
    """
    model = base_model(module)
    config = getattr(model, "config", None)
    if config is None or not getattr(model, "_supports_attention_backend", False):
        return "its attention layers do not accept a custom mask"
    if getattr(config, "is_encoder_decoder", False):
        return "it has an encoder"
    layers = set(getattr(config, "layer_types", None) or ())
    if getattr(config, "sliding_window", None) or layers - {"full_attention"}:
        return "some of its layers do not attend to the whole prompt"
    if any(getattr(submodule, "gradient_checkpointing", False) for submodule in model.modules()):
        return "it computes activations a second time (gradient checkpointing)"
    if module.training and any(
        isinstance(submodule, torch.nn.Dropout) and submodule.p > 0 for submodule in module.modules()
    ):
        return "it has dropout, which each row draws anew"
    if module not in _tried:
        _tried[module] = _tried_out(module)
    return _tried[module]


_tried: weakref.WeakKeyDictionary[Any, str | None] = weakref.WeakKeyDictionary()


def _tried_out(module: Any) -> str | None:
    size = int(base_model(module).config.vocab_size)
    begin = [number * 7 % size for number in range(1, 6)]
    rows: list[TrainRow] = []
    for branch in ([3, 1, 4], [2, 7, 1, 8], [1, 6, 1]):
        ids = (*begin, *(number % size for number in branch))
        none = (0.0,) * len(ids)
        rows.append(TrainRow(ids, (0, *(1,) * (len(ids) - 1)), none, none, none, 1.0))
    trie, padded = TokenTrie(), PaddedRows()
    try:
        with torch.no_grad():
            packed, expected = trie.states(module, rows), padded.states(module, rows)
    except (TrainError, TypeError, KeyError, RuntimeError, AttributeError) as error:
        return f"trying it failed with {type(error).__name__}: {error}"
    tolerance = 1e-3 if expected.dtype in (torch.float32, torch.float64) else 0.1
    if float((packed - expected).norm()) > tolerance * float(expected.norm()):
        return "tried on a few tokens, it gave something else than row by row"
    return None
