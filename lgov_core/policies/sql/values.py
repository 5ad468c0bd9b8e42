"""Constants and bounds in conditions: which comparisons with them hold for nearly every row."""

from __future__ import annotations

import re

from sqlglot import exp

from lgov_core.policies.sql.limit import row_count

#: Functions around a column that keep its values apart.
_WRAPPERS = (
    exp.Paren, exp.Cast, exp.TryCast, exp.Collate, exp.Lower, exp.Upper, exp.Trim, exp.Date, exp.TsOrDsToDate,
    exp.TsOrDsToTimestamp, exp.TimeToStr, exp.TimestampTrunc, exp.DateTrunc,
)  # fmt: skip
#: Functions that take a part of a column's value: enough where it must equal something.
_PARTS = (
    exp.Extract, exp.JSONExtract, exp.JSONExtractScalar, exp.JSONBExtract, exp.JSONBExtractScalar, exp.Year, exp.Month,
    exp.Substring,
)  # fmt: skip
#: Parts of a date that differ between rows.
_UNITS = frozenset({"year", "quarter", "month", "week", "day", "dow", "doy", "hour", "dayofweek"})
#: Names of columns that number rows.
_ID = re.compile(r"(?:.*_)?(?:id|pk|key|uuid|guid|rowid|oid|nr|no|num)|.*(?:[a-z]I[dD]|[A-Z]ID)|_rowid_|\$identity")
_TEXTS = (exp.ByteString, exp.National, exp.RawString, exp.HexString, exp.UnicodeString)
_DATE = re.compile(r"(\d{4})-\d\d?-\d\d?(?:[T ].*)?")
_FIRST_YEAR, _LAST_YEAR = 1970, 2100
#: More rows, or a greater row number, than a table is expected to have.
MANY = 1_000_000
#: A character class of SQL Server that excludes characters.
_ANY_BUT = re.compile(r"\[\^[^]]*\]")
#: Parts of a regular expression that may match nothing: an optional character, class or innermost group; flags.
_OPTIONAL = re.compile(
    r"(?:\\.|\[\^?\]?(?:\[:\w+:\]|[^\[\]])*\]|\([^()]*\)|[^\\()\[\]|])(?:[*?]|\{0?,\d*\})|\(\?[a-zA-Z-]*[):]"
)
#: Names of columns that hold a truth value also where it is written as a number or a text.
_FLAG = re.compile(r"(?:is|has|was|can)_.+|(?:.*_)?(?:active|enabled|disabled|deleted|archived|flag)")
_TRUTH = {"0": False, "f": False, "n": False, "false": False, "1": True, "t": True, "y": True, "true": True}


def column_of(side: object, *, parts: bool = False) -> exp.Column | None:
    """The column on one side of a comparison, perhaps inside functions that keep rows apart; None for anything else.

    ``parts``: also inside functions that take a part of its value, such as the year of a date or a key of a document.
    """
    if parts and isinstance(side, exp.Anonymous) and side.name.lower() == "json_unquote" and side.expressions:
        side = side.expressions[0]
    while isinstance(side, _WRAPPERS + _PARTS if parts else _WRAPPERS):
        if isinstance(side, exp.Extract):
            if side.name.lower() not in _UNITS:
                return None
            side = side.expression
        elif isinstance(side, exp.Substring) and side.text("length") == "0":
            return None
        else:
            side = side.this
    return side if isinstance(side, exp.Column) and not isinstance(side.this, exp.Star) else None


def is_wild(pattern: str, *, regular: bool = False) -> bool:
    """Whether a pattern of LIKE or GLOB (``regular``: a regular expression) matches any text."""
    branches = _OPTIONAL.sub("", _OPTIONAL.sub("", pattern)).split("|") if regular else [_ANY_BUT.sub("", pattern)]
    return not all(re.sub(r"\\[sSwWdD]|[%_*?.^$+()|]", "", branch) for branch in branches)


def text_of(node: exp.Expr) -> str | None:
    """The text that literals put together make; None where there is anything else."""
    if isinstance(node, exp.Literal):
        return node.name
    if isinstance(node, exp.Concat):
        texts = [text_of(part) for part in node.expressions]
    elif isinstance(node, exp.DPipe | exp.Add):
        texts = [text_of(node.this), text_of(node.expression)]
    else:
        return text_of(node.this) if isinstance(node, _WRAPPERS) else None
    return None if None in texts else "".join(filter(None, texts))


def takes_both(column: exp.Column, values: list[exp.Expr]) -> bool:
    """Whether both truth values are among ``values``, so that one of them is what any row has in ``column``.

    Numbers and texts are truth values only for a column with the name of a flag.
    """
    found = {value.this for value in values if isinstance(value, exp.Boolean)}
    if _FLAG.fullmatch(column.name.lower()):
        found |= {_TRUTH.get(value.name.lower()) for value in values if isinstance(value, exp.Literal)}
    return found >= {True, False}


def is_far(comparison: type[exp.Expr], side: exp.Expr, bound: exp.Expr) -> bool:
    """Whether ``side comparison bound`` (ordered, or NEQ) holds for nearly every row.

    That is: from 1 up, up to a million, or other than 0 or less, for a column that numbers rows; a date since 1970 or until
    2100; a text from before the first letter on, until after the last, or other than the empty one.
    """
    while isinstance(bound, exp.Cast | exp.Date | exp.TsOrDsToDate | exp.TsOrDsToTimestamp | exp.Paren):
        bound = bound.this
    up, different = comparison in (exp.GT, exp.GTE), comparison is exp.NEQ
    sign = 1
    if isinstance(bound, exp.Neg):
        sign, bound = -1, bound.this
    quoted = isinstance(bound, _TEXTS) or (isinstance(bound, exp.Literal) and bound.is_string)
    text = bound.name.strip("0" if isinstance(bound, exp.HexString) else None)
    if different and quoted:
        return not text
    if quoted:
        if (date := _DATE.fullmatch(text)) is not None:
            return int(date[1]) <= _FIRST_YEAR if up else int(date[1]) >= _LAST_YEAR
        if text[:1] < "+" or not text.strip("zZ~"):
            return up or bool(text)
        if text.lower().lstrip("+-") in ("inf", "infinity"):
            return (text[0] == "-") is up
    elif not isinstance(bound, exp.Literal):
        return False
    try:
        number = sign * float(text)
    except ValueError:
        return False
    if isinstance(side, exp.Year):
        return different or (number <= _FIRST_YEAR if up else number >= _LAST_YEAR)
    column = column_of(side)
    numbers_rows = column is not None and any(_ID.fullmatch(name) for name in (column.name, column.name.lower()))
    return numbers_rows and (number <= 0 if different else number <= 1 if up else number >= MANY)


def keeps_few(query: exp.Expr) -> bool:
    """Whether a query has a row limit that leaves rows out: a number no table is expected to reach, or a parameter."""
    limit = query.args.get("limit")
    if isinstance(limit, exp.Limit) and isinstance(limit.expression, exp.Placeholder | exp.Parameter):
        return True
    count = row_count(query) if limit is not None else None
    return count is not None and count <= MANY
