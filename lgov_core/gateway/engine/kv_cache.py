"""Keys and values of the sequences that are decoded: one slot each, of which rows come and go without copying the others;
and the prefixes of earlier prompts that are kept for later ones.

Imports torch and transformers; import it only where they are needed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, cast

import torch
from transformers import Cache, DynamicCache
from transformers.cache_utils import DynamicLayer

from lgov_core.errors import ModelError

#: One layer's keys and values of some tokens of one sequence: float [heads, tokens, head_dim] each.
Piece = tuple[torch.Tensor, torch.Tensor]
#: Columns added at once when there are too few.
_GROWTH = 64


class Interrupted(Exception):
    """Raised between two layers of a forward pass that nobody waits for any more."""


class _Window:
    """Which slots a forward pass runs on, and where its tokens go.

    ``rows`` and ``columns`` (int64 [tokens]) name the slot and the column of every new token, ``own`` (bool [slots, new])
    which of the new columns are tokens; None: one token a slot. ``seen`` is how many columns are attended to. ``is_over`` is
    asked at each layer: true ends the pass.
    """

    def __init__(self, is_over: Callable[[], bool]) -> None:
        self.is_over = is_over
        self.first = 0
        self.count = 0
        self.seen = 0
        self.rows = torch.empty(0, dtype=torch.long)
        self.columns = torch.empty(0, dtype=torch.long)
        self.own: torch.Tensor | None = None


class _SlotLayer(DynamicLayer):
    """One layer's keys and values, float [slots, heads, columns, head_dim]."""

    def __init__(self, window: _Window, slots: int, columns: int) -> None:
        super().__init__()
        self.window = window
        self.slots, self.columns = slots, columns

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Called by the first update. What no token was written to is 0, since what is masked must be finite."""
        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys, self.values = (
            states.new_zeros(self.slots, states.shape[1], self.columns, states.shape[3])
            for states in (key_states, value_states)
        )
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes the new tokens to their columns; returns the columns of the window's slots, as views. Raises `Interrupted`."""
        if self.window.is_over():
            raise Interrupted
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        window = self.window
        keys, values = self.buffers
        for buffer, states in ((keys, key_states), (values, value_states)):
            new = states[:, :, 0] if window.own is None else states.transpose(1, 2)[window.own]
            buffer[window.rows, :, window.columns] = new
        slots = slice(window.first, window.first + window.count)
        return keys[slots, :, : window.seen], values[slots, :, : window.seen]

    @property
    def buffers(self) -> Piece:
        """The keys and the values of all slots."""
        return cast("Piece", (self.keys, self.values))

    def resize(self, slots: int, columns: int) -> None:
        """Grows the buffers, keeping their contents."""
        self.slots, self.columns = slots, columns
        if not self.is_initialized:
            return
        for name in ("keys", "values"):
            old = cast("torch.Tensor", getattr(self, name))
            new = old.new_zeros(slots, old.shape[1], columns, old.shape[3])
            new[: old.shape[0], :, : old.shape[2]] = old
            setattr(self, name, new)

    def get_seq_length(self) -> int:
        """How many columns are attended to."""
        return self.window.seen


