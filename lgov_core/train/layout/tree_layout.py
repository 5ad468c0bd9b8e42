"""Rows as a trie of tokens: what several rows begin with is run once, and every token keeps its own advantage.

The hidden state of a token depends on the tokens before it and on nothing else. So the rows of a group, which begin with
the same system prompt, the same task, the same turns, need not each compute it again: their tokens are laid out depth
first as one sequence, each at the position that it has in its rows, each attending to its ancestors
(`lgov_core.train.layout.segment_attention`). Log-probabilities, and so losses and gradients, are those of one row after the
other up to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lgov_core._util.containers import BoundedDict, common_prefix
from lgov_core.train.layout.layouts import Layout
from lgov_core.train.layout.logprobs import base_model
from lgov_core.train.layout.rows import TrainRow
from lgov_core.train.layout.segment_attention import Segments, attending, pass_size
from lgov_core.transitions.tokens import make_nodes

Tensor = torch.Tensor

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
