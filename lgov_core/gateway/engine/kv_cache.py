"""Keys and values of the sequences that are decoded: one slot each, of which rows come and go without copying the others.

Imports torch and transformers; import it only where they are needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from transformers import Cache, DynamicCache
from transformers.cache_utils import DynamicLayer

from lgov_core.errors import ModelError

#: One layer's keys and values of some tokens of one sequence: float [heads, tokens, head_dim] each.
Piece = tuple[torch.Tensor, torch.Tensor]
#: Columns added at once when there are too few.
_GROWTH = 64


class _Window:
    """Which slots a forward pass runs on, and where its tokens go.

    ``rows`` and ``columns`` (int64 [tokens]) name the slot and the column of every new token, ``own`` (bool [slots, new])
    which of the new columns are tokens; None: one token a slot. ``seen`` is how many columns are attended to.
    """

    def __init__(self) -> None:
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
        """Writes the new tokens to their columns; returns the columns of the window's slots, as views."""
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

    def __init__(self, layers: int, slots: int, columns: int) -> None:
        self._window = _Window()
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
