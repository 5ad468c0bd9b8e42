"""How many rows a SELECT may give: read off its tree, and written into its text where that is safe."""

from __future__ import annotations

import re

from sqlglot import exp

_TAIL = re.compile(r"(\blimit\s+)(\d+)((?:\s+offset\s+\d+)?)$", re.IGNORECASE)
_HEAD = re.compile(r"select(?:\s+(?:distinct|all))?(?=\s)", re.IGNORECASE)
_TOP = frozenset({"tsql", "fabric", "teradata"})
_FETCH = frozenset({"oracle"})


def is_limited(tree: exp.Expr, most: int) -> bool:
    """Whether ``tree`` gives at most ``most`` rows, or is no SELECT."""
    if not isinstance(tree, exp.Query):
        return True
    if isinstance(tree, exp.Subquery) and tree.args.get("limit") is None:
        return is_limited(tree.this, most)
    rows = _rows(tree)
    return rows is not None and rows <= most


def _rows(tree: exp.Expr) -> int | None:
    """The number that limits the rows; None when there is none or it is not plain."""
    limit = tree.args.get("limit")
    if isinstance(limit, exp.Limit):
        number = limit.expression
    elif isinstance(limit, exp.Fetch):
        number = limit.args.get("count")
    else:
        return None
    while isinstance(number, exp.Paren):
        number = number.this
    options = limit.args.get("limit_options")
    if limit.args.get("expressions") or (options and (options.args.get("percent") or options.args.get("with_ties"))):
        return None
    if not isinstance(number, exp.Literal) or number.is_string or not number.name.isdigit():
        return None
    return int(number.name)


def with_limit(text: str, tree: exp.Expr, most: int, dialect: str) -> str | None:
    """``text`` (one statement without comments) with a limit of ``most`` rows, None where that takes more than an edit."""
    if _rows(tree) is not None and (tail := _TAIL.search(text)) is not None and int(tail[2]) == _rows(tree):
        return f"{text[: tail.start()]}{tail[1]}{most}{tail[3]}"
    if any(
        tree.args.get(part) for part in ("limit", "offset", "locks", "settings", "format", "into", "for_", "options")
    ):
        return None
    if dialect in _TOP:
        head = _HEAD.match(text) if isinstance(tree, exp.Select) else None
        return None if head is None else f"{head[0]} TOP {most}{text[head.end() :]}"
    if not isinstance(tree, exp.Select | exp.SetOperation):
        return None
    return f"{text} FETCH FIRST {most} ROWS ONLY" if dialect in _FETCH else f"{text} LIMIT {most}"
