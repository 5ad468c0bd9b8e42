"""How many rows a query may give: a limit is read, lowered or added.

A limit is put into the text of a statement, or a greater number replaced. The changed text is parsed again and must mean the
same but for the limit; otherwise nothing is changed and the statement is denied.
"""

from __future__ import annotations

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
