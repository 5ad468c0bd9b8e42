"""Findings and their places in a text, and the one way of looking through all its views."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from lgov_core.policies.content.text_views import decoded_runs, plain_view, unescaped_view

#: Characters to the left of a value in which the word that gives it its meaning may stand.
CONTEXT = 64
#: Characters before a value at which the shape that it is a part of may begin.
LOOK_BACK = 320


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """``text[start:end]`` is something of ``kind``."""

    start: int
    end: int
    kind: str


_DIGIT = re.compile(r"\d")

#: Gets (text, start, end) of a match; returns the end of what is really there (it may be shorter), or None for nothing.
Check = Callable[[str, int, int], int | None]


@dataclass(frozen=True, slots=True)
class Pattern:
    """A shape that values of a kind have.

    Runs in linear time: ``regex`` begins with a literal or a look-behind that keeps it from starting anew inside a run of
    its own characters, and no repeat in it is nested in another that takes the same characters. It is only tried when one
    of ``hints`` (lower case) occurs in the lower-cased text; none means that a digit must. The value is group 1 where
    there is one.
    """

    kind: str
    regex: re.Pattern[str]
    hints: tuple[str, ...] = ()
    check: Check | None = None

    def find(self, text: str, start: int) -> Iterator[Finding]:
        """The values from ``start`` on, from left to right."""
        group = 1 if self.regex.groups else 0
        # The name that a value is given to may stand before `start`.
        position = max(0, start - LOOK_BACK) if group else start
        while (match := self.regex.search(text, position)) is not None:
            begin = match.start(group)
            # The next match may begin one character on, so that what is found at a place depends on no other match.
            position = match.start() + 1
            if begin < start:
                continue
            end = match.end(group) if self.check is None else self.check(text, begin, match.end(group))
            if end is not None:
                yield Finding(begin, end, self.kind)
                position = position if group else end


def _find_all(patterns: Sequence[Pattern], text: str, start: int) -> Iterator[Finding]:
    """Everything that any of the patterns finds in ``text`` from ``start`` on."""
    lowered, has_digit = text.lower(), _DIGIT.search(text) is not None
    for pattern in patterns:
        if any(hint in lowered for hint in pattern.hints) if pattern.hints else has_digit:
            yield from pattern.find(text, start)


def left_of(text: str, start: int, characters: int = CONTEXT) -> str:
    """The text before ``start``, at most ``characters`` of it."""
    return text[max(0, start - characters) : start]


def look_through(text: str, patterns: Sequence[Pattern], start: int = 0) -> list[Finding]:
    """Returns the findings in all views of ``text`` from ``start`` on, as places in ``text``, merged where they overlap."""
    plain = plain_view(text)
    begin = plain.place(start)
    findings = [Finding(*plain.span(f.start, f.end), f.kind) for f in _find_all(patterns, plain.text, begin)]
    unescaped = unescaped_view(plain.text)
    if unescaped is not None:
        for f in _find_all(patterns, unescaped.text, unescaped.place(begin)):
            findings.append(Finding(*plain.span(*unescaped.span(f.start, f.end)), f.kind))
    for run_start, run_end, decoded in decoded_runs(plain.text, begin):
        first = next(_find_all(patterns, decoded, 0), None)
        if first is not None:
            findings.append(Finding(*plain.span(run_start, run_end), first.kind))
    return merged(findings)


def merged(findings: Iterable[Finding]) -> list[Finding]:
    """The findings in order, overlapping ones as one: it is called what the first, and of those the longest, is called."""
    together: list[Finding] = []
    for finding in sorted(findings, key=lambda f: (f.start, -f.end)):
        if together and finding.start < together[-1].end:
            last = together[-1]
            together[-1] = Finding(last.start, max(last.end, finding.end), last.kind)
        else:
            together.append(finding)
    return together
