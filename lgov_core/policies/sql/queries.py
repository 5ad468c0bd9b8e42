"""Queries in a writing statement: which tables their columns are of, and how many rows or values they may give."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from sqlglot import exp

from lgov_core.policies.sql.names import words
from lgov_core.policies.sql.tree import TooMuchWork
from lgov_core.policies.sql.values import keeps_few

#: What databases call the columns of VALUES, before their numbers.
_OF_VALUES = ("column", "col", "_col")


def sources(*places: object) -> tuple[list[exp.Expr], list[exp.Expr]]:
    """The tables, queries and functions in FROM, JOIN and USING clauses, and the conditions of their inner joins."""
    nodes: list[exp.Expr] = []
    ties: list[exp.Expr] = []
    pending = [*reversed(places)]
    while pending:
        node = pending.pop()
        if isinstance(node, exp.Join):
            on = node.args.get("on")
            if isinstance(on, exp.Expr) and node.side.upper() not in ("LEFT", "RIGHT", "FULL"):
                ties.append(on)
            pending.append(node.this)
        elif isinstance(node, exp.From | exp.Paren):
            pending.append(node.this)
        elif isinstance(node, exp.Expr):
            nodes.append(node)
            pending.extend(node.args.get("joins") or [])
    return nodes, ties


def sources_of(select: exp.Select) -> tuple[list[exp.Expr], list[exp.Expr]]:
    """`sources` of a query."""
    args = select.args
    return sources(args.get("from_"), *(args.get("joins") or []), *(args.get("laterals") or []))


def is_function(source: exp.Expr) -> bool:
    """Returns whether a function stands in the place of a table: ``json_each(...)``, ``ROWS FROM (...)``."""
    return isinstance(source, exp.Table) and (isinstance(source.this, exp.Func) or bool(source.args.get("rows_from")))


def is_stored(source: exp.Expr, named: Mapping[str, exp.Expr]) -> bool:
    """Returns whether a source is a table of the database; ``named`` are the WITH queries by name (lower case)."""
    if not isinstance(source, exp.Table) or is_function(source):
        return False
    return bool(source.db) or source.name.lower() not in (*named, "dual")


def reads_row_around(query: exp.Expr, named: Mapping[str, exp.Expr], own: frozenset[str]) -> bool:
    """Returns whether ``query`` may use a column, or all, of the row around it, which conditions know by the names ``own``.

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
    aliases = {source.alias_or_name.lower() for source in sources}
    if table:
        return table in aliases
    if name in own and name not in aliases:
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
            for inner in sources_of(source)[0]
            for name in given_by(inner, {})
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


#: Comparisons and tables that are looked at for one statement; an ordinary one has a handful.
_MAX_STEPS = 10_000
#: Functions and clauses that give numbers or dates one after the other.
_GENERATORS = (
    exp.GenerateSeries, exp.GenerateDateArray, exp.GenerateTimestampArray, exp.Generator, exp.Connect,
)  # fmt: skip
_GENERATOR_NAMES = frozenset({"generate_series", "range", "numbers", "sequence", "zeros"})


