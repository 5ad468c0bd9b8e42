"""Which columns in a subquery are of the row around it, and not of what the subquery itself reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from sqlglot import exp

from lgov_core.policies.options import names as words
from lgov_core.policies.sql.sources import Known, Source, is_function

#: Parts of a query that choose, group and order its rows, and give nothing.
_CHOOSING = frozenset(words("where on having qualify group order distinct limit offset"))
#: Dialects in which the name of a table also stands for the row.
_ROWS_AS_VALUES = frozenset(words("postgres redshift duckdb bigquery spark databricks"))
#: What stands in FROM and sees what stands there before it.
_LATERAL = (exp.Lateral, exp.Unnest, exp.Table, exp.TableFromRows, exp.Alias)
#: What the columns of VALUES are called where nobody says otherwise, before their numbers.
_OF_VALUES = {
    "duckdb": "col",
    "mysql": "column_",
    "trino": "_col",
    "presto": "_col",
    "spark": "col",
    "databricks": "col",
}
#: The columns, in all databases that have it, of a function in the place of a table; another's has the name of its alias.
_OF_FUNCTIONS = {
    **dict.fromkeys(words("json_each jsonb_each json_each_text jsonb_each_text json_tree openjson"), ("key", "value")),
    **dict.fromkeys(words("json_array_elements jsonb_array_elements json_array_elements_text"), ("value",)),
    **dict.fromkeys(words("jsonb_array_elements_text string_split split_to_table"), ("value",)),
    "explode": ("col",),
}


class _Seen(NamedTuple):
    """The columns that can be named without a table somewhere in a query (None: any), and the tables, in lower case."""

    columns: frozenset[str] | None
    tables: frozenset[str]

    def may_have(self, column: exp.Column) -> bool:
        """Whether ``column`` may be one of these."""
        table = column.table.lower()
        if table:
            return table in self.tables or (self.columns is not None and table in self.columns)
        return self.columns is None or column.name.lower() in self.columns

    def beside(self, other: _Seen) -> _Seen:
        """What can be seen of both."""
        columns = None if self.columns is None or other.columns is None else self.columns | other.columns
        return _Seen(columns, self.tables | other.tables)


_NOTHING = _Seen(frozenset(), frozenset())


def of_row_around(expression: exp.Expr, known: Known, written: Source) -> Iterator[tuple[exp.Column, bool]]:
    """The columns in ``expression`` that no query within it reads; and whether each only helps to choose rows of one.

    A stored table may have any column. What reads none has the columns that the text shows, and no others.
    """
    pending: list[tuple[exp.Expr, _Seen, bool]] = [(expression, _NOTHING, False)]
    while pending:
        node, seen, chooses = pending.pop()
        if isinstance(node, exp.Column):
            if not seen.may_have(node) or _is_whole_row(node, seen, known, written):
                yield node, chooses
        elif isinstance(node, exp.Select):
            for part, sees in _parts(node, seen, known):
                pending.append((part, sees, chooses or part.arg_key in _CHOOSING))
        else:
            if node.args.get("joins"):
                seen = seen.beside(_of_source(node, known))
            pending.extend((part, seen, chooses or part.arg_key in _CHOOSING) for part in node.iter_expressions())


def _is_whole_row(column: exp.Column, seen: _Seen, known: Known, written: Source) -> bool:
    """Whether a column may be a row as a value: ``(orders).id``, ``to_jsonb(o)``."""
    name = column.name.lower()
    whole = not column.table and name in written.known_as and name not in seen.tables
    return whole and known.dialect in _ROWS_AS_VALUES


def _parts(select: exp.Select, around: _Seen, known: Known) -> Iterator[tuple[exp.Expr, _Seen]]:
    """The parts of a query, each with what it sees."""
    seen = around
    for source in _sources(select):
        yield source, seen if isinstance(source, _LATERAL) else around
        seen = seen.beside(_of_source(source, known))
    for part in select.iter_expressions():
        if isinstance(part, exp.Join):
            on = part.args.get("on")
            if isinstance(on, exp.Expr):
                yield on, seen
        elif not isinstance(part, exp.From | exp.Lateral):
            yield part, around if isinstance(part, exp.With) else seen


def _sources(select: exp.Select) -> Iterator[exp.Expr]:
    from_ = select.args.get("from_")
    places = [from_] if isinstance(from_, exp.From) else []
    for place in (*places, *(select.args.get("joins") or [])):
        yield place.this
    yield from select.args.get("laterals") or []


def _of_source(source: exp.Expr, known: Known) -> _Seen:
    seen = _Seen(_columns(source, known), frozenset({source.alias_or_name.lower()} - {""}))
    for join in source.args.get("joins") or []:
        seen = seen.beside(_of_source(join.this, known))
    return seen


def _columns(source: exp.Expr, known: Known) -> frozenset[str] | None:
    """The columns of what stands in FROM, or in WITH, in lower case; None where it may have any."""
    if isinstance(source, exp.Table) and not is_function(source):
        name = source.name.lower()
        query = None if source.db else known.queries.get(name)
        if query is None:
            return frozenset() if name == "dual" and not source.db else None
        if not _renamed(source):
            return _columns(query.parent, known) if isinstance(query.parent, exp.CTE) else None
    if renamed := _renamed(source):
        return renamed
    if isinstance(source, exp.CTE | exp.Query | exp.Values):
        if id(source) not in known.columns:
            known.columns[id(source)] = frozenset()  # while a query that reads itself is looked at
            known.columns[id(source)] = _given(source, known)
        return known.columns[id(source)]
    inner = source.this
    if isinstance(source, exp.Lateral) and isinstance(inner, exp.Subquery):
        return _columns(inner, known)
    function = inner if isinstance(inner, exp.Func) else source
    defined = [column.name.lower() for column in function.find_all(exp.JSONColumnDef, exp.OpenJSONColumnDef)]
    name = _name_of(function)
    return frozenset(defined or _OF_FUNCTIONS.get(name) or (source.alias.lower() or name,))


def _renamed(source: exp.Expr) -> frozenset[str]:
    alias = source.args.get("alias")
    columns = alias.columns if isinstance(alias, exp.TableAlias) else []
    found = frozenset(column.name.lower() for column in columns)
    offset = source.args.get("offset")
    return found | {offset.name.lower()} if found and isinstance(offset, exp.Expr) else found


def _given(query: exp.Expr, known: Known) -> frozenset[str] | None:
    """The names of the columns that a query gives; None where it may give any."""
    while isinstance(query, exp.CTE | exp.Subquery | exp.SetOperation):  # the first part of a UNION names its columns
        query = query.this
    if isinstance(query, exp.Values):
        first = query.expressions[0] if query.expressions else query
        prefix = _OF_VALUES.get(known.dialect, "column")
        return frozenset(f"{prefix}{number}" for number in range(max(1, len(first.expressions)) + 1))
    if isinstance(query, exp.Table):
        return _of_source(query, known).columns
    if not isinstance(query, exp.Select):
        return None
    found: frozenset[str] = frozenset()
    for item in query.expressions:
        if item.is_star:
            of_all = _of_star(item, query, known)
            if of_all is None:
                return None
            found |= of_all
        else:
            name = item.alias_or_name.lower() or _name_of(item)
            found |= {name, "col"} if name == "explode" else {name}
    return found


def _of_star(star: exp.Expr, select: exp.Select, known: Known) -> frozenset[str] | None:
    table = star.table.lower() if isinstance(star, exp.Column) else ""
    found: frozenset[str] = frozenset()
    for source in _sources(select):
        if not table or source.alias_or_name.lower() == table:
            columns = _of_source(source, known).columns
            if columns is None:
                return None
            found |= columns
    inner = star.this if isinstance(star, exp.Column) else star
    return found - {name.name.lower() for name in inner.args.get("except_") or []}


def _name_of(function: exp.Expr) -> str:
    """What a function is called, and the column that it gives where nobody gives it another name."""
    if isinstance(function, exp.Func) and not isinstance(function, exp.Anonymous):
        return function.sql_name().lower()
    return function.alias_or_name.lower()
