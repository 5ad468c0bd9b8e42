"""Finds, among sequences of tokens, the longest that another one begins with."""

from __future__ import annotations

from typing import TypeAlias

#: A turn: the tokens of its prompt, those of its reply, and its number.
_Turn: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], int]


class PrefixIndex:
    """Turns that may still be gone on from, each with a number: its tokens are those of its prompt and of its reply.

    A look-up costs a glance at each *length* there is, however many turns have it, and a comparison for those whose last
    token stands at its place: first of the reply, which tells most of them apart. The latest turn is kept apart, since
    mostly it is the only one. Not safe for use from several threads.
    """

    def __init__(self) -> None:
        self._latest: _Turn | None = None
        self._ends: dict[int, dict[int, list[_Turn]]] = {}

    def add(self, prompt: tuple[int, ...], reply: tuple[int, ...], number: int) -> None:
        """Adds a turn; its reply has at least one token."""
        if self._latest is not None:
            self._file(self._latest)
        self._latest = (prompt, reply, number)

    def take(self, tokens: tuple[int, ...]) -> int | None:
        """Removes the longest turn that ``tokens`` begins with (of equal ones the latest) and gives its number."""
        latest = self._latest
        if latest is not None:
            if not self._ends:
                if not _begins(tokens, latest):
                    return None
                self._latest = None
                return latest[2]
            self._file(latest)
            self._latest = None
        best, place = 0, -1
        size = len(tokens)
        for length, by_last in self._ends.items():
            if best < length <= size:
                same = by_last.get(tokens[length - 1])
                if same is not None:
                    found = next((at for at in range(len(same) - 1, -1, -1) if _begins(tokens, same[at])), -1)
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

    def _file(self, turn: _Turn) -> None:
        prompt, reply, _ = turn
        self._ends.setdefault(len(prompt) + len(reply), {}).setdefault(reply[-1], []).append(turn)


def _begins(tokens: tuple[int, ...], turn: _Turn) -> bool:
    """Whether ``tokens`` begins with those of ``turn``."""
    prompt, reply, _ = turn
    at = len(prompt)
    return tokens[at : at + len(reply)] == reply and tokens[:at] == prompt
