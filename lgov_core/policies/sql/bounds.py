"""Comparisons that hold for every row there is likely to be: numbers from nought up, dates since 1970, any text."""

from __future__ import annotations

import re

from sqlglot import exp

from lgov_core.policies.sql.limit import row_count

#: What may stand around a column on its side of a comparison without making the comparison always true.
_WRAPPERS = (
    exp.Paren,
    exp.Cast,
    exp.TryCast,
    exp.Collate,
    exp.Lower,
    exp.Upper,
    exp.Trim,
    exp.Substring,
    exp.Date,
    exp.TsOrDsToDate,
    exp.TsOrDsToTimestamp,
    exp.TimeToStr,
    exp.TimestampTrunc,
    exp.DateTrunc,
    exp.Year,
    exp.Month,
    exp.Mod,
)
#: What takes a part of a column's value: it limits where it must be equal to something.
_PARTS = (
    exp.Extract,
    exp.JSONExtract,
    exp.JSONExtractScalar,
    exp.JSONBExtract,
    exp.JSONBExtractScalar,
    exp.Year,
    exp.Month,
)
#: Parts of a date that differ between rows.
_UNITS = frozenset({"year", "quarter", "month", "week", "day", "dow", "doy", "hour", "dayofweek"})
#: Columns that number rows.
_ID = re.compile(r"(?:.*_)?(?:id|pk|key|uuid|guid|rowid|oid|nr|no|num)|.*(?:[a-z]I[dD]|[A-Z]ID)|_rowid_|\$identity")
#: In a pattern of SQL Server any sign but these.
_ANY_BUT = re.compile(r"\[\^[^]]*\]")
#: Texts that are written in another way than between two quotes.
_TEXTS = (exp.ByteString, exp.National, exp.RawString, exp.HexString, exp.UnicodeString)
_DATE = re.compile(r"(\d{4})-\d\d?-\d\d?(?:[T ].*)?")
_FIRST_YEAR, _LAST_YEAR = 1970, 2100
#: No table is thought to hold a row with such a number.
_LAST_NUMBER = 1_000_000


#: What a regular expression does not insist on: a character, a set or an innermost group that may be absent; flags.
_OPTIONAL = re.compile(
    r"(?:\\.|\[\^?\]?(?:\[:\w+:\]|[^\[\]])*\]|\([^()]*\)|[^\\()\[\]|])(?:[*?]|\{0?,\d*\})|\(\?[a-zA-Z-]*[):]"
)


def is_wild(pattern: str, *, regular: bool = False) -> bool:
    """Whether a pattern (of LIKE or GLOB; ``regular``: a regular expression) fits any text: it insists on nothing."""
    branches = _OPTIONAL.sub("", _OPTIONAL.sub("", pattern)).split("|") if regular else [_ANY_BUT.sub("", pattern)]
    return not all(re.sub(r"\\[sSwWdD]|[%_*?.^$+()|]", "", branch) for branch in branches)


def insists(pattern: object, *, regular: bool) -> bool:
    """Whether a pattern is of another row or unknown, or a text that does not fit every other text."""
    if not isinstance(pattern, exp.Expr):
        return False
    text = _constant(pattern)
    if text is not None:
        return not is_wild(text, regular=regular)
    return pattern.find(exp.Column, exp.Placeholder, exp.Parameter) is not None


def _constant(node: exp.Expr) -> str | None:
    """The text that literals put together make; None for anything else."""
    texts: list[str] = []
    pending: list[object] = [node]
    while pending:
        part = pending.pop()
        if isinstance(part, exp.Literal):
            texts.insert(0, part.name)
        elif isinstance(part, exp.Concat):
            pending.extend(part.expressions)
        elif isinstance(part, exp.DPipe | exp.Add):
            pending.extend((part.this, part.expression))
        elif isinstance(part, _WRAPPERS) and not isinstance(part, exp.Mod | exp.Substring):
            pending.append(part.this)
        else:
            return None
    return "".join(texts)


def is_far(comparison: type[exp.Expr], column: exp.Column | None, bound: object) -> bool:
    """Whether ``column comparison bound`` is an open range so wide, or a difference so common, that it limits nothing.

    From nought or one up, and different from nought, for a column that numbers rows; since 1970 or until 2100 for dates;
    greater than, or different from, the empty text.
    """
    if column is None or not isinstance(bound, exp.Expr):
        return False
    if isinstance(bound, exp.Cast | exp.Date | exp.TsOrDsToDate | exp.TsOrDsToTimestamp | exp.Paren):
        return is_far(comparison, column, bound.this)
    if isinstance(bound, exp.Subquery | exp.Select) and (value := _constant_of(bound.unnest())) is not None:
        return is_far(comparison, column, value)
    up, down = comparison in (exp.GT, exp.GTE), comparison in (exp.LT, exp.LTE)
    different = comparison in (exp.NEQ, exp.NullSafeNEQ)
    if isinstance(bound, _TEXTS) or (isinstance(bound, exp.Literal) and bound.is_string):
        text = bound.name.strip("0" if isinstance(bound, exp.HexString) else None)
        if column.name.lower() == "ctid":  # PostgreSQL's place of a row: a page, and a row in it
            return up and text.startswith("(0,")
        date = _DATE.fullmatch(text)
        if date is not None:
            year = int(date[1])
            return (up and year <= _FIRST_YEAR) or (down and year >= _LAST_YEAR)
        if not text:
            return up or different
        if down and not text.strip("zZ~"):
            return True
        if up and text[0] < "+":  # in front of all signs that names and numbers are made of
            return True
        if text.lower().lstrip("+-") in ("inf", "infinity"):
            return up if text[0] == "-" else down
        number = _number(text)
    else:
        negated = isinstance(bound, exp.Neg)
        inner = bound.this if isinstance(bound, exp.Neg) else bound
        number = _number(inner.name) if isinstance(inner, exp.Literal) else None
        number = -number if negated and number is not None else number
    if number is None or not numbers_rows(column):
        return False
    return (up and number <= 1) or (down and number >= _LAST_NUMBER) or (different and number <= 0)


