"""Two containers: a dictionary of bounded size, and an index of sequences by their beginnings."""

from __future__ import annotations

import math
import threading
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BoundedDict(Generic[K, V]):
    """Holds at most ``max_size`` entries and drops the least recently used one. Any thread may call its methods.

    `get` and `put` count as use. A garbage collection inside a method may call another.
    """

    def __init__(self, max_size: int) -> None:
        self.max_size = max_size
        self._entries: OrderedDict[K, V] = OrderedDict()
        self._lock = threading.RLock()

    def get(self, key: K) -> V | None:
        """The value of ``key``, or None."""
        with self._lock:
            if key not in self._entries:
                return None
            self._entries.move_to_end(key)
            return self._entries[key]

    def put(self, key: K, value: V) -> V | None:
        """Sets the value of ``key``. Returns the value that was dropped for it, or None."""
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
        """The values now, the least recently used first."""
        with self._lock:
            return list(self._entries.values())


S = TypeVar("S", bytes, str, "tuple[int, ...]")


def common_prefix(first: S, second: S) -> int:
    """How many items ``first`` and ``second`` have in common at their beginnings."""
    low, high = 0, min(len(first), len(second))
    if first[:high] == second[:high]:
        return high
    while high - low > 1:  # equal up to low, different up to high
        middle = (low + high) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle
    return low


class PrefixIndex(Generic[S]):
    """Sequences, each with a number, in sorted order: those that begin most like another one are next to its place.

    Not safe for use from several threads.
    """

    def __init__(self) -> None:
        self._entries: list[tuple[S, int]] = []

    def add(self, sequence: S, number: int) -> None:
        """Adds a sequence."""
        insort(self._entries, (sequence, number))

    def remove(self, sequence: S, number: int) -> None:
        """Removes a sequence that was added with this number."""
        del self._entries[bisect_left(self._entries, (sequence, number))]

    def neighbours(self, sequence: S) -> list[int]:
        """At most two numbers, among them one of a sequence that has most in common with the beginning of ``sequence``."""
        index = bisect_left(self._entries, (sequence, -1))
        return [number for _, number in self._entries[max(0, index - 1) : index + 1]]

    def take_longest(self, sequence: S) -> int | None:
        """Removes the longest sequence that ``sequence`` begins with, of equal ones that of the greatest number.

        Returns its number, or None.
        """
        beginning: Any = sequence
        while index := bisect_right(self._entries, (beginning, math.inf)):
            candidate, number = self._entries[index - 1]
            common = common_prefix(candidate, sequence)
            if common == len(candidate):
                del self._entries[index - 1]
                return number
            beginning = sequence[:common]  # what sequence begins with sorts at or before its place
        return None
