"""Decides whether the rows that an UPDATE, DELETE, MERGE or upsert changes are named by values.

Only comparisons that can do nothing but narrow count: ``column = value`` and ``column IN (values)``, joined by AND at the top
of the WHERE or of an inner join's ON. OR, NOT, open comparisons (``<``, ``<>``, BETWEEN, LIKE, IS) never do: with them a
statement can hold for every row. A value is an expression without columns, or a query that only reads rows which are
themselves named by values. Rows of a second table that an equality ties to rows so named are named too.

The analysis has no schema, so a column counts where the text says whose it is: with its table's name, or alone where one
table is read. What it does not understand names nothing: it fails closed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase

from sqlglot import exp

from lgov_core.policies.sql.names import words
from lgov_core.policies.sql.tree import TooMuchWork

#: Globs for columns: (table, column), lower case.
Ranges = Sequence[tuple[str, str]]
#: Steps for one statement; an ordinary one takes a handful.
_MAX_STEPS = 10_000
#: Dialects that compare a text with a number by the digits that the text begins with: = 0 holds for every other text.
_TEXT_IS_ZERO = frozenset({"mysql", "doris", "singlestore", "starrocks"})
#: Operators that compute a value of values. Others may bind to the comparison: ``id = 1 LIKE 0`` is ``(id = 1) LIKE 0``.
_COMPUTING = (
    exp.Add,
    exp.Sub,
    exp.Mul,
    exp.Div,
    exp.IntDiv,
    exp.Mod,
    exp.DPipe,
    exp.Dot,
    exp.JSONExtract,
    exp.JSONExtractScalar,
)
#: Expressions of a column that keep the values of different rows apart.
_APART = (exp.Paren, exp.Lower, exp.Upper, exp.Date, exp.TsOrDsToDate, exp.JSONExtract, exp.JSONExtractScalar)


def limits(statement: exp.Update | exp.Delete, dialect: str = "", ranges: Ranges = ()) -> bool:
    """Returns whether the WHERE names the rows of the one table that the statement writes to.

    ``ranges`` are globs of (table, column) for which ``<``, ``>`` and BETWEEN with values count too. May raise `TooMuchWork`.
    """
    args = statement.args
    targets = args.get("tables") or [statement.this]
    if (
        len(targets) != 1
        or not isinstance(table := targets[0], exp.Table)
        or not isinstance(args.get("where"), exp.Where)
    ):
        return False
    sources, conditions = _sources(
        *([] if table is statement.this else [statement.this]), *(table.args.get("joins") or []), args.get("from_"),
        *(args.get("joins") or []), *(args.get("using") or []),
    )  # fmt: skip
    same = [source for source in sources if _name(source) == table.name.lower()]
    if same and isinstance(same[0], exp.Table) and not (table.args.get("alias") and table is statement.this):
        table = same[0]  # UPDATE s ... FROM staff AS s
    else:
        sources = [table, *sources]
    return _Analysis(statement, table, dialect, ranges).names_rows(sources, [args["where"].this, *conditions])


def ties(merge: exp.Merge, dialect: str = "") -> bool:
    """Returns whether a MERGE changes only rows that rows of its source name, by a column that must equal a column.

    The source must not read the written table. May raise `TooMuchWork`.
    """
    table, source, on = merge.this, merge.args.get("using"), merge.args.get("on")
    if not isinstance(table, exp.Table) or not isinstance(source, exp.Expr) or not isinstance(on, exp.Expr):
        return False
    analysis, both = _Analysis(merge, table, dialect), [table, source]
    if analysis.names_rows(both, [on]):
        return True
    for column, values in _all_comparisons([on]):
        value = values[0]
        if analysis.owner(column, both) != _name(table) or not isinstance(value, exp.Column) or len(values) > 1:
            continue
        if analysis.owner(value, both) == _name(source) and analysis.is_of_others(source, value.name.lower()):
            return True
    return False


def upserts_itself(insert: exp.Insert, dialect: str = "") -> bool:
    """Returns whether an INSERT that may change rows takes them from the table that it changes, or counts up.

    May raise `TooMuchWork`.
    """
    table, query = insert.this, insert.expression
    table = table.this if isinstance(table, exp.Schema) else table
    if not isinstance(table, exp.Table):
        return True
    analysis = _Analysis(insert, table, dialect)
    return isinstance(query, exp.Expr) and not analysis.is_few(query) and not analysis.reads_others(query)


class _Analysis:
    """The questions about one statement that writes to ``table``. Every method may raise `TooMuchWork`."""

    def __init__(self, statement: exp.Expr, table: exp.Table, dialect: str, ranges: Ranges = ()) -> None:
        self._dialect, self._table, self._ranges = dialect, table, ranges
        self._left = _MAX_STEPS
        self._few: dict[tuple[int, str], bool] = {}
        self._with: dict[str, exp.CTE] = {}
        root = statement.root()
        queries = list(root.find_all(exp.CTE))
        self._with = {query.alias.lower(): query for query in queries}
        around = {
            id(node): self._with[node.name.lower()].parent.parent  # type: ignore[union-attr]
            for node in root.find_all(exp.Table)
            if not node.db and node.name.lower() in self._with
        }
        self._clear = len(self._with) == len(queries) and all(
            any(above is around[id(node)] for above in _above(node))
            for node in root.find_all(exp.Table)
            if id(node) in around
        )  # a name of a WITH query that is a stored table elsewhere may mean two things

    # ------------------------------------------------------------------ rows

    def names_rows(self, sources: Sequence[exp.Expr], conditions: Sequence[exp.Expr]) -> bool:
        """Returns whether the rows of the written table, one of the sources, are named by values."""
        return self._is_stored(self._table) and _name(self._table) in self.narrowed(sources, conditions)

    def narrowed(self, sources: Sequence[exp.Expr], conditions: Sequence[exp.Expr], outer: str = "") -> set[str]:
        """The names (lower case) of the sources whose rows are named by values, where all ``conditions`` hold.

        ``outer`` is the column of a row around them that they must not give back.
        """
        names = [_name(source) for source in sources]
        if len(set(names)) != len(names) or "" in names or not self._clear:
            return set()
        stored = {_name(source) for source in sources if self._is_stored(source)}
        few = {_name(source) for source in sources if _name(source) not in stored and self.is_few(source, outer)}
        equal: list[tuple[str, str]] = []
        if self._ranges:
            few |= {
                _name(source)
                for source in sources
                if _name(source) in stored and self._in_range(source, sources, conditions)
            }
        for column, values in _all_comparisons(conditions):
            self._count()
            owner = self.owner(column, sources)
            if owner in stored and all(self._is_value(value, column) for value in values):
                few.add(owner)
            elif len(values) == 1 and isinstance(values[0], exp.Column):
                equal.append((self.owner(values[0], sources), owner))
        changed = True
        while changed:  # an equality ties further rows to those that are named
            self._count(len(equal))
            reached = {owner for other, owner in equal if other in few and owner in stored and other != owner}
            changed = not reached <= few
            few |= reached
        return few

    def _in_range(self, source: exp.Expr, sources: Sequence[exp.Expr], conditions: Sequence[exp.Expr]) -> bool:
        """Returns whether a column of ``source`` that the owner of the policy listed is compared with a value."""
        listed = [column for table, column in self._ranges if fnmatchcase(source.name.lower(), table)]
        for condition in _conjuncts(conditions):
            self._count()
            if isinstance(condition, exp.Between):
                sides, values = [condition.this], [condition.args["low"], condition.args["high"]]
            elif isinstance(condition, exp.LT | exp.LTE | exp.GT | exp.GTE):
                sides = values = [condition.this, condition.expression]
            else:
                continue
            columns = [column for column in map(_column_of, sides) if column is not None]
            values = [value for value in values if _column_of(value) is None]
            if len(columns) == 1 and self.owner(columns[0], sources) == _name(source):
                name = columns[0].name.lower()
                if any(fnmatchcase(name, glob) for glob in listed) and values:
                    return all(self._is_value(value, columns[0]) for value in values)
        return False

    def is_few(self, query: exp.Expr, outer: str = "") -> bool:
        """Returns whether a query in the place of a table gives rows that are named by values, or are written out.

        ``outer`` as in `narrowed`.
        """
        self._count()
        if isinstance(query, exp.Table):
            named = None if query.db or _is_function(query) else self._with.get(query.name.lower())
            return query.name.lower() == "dual" if named is None else self.is_few(named.this, outer)
        inner = query.unnest()
        key = (id(inner), outer)
        if key not in self._few:
            self._few[key] = False  # while it is asked: a recursive WITH names nothing
            if isinstance(inner, exp.SetOperation):
                self._few[key] = self.is_few(inner.left, outer) and self.is_few(inner.right, outer)
            elif isinstance(inner, exp.Values):
                self._few[key] = inner.find(exp.Column, exp.Query) is None
            elif isinstance(inner, exp.Select) and not inner.args.get("connect"):
                sources, conditions = _sources_of(inner)
                narrowed = self.narrowed(sources, conditions, outer)
                few = all(_name(source) in narrowed for source in sources)
                self._few[key] = few and all(self._is_plain(item, sources, outer) for item in inner.expressions)
        return self._few[key]

    def is_of_others(self, source: exp.Expr, column: str) -> bool:
        """Returns whether ``column`` (lower case) of ``source`` is stored in tables other than the written one."""
        self._count()
        if self._is_stored(source):
            return not self._is_written(source)
        query = self._with.get(source.name.lower()) if isinstance(source, exp.Table) else source
        query = None if query is None else query.this.unnest() if isinstance(query, exp.CTE) else query.unnest()
        if not isinstance(query, exp.Select) or not self.reads_others(query):
            return False
        items = {item.alias_or_name.lower(): item.unalias() for item in query.expressions}
        item, sources = items.get(column), _sources_of(query)[0]
        if not isinstance(item, exp.Column):
            return "*" in items and len(sources) == 1 and self.is_of_others(sources[0], column)
        owners = [each for each in sources if item.table.lower() in ("", _name(each))]
        return bool(owners) and all(self.is_of_others(each, item.name.lower()) for each in owners)

    def reads_others(self, query: exp.Expr) -> bool:
        """Returns whether every table that a query reads is stored and not the written one, and nothing in it counts up."""
        for node in query.walk():
            self._count()
            if isinstance(node, exp.UDTF | exp.GenerateSeries | exp.Connect):
                return False
            if isinstance(node, exp.Table) and not self._is_stored(node):
                named = None if _is_function(node) else self._with.get(node.name.lower())
                inside = named is not None and any(above is named for above in _above(node))
                if named is None or inside or not self.reads_others(named.this):
                    return False
            elif isinstance(node, exp.Table) and self._is_written(node):
                return False
        return self._clear

    # ------------------------------------------------------------------ columns and values

    def _is_stored(self, source: exp.Expr) -> bool:
        if not isinstance(source, exp.Table) or _is_function(source) or source.args.get("pivots"):
            return False
        return bool(source.db) or source.name.lower() not in (*self._with, "dual")

    def _is_written(self, table: exp.Expr) -> bool:
        schemas = (table.args.get("db"), self._table.args.get("db"))
        same = None in schemas or table.text("db").lower() == self._table.db.lower()
        return same and table.name.lower() == self._table.name.lower()

    def owner(self, column: exp.Column, sources: Sequence[exp.Expr]) -> str:
        """The name of the source whose column it surely is; empty where that is not certain.

        SQLite takes a quoted name that is no column for a text.
        """
        names = [_name(source) for source in sources]
        table, name = column.table.lower(), column.name.lower()
        if table or name in words("system_columns"):
            return table if table in names and name not in words("system_columns") else ""
        quoted = self._dialect == "sqlite" and column.this.args.get("quoted")
        whole_rows = (*names, _name(self._table), self._table.name.lower())
        return names[0] if len(names) == 1 and not quoted and name not in (*whole_rows, *words("not_columns")) else ""

    def _is_plain(self, item: exp.Expr, sources: Sequence[exp.Expr], outer: str) -> bool:
        """Returns whether an item of a SELECT gives one value for each row: columns, literals, an aggregate of them.

        No column is ``outer``: a name without a table may be of the row around, where no inner table has it.
        """
        item = item.unalias()
        item = item.this if isinstance(item, exp.Min | exp.Max | exp.Sum | exp.Count) else item
        if item.is_star:
            return bool(sources)
        if self._dialect in _TEXT_IS_ZERO and item.find(exp.Column) is None and not _is_not_zero(item):
            return False
        return item.find(exp.Func, exp.Query) is None and all(
            self.owner(column, sources) != ""
            and (bool(column.table) or column.name.lower() != outer or self._surely_has(sources[0], outer))
            for column in item.find_all(exp.Column)
        )

    def _surely_has(self, source: exp.Expr, column: str) -> bool:
        """Returns whether ``source`` has the column: it is the written table, or a query that names it."""
        if self._is_stored(source):
            return self._is_written(source)
        query = self._with.get(source.name.lower()) if isinstance(source, exp.Table) else source
        alias = None if query is None else query.args.get("alias")
        columns = alias.columns if isinstance(alias, exp.TableAlias) else []
        inner = query.this if isinstance(query, exp.CTE) else query
        columns = columns or (inner.unnest().expressions if inner is not None else [])
        return any(item.alias_or_name.lower() == column for item in columns)

    def _is_value(self, value: exp.Expr, column: exp.Column) -> bool:
        """Returns whether ``value``, which ``column`` must equal, is the same for every row of the column's table."""
        value = value.unnest()
        if isinstance(value, exp.Query):
            items = value.selects
            return len(items) == 1 and not items[0].is_star and self.is_few(value, column.name.lower())
        if any(map(_is_no_value, value.walk())):
            return False
        return self._dialect not in _TEXT_IS_ZERO or _is_not_zero(value)

    def _count(self, steps: int = 1) -> None:
        self._left -= steps
        if self._left < 0:
            raise TooMuchWork


