"""Finds, among sequences of tokens, the longest that another one begins with."""

from __future__ import annotations


class OpenEnds:
    """Turns that may still be gone on from, each with a number: its tokens are those of its prompt and of its reply.

    A look-up costs a glance at each *length* there is, however many turns have it, and a comparison for those whose last
    token stands at its place: first of the reply, which tells most of them apart. Not safe for use from several threads.
    """

    def __init__(self) -> None:
        self._ends: dict[int, dict[int, list[tuple[tuple[int, ...], tuple[int, ...], int]]]] = {}

    def add(self, prompt: tuple[int, ...], reply: tuple[int, ...], number: int) -> None:
        """Adds a turn; its reply has at least one token."""
        length = len(prompt) + len(reply)
        by_last = self._ends.get(length)
        if by_last is None:
            self._ends[length] = {reply[-1]: [(prompt, reply, number)]}
        else:
            by_last.setdefault(reply[-1], []).append((prompt, reply, number))

    def take(self, tokens: tuple[int, ...]) -> int | None:
        """Removes the longest turn that ``tokens`` begins with (of equal ones the latest) and gives its number."""
        best, place = 0, -1
        size = len(tokens)
        for length, by_last in self._ends.items():
            if best < length <= size:
                same = by_last.get(tokens[length - 1])
                if same is not None:
                    found = _begins(tokens, same)
                    if found >= 0:
                        best, place = length, found
        if not best:
            return None
        by_last = self._ends[best]
        same = by_last[tokens[best - 1]]
        number = same.pop(place)[2]
        if not same:
            del by_last[tokens[best - 1]]
            if not by_last:
                del self._ends[best]
        return number


def _begins(tokens: tuple[int, ...], turns: list[tuple[tuple[int, ...], tuple[int, ...], int]]) -> int:
    """The place of the last of ``turns`` that ``tokens`` begins with, or -1."""
    for place in range(len(turns) - 1, -1, -1):
        prompt, reply, _ = turns[place]
        at = len(prompt)
        if tokens[at : at + len(reply)] == reply and tokens[:at] == prompt:
            return place
    return -1
