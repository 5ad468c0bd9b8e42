"""Patterns that Python's ``re`` may work on for ever: a text that nearly matches takes twice as long with each letter."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

#: The parser that ``re`` itself uses; there is no public one.
_PARSER: Final[Any] = importlib.import_module("re._parser")
_PARTS: Final[Any] = importlib.import_module("re._constants")
#: A repeat of more rounds is taken for one without an end; one of as many is written out.
_FEW: Final = 8
#: Steps from place to place that are looked at; a pattern with more is taken for one that may never end.
_MOST_STEPS: Final = 300_000
_REPEATS: Final = (_PARTS.MAX_REPEAT, _PARTS.MIN_REPEAT)
_LETTER: Final = (_PARTS.LITERAL, _PARTS.NOT_LITERAL, _PARTS.ANY, _PARTS.IN)
_CATEGORIES: Final = {
    _PARTS.CATEGORY_DIGIT: r"\d",
    _PARTS.CATEGORY_NOT_DIGIT: r"\D",
    _PARTS.CATEGORY_SPACE: r"\s",
    _PARTS.CATEGORY_NOT_SPACE: r"\S",
    _PARTS.CATEGORY_WORD: r"\w",
    _PARTS.CATEGORY_NOT_WORD: r"\W",
}
#: Characters of each kind that sets of characters are distinguished by, beside those that the pattern names.
_USUAL: Final = frozenset(map(chr, range(256))) | frozenset("\u0663\u0436\u4e2d\u2003\u2026\U0001f600")


def may_never_end(pattern: str) -> bool:
    """Whether ``pattern`` repeats what fits the same text in two ways: ``(a+)+``, ``([a-z]+ ?)*``, ``(a|aa)*``, ``(a?a?)*``.

    Each round then doubles the ways in which a text can be divided, and a text that does not match at its end is tried in
    all of them. A repeat whose rounds can be distinguished (``([a-z]+-)*``) is none of these. What only takes a power of the
    text's length (``.*.*.*x``) is not looked for, nor what repeats something that gives nothing back (``(?>a|ab)+``). A
    pattern that is too intricate to tell counts as one. Raises ``re.error`` for what is not a pattern.
    """
    parsed = _PARSER.parse(pattern)
    characters = _named(parsed)
    pending = [parsed]
    try:
        while pending:
            places = _Places(parsed.state.flags, characters)
            places.of_sequence(pending.pop())
            if places.go_two_ways():
                return True
            pending += places.apart
    except _TooIntricate:
        return True
    return False


class _TooIntricate(Exception):
    """There are more steps than are looked at."""


@dataclass(slots=True)
class _Part:
    """A part of a pattern: in how many ways (2 for more) it fits the empty text, and begins and ends with each place."""

    empty: int = 1
    first: dict[int, int] = field(default_factory=dict[int, int])
    last: dict[int, int] = field(default_factory=dict[int, int])


class _Places:
    """The places of a pattern, which take one character each, and in how many ways one comes after another."""

    def __init__(self, flags: int, characters: frozenset[str]) -> None:
        self._flags = flags
        self._characters = characters
        self._takes: list[frozenset[str]] = []
        self._after: list[dict[int, int]] = []
        #: The outermost repeat without an end that a place is in. From each of its places one comes to all of them.
        self._loop: list[int] = []
        self._steps = 0
        #: Parts that are tried by themselves: what they have matched is not divided anew for what comes later.
        self.apart: list[Any] = []

    def of_sequence(self, sequence: Iterable[Any]) -> _Part:
        """Adds the places of a parsed pattern. Raises `_TooIntricate`."""
        whole = _Part()
        for element in sequence:
            whole = self._joined(whole, self._of(element))
        return whole

    def _of(self, element: Any) -> _Part:
        kind, given = element
        if kind in _LETTER:
            self._takes.append(_taken(element, self._flags, self._characters))
            self._after.append({})
            self._loop.append(-1)
            only = {len(self._takes) - 1: 1}
            return _Part(0, only, only)
        if kind in _REPEATS:
            return self._repeated(*given)
        if kind is _PARTS.SUBPATTERN:
            _, added, taken, inner = given
            around, self._flags = self._flags, (self._flags | added) & ~taken
            part = self.of_sequence(inner)
            self._flags = around
            return part
        if kind is _PARTS.BRANCH:
            return _either([self.of_sequence(one) for one in given[1]])
        if kind is _PARTS.GROUPREF_EXISTS:
            return _either([self.of_sequence(one or ()) for one in given[1:]])
        if kind in (_PARTS.ASSERT, _PARTS.ASSERT_NOT):
            self.apart.append(given[1])
        elif kind is _PARTS.ATOMIC_GROUP:
            self.apart.append(given)
        elif kind is _PARTS.POSSESSIVE_REPEAT:
            self.apart.append([(_PARTS.MAX_REPEAT, given)])
        return _Part()

    def _repeated(self, least: int, most: int, inner: Any) -> _Part:
        low, high = inner.getwidth()
        whole = _Part()
        if most > _FEW and (least < most or low < high):
            begin = len(self._takes)
            whole = self.of_sequence(inner)
            self._follow(whole.last, whole.first)
            self._loop[begin:] = [begin] * (len(self._loop) - begin)
            whole.empty = min(2, whole.empty + (least == 0))
            return whole
        for at in reversed(range(min(most, _FEW))):  # x{1,3} is x(x(x)?)?
            whole = self._joined(self.of_sequence(inner), whole)
            if at >= least:
                whole.empty = min(2, whole.empty + 1)
        return whole

    def _joined(self, one: _Part, two: _Part) -> _Part:
        self._follow(one.last, two.first)
        first, last = dict(one.first), dict(two.last)
        for ends, further, ways in ((first, two.first, one.empty), (last, one.last, two.empty)):
            if ways:
                for place, more in further.items():
                    ends[place] = min(2, ends.get(place, 0) + ways * more)
        return _Part(min(2, one.empty * two.empty), first, last)

    def _follow(self, last: dict[int, int], first: dict[int, int]) -> None:
        self._count(len(last) * len(first))
        for before, ways in last.items():
            after = self._after[before]
            for place, more in first.items():
                after[place] = min(2, after.get(place, 0) + ways * more)

    def _count(self, steps: int) -> None:
        self._steps += steps
        if self._steps > _MOST_STEPS:
            raise _TooIntricate

    def go_two_ways(self) -> bool:
        """Whether the same text leads from a place back to it in two ways. Raises `_TooIntricate`."""
        within: list[list[int]] = []
        for place, after in enumerate(self._after):
            loop = self._loop[place]
            inside = [one for one in after if loop >= 0 and self._loop[one] == loop]
            if any(after[one] > 1 for one in inside):
                return True
            within.append(inside)
        pending: list[tuple[int, int]] = []
        seen: set[tuple[int, int]] = set()
        for inside in {tuple(inside) for inside in within}:
            self._add_pairs(inside, inside, pending, seen)
        while pending:
            one, two = pending.pop()
            if not set(within[one]).isdisjoint(within[two]):
                return True  # two ways that parted are together again, and from there one comes to where they parted
            self._add_pairs(within[one], within[two], pending, seen)
        return False

    def _add_pairs(
        self, ones: Collection[int], twos: Collection[int], pending: list[tuple[int, int]], seen: set[tuple[int, int]]
    ) -> None:
        """Adds the pairs of different places, one of each, that take the same character."""
        self._count(len(ones) * len(twos))
        for one in ones:
            for two in twos:
                pair = (min(one, two), max(one, two))
                if one != two and pair not in seen and not self._takes[one].isdisjoint(self._takes[two]):
                    seen.add(pair)
                    pending.append(pair)


def _either(parts: list[_Part]) -> _Part:
    whole = _Part(min(2, sum(part.empty for part in parts)))
    for part in parts:  # no two have a place in common
        whole.first.update(part.first)
        whole.last.update(part.last)
    return whole


def _named(parsed: Any) -> frozenset[str]:
    """Characters by which the sets of a pattern can be distinguished: those that it names, with their neighbours."""
    codes: set[int] = set()
    pending: list[Any] = [parsed]
    while pending:
        part = pending.pop()
        kind = part[0] if isinstance(part, tuple) and part else None
        if kind is _PARTS.LITERAL or kind is _PARTS.NOT_LITERAL or kind is _PARTS.RANGE:
            for code in part[1] if kind is _PARTS.RANGE else part[1:]:
                codes.update((code - 1, code, code + 1))
        elif isinstance(part, list | tuple | _PARSER.SubPattern):
            pending += list(part)
    return _USUAL | {chr(code) for code in codes if 0 <= code <= sys.maxunicode}


def _taken(element: Any, flags: int, of: frozenset[str]) -> frozenset[str]:
    """Those characters, ``of`` some, that a part of one character takes."""
    kind, given = element
    if kind is _PARTS.ANY:
        return of if flags & re.DOTALL else of - {"\n"}
    if kind is _PARTS.NOT_LITERAL:
        return of - _taken((_PARTS.LITERAL, given), flags, of)
    if kind is _PARTS.IN and given[0][0] is _PARTS.NEGATE:
        return of - _taken((kind, given[1:]), flags, of)
    if kind is _PARTS.IN:
        return frozenset[str]().union(*(_taken(one, flags, of) for one in given))
    if kind is _PARTS.CATEGORY:
        return frozenset(filter(re.compile(_CATEGORIES[given], flags & re.ASCII).match, of))
    low, high = given if kind is _PARTS.RANGE else (given, given)
    if not flags & re.IGNORECASE:
        return frozenset(one for one in of if low <= ord(one) <= high)
    return frozenset(one for one in of if any(low <= ord(c) <= high for c in {one, one.swapcase()} if len(c) == 1))