def _name(source: exp.Expr) -> str:
    return source.alias_or_name.lower()


def _above(node: exp.Expr) -> Iterator[exp.Expr]:
    while (parent := node.parent) is not None:
        yield parent
        node = parent


def _sources(*clauses: object) -> tuple[list[exp.Expr], list[exp.Expr]]:
    """The tables, queries and functions in FROM, JOIN and USING clauses, and the conditions of their inner joins."""
    sources: list[exp.Expr] = []
    conditions: list[exp.Expr] = []
    pending = [*reversed(clauses)]
    while pending:
        node = pending.pop()
        if isinstance(node, exp.Join):
            on = node.args.get("on")
            if isinstance(on, exp.Expr) and node.side.upper() not in ("LEFT", "RIGHT", "FULL"):
                conditions.append(on)
            pending.append(node.this)
        elif isinstance(node, exp.From | exp.Paren):
            pending.append(node.this)
        elif isinstance(node, exp.Expr):
            sources.append(node)
            pending.extend(node.args.get("joins") or [])
    return sources, conditions


def _sources_of(select: exp.Select) -> tuple[list[exp.Expr], list[exp.Expr]]:
    """The sources of a query, and all conditions that their rows must fulfil."""
    args = select.args
    sources, conditions = _sources(args.get("from_"), *(args.get("joins") or []), *(args.get("laterals") or []))
    where = args.get("where")
    return sources, [*conditions, where.this] if isinstance(where, exp.Where) else conditions


