"""Constants in conditions and limits: which comparisons hold for nearly every row, and which bounds are too large.

A limit is put into the text of a statement, or a greater number replaced. The changed text is parsed again and must mean the
same but for the limit; otherwise nothing is changed and the statement is denied.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from sqlglot import Token, exp

_TOP = frozenset({"tsql", "fabric"})
_FETCH = frozenset({"oracle"})
#: Dialects in which no clause behind the query limits it, and where ``TOP`` is not written here: there it is a denial.
_NO_LIMIT_CLAUSE = frozenset({"teradata"})


class NoLimit(Exception):
    """The statement cannot be limited with certainty. The message says what to write."""


def limited(tree: exp.Expr, text: str, tokens: Sequence[Token], rows: int, dialect: str) -> str | None:
    """The text of a statement that returns at most ``rows`` rows; None when it does so already. Raises `NoLimit`.

    The caller parses what comes back and asks `same_but_for_the_limit`.
    """
    if isinstance(tree, exp.Values):
        if len(tree.expressions) <= rows:
            return None
        raise NoLimit(f"Give at most {rows} rows of values.")
    form = f"FETCH FIRST {rows} ROWS ONLY" if dialect in _FETCH else f"LIMIT {rows}"
    if dialect in _TOP | _NO_LIMIT_CLAUSE:
        form = f"TOP {rows}, written after SELECT"
    advice = f"At most {rows} rows may be read; limit the query with {form}."
    if not isinstance(tree, exp.Query):
        return None
    if isinstance(tree, exp.Subquery) or tree.args.get("locks") or tree.args.get("settings"):
        if isinstance(tree, exp.Subquery) and row_count(tree) is None and isinstance(tree.this, exp.Query):
            inner = row_count(tree.this)
            if inner is not None and inner <= rows:
                return None
        raise NoLimit(advice)
    if tree.args.get("limit") is None:
        return _with_limit(tree, text, tokens, rows, dialect, advice)
    count = row_count(tree)
    if count is None:
        raise NoLimit(f"At most {rows} rows may be read; write the limit as a plain number up to that.")
    return None if count <= rows else _lowered(text, tokens, count, rows, advice)


def same_but_for_the_limit(old: exp.Expr, new: exp.Expr, rows: int) -> bool:
    """Returns whether ``new`` is ``old`` with a limit of ``rows`` rows and no other difference."""
    if row_count(new) != rows:
        return False
    before, after = old.copy(), new.copy()
    before.set("limit", None)
    after.set("limit", None)
    return before == after


def row_count(tree: exp.Expr) -> int | None:
    """The number of rows in the limit of a query, when it is a plain number without options."""
    limit = tree.args.get("limit")
    if not isinstance(limit, exp.Limit | exp.Fetch):
        return None
    options = limit.args.get("limit_options")
    if isinstance(options, exp.LimitOptions) and (options.args.get("percent") or options.args.get("with_ties")):
        return None
    if limit.args.get("expressions"):  # LIMIT n BY: n of each group
        return None
    number = limit.args.get("count") if isinstance(limit, exp.Fetch) else limit.expression
    while isinstance(number, exp.Paren):
        number = number.this
    if not isinstance(number, exp.Literal) or number.is_string or not number.name.isdigit():
        return None
    return int(number.name)


def _with_limit(tree: exp.Query, text: str, tokens: Sequence[Token], rows: int, dialect: str, advice: str) -> str:
    if dialect in _NO_LIMIT_CLAUSE or any(tree.args.get(clause) for clause in ("for_", "options", "format")):
        raise NoLimit(advice)
    if dialect in _FETCH:
        return f"{text} FETCH FIRST {rows} ROWS ONLY"
    if dialect not in _TOP:
        return f"{text} LIMIT {rows}"
    if tree.args.get("offset") is not None:
        return f"{text} FETCH NEXT {rows} ROWS ONLY"
    if not isinstance(tree, exp.Select):
        raise NoLimit(advice)
    selects = _top_level(tokens, "SELECT")
    if len(selects) != 1:
        raise NoLimit(advice)
    after = selects[0]
    if after + 1 < len(tokens) and tokens[after + 1].text.upper() in ("DISTINCT", "ALL"):
        after += 1
    at = tokens[after].end + 1
    return f"{text[:at]} TOP {rows}{text[at:]}"


def _lowered(text: str, tokens: Sequence[Token], count: int, rows: int, advice: str) -> str:
    """The text with the number of its outermost limit replaced."""
    words = _top_level(tokens, "LIMIT", "TOP", "FIRST", "NEXT")
    if not words:
        raise NoLimit(advice)
    after = [token.text for token in tokens[words[-1] + 1 : words[-1] + 3]]
    ahead = 2 if after[:1] == ["("] else 3 if after[1:] == [","] else 1  # TOP (n); LIMIT offset, n; LIMIT n
    if words[-1] + ahead >= len(tokens) or (token := tokens[words[-1] + ahead]).text != str(count):
        raise NoLimit(advice)
    return f"{text[: token.start]}{rows}{text[token.end + 1 :]}"


def _top_level(tokens: Sequence[Token], *words: str) -> list[int]:
    """The places of ``words`` outside of parentheses."""
    positions: list[int] = []
    depth = 0
    for position, token in enumerate(tokens):
        depth += (token.text == "(") - (token.text == ")")
        if depth == 0 and token.text.upper() in words:
            positions.append(position)
    return positions


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
    """Returns whether a pattern of LIKE or GLOB (``regular``: a regular expression) matches any text."""
    branches = _OPTIONAL.sub("", _OPTIONAL.sub("", pattern)).split("|") if regular else [_ANY_BUT.sub("", pattern)]
    return not all(re.sub(r"\\[sSwWdD]|[%_*?.^$+()|]", "", branch) for branch in branches)


def text_of(node: exp.Expr) -> str | None:
    """The text that literals put together make; None where there is anything else."""
    if isinstance(node, exp.Literal):
        return node.name
    if isinstance(node, exp.Concat):
        texts = [text_of(expression) for expression in node.expressions]
    elif isinstance(node, exp.DPipe | exp.Add):
        texts = [text_of(node.this), text_of(node.expression)]
    else:
        return text_of(node.this) if isinstance(node, _WRAPPERS) else None
    return None if None in texts else "".join(filter(None, texts))


def takes_both(column: exp.Column, values: list[exp.Expr]) -> bool:
    """Returns whether both truth values are among ``values``, so that one of them is what any row has in ``column``.

    Numbers and texts are truth values only for a column with the name of a flag.
    """
    truths = {value.this for value in values if isinstance(value, exp.Boolean)}
    if _FLAG.fullmatch(column.name.lower()):
        truths |= {_TRUTH.get(value.name.lower()) for value in values if isinstance(value, exp.Literal)}
    return truths >= {True, False}


def is_far(comparison: type[exp.Expr], side: exp.Expr, bound: exp.Expr) -> bool:
    """Returns whether ``side comparison bound`` (ordered, or NEQ) holds for nearly every row.

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
    """Returns whether a query has a row limit that leaves rows out: a number no table is expected to reach, or a parameter."""
    limit = query.args.get("limit")
    if isinstance(limit, exp.Limit) and isinstance(limit.expression, exp.Placeholder | exp.Parameter):
        return True
    count = row_count(query) if limit is not None else None
    return count is not None and count <= MANY
