"""Patterns that Python's ``re`` may work on for ever: a text that nearly matches takes twice as long with each letter."""

from __future__ import annotations

import importlib
from typing import Any, Final

#: The parser that ``re`` itself uses; there is no public one.
_PARSER: Final[Any] = importlib.import_module("re._parser")
_PARTS: Final[Any] = importlib.import_module("re._constants")
#: Repeats of up to so many times are taken for what ends.
_FEW: Final = 8
_REPEATS: Final = (_PARTS.MAX_REPEAT, _PARTS.MIN_REPEAT)


def may_never_end(pattern: str) -> bool:
    """Whether ``pattern`` repeats what is nothing but a repeat itself: ``(a+)+``, ``([a-z]+ ?)*``, ``(a|b+)*``.

    Such a text can be divided among the two in as many ways as there are sums of its length. A repeat with something
    between its rounds (``([a-z]+-)*``) is none of these. Alternatives that begin alike (``(a|aa)+``) are not looked for.
    Raises ``re.error`` for what is no pattern.
    """
    return _repeats_repeats(_PARSER.parse(pattern))


def _repeats_repeats(sequence: Any) -> bool:
    for element in sequence:
        inner = _inner(element)
        if _repeats(element) and any(map(_is_repeat_alone, inner)):
            return True
        if any(map(_repeats_repeats, inner)):
            return True
    return False


def _repeats(element: Any) -> bool:
    kind, given = element
    return kind in _REPEATS and given[1] > _FEW and given[0] != given[1]


def _is_repeat_alone(sequence: Any) -> bool:
    """Whether something in it repeats, and all that stands beside that may be missing."""
    for at in range(len(sequence)):
        element = sequence[at]
        grows = _repeats(element) or (
            element[0] in (_PARTS.SUBPATTERN, _PARTS.BRANCH) and any(map(_is_repeat_alone, _inner(element)))
        )
        if grows and sequence[:at].getwidth()[0] == 0 == sequence[at + 1 :].getwidth()[0]:
            return True
    return False


def _inner(element: Any) -> list[Any]:
    """The sequences within an element; none of what gives nothing back once it has matched."""
    kind, given = element
    if kind in _REPEATS:
        return [given[2]]
    if kind is _PARTS.SUBPATTERN:
        return [given[3]]
    if kind is _PARTS.BRANCH:
        return list(given[1])
    if kind in (_PARTS.ASSERT, _PARTS.ASSERT_NOT):
        return [given[1]]
    return []