class Queries:
    """The queries of one statement that writes to ``table``, with ``named``, its WITH queries by name (lower case).

    ``is_limited`` tells whether a WHERE limits a source of a query: (its names, the sources beside it, the WHERE, the
    conditions of inner joins). Every method may raise `TooMuchWork`.
    """

    def __init__(
        self,
        statement: exp.Expr,
        table: exp.Table,
        is_limited: Callable[[frozenset[str], list[exp.Expr], object, list[exp.Expr]], bool],
    ) -> None:
        self.table, self._schema = table.name.lower(), table.db.lower()
        self.names = frozenset({self.table, table.alias_or_name.lower()})
        self.named: dict[str, exp.Expr] = {}
        self._is_limited = is_limited
        self._left = _MAX_STEPS
        self._found: dict[object, bool] = {}  # about queries, which are asked about once more at each level around them
        self._root = statement.root()
        for query in self._root.find_all(exp.CTE):
            name = query.alias.lower()
            if name in self.named or (name == self.table and query.find_ancestor(exp.Query) is not None):
                raise TooMuchWork  # a name that may mean two things
            self.named[name] = query.this

    def is_elsewhere(self, source: exp.Expr) -> bool:
        """Returns whether a source in FROM cannot hold all rows of the written table, or what a row of it holds."""
        if isinstance(source, exp.Table) and not is_function(source):
            named = None if source.db else self.named.get(source.name.lower())
            return not self._reads_all(source, source) and (named is None or not self._gives_row_numbers(named))
        return self.is_independent(source)

    def is_independent(self, query: exp.Expr) -> bool:
        """Returns whether a query gives nothing of the row around it, and may not hold all rows of the written table."""
        if id(query) not in self._found:
            around = reads_row_around(query, self.named, self.names)
            self._found[id(query)] = not around and not self.may_hold_all(query)
        return self._found[id(query)]

    def may_hold_all(self, query: exp.Expr) -> bool:
        """Returns whether a query may hold something for every row: it reads the written table without limits, or counts up."""
        if keeps_few(query.unnest()):
            return False
        return self._gives_row_numbers(query) or any(self._reads_all(node, query) for node in query.walk())

    def _gives_row_numbers(self, query: exp.Expr) -> bool:
        """Returns whether a query may give the numbers of rows as they come, rather than choose rows by them."""
        if not any(self._root.find_all(exp.RowNumber)):
            return False
        aliases = list(self._root.find_all(exp.Alias))
        numbers = {alias.alias.lower() for alias in aliases if alias.find(exp.RowNumber)} | {"row_number"}
        renamed = any(isinstance(alias.this, exp.Column) and alias.this.name.lower() in numbers for alias in aliases)
        items = query.unnest().expressions
        plain = all(isinstance(item, exp.Column) and item.name.lower() not in {*numbers, "*"} for item in items)
        return renamed or not items or not plain or any(alias.columns for alias in self._root.find_all(exp.TableAlias))

    def _reads_all(self, node: exp.Expr, query: exp.Expr, path: tuple[str, ...] = ()) -> bool:
        """Returns whether one node of ``query`` reads the written table without limits, or counts up.

        ``path`` holds the names of the WITH queries around it.
        """
        if not isinstance(node, exp.Table) or is_function(node):
            name = node.name.lower() if isinstance(node, exp.Anonymous) else ""
            return isinstance(node, _GENERATORS) or name in _GENERATOR_NAMES
        self.count()
        name, schema = node.name.lower(), node.db.lower()
        named = None if schema else self.named.get(name)
        if named is None:
            return (
                name == self.table
                and ("" in (schema, self._schema) or schema == self._schema)
                and not self._is_narrowed(node, query)
            )
        if name in path:  # it makes further rows of its own ones: that ends where a stored table does
            again = named.expression if isinstance(named, exp.SetOperation) else named
            return not any(is_stored(table, self.named) for table in again.find_all(exp.Table))
        if self._is_narrowed(node, query) or keeps_few(named):
            return False
        if name not in self._found:
            self._found[name] = any(self._reads_all(inner, named, (*path, name)) for inner in named.walk())
        return self._found[name]

    def _is_narrowed(self, source: exp.Expr, query: exp.Expr) -> bool:
        """Returns whether the query that reads ``source``, or one around it within ``query``, limits its rows."""
        while source is not query and isinstance(clause := source.parent, exp.From | exp.Join):
            select = clause.parent
            if not isinstance(select, exp.Select):
                return False
            others, ties = sources_of(select)
            own = frozenset({source.alias_or_name.lower()})
            beside = [other for other in others if other is not source]
            if keeps_few(select) or self._is_limited(own, beside, select.args.get("where"), ties):
                return True
            if not isinstance(select.parent, exp.Subquery):
                return False
            source = select.parent
        return False

    def reads_elsewhere(self, query: exp.Expr) -> bool:
        """True where a query is a plain one over stored tables, none of them the written one, with conditions on columns."""
        if not isinstance(query, exp.Select) or any(query.args.get(clause) for clause in ("limit", "having", "group")):
            return False
        self.count()
        tables = sources_of(query)[0]
        return (
            bool(tables)
            and all(self.is_other(table) for table in tables)
            and sum(1 for _ in query.find_all(exp.Select)) == 1
            and all(conjunct.find(exp.Column) is not None for conjunct in conjuncts(query.args.get("where")))
        )

    def is_other(self, table: exp.Expr) -> bool:
        """True where a source is a stored table other than the written one, or a WITH query that plainly reads such tables."""
        if is_stored(table, self.named):
            return table.name.lower() != self.table
        named = self.named.get(table.name.lower()) if isinstance(table, exp.Table) and not is_function(table) else None
        return named is not None and self.reads_elsewhere(named) and gives_columns(named)

    def constant(self, query: exp.Expr) -> exp.Expr | None:
        """Returns the expression that ``SELECT 5`` gives, or ``SELECT x FROM w`` where the WITH query ``w`` is such a query."""
        read = sources_of(query)[0] if isinstance(query, exp.Select) else []
        if len(read) == 1 and isinstance(read[0], exp.Table) and not read[0].db:
            query = self.named.get(read[0].name.lower(), query)
        plain = isinstance(query, exp.Select) and {clause for clause, value in query.args.items() if value} == {
            "expressions"
        }
        return query.expressions[0].unalias() if plain and len(query.expressions) == 1 else None

    def count(self) -> None:
        """Counts one step of the work on a statement. Raises `TooMuchWork`."""
        self._left -= 1
        if self._left < 0:
            raise TooMuchWork


def gives_one_row(query: exp.Expr) -> bool:
    """Returns whether a query is an aggregate of all that it finds."""
    select = query.unnest()
    if not isinstance(select, exp.Select) or select.args.get("group"):
        return False
    aggregates = (function for item in select.expressions for function in item.find_all(exp.AggFunc))
    return any(not isinstance(function.parent, exp.Window) for function in aggregates)


def gives_columns(query: exp.Expr) -> bool:
    """Returns whether a query gives columns of what it reads, and not constants."""
    return all(item.find(exp.Column, exp.Star) is not None for item in query.expressions)


def conjuncts(condition: object) -> Iterator[exp.Expr]:
    """The parts of a condition, or of a WHERE, that must all hold; none where there is no condition."""
    condition = condition.this if isinstance(condition, exp.Where) else condition
    if isinstance(condition, exp.Expr):
        whole = condition.unnest()
        yield from whole.flatten() if isinstance(whole, exp.And) else (whole,)
