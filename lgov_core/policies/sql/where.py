"""Decides whether the condition of an UPDATE, DELETE or MERGE limits the rows that it changes.

A condition limits when a part of it that must hold compares a column of the written table with a value from elsewhere: a
constant or parameter, a column of a joined table, or a query that reads other tables or only some rows of this one.
Every side of an OR must do so by an exact comparison. Nothing else limits: tautologies, IS NOT NULL, open comparisons
that hold for nearly every row (``id > 0``, ``id <> -1``), and queries that may give back the row's own value.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from lgov_core.policies.sql.names import words
from lgov_core.policies.sql.queries import (
    Queries,
    conjuncts,
    gives_columns,
    gives_one_row,
    is_stored,
    reads_row_around,
    sources,
    sources_of,
)
from lgov_core.policies.sql.values import column_of, is_far, is_wild, takes_both, text_of

#: Dialects in which a column can stand as a condition only when it holds truth values.
_TRUTH_ONLY = frozenset({"postgres", "bigquery", "trino"})
_REGULAR = (exp.RegexpLike, exp.RegexpILike, exp.SimilarTo)
_PATTERNS = (exp.Like, exp.ILike, exp.Glob, *_REGULAR)
_EXACT = (exp.EQ, exp.NullSafeEQ, exp.Match, *_PATTERNS)
_CONTAINS = (exp.ArrayContainsAll, exp.ArrayOverlaps, exp.ArrayContains)
#: Open comparisons, each with what it says when its sides change places.
_MIRRORED: dict[type[exp.Expr], type[exp.Expr]] = {
    exp.GT: exp.LT,
    exp.GTE: exp.LTE,
    exp.LT: exp.GT,
    exp.LTE: exp.GTE,
    exp.NEQ: exp.NEQ,
    exp.NullSafeNEQ: exp.NullSafeNEQ,
}
_ROW_NUMBERS = frozenset({"rowid", "oid", "_rowid_"})


def limits(statement: exp.Update | exp.Delete, dialect: str = "") -> bool:
    """Returns whether the statement has a WHERE that limits the rows of the one table that it writes to.

    With several tables the WHERE may limit another one, if an inner join ties the written one to it. May raise
    `TooMuchWork`.
    """
    named = statement.args.get("tables") or [statement.this]
    if len(named) != 1 or not isinstance(table := named[0], exp.Table):
        return False
    args = statement.args
    others, ties = sources(
        *([] if table is statement.this else [statement.this]), *(table.args.get("joins") or []), args.get("from_"),
        *(args.get("joins") or []), *(args.get("using") or []),
    )  # fmt: skip
    own = frozenset({table.name.lower(), table.alias_or_name.lower()})
    same = [
        source
        for source in others
        if isinstance(source, exp.Table) and source.alias_or_name.lower() == table.name.lower()
    ]
    if same:  # UPDATE s ... FROM staff AS s
        others.remove(same[0])
        table, own = same[0], frozenset({table.name.lower()})
    return _Analysis(statement, table, dialect).is_limited(own, others, args.get("where"), ties)


def ties(merge: exp.Merge, dialect: str = "") -> bool:
    """Returns whether a MERGE compares a column of its table with what it merges, so that it changes those rows only."""
    table, using = merge.this, merge.args.get("using")
    if not isinstance(table, exp.Table) or not isinstance(using, exp.Expr):
        return False
    own = frozenset({table.alias_or_name.lower()})
    return _Analysis(merge, table, dialect).is_limited(own, [using], exp.Where(this=merge.args.get("on")), [])


def upserts_itself(insert: exp.Insert, dialect: str = "") -> bool:
    """Returns whether an INSERT that may change rows takes them all from the table that it changes, or counts up."""
    table, query = insert.this, insert.expression
    table = table.this if isinstance(table, exp.Schema) else table
    if not isinstance(table, exp.Table) or not isinstance(query, exp.Expr):
        return not isinstance(table, exp.Table)
    return _Analysis(insert, table, dialect).queries.may_hold_all(query)


@dataclass(frozen=True, slots=True)
class _Row:
    """A row as conditions see it: the names of its table, and those of the independent sources beside it.

    ``alone``: there are no others, so that columns without a table are its own.
    """

    own: frozenset[str]
    elsewhere: frozenset[str]
    alone: bool


class _Analysis:
    """The questions about one statement that writes to ``table``. Every method may raise `TooMuchWork`."""

    def __init__(self, statement: exp.Expr, table: exp.Table, dialect: str) -> None:
        self._dialect = dialect
        self.queries = Queries(statement, table, self.is_limited)

    def is_limited(self, own: frozenset[str], others: list[exp.Expr], where: object, ties: list[exp.Expr]) -> bool:
        """Returns whether ``where`` and the inner joins ``ties`` limit the rows of the table known as ``own``."""
        if not isinstance(where, exp.Where):
            return False
        if self._removes_doubles(own, others, [where.this, *ties]):
            return True
        elsewhere = frozenset(
            source.alias_or_name.lower() for source in others if self.queries.is_elsewhere(source)
        ) - {""}
        row = _Row(own, elsewhere, not others)
        beside = [_Row(frozenset({name}), elsewhere - {name}, False) for name in elsewhere]
        return any(self._limits(row, condition) for condition in (where.this, *ties)) and any(
            self._limits(candidate, where.this) for candidate in (row, *beside)
        )

    # ------------------------------------------------------------------ conditions

    def _limits(self, row: _Row, condition: object, *, exact: bool = False) -> bool:
        bare = condition.unnest() if isinstance(condition, exp.Paren) else condition
        if isinstance(bare, exp.And):
            return any([self._limits(row, side, exact=exact) for side in bare.flatten()])
        if isinstance(bare, exp.Or):
            return all(self._limits(row, side, exact=True) for side in bare.flatten()) and not _takes_both(bare)
        self.queries.count()
        return isinstance(bare, exp.Expr) and self._compares(row, bare, exact)

    def _compares(self, row: _Row, atom: exp.Expr, exact: bool) -> bool:
        if isinstance(atom, exp.Not):
            return not exact and self._excludes(row, atom.this.unnest())
        if isinstance(atom, exp.Escape):
            atom = atom.this
        if atom.args.get("negate") and (exact or not isinstance(atom, _PATTERNS)):
            return False  # as NOT is, in the parser's other form
        if isinstance(atom, exp.Exists):
            return self._has_a_match(row, atom.this)
        if isinstance(atom, exp.In):
            return self._is_among(row, atom)
        if isinstance(atom, exp.Is):
            return self._owns(row, column_of(atom.this)) and isinstance(atom.expression, exp.Null | exp.Boolean)
        if isinstance(atom, exp.Between):
            return not exact and self._is_between(row, atom)
        if isinstance(atom, _EXACT):
            sides = (atom.this, atom.expression)
            return any(self._equals(row, atom, side, value) for side, value in (sides, sides[::-1]))
        if (mirrored := _MIRRORED.get(type(atom))) is not None and not exact:
            kinds = ((type(atom), atom.this, atom.expression), (mirrored, atom.expression, atom.this))
            return any(self._bounds(row, *comparison) for comparison in kinds)
        if isinstance(atom, _CONTAINS):
            several = isinstance(atom, exp.ArrayOverlaps)
            return self._owns(row, column_of(atom.this)) and _holds_something(atom.expression, several=several)
        return isinstance(atom, exp.Column) and not exact and self._dialect in _TRUTH_ONLY and self._owns(row, atom)

    def _equals(self, row: _Row, atom: exp.Expr, side: exp.Expr, value: exp.Expr) -> bool:
        """True where ``side`` is a column that must equal ``value``, or one of the values in it, or match it as a pattern."""
        if isinstance(value, exp.Literal) and isinstance(side, exp.Any) and isinstance(atom, exp.EQ):
            return self._owns(row, column_of(side.this))  # it is one of the values in a column
        column = column_of(side, parts=not isinstance(atom, exp.NullSafeEQ))
        if column is None or not self._owns(row, column):
            return False
        if isinstance(atom, _PATTERNS):
            text = text_of(value)
            if text is not None and is_wild(text, regular=isinstance(atom, _REGULAR)):
                return False
            if text is None and value.find(exp.Column, exp.Placeholder, exp.Parameter) is None:
                return False
        if quantifier := _quantifier(value):
            arrays = value.find_all(exp.Array)
            if quantifier == "all" or any(takes_both(column, array.expressions) for array in arrays):
                return False
        return self._is_from_elsewhere(row, column, value)

    def _bounds(self, row: _Row, kind: type[exp.Expr], side: exp.Expr, bound: exp.Expr) -> bool:
        """Returns whether ``side kind bound`` is an ordered comparison of a column that leaves rows out."""
        if kind is exp.NullSafeNEQ:  # IS DISTINCT FROM
            if any(operand.find(exp.Null, exp.Nullif) is not None for operand in (side, bound)):
                return False  # which is IS NOT NULL
            kind = exp.NEQ
        if kind is exp.NEQ and _quantifier(bound) == "all" and bound.expressions:
            values = bound.expressions[0].unnest()
            return isinstance(values, exp.Array) and self._excludes(
                row, exp.In(this=side, expressions=values.expressions)
            )
        column = column_of(side, parts=isinstance(side, exp.Year))
        if column is None or not self._owns(row, column) or is_far(kind, side, bound):
            return False
        if bound.find(exp.Select) is not None:
            constant = self.queries.constant(bound.unnest())
            if constant is None:
                return self.queries.reads_elsewhere(bound.unnest()) and gives_columns(bound.unnest())
            return self._bounds(row, kind, side, constant)
        return not _quantifier(bound) and self._is_from_elsewhere(row, column, bound)

    def _is_between(self, row: _Row, atom: exp.Between) -> bool:
        column, low, high = column_of(atom.this), atom.args["low"], atom.args["high"]
        if column is None or not self._owns(row, column) or atom.args.get("symmetric"):
            return False
        if is_far(exp.GTE, atom.this, low) and is_far(exp.LTE, atom.this, high):
            return False
        return all(end.find(exp.Select) is None and self._is_from_elsewhere(row, column, end) for end in (low, high))

    def _is_among(self, row: _Row, atom: exp.In) -> bool:
        """Returns whether it is ``column IN`` a list or a query that cannot hold every row's own value."""
        query, array, items = atom.args.get("query"), atom.args.get("unnest"), atom.expressions
        if isinstance(atom.this, exp.Tuple):  # rows of values: one of the columns is enough
            if query is not None:
                owned = any(self._owns(row, column_of(side)) for side in atom.this.expressions)
                return owned and self.queries.is_independent(query)
            rows = [item.expressions for item in items if len(item.expressions) == len(atom.this.expressions)]
            return len(rows) == len(items) > 0 and any(
                self._is_among(row, exp.In(this=side.copy(), expressions=[values[at] for values in rows]))
                for at, side in enumerate(atom.this.expressions)
            )
        column = column_of(atom.this, parts=query is None)
        if column is None or not self._owns(row, column):
            return False
        if query is not None:
            return self.queries.is_independent(query)
        values = items if array is None else [array]
        return (
            not takes_both(column, items)
            and bool(values)
            and all(self._is_from_elsewhere(row, column, value) for value in values)
        )

    def _excludes(self, row: _Row, atom: exp.Expr) -> bool:
        """True where NOT ``atom`` limits: ``NOT IN`` and ``NOT EXISTS`` over other tables, other values than those named."""
        if isinstance(atom, exp.In) and (query := atom.args.get("query")) is not None:
            if not self._owns(row, column := column_of(atom.this)):
                return False
            query = query.unnest()
            return (self.queries.reads_elsewhere(query) and gives_columns(query)) or self._keeps_first(column, query)
        if isinstance(atom, exp.Exists):
            return self.queries.reads_elsewhere(atom.this) and self._has_a_match(row, atom.this)
        if isinstance(atom, exp.In):
            return any(not is_far(exp.NEQ, atom.this, item) for item in atom.expressions) and self._is_among(row, atom)
        if isinstance(atom, exp.EQ) and not _quantifier(atom.expression):
            return self._compares(row, exp.NEQ(this=atom.this, expression=atom.expression), False)
        return isinstance(atom, (exp.Column, *_PATTERNS)) and self._compares(row, atom, False)

    # ------------------------------------------------------------------ values

    def _owns(self, row: _Row, column: exp.Column | None) -> bool:
        """Returns whether the column is surely one of the row's table."""
        if column is None:
            return False
        table = column.table.lower()
        return table in row.own if table else row.alone and column.name.lower() not in words("not_columns")

    def _is_from_elsewhere(self, row: _Row, column: exp.Column, value: exp.Expr) -> bool:
        """Returns whether ``value`` does not hold the value of ``column``, which it is compared with.

        SQLite takes a quoted name that is not a column for text: it counts only where it must equal another text.
        """
        maybe_text = self._dialect == "sqlite" and not column.table and column.this.args.get("quoted")
        open_ = isinstance(column.parent, tuple(_MIRRORED))
        if maybe_text and (open_ or value.name.lower() == column.name.lower()):
            return False
        for node in value.walk(prune=lambda inner: isinstance(inner, exp.Query)):
            if isinstance(node, exp.Query):
                one_row = gives_one_row(node) and not reads_row_around(node, self.queries.named, self.queries.names)
                if not one_row and not self.queries.is_independent(node):
                    return False
            elif isinstance(node, exp.Column):
                name, table = node.name.lower(), node.table.lower()
                if name in self.queries.names and not table:
                    return False  # the whole row as a value
                if table not in row.elsewhere and (
                    name == column.name.lower()
                    or not _ROW_NUMBERS.isdisjoint((name, column.name.lower()))
                    or (table not in row.own if table else not row.alone)
                ):
                    return False
        return True

    # ------------------------------------------------------------------ queries

    def _has_a_match(self, row: _Row, query: exp.Expr) -> bool:
        """Returns whether EXISTS ``query`` requires of rows of other tables that they equal a column of this one."""
        if not isinstance(query, exp.Select) or any(item.find(exp.AggFunc) for item in query.expressions):
            return False
        tables = sources_of(query)[0]
        if (
            not tables
            or not all(self.queries.is_other(table) for table in tables)
            or sum(1 for _ in query.find_all(exp.Select)) > 1
            or query.args.get("having")
        ):
            return False
        inner = {table.alias_or_name.lower() for table in tables}
        for conjunct in conjuncts(query.args.get("where")):
            columns = (
                [column_of(side) for side in (conjunct.this, conjunct.expression)]
                if isinstance(conjunct, exp.EQ)
                else []
            )
            names = [column.table.lower() for column in columns if column is not None]
            outer = [name for name in names if name in row.own and name not in inner]
            if len(names) == 2 and len(outer) == 1 and set(names) <= {*inner, *row.own, ""}:
                return True
        return False

    def _removes_doubles(self, own: frozenset[str], others: list[exp.Expr], parts: list[exp.Expr]) -> bool:
        """True where ``parts`` tie a table to itself by one column, and keep the first or last row of each kind by another."""
        if len(others) != 1 or not isinstance(others[0], exp.Table) or others[0].name.lower() != self.queries.table:
            return False
        twin = others[0].alias_or_name.lower()
        same: set[str] = set()
        ordered: set[str] = set()
        for conjunct in (conjunct for condition in parts for conjunct in conjuncts(condition)):
            left, right = (
                (conjunct.this, conjunct.expression) if isinstance(conjunct, exp.EQ | exp.LT | exp.GT) else (None, None)
            )
            if not isinstance(left, exp.Column) or not isinstance(right, exp.Column):
                continue
            tables = {left.table.lower(), right.table.lower()}
            if (
                left.name.lower() == right.name.lower()
                and twin in tables
                and len(tables) == 2
                and tables - {twin} <= own
            ):
                (same if isinstance(conjunct, exp.EQ) else ordered).add(left.name.lower())
        return bool(same - ordered and ordered - same)

    def _keeps_first(self, column: exp.Column | None, query: exp.Expr) -> bool:
        """True where NOT IN ``query`` keeps the first or last row of each group: ``SELECT min(id) FROM t GROUP BY name``."""
        if column is None or not isinstance(query, exp.Select) or len(query.expressions) != 1:
            return False
        first, group = query.expressions[0].unalias(), query.args.get("group")
        parts = {clause for clause, value in query.args.items() if value}
        if parts != {"expressions", "from_", "group"} or not group or not isinstance(first, exp.Min | exp.Max):
            return False
        by, read = [first.this, *group.expressions], sources_of(query)[0]
        if len(read) != 1 or not is_stored(read[0], self.queries.named) or read[0].name.lower() != self.queries.table:
            return False
        return (
            all(isinstance(expression, exp.Column) for expression in by)
            and first.this.name.lower() == column.name.lower()
        )