def _is_function(source: exp.Expr) -> bool:
    """Returns whether a function stands in the place of a table: ``json_each(...)``, ``ROWS FROM (...)``."""
    return isinstance(source, exp.Table) and (isinstance(source.this, exp.Func) or bool(source.args.get("rows_from")))


_Comparison = tuple[exp.Column, Sequence[exp.Expr]]


def _conjuncts(conditions: Iterable[exp.Expr]) -> Iterator[exp.Expr]:
    """The parts of conditions that must all hold."""
    for condition in conditions:
        bare = condition.unnest()
        if isinstance(bare, exp.And):
            yield from _conjuncts(bare.flatten())
        else:
            yield bare


def _all_comparisons(conditions: Iterable[exp.Expr]) -> Iterator[_Comparison]:
    """The columns that must equal one of some values where all ``conditions`` hold, with these values."""
    for condition in _conjuncts(conditions):
        if isinstance(condition, exp.EQ):
            for side, value in ((condition.this, condition.expression), (condition.expression, condition.this)):
                yield from _equals(side, value.unnest())
        elif isinstance(condition, exp.In) and not condition.args.get("negate"):
            yield from _among(condition)


def _equals(side: exp.Expr, value: exp.Expr) -> Iterator[_Comparison]:
    """``column = value``, and ``column = ANY (values)``."""
    column, values = _column_of(side), [value]
    quantifier = (
        value.name.lower() if isinstance(value, exp.Anonymous) else ""
    )  # as SOME and ALL are read in some dialects
    if isinstance(value, exp.Any) or quantifier in ("any", "some"):
        listed = (value.expressions[0] if quantifier else value.this).unnest()
        values = listed.expressions if isinstance(listed, exp.Array | exp.Tuple) else [listed]
    elif quantifier == "all":
        return
    if column is not None and values and not isinstance(value, exp.All) and not _takes_both(values):
        yield column, values


