"""Why an attempt failed, by the first step that differs from the right one: counted before training and after it."""

from __future__ import annotations

import re
from collections.abc import Sequence

#: What went wrong. ``copying``: a name or number that stands in the question or in a result; ``relation``: what is asked for;
#: ``operator``: what is done with it; ``early stop``, ``late stop``: too few steps (also none), too many; ``format``: a step or
#: query that cannot be read, or no answer.
CLASSES = ("copying", "relation", "operator", "early stop", "late stop", "format")
#: Of a task whose right steps are not known, or have another form: those on real questions.
UNKNOWN = "unknown"

_SEARCH = re.compile(r"(\w+) of (.+)")
_EXPRESSION = re.compile(r"(-?[\d.e+]+) ([-+*/]) (-?[\d.e+]+)")
_QUERY = re.compile(
    r"SELECT (?P<operator1>\w+)\((?P<relation1>\w+)\) FROM (?P<relation2>\w+) WHERE dept = '(?P<copying1>\w+)'"
    r"(?P<limit> AND (?P<relation3>\w+) (?P<operator2>[<>]) (?P<copying2>\d+))?"
)


def failed_searches(expected: Sequence[str], made: Sequence[str], said: str) -> str:
    """The class of a failed chain of searches, each ``relation of name``."""
    right = [_SEARCH.fullmatch(one) for one in expected]
    return _first(right, [_SEARCH.fullmatch(one) for one in made], "relation", 1, said)


def failed_expressions(expected: Sequence[str], made: Sequence[str], said: str) -> str:
    """The class of a failed chain of expressions, each ``number operator number``."""
    right = [_EXPRESSION.fullmatch(one) for one in expected]
    return _first(right, [_EXPRESSION.fullmatch(one) for one in made], "operator", 2, said)


def failed_query(expected: str, made: str) -> str:
    """The class of a failed query: the first part that differs; ``early stop`` where the condition is missing."""
    right, found = _QUERY.fullmatch(expected), _QUERY.fullmatch(made)
    if right is None:
        return UNKNOWN
    if found is None:
        return "format"
    if bool(right["limit"]) != bool(found["limit"]):
        return "early stop" if right["limit"] else "late stop"
    wrong = [name for name, value in right.groupdict().items() if name != "limit" and found[name] != value]
    return wrong[0].rstrip("123") if wrong else "format"


def _first(
    expected: Sequence[re.Match[str] | None], made: Sequence[re.Match[str] | None], kind: str, group: int, said: str
) -> str:
    if not expected:
        return UNKNOWN
    for right, found in zip(expected, made, strict=False):
        if right is None or found is None:
            return "format"
        if found[group] != right[group]:
            return kind
        if found[0] != right[0]:
            return "copying"
    if not said:
        return "format"
    if len(made) != len(expected):
        return "early stop" if len(made) < len(expected) else "late stop"
    return "copying"
