"""A dictionary of bounded size."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BoundedDict(Generic[K, V]):
    """A dictionary that drops its oldest entry when it would exceed ``max_size``. Any thread may call its methods.

    `put` makes an entry the newest; `get` does not change the order. A garbage collection inside a method may call another.
    """

    def __init__(self, max_size: int) -> None:
        self.max_size = max_size
        self._entries: OrderedDict[K, V] = OrderedDict()
        self._lock = threading.RLock()

    def get(self, key: K) -> V | None:
        """The value for ``key``, or None."""
        with self._lock:
            return self._entries.get(key)

    def put(self, key: K, value: V) -> V | None:
        """Sets ``key`` and makes it the newest entry. Returns the value that was dropped for it, or None."""
        with self._lock:
            self._entries[key] = value
            self._entries.move_to_end(key)
            return self._entries.popitem(last=False)[1] if len(self._entries) > self.max_size else None

    def pop(self, key: K) -> V | None:
        """Removes ``key`` and returns its value, or None."""
        with self._lock:
            return self._entries.pop(key, None)

    def __contains__(self, key: object) -> bool:
        with self._lock:
            return key in self._entries

    def __len__(self) -> int:
        with self._lock:
            return len(self._entries)

    def values(self) -> list[V]:
        """The values now, the oldest first."""
        with self._lock:
            return list(self._entries.values())
