"""What queries in a writing statement may give: rows of the table that it writes to, of others, or any number of values."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sqlglot import exp

from lgov_core.policies.sql.parse import TooMuchWork
from lgov_core.policies.sql.scope import is_function, is_stored, reads_row_around, sources_of
from lgov_core.policies.sql.values import keeps_few

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
        """Whether a source in FROM cannot hold all rows of the written table, or what a row of it holds."""
        if isinstance(source, exp.Table) and not is_function(source):
            named = None if source.db else self.named.get(source.name.lower())
            return not self._reads_all(source, source) and (named is None or not self._gives_row_numbers(named))
        return self.is_independent(source)

    def is_independent(self, query: exp.Expr) -> bool:
        """Whether a query gives nothing of the row around it, and may not hold all rows of the written table."""
        if id(query) not in self._found:
            around = reads_row_around(query, self.named, self.names)
            self._found[id(query)] = not around and not self.may_hold_all(query)
        return self._found[id(query)]

    def may_hold_all(self, query: exp.Expr) -> bool:
        """Whether a query may hold something for every row: it reads the written table without limits, or counts up."""
        if keeps_few(query.unnest()):
            return False
        return self._gives_row_numbers(query) or any(self._reads_all(node, query) for node in query.walk())

    def _gives_row_numbers(self, query: exp.Expr) -> bool:
        """Whether a query may give the numbers of rows as they come, rather than choose rows by them."""
        if not any(self._root.find_all(exp.RowNumber)):
            return False
        aliases = list(self._root.find_all(exp.Alias))
        numbers = {alias.alias.lower() for alias in aliases if alias.find(exp.RowNumber)} | {"row_number"}
        renamed = any(isinstance(alias.this, exp.Column) and alias.this.name.lower() in numbers for alias in aliases)
        items = query.unnest().expressions
        plain = all(isinstance(item, exp.Column) and item.name.lower() not in {*numbers, "*"} for item in items)
        return renamed or not items or not plain or any(alias.columns for alias in self._root.find_all(exp.TableAlias))

    def _reads_all(self, node: exp.Expr, query: exp.Expr, path: tuple[str, ...] = ()) -> bool:
        """Whether one node of ``query`` reads the written table without limits, or counts up; ``path``: of WITH queries."""
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
            self._found[name] = any(self._reads_all(one, named, (*path, name)) for one in named.walk())
        return self._found[name]

    def _is_narrowed(self, source: exp.Expr, query: exp.Expr) -> bool:
        """Whether the query that reads ``source``, or one around it within ``query``, limits its rows."""
        while source is not query and isinstance(place := source.parent, exp.From | exp.Join):
            select = place.parent
            if not isinstance(select, exp.Select):
                return False
            others, ties = sources_of(select)
            own = frozenset({source.alias_or_name.lower()})
            beside = [one for one in others if one is not source]
            if keeps_few(select) or self._is_limited(own, beside, select.args.get("where"), ties):
                return True
            if not isinstance(select.parent, exp.Subquery):
                return False
            source = select.parent
        return False

    def reads_elsewhere(self, query: exp.Expr) -> bool:
        """Whether a query is a plain one over stored tables, none of them the written one, with conditions on columns."""
        if not isinstance(query, exp.Select) or any(query.args.get(part) for part in ("limit", "having", "group")):
            return False
        self.count()
        tables = sources_of(query)[0]
        return (
            bool(tables)
            and all(self.is_other(table) for table in tables)
            and sum(1 for _ in query.find_all(exp.Select)) == 1
            and all(part.find(exp.Column) is not None for part in conjuncts(query.args.get("where")))
        )

    def is_other(self, table: exp.Expr) -> bool:
        """Whether a source is a stored table other than the written one, or a WITH query that plainly reads such tables."""
        if is_stored(table, self.named):
            return table.name.lower() != self.table
        named = self.named.get(table.name.lower()) if isinstance(table, exp.Table) and not is_function(table) else None
        return named is not None and self.reads_elsewhere(named) and gives_columns(named)

    def constant(self, query: exp.Expr) -> exp.Expr | None:
        """What ``SELECT 5`` gives, or ``SELECT x FROM w`` where the WITH query ``w`` is such a query."""
        read = sources_of(query)[0] if isinstance(query, exp.Select) else []
        if len(read) == 1 and isinstance(read[0], exp.Table) and not read[0].db:
            query = self.named.get(read[0].name.lower(), query)
        plain = isinstance(query, exp.Select) and {part for part, value in query.args.items() if value} == {
            "expressions"
        }
        return query.expressions[0].unalias() if plain and len(query.expressions) == 1 else None

    def count(self) -> None:
        """Counts one step of the work on a statement. Raises `TooMuchWork`."""
        self._left -= 1
        if self._left < 0:
            raise TooMuchWork


def gives_one_row(query: exp.Expr) -> bool:
    """Whether a query is an aggregate of all that it finds."""
    select = query.unnest()
    if not isinstance(select, exp.Select) or select.args.get("group"):
        return False
    aggregates = (one for item in select.expressions for one in item.find_all(exp.AggFunc))
    return any(not isinstance(one.parent, exp.Window) for one in aggregates)


def gives_columns(query: exp.Expr) -> bool:
    """Whether a query gives columns of what it reads, and not constants."""
    return all(item.find(exp.Column, exp.Star) is not None for item in query.expressions)


def conjuncts(condition: object) -> Iterator[exp.Expr]:
    """The parts of a condition, or of a WHERE, that must all hold; none where there is no condition."""
    condition = condition.this if isinstance(condition, exp.Where) else condition
    if isinstance(condition, exp.Expr):
        whole = condition.unnest()
        yield from whole.flatten() if isinstance(whole, exp.And) else (whole,)
