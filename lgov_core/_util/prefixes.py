"""Finds which sequences begin like another one: bytes, texts or tuples of tokens."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from typing import Any, Generic, TypeVar

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
