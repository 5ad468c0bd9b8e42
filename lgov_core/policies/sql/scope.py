"""Names within queries: what stands in FROM, and which columns belong to the row around a subquery."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sqlglot import exp

from lgov_core.policies.sql.names import words

#: What databases call the columns of VALUES, before their numbers.
_OF_VALUES = ("column", "col", "_col")


def sources(*places: object) -> tuple[list[exp.Expr], list[exp.Expr]]:
    """The tables, queries and functions in FROM, JOIN and USING clauses, and the conditions of their inner joins."""
    nodes: list[exp.Expr] = []
    ties: list[exp.Expr] = []
    pending = [*reversed(places)]
    while pending:
        place = pending.pop()
        if isinstance(place, exp.Join):
            on = place.args.get("on")
            if isinstance(on, exp.Expr) and place.side.upper() not in ("LEFT", "RIGHT", "FULL"):
                ties.append(on)
            pending.append(place.this)
        elif isinstance(place, exp.From | exp.Paren):
            pending.append(place.this)
        elif isinstance(place, exp.Expr):
            nodes.append(place)
            pending.extend(place.args.get("joins") or [])
    return nodes, ties


def sources_of(select: exp.Select) -> tuple[list[exp.Expr], list[exp.Expr]]:
    """`sources` of a query."""
    args = select.args
    return sources(args.get("from_"), *(args.get("joins") or []), *(args.get("laterals") or []))


def is_function(source: exp.Expr) -> bool:
    """Whether a function stands in the place of a table: ``json_each(...)``, ``ROWS FROM (...)``."""
    return isinstance(source, exp.Table) and (isinstance(source.this, exp.Func) or bool(source.args.get("rows_from")))


def is_stored(source: exp.Expr, named: Mapping[str, exp.Expr]) -> bool:
    """Whether a source is a table of the database; ``named`` are the WITH queries by name (lower case)."""
    if not isinstance(source, exp.Table) or is_function(source):
        return False
    return bool(source.db) or source.name.lower() not in (*named, "dual")


def reads_row_around(query: exp.Expr, named: Mapping[str, exp.Expr], own: frozenset[str]) -> bool:
    """Whether ``query`` may use a column, or all, of the row around it, which conditions know by the names ``own``.

    A column without a table belongs to the innermost query around it that reads a stored table, which may have any column,
    or something else that gives a column of that name.
    """
    return any(not _is_inside(column, query, named, own) for column in query.find_all(exp.Column))


def _is_inside(column: exp.Column, query: exp.Expr, named: Mapping[str, exp.Expr], own: frozenset[str]) -> bool:
    inner, node = column, column
    while node is not query and node.parent is not None:
        below, inner, node = inner, node, node.parent
        if not isinstance(node, exp.Select) or inner.arg_key in ("from_", "laterals", "with_"):
            continue
        if inner.arg_key == "joins" and below.arg_key == "this":
            continue
        if _belongs_to(column, sources_of(node)[0], named, own):
            return True
    return False


def _belongs_to(
    column: exp.Column, sources: Iterable[exp.Expr], named: Mapping[str, exp.Expr], own: frozenset[str]
) -> bool:
    name, table = column.name.lower(), column.table.lower()
    known = {source.alias_or_name.lower() for source in sources}
    if table:
        return table in known
    if name in own and name not in known:
        return False  # the whole row as a value
    return any(is_stored(source, named) or name in given_by(source, named) for source in sources)


def given_by(source: exp.Expr, named: Mapping[str, exp.Expr]) -> set[str]:
    """The names (lower case) of the columns that a query or function gives, as far as the text shows them."""
    alias = source.args.get("alias")
    if isinstance(alias, exp.TableAlias) and alias.columns:
        return {column.name.lower() for column in alias.columns}
    if isinstance(source, exp.Table) and not is_function(source):
        query = named.get(source.name.lower())
        return set() if query is None else given_by(query.parent if query.parent is not None else query, {})
    while isinstance(source, exp.CTE | exp.Subquery | exp.SetOperation):
        source = source.this
    if isinstance(source, exp.Select):
        return {item.alias_or_name.lower() for item in source.expressions} | {
            name
            for item in source.expressions
            if item.is_star
            for one in sources_of(source)[0]
            for name in given_by(one, {})
        }
    if isinstance(source, exp.Values):
        width = len(source.expressions[0].expressions) if source.expressions else 0
        return {f"{prefix}{number}" for prefix in _OF_VALUES for number in range(width + 1)}
    function = source.this if isinstance(source.this, exp.Func) else source
    name = (
        function.sql_name()
        if isinstance(function, exp.Func) and not isinstance(function, exp.Anonymous)
        else function.name
    )
    defined = {column.name.lower() for column in source.find_all(exp.JSONColumnDef, exp.OpenJSONColumnDef)}
    return defined or {"value" if name.lower() in words("gives_value") else source.alias_or_name.lower()}
