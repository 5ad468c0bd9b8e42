"""Layouts: how the tokens of rows are laid out for a forward pass. The learning does not depend on it, only the work.

Whatever the layout, the update sees the trained tokens of the rows it asked for as one flat list: row after row, and in each
row token after token (a token is trained where the row's ``mask`` is 1). A token that occurs in several rows, because they
share a prefix that was trained on in each, is there once for each of them, with its own advantage.

**The trie** computes every shared prefix once: the hidden state of a token depends on the tokens before it and on nothing
else. So the rows of a group, which begin with the same system prompt, the same task, the same turns, need not each compute it
again: their tokens are laid out depth first as one sequence, each at the position that it has in its rows, each attending to
its ancestors (`lgov_core.train.layout.segment_attention`). Log-probabilities, and so losses and gradients, are those of one
row after the other up to rounding.

**Which one** an update uses: the trie where it pays, padded rows where it does not or cannot be. Measured on CPU, forward and
backward, on models of 0.12 to 135 million parameters: what a trie does beside its tokens costs at each of its nodes as much as
1 (large models) to 16 (the smallest) further tokens do. So it is used when it saves more than `NODE_TOKENS` tokens a node.
``python -m tests.bench.packing`` prints both layouts beside each other.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from lgov_core._util.containers import BoundedDict, common_prefix
from lgov_core.errors import TrainError
from lgov_core.train.layout.rows import TrainRow, base_model, batches_by_length, head_scores, row_states
from lgov_core.train.layout.segment_attention import Segments, attending, pass_size
from lgov_core.transitions.tokens import make_nodes

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


_MAX_PACKS = 256


@dataclass(frozen=True, slots=True)
class Pack:
    """Rows laid out for one pass of N tokens.

    ``ids`` and ``positions`` (int, length N) are what the model gets; ``sources`` (int, one for each trained token of the
    rows, row after row) says at which of them the token was chosen.
    """

    ids: tuple[int, ...]
    positions: tuple[int, ...]
    sources: tuple[int, ...]
    segments: Segments


def pack_rows(rows: Sequence[TrainRow]) -> Pack:
    """Lays out ``rows`` as a trie. Linear in their tokens."""
    nodes = make_nodes([row.ids for row in rows])
    ids: list[int] = []
    positions: list[int] = []
    places: list[list[int]] = [[] for _ in rows]  # positions of each row's tokens
    for node in nodes:
        start, stop = len(ids), len(ids) + len(node.ids)
        ids += node.ids
        positions += range(node.depth, node.depth + len(node.ids))
        for served in node.serves:
            places[served.index] += range(start, stop)
    sources = [
        row_positions[number - 1]
        for row, row_positions in zip(rows, places, strict=True)
        for number, kept in enumerate(row.mask)
        if kept
    ]
    return Pack(tuple(ids), tuple(positions), tuple(sources), Segments(nodes))


class TokenTrie(Layout):
    """Every distinct prefix of the rows of a pass is computed once. See `lgov_core.train.layout.layouts.Layout`.

    The last packs are kept: a batch is run several times (reference, epochs). Not safe to call from several threads.
    """

    def __init__(self) -> None:
        self._packs: BoundedDict[tuple[int, ...], tuple[tuple[TrainRow, ...], Pack]] = BoundedDict(_MAX_PACKS)

    def batches(self, rows: Sequence[TrainRow], tokens: int) -> list[list[TrainRow]]:
        """See `Layout.batches`; ``tokens`` counts distinct ones. What is common to two batches is run in both: they are
        cut so that this is as little as can be, with rows in the order of their tokens.
        """
        ordered = sorted(rows, key=lambda row: row.ids)
        lengths = [len(row.ids) for row in ordered]
        # In this order the longest prefix that a row has in common with any before it is that with the last of them.
        new = [
            len(after.ids) - common_prefix(before.ids, after.ids)
            for before, after in zip(ordered[:1] + ordered, ordered, strict=False)
        ]
        least = [(0, 0)]  # tokens and batches for the first rows, as few as can be
        starts = [0]  # where the last of those batches begins
        for stop in range(1, len(ordered) + 1):
            options: list[tuple[int, int, int]] = []
            shared = 0  # tokens of the rows after ``start``, beyond what each has in common with the one before
            for start in range(stop - 1, -1, -1):
                size = lengths[start] + shared
                if size > tokens and options:
                    break  # a batch that begins earlier is no smaller
                options.append((least[start][0] + size, least[start][1] + 1, start))
                shared += new[start]
            total, count, start = min(options)
            least.append((total, count))
            starts.append(start)
        batches: list[list[TrainRow]] = []
        stop = len(ordered)
        while stop:
            batches.append(ordered[starts[stop] : stop])
            stop = starts[stop]
        return batches[::-1]

    def work(self, batches: Sequence[Sequence[TrainRow]]) -> int:
        """See `Layout.work`."""
        return sum(len(self.pack(batch).ids) for batch in batches)

    def states(self, module: Any, rows: Sequence[TrainRow]) -> Tensor:
        """See `Layout.states`."""
        pack = self.pack(rows)
        device = next(module.parameters()).device
        filling = (0,) * (pass_size(len(pack.ids), device) - len(pack.ids))
        ids, positions, sources = (
            torch.tensor(column, dtype=torch.long, device=device)
            for column in (pack.ids + filling, pack.positions + filling, pack.sources)
        )
        decoder = base_model(module).get_decoder()
        with attending(decoder, pack.segments):
            out = decoder(input_ids=ids[None], position_ids=positions[None], use_cache=False)
        return out.last_hidden_state[0].index_select(0, sources)

    def pack(self, rows: Sequence[TrainRow]) -> Pack:
        """How ``rows`` are laid out for one pass."""
        key = tuple(map(id, rows))
        entry = self._packs.get(key)
        if entry is None:
            # The rows are kept with the pack: their ids stay theirs.
            entry = (tuple(rows), pack_rows(rows))
            self._packs.put(key, entry)
        return entry[1]


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
