"""Finds, among sequences of tokens, the longest that another one begins with."""

from __future__ import annotations

from collections.abc import Sequence


class OpenEnds:
    """Sequences that may still be continued, each with a number. Not safe for use from several threads.

    A look-up costs a glance at each *length* there is, however many sequences have it, and one comparison for each of
    those whose last token stands at its place: a thousand sequences cost about what the lengths among them cost.
    """

    def __init__(self) -> None:
        self._ends: dict[int, dict[int, dict[tuple[int, ...], list[int]]]] = {}

    def add(self, tokens: tuple[int, ...], number: int) -> None:
        """Adds a sequence of at least one token."""
        self._ends.setdefault(len(tokens), {}).setdefault(tokens[-1], {}).setdefault(tokens, []).append(number)

    def take(self, tokens: Sequence[int]) -> int | None:
        """Removes the longest sequence that ``tokens`` begins with (of equal ones the latest) and gives its number."""
        best = 0
        size = len(tokens)
        tokens = tuple(tokens)
        for length, by_last in self._ends.items():
            if best < length <= size:
                same = by_last.get(tokens[length - 1])
                if same is not None and tokens[:length] in same:
                    best = length
        if not best:
            return None
        by_last = self._ends[best]
        same = by_last[tokens[best - 1]]
        begun = tokens[:best]
        number = same[begun].pop()
        if not same[begun]:
            del same[begun]
            if not same:
                del by_last[tokens[best - 1]]
                if not by_last:
                    del self._ends[best]
        return number
