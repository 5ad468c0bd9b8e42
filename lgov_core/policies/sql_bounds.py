"""Comparisons that hold for every row there is likely to be: numbers from nought up, dates since 1970, any text."""

from __future__ import annotations

import re

from sqlglot import exp

#: Columns that number rows.
_ID = re.compile(r"(?:.*_)?(?:id|pk|key|uuid|guid|rowid|oid|nr|no|num)|.*(?:[a-z]I[dD]|[A-Z]ID)")
_DATE = re.compile(r"(\d{4})-\d\d?-\d\d?(?:[T ].*)?")
_FIRST_YEAR, _LAST_YEAR = 1970, 2100
#: No table is thought to hold a row with such a number.
_LAST_NUMBER = 1_000_000


def is_wild(pattern: str) -> bool:
    """Whether a pattern (of LIKE, GLOB or a regular expression) fits any text: nothing in it but wildcards."""
    return not re.sub(r"\\[sSwWdD]|[%_*?.^$+()|]", "", pattern)


def is_far(comparison: type[exp.Expr], column: exp.Column | None, bound: object) -> bool:
    """Whether ``column comparison bound`` is an open range so wide, or a difference so common, that it limits nothing.

    From nought or one up, and different from nought, for a column that numbers rows; since 1970 or until 2100 for dates;
    greater than, or different from, the empty text.
    """
    if column is None or not isinstance(bound, exp.Expr):
        return False
    if isinstance(bound, exp.Cast | exp.Date | exp.TsOrDsToDate | exp.TsOrDsToTimestamp | exp.Paren):
        return is_far(comparison, column, bound.this)
    up, down = comparison in (exp.GT, exp.GTE), comparison in (exp.LT, exp.LTE)
    different = comparison in (exp.NEQ, exp.NullSafeNEQ)
    if isinstance(bound, exp.Literal) and bound.is_string:
        text = bound.name.strip()
        date = _DATE.fullmatch(text)
        if date is not None:
            year = int(date[1])
            return (up and year <= _FIRST_YEAR) or (down and year >= _LAST_YEAR)
        if not text:
            return up or different
        number = _number(text)
    else:
        negated = isinstance(bound, exp.Neg)
        inner = bound.this if isinstance(bound, exp.Neg) else bound
        number = _number(inner.name) if isinstance(inner, exp.Literal) else None
        number = -number if negated and number is not None else number
    if number is None or (_ID.fullmatch(column.name) is None and _ID.fullmatch(column.name.lower()) is None):
        return False
    return (up and number <= 1) or (down and number >= _LAST_NUMBER) or (different and number <= 0)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