def keeps_few(query: exp.Expr) -> bool:
    """Whether a query has a limit that leaves rows out: a number that no table is thought to reach, or one given later."""
    limit = query.args.get("limit")
    if isinstance(limit, exp.Limit) and isinstance(limit.expression, exp.Placeholder | exp.Parameter):
        return True
    count = row_count(query) if limit is not None else None
    return count is not None and count <= _LAST_NUMBER


def modulus_of(side: object) -> float | None:
    """By which number it takes the remainder of a division: ``id % 2``; None for anything else."""
    inner = side.unnest() if isinstance(side, exp.Expr) else None
    divisor = inner.expression.unnest() if isinstance(inner, exp.Mod) else None
    return _number(divisor.name) if isinstance(divisor, exp.Literal) else None


def is_every_remainder(comparison: type[exp.Expr], side: object, bound: object) -> bool:
    """Whether a remainder is compared with a bound that all remainders keep: ``id % 2 < 2``."""
    modulus = modulus_of(side)
    number = _number(bound.name) if isinstance(bound, exp.Literal) else None
    if modulus is None or number is None:
        return False
    if comparison in (exp.GT, exp.GTE):
        return number <= 0
    return number >= (modulus - 1 if comparison is exp.LTE else modulus)


def numbers_rows(column: exp.Column | None) -> bool:
    """Whether a column has the name of one that numbers rows."""
    return column is not None and any(_ID.fullmatch(name) is not None for name in (column.name, column.name.lower()))


def _constant_of(select: exp.Expr) -> exp.Expr | None:
    """What ``SELECT 1`` gives; None for a query that reads or chooses."""
    plain = isinstance(select, exp.Select) and not any(
        value for key, value in select.args.items() if key != "expressions"
    )
    return select.expressions[0].unalias() if plain and len(select.expressions) == 1 else None


def is_wide(comparison: type[exp.Expr], side: object, bound: object) -> bool:
    """Whether a part of a date is compared with a bound that every date keeps: a year since 1970, a month up to 12."""
    while isinstance(side, exp.Paren | exp.Cast):
        side = side.this
    if not isinstance(side, _PARTS) or not isinstance(bound, exp.Literal):
        return False
    number = _number(bound.name)
    if number is None or comparison in (exp.NEQ, exp.NullSafeNEQ):
        return number is None or not 1 <= number <= _LAST_YEAR
    up = comparison in (exp.GT, exp.GTE)
    return number <= 1 or 31 < number <= _FIRST_YEAR if up else 12 <= number <= 31 or number >= _LAST_YEAR


def is_some(value: object) -> bool:
    """Whether a value (a list, a document) that a column must contain is written out and holds anything at all."""
    if isinstance(value, exp.Cast | exp.Paren):
        return is_some(value.this)
    if isinstance(value, exp.Literal):
        return any(char.isalnum() for char in value.name) and value.name.strip().lower() != "empty"
    return isinstance(value, exp.Array) and bool(value.expressions) and value.find(exp.Column) is None


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def column_of(side: object, *, parts: bool = False) -> exp.Column | None:
    """The column on one side of a comparison, perhaps wrapped in what leaves rows apart; None where there is none.

    ``parts``: also where only a part of its value is compared, the year of a date or a key of a document.
    """
    if parts and isinstance(side, exp.Anonymous) and side.name.lower() == "json_unquote" and side.expressions:
        side = side.expressions[0]
    while isinstance(side, _WRAPPERS + _PARTS if parts else _WRAPPERS):
        if isinstance(side, exp.Mod) and not _tells_apart(side.expression):
            return None
        if isinstance(side, exp.Substring) and getattr(side.args.get("length"), "name", "") == "0":
            return None
        if isinstance(side, exp.Extract) and side.name.lower() not in _UNITS:
            return None
        side = side.expression if isinstance(side, exp.Extract) else side.this
    return side if isinstance(side, exp.Column) and not isinstance(side.this, exp.Star) else None


def _tells_apart(modulus: object) -> bool:
    """Whether a remainder by ``modulus`` differs between rows: a number other than nought and one."""
    return isinstance(modulus, exp.Literal) and not modulus.is_string and modulus.name not in ("0", "1")