def _among(condition: exp.In) -> Iterator[_Comparison]:
    """``column IN (values)``, for rows of values as well, and ``column IN (query)``."""
    row, items = condition.this.unnest(), condition.expressions
    if (query := condition.args.get("query") or condition.args.get("unnest")) is not None:
        items = [query]
    if isinstance(row, exp.Tuple):
        rows = [item.expressions for item in items if isinstance(item, exp.Tuple)]
        if len(rows) == len(items) > 0 and all(len(values) == len(row.expressions) for values in rows):
            for number, side in enumerate(row.expressions):
                if (column := _column_of(side)) is not None:
                    yield column, [values[number] for values in rows]
    elif (column := _column_of(row)) is not None and items and not _takes_both(items):
        yield column, items


def _column_of(side: object) -> exp.Column | None:
    """The column on one side of a comparison; None for anything else."""
    while isinstance(side, _APART) or (isinstance(side, exp.Cast) and side.to.this == exp.DataType.Type.DATE):
        side = side.this
    return side if isinstance(side, exp.Column) and not isinstance(side.this, exp.Star) else None


def _is_no_value(node: exp.Expr) -> bool:
    """Returns whether an expression with this node may differ from row to row, or be a part of a comparison."""
    if isinstance(node, exp.Column | exp.Query | exp.Star | exp.Predicate | exp.Connector | exp.Not):
        return True
    return isinstance(node, exp.Binary) and not isinstance(node, _COMPUTING)


def _takes_both(values: Sequence[exp.Expr]) -> bool:
    """Returns whether a list holds both truth values, so that one of them is what any row has."""
    names = {str(value.this).lower() for value in values if isinstance(value, exp.Boolean | exp.Literal)}
    return any(names >= pair for pair in ({"true", "false"}, {"1", "0"}, {"t", "f"}, {"y", "n"}, {"yes", "no"}))


def _is_not_zero(value: exp.Expr) -> bool:
    value = value.this if isinstance(value, exp.Neg) else value
    if isinstance(value, exp.Literal):
        return value.is_string or bool(value.name.strip("0.eE+-"))
    if isinstance(value, exp.Cast):
        is_text = isinstance(value.this, exp.Literal) and value.this.is_string
        return is_text and value.to.is_type(*exp.DataType.TEMPORAL_TYPES, *exp.DataType.TEXT_TYPES)
    text = value.this if isinstance(value, exp.Date) else None
    dated = (exp.CurrentDate, exp.CurrentTimestamp, exp.Placeholder, exp.Parameter, exp.National, exp.HexString)
    return isinstance(value, dated) or (isinstance(text, exp.Literal) and text.is_string)