class SlotCache(Cache):
    """The keys and values of many sequences. A sequence's tokens are in the columns from 0 of its slot."""

    def __init__(self, layers: int, slots: int, columns: int, is_over: Callable[[], bool] = lambda: False) -> None:
        self._window = _Window(is_over)
        self._slots, self._columns = slots, columns
        self._layers = [_SlotLayer(self._window, slots, columns) for _ in range(layers)]
        super().__init__(layers=[*self._layers])

    def reserve(self, slots: int, columns: int) -> None:
        """Makes room for at least ``slots`` and ``columns``."""
        if slots > self._slots or columns > self._columns:
            self._slots = slots + slots // 2 if slots > self._slots else self._slots
            self._columns = columns + _GROWTH if columns > self._columns else self._columns
            for layer in self._layers:
                layer.resize(self._slots, self._columns)

    def aim(self, first: int, starts: torch.Tensor, own: torch.Tensor | None, seen: int) -> None:
        """Sets where the tokens of the next forward pass go: to the slots from ``first``, at columns from ``starts``.

        ``starts`` is int64 [slots]; ``own`` bool [slots, new], true where a new column is a token (None: one new column,
        a token for each). ``seen`` columns are attended to.
        """
        window = self._window
        window.first, window.count, window.seen, window.own = first, len(starts), seen, own
        slots = torch.arange(first, first + len(starts), device=starts.device)
        if own is None:
            window.rows, window.columns = slots, starts
        else:
            places = starts[:, None] + own.long().cumsum(dim=1) - 1
            window.rows, window.columns = slots[:, None].expand_as(own)[own], places[own]

    def pieces(self, slot: int, start: int, end: int) -> list[Piece]:
        """A copy of the columns ``start`` to ``end`` of a slot, for each layer."""
        both = [layer.buffers for layer in self._layers]
        return [(keys[slot, :, start:end].clone(), values[slot, :, start:end].clone()) for keys, values in both]

    def put(self, slots: Sequence[int], start: int, pieces: Sequence[Piece], count: int) -> None:
        """Writes the first ``count`` tokens of ``pieces`` into the columns from ``start`` of these slots."""
        first, last = slots[0], slots[-1] + 1
        where: Any = slice(first, last) if last - first == len(slots) else list(slots)
        for layer, (keys, values) in zip(self._layers, pieces, strict=True):
            if not layer.is_initialized:
                layer.lazy_initialization(keys[None], values[None])
            for buffer, piece in zip(layer.buffers, (keys, values), strict=True):
                buffer[where, :, start : start + count] = piece[:, :count]

    def move(self, source: int, target: int, count: int) -> None:
        """Copies the first ``count`` columns of one slot into another."""
        for layer in self._layers:
            for buffer in layer.buffers:
                buffer[target, :, :count] = buffer[source, :, :count]

    def wipe(self, first: int) -> None:
        """Clears the slots from ``first``: their values may not be finite."""
        for layer in self._layers:
            for buffer in layer.buffers if layer.is_initialized else ():
                buffer[first:] = 0


def check_cacheable(module: Any) -> int:
    """How many layers keep keys and values. Raises `ModelError` when the engine cannot hold them, or not mask them."""
    layers = DynamicCache(config=module.config).layers
    other = {type(layer).__name__ for layer in layers} - {"DynamicLayer"}
    hint = "models with full attention in every layer work; serve this one elsewhere and use the upstream engine"
    if other:
        kept = ", ".join(sorted(other))
        raise ModelError(f"the embedded engine cannot serve this model: it keeps {kept} between tokens", hint=hint)
    attention = module.config._attn_implementation
    if attention not in ("sdpa", "eager"):
        raise ModelError(
            f"the embedded engine cannot serve this model with the attention {attention!r}",
            hint="load it with attn_implementation='sdpa'",
        )
    return int(module.config.get_text_config().num_hidden_layers)


Ids = tuple[int, ...]


class _Segment:
    """Some tokens after those of the parent, with their keys and values."""

    __slots__ = ("children", "ids", "parent", "pieces", "size")

    def __init__(self, parent: _Segment | None, ids: Ids, pieces: Sequence[Piece]) -> None:
        self.parent = parent
        self.ids = ids
        self.pieces = pieces
        self.children: dict[int, _Segment] = {}
        self.size = sum(tensor.numel() * tensor.element_size() for piece in pieces for tensor in piece)


