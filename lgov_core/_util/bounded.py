"""BoundedDict: a mapping that drops its oldest entries."""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedDict(Generic[K, V]):
    """Holds at most ``max_size`` entries; one more drops the entry that was put in, or again, longest ago.

    May be used from several threads at once; each method is atomic.
    """

    def __init__(self, max_size: int) -> None:
        self.max_size = max_size
        self._entries: dict[K, V] = {}
        self._lock = threading.Lock()

    def get(self, key: K) -> V | None:
        """The value of ``key``, or None."""
        return self._entries.get(key)

    def put(self, key: K, value: V) -> None:
        """Sets ``key``, as the newest entry."""
        with self._lock:
            self._entries.pop(key, None)
            self._entries[key] = value
            while len(self._entries) > self.max_size:
                del self._entries[next(iter(self._entries))]

    def pop(self, key: K) -> V | None:
        """Removes ``key``; returns its value, or None."""
        with self._lock:
            return self._entries.pop(key, None)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)
