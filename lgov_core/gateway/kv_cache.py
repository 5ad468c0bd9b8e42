"""The key/value cache of a batch: grows in place, and is expanded, thinned out and joined row by row.

Imports torch and transformers; import it only where they are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from transformers import Cache, DynamicCache
from transformers.cache_utils import DynamicLayer

from lgov_core.errors import ModelError

#: Columns added at once when a buffer is full.
_GROWTH = 32


class RoomyLayer(DynamicLayer):
    """One layer's keys and values, float [batch, heads, columns, head_dim], as views of larger buffers.

    A new token is written behind the others instead of copying all of them, which is what `DynamicLayer` does.
    """

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Called by the first update."""
        self.dtype, self.device = key_states.dtype, key_states.device
        self.hold(key_states[:, :, :0], value_states[:, :, :0])

    def hold(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Takes these as its columns, with no room behind them."""
        self.dtype, self.device = keys.dtype, keys.device
        self.keys = self._key_buffer = keys
        self.values = self._value_buffer = values
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes the new columns behind the others; returns all of them."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        used = cast("torch.Tensor", self.keys).shape[-2]
        needed = used + key_states.shape[-2]
        if needed > self._key_buffer.shape[-2]:
            room = needed - used + _GROWTH
            self._key_buffer = F.pad(cast("torch.Tensor", self.keys), (0, 0, 0, room))
            self._value_buffer = F.pad(cast("torch.Tensor", self.values), (0, 0, 0, room))
        self._key_buffer[:, :, used:needed] = key_states
        self._value_buffer[:, :, used:needed] = value_states
        self.keys = self._key_buffer[:, :, :needed]
        self.values = self._value_buffer[:, :, :needed]
        return self.keys, self.values


def check_cacheable(config: Any) -> None:
    """Raises `ModelError` when the model keeps more than plain keys and values between tokens."""
    other = {type(layer).__name__ for layer in DynamicCache(config=config).layers} - {"DynamicLayer"}
    if other:
        raise ModelError(
            f"the embedded engine cannot serve this model: it keeps {', '.join(sorted(other))} between tokens",
            hint="models with full attention in every layer work; serve this one elsewhere and use the upstream engine",
        )


def new_cache() -> Cache:
    """An empty cache for any number of layers."""
    return Cache(layer_class_to_replicate=RoomyLayer)


def _rebuilt(caches: Sequence[Cache], make: Callable[[list[torch.Tensor]], torch.Tensor]) -> Cache:
    layers: list[Any] = []
    for same_layer in zip(*(cast("list[RoomyLayer]", cache.layers) for cache in caches), strict=True):
        layer = RoomyLayer()
        layer.hold(
            make([cast("torch.Tensor", old.keys) for old in same_layer]),
            make([cast("torch.Tensor", old.values) for old in same_layer]),
        )
        layers.append(layer)
    return Cache(layers=layers)


def expanded(cache: Cache, rows: int) -> Cache:
    """The one row of ``cache`` ``rows`` times. The result shares no memory that is ever written to."""
    return _rebuilt([cache], lambda tensors: tensors[0].expand(rows, -1, -1, -1))


def thinned(cache: Cache, rows: torch.Tensor, columns: torch.Tensor) -> Cache:
    """Only these rows (int64 [n]) and these columns (int64 [m], ascending)."""
    return _rebuilt([cache], lambda tensors: tensors[0][rows][:, :, columns])


def joined(left: Cache, right: Cache) -> Cache:
    """The rows of both, aligned at their last column; the shorter one gets zeros in front."""

    def join(tensors: list[torch.Tensor]) -> torch.Tensor:
        columns = max(tensor.shape[-2] for tensor in tensors)
        return torch.cat([F.pad(tensor, (0, 0, columns - tensor.shape[-2], 0)) for tensor in tensors])

    return _rebuilt([left, right], join)