class PrefixCache:
    """Keys and values by policy and tokens. For one thread.

    ``limit`` is in bytes. `put` may exceed it; `trim` then drops the least recently used segments, ends of sequences
    before their beginnings.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._roots: dict[str, _Segment] = {}
        #: Least recently used first; a segment is always more recent than those below it.
        self._by_age: OrderedDict[_Segment, str] = OrderedDict()
        self.size = 0

    def longest(self, policy: str, ids: Ids) -> tuple[int, list[tuple[_Segment, int]]]:
        """How many tokens at the beginning of ``ids`` are kept, and the segments that hold them, each with how many."""
        path: list[tuple[_Segment, int]] = []
        node = self._roots.get(policy)
        length = 0
        while node is not None and length < len(ids):
            node = node.children.get(ids[length])
            if node is None:
                break
            taken = common_length(node.ids, ids[length : length + len(node.ids)])
            path.append((node, taken))
            length += taken
            if taken < len(node.ids):
                break
        for segment, _ in reversed(path):
            self._by_age.move_to_end(segment)
        return length, path

    def put(self, policy: str, ids: Ids, pieces: Callable[[int], Sequence[Piece]]) -> None:
        """Adds ``ids``. ``pieces(start)`` returns the keys and values of the tokens from ``start``, if they are needed."""
        length, path = self.longest(policy, ids)
        if length == len(ids):
            return
        above = path[-1][0] if path else self._roots.setdefault(policy, _Segment(None, (), ()))
        if path and path[-1][1] < len(above.ids):
            above = self._split(policy, above, path[-1][1])
        self._add(policy, _Segment(above, ids[length:], pieces(length)))
        while above.parent is not None:
            self._by_age.move_to_end(above)
            above = above.parent

    def trim(self) -> None:
        """Drops least recently used segments until the limit holds."""
        while self.size > self._limit and self._by_age:
            oldest = next(iter(self._by_age))
            assert not oldest.children, "what is below a segment is older"
            assert oldest.parent is not None, "a root has no age"
            del oldest.parent.children[oldest.ids[0]]
            self._forget(oldest)

    def forget(self, policy: str | None = None) -> None:
        """Drops everything, or everything of one policy."""
        if policy is None:
            self._roots.clear()
            self._by_age.clear()
            self.size = 0
            return
        self._roots.pop(policy, None)
        for segment, owner in list(self._by_age.items()):
            if owner == policy:
                self._forget(segment)

    def _split(self, policy: str, segment: _Segment, at: int) -> _Segment:
        """Cuts a segment in two; returns the first. Both get memory of their own, so that each can be dropped."""
        parent = segment.parent
        assert parent is not None, "the root has no tokens"
        halves = [
            [(keys[:, span].clone(), values[:, span].clone()) for keys, values in segment.pieces]
            for span in (slice(0, at), slice(at, None))
        ]
        front = _Segment(parent, segment.ids[:at], halves[0])
        back = _Segment(front, segment.ids[at:], halves[1])
        back.children = segment.children
        for child in back.children.values():
            child.parent = back
        self._forget(segment)
        self._add(policy, back)
        self._add(policy, front)
        return front

    def _add(self, policy: str, segment: _Segment) -> None:
        assert segment.parent is not None, "a root is not added"
        segment.parent.children[segment.ids[0]] = segment
        self._by_age[segment] = policy
        self.size += segment.size

    def _forget(self, segment: _Segment) -> None:
        del self._by_age[segment]
        self.size -= segment.size


def common_length(left: Ids, right: Ids) -> int:
    """The number of equal tokens at the beginning of both."""
    return next((at for at, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


def shared_prefixes(prompts: Sequence[Ids], worth: int) -> list[list[Ids]]:
    """Prefixes that several prompts share and that should be read once, by how many other ones they extend.

    One is listed when reading it once instead of for every prompt saves at least ``worth`` tokens.
    """
    levels: dict[int, list[Ids]] = {}

    def search(group: Sequence[Ids], floor: int, level: int) -> None:
        depth = common_length(group[0], group[-1])  # sorted: what the first and the last share, all share
        if (depth - floor) * (len(group) - 1) >= worth:
            levels.setdefault(level, []).append(group[0][:depth])
            floor, level = depth, level + 1
        for _, alike in groupby((ids for ids in group if len(ids) > depth), key=lambda ids: ids[depth]):
            several = list(alike)
            if len(several) > 1:
                search(several, floor, level)

    if len(prompts) > 1:
        search(sorted(prompts), 0, 0)
    return [levels[level] for level in sorted(levels)]