def _takes_both(condition: exp.Or) -> bool:
    """Returns whether the sides of an OR take both the rows where a column is true and those where it is false."""
    compared: dict[str, tuple[exp.Column, list[exp.Expr]]] = {}
    for comparison in condition.find_all(exp.EQ, exp.NullSafeEQ, exp.Is):
        for side, value in ((comparison.this, comparison.expression), (comparison.expression, comparison.this)):
            if isinstance(column := side.unnest(), exp.Column):
                compared.setdefault(column.name.lower(), (column, []))[1].append(value)
    return any(takes_both(column, values) for column, values in compared.values())


def _quantifier(value: exp.Expr) -> str:
    """``any``, ``some`` or ``all`` where a comparison is with a list or query; some dialects parse these as functions."""
    name = value.name.lower() if isinstance(value, exp.Anonymous) else value.key
    return name if name in ("any", "some", "all") else ""


def _holds_something(value: exp.Expr, *, several: bool) -> bool:
    """Returns whether a list or document that a column must contain is written out and not empty."""
    value = value.this if isinstance(value, exp.Cast | exp.Paren) else value
    if isinstance(value, exp.Literal) and not several:
        return any(char.isalnum() for char in value.name)
    return isinstance(value, exp.Array) and bool(value.expressions) and value.find(exp.Column) is None
