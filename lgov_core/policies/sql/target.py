"""One table of a writing statement, and whether a condition limits the rows of it. `sql_where` says what counts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sqlglot import exp

from lgov_core.policies.options import names as words
from lgov_core.policies.sql.bounds import (
    column_of,
    insists,
    is_every_remainder,
    is_far,
    is_some,
    is_wide,
    keeps_few,
    numbers_rows,
)
from lgov_core.policies.sql.conditions import (
    branches,
    conjuncts,
    doubles_of,
    gives_constants,
    gives_one_row,
    gives_row_numbers,
    is_about,
    is_counter,
    is_negated,
    names_any,
    quantifier_of,
    sides,
    takes_both,
    takes_both_in_or,
)
from lgov_core.policies.sql.scope import of_row_around
from lgov_core.policies.sql.sources import Known, Source, is_function, read_beside

#: Dialects in which a column can stand as a condition only when it holds truth values.
_TRUTH_ONLY = frozenset({"postgres", "bigquery", "trino"})
_REGULAR = (exp.RegexpLike, exp.RegexpILike, exp.SimilarTo)
_PATTERNS = (exp.Like, exp.ILike, exp.Glob, *_REGULAR)
_POSITIVE = (exp.EQ, exp.NullSafeEQ, exp.Match, *_PATTERNS)
_OPEN = (exp.NEQ, exp.NullSafeNEQ, exp.GT, exp.GTE, exp.LT, exp.LTE)
#: What a comparison says when it is negated.
_OPPOSITE: dict[type[exp.Expr], type[exp.Expr]] = {
    exp.EQ: exp.NEQ,
    exp.NullSafeEQ: exp.NullSafeNEQ,
    exp.GT: exp.LTE,
    exp.GTE: exp.LT,
    exp.LT: exp.GTE,
    exp.LTE: exp.GT,
}
#: What an open comparison says when its sides change places.
_MIRRORED: dict[type[exp.Expr], type[exp.Expr]] = {
    exp.GT: exp.LT,
    exp.GTE: exp.LTE,
    exp.LT: exp.GT,
    exp.LTE: exp.GTE,
}
#: SQLite's names for the row's number, which an integer primary key is another name for.
_ROW_NUMBERS = frozenset({"rowid", "oid", "_rowid_"})
#: Names without parentheses that are no columns: the same for every row, or a number given to rows as they come.
_NO_COLUMNS = frozenset(
    words(
        "rownum level sysdate systimestamp user uid current_user session_user system_user current_role current_date"
        " current_time current_timestamp localtime localtimestamp current_catalog current_schema true false null nan"
        " infinity on off yes no tableoid xmin xmax cmin cmax"
    )
)


@dataclass(frozen=True, slots=True)
class Target:
    """The table in question, the other tables that the condition sees, and what is known of the statement."""

    source: Source
    others: tuple[Source, ...]
    known: Known

    def limited_by(self, condition: object, *, in_or: bool = False) -> bool:
        """Any part of an AND may do; every side of an OR must. As deep as ANDs and ORs alternate."""
        pending = [condition]
        while pending:
            part = pending.pop()
            if isinstance(part, exp.Paren):
                pending.append(part.this)
            elif isinstance(part, exp.And):
                pending.extend((part.this, part.expression))
            elif isinstance(part, exp.Or):
                operands = list(sides(part))
                if all(self.limited_by(side, in_or=True) for side in operands) and not takes_both_in_or(operands):
                    return True
            elif self._limited_by_atom(part, in_or=in_or):
                return True
        return False

    def _limited_by_atom(self, atom: object, *, in_or: bool) -> bool:
        self.known.count()
        if isinstance(atom, exp.Not):
            return not in_or and self._limited_by_not(atom.this.unnest())
        if isinstance(atom, exp.Expr) and is_negated(atom) and (in_or or isinstance(atom, exp.Is)):
            return False
        if isinstance(atom, exp.Exists):
            return self._depends_on_row(atom.this)
        if isinstance(atom, exp.Column) and in_or:
            return False
        return not (in_or and isinstance(atom, _OPEN)) and self._compares(atom)

    def _limited_by_not(self, inner: object) -> bool:
        if isinstance(inner, exp.Is | exp.Between):
            return False
        if isinstance(inner, exp.Binary) and quantifier_of(inner.expression) is not None:
            return False
        if isinstance(inner, exp.Exists):
            return self._lacks_a_match(inner.this)
        if isinstance(inner, exp.In) and (query := inner.args.get("query")) is not None:
            own = self._own(column_of(inner.this))
            if own and self.source.table not in self.known.queries and doubles_of(inner) == self.source.table:
                return True
            return self._reads_rows(self._with_named(query)) and not gives_constants(query) and self._compares(inner)
        if isinstance(inner, exp.In) and all(
            is_far(exp.NEQ, column_of(inner.this), item) for item in inner.expressions
        ):
            return False
        if isinstance(inner, exp.EQ) and isinstance(inner.this, exp.Literal) and isinstance(inner.expression, exp.Any):
            return self._compares(inner)
        opposite = _OPPOSITE.get(type(inner)) if isinstance(inner, exp.Expr) else None
        if opposite is not None and isinstance(inner, exp.Binary):
            return self._compares(opposite(this=inner.this, expression=inner.expression))
        return self._compares(inner)

    def _compares(self, atom: object) -> bool:
        if isinstance(atom, exp.Escape):
            atom = atom.this
        if isinstance(atom, _POSITIVE + _OPEN):
            return self._compares_sides(atom)
        if isinstance(atom, exp.Is):
            return column_of(atom.this) is not None and self._apart(atom.this, atom.expression)
        if isinstance(atom, exp.Between):
            low, high = atom.args.get("low"), atom.args.get("high")
            if self._is_edge(low) or self._is_edge(high):
                return False
            column, ends = column_of(atom.this), [(low, high)]
            if atom.args.get("symmetric"):  # which of the two is the lower one is found out by the database
                ends.append((high, low))
            if any(is_far(exp.GTE, column, one) and is_far(exp.LTE, column, other) for one, other in ends):
                return False
            if is_wide(exp.GTE, atom.this, low) and is_wide(exp.LTE, atom.this, high):
                return False
            return self._apart(atom.this, low, exact=False) and self._apart(atom.this, high, exact=False)
        if isinstance(atom, exp.In):
            return self._is_among(atom)
        if isinstance(atom, exp.ArrayContainsAll | exp.ArrayOverlaps | exp.ArrayContains):
            list_ = isinstance(atom.expression.unnest(), exp.Array) or not isinstance(atom, exp.ArrayOverlaps)
            return list_ and self._own(column_of(atom.this)) and is_some(atom.expression)
        return isinstance(atom, exp.Column) and self.known.dialect in _TRUTH_ONLY and self._own(atom)

    def _is_among(self, atom: exp.In) -> bool:
        """Whether ``column IN ...``, or a row of columns, is among values that are not its own."""
        query, array, items = atom.args.get("query"), atom.args.get("unnest"), atom.expressions
        row = isinstance(atom.this, exp.Tuple)
        columns = atom.this.expressions if row else [atom.this]
        if query is not None:
            return any(self._own(column_of(column)) for column in columns) and self._leaves_out(query.unnest())
        if array is not None:
            return array.find(exp.Select) is None and self._apart(atom.this, array)
        if (
            not items
            or takes_both(atom.this, items)
            or (row and any(len(item.expressions) != len(columns) for item in items))
        ):
            return False
        rows = [item.expressions for item in items] if row else [[item] for item in items]
        return any(all(self._apart(one, values[at]) for values in rows) for at, one in enumerate(columns))

    def _compares_sides(self, atom: exp.Expr) -> bool:
        left, right = atom.this, atom.expression
        kind = type(atom)
        if isinstance(atom, _PATTERNS) and not insists(right, regular=isinstance(atom, _REGULAR)):
            return False
        if isinstance(left, exp.Tuple) and isinstance(right, exp.Tuple):
            if isinstance(atom, _OPEN):  # the first of each says most
                return self._compares_sides(kind(this=left.expressions[0], expression=right.expressions[0]))
            return any(self._apart(a, b) for a, b in zip(left.expressions, right.expressions, strict=False))
        if (quantifier := quantifier_of(right)) is not None:
            return self._compares_with_list(kind, left, right.expressions[0].unnest(), quantifier)
        if isinstance(right, exp.Any | exp.All):
            if isinstance(left, exp.Literal):  # it is one of the values in a column
                return kind is exp.EQ and isinstance(right, exp.Any) and self._own(column_of(right.this))
            if right.find(exp.Select) is None:
                both = any(takes_both(left, array.expressions) for array in right.find_all(exp.Array))
                return kind is exp.EQ and isinstance(right, exp.Any) and not both and self._apart(left, right)
            query = right.this.unnest()
            if isinstance(query, exp.Array) and len(query.expressions) == 1:  # ANY (ARRAY(SELECT ...))
                query = query.expressions[0]
            found = kind is exp.EQ and isinstance(right, exp.Any)  # what is equal to ALL of nothing is every row
            return found and self._own(column_of(left)) and self._leaves_out(query)
        if isinstance(atom, _OPEN) and self._is_hardly_a_bound(kind, left, right):
            return False
        if kind is exp.NullSafeNEQ and any(side.find(exp.Null, exp.Nullif) is not None for side in (left, right)):
            return False  # IS DISTINCT FROM NULL is IS NOT NULL
        if kind is exp.NullSafeEQ and column_of(left) is None and column_of(right) is None:
            return False  # a key that no document has
        exact = isinstance(atom, exp.EQ | exp.NullSafeEQ)
        return self._apart(left, right, exact=exact) or self._apart(right, left, exact=exact)

    def _compares_with_list(self, kind: type[exp.Expr], left: exp.Expr, values: exp.Expr, quantifier: str) -> bool:
        """Whether ``= SOME (list)`` or ``<> ALL (list)``; other comparisons of the kind hold for nearly every row."""
        if quantifier != "all":
            return kind is exp.EQ and self._compares_sides(exp.EQ(this=left, expression=exp.Any(this=values)))
        if isinstance(values, exp.Array):
            return kind is exp.NEQ and self._limited_by_not(exp.In(this=left, expressions=values.expressions))
        while isinstance(values, exp.Cast):
            values = values.this
        given = isinstance(values, exp.Parameter | exp.Placeholder)
        return kind is exp.NEQ and given and self._apart(left, values)

    def _is_hardly_a_bound(self, kind: type[exp.Expr], left: object, right: object) -> bool:
        """Whether an open comparison holds for nearly all the rows that there are likely to be."""
        if self._is_edge(left) or self._is_edge(right):
            return True
        return any(
            is_far(comparison, column_of(side), bound)
            or is_wide(comparison, side, bound)
            or is_every_remainder(comparison, side, bound)
            or (numbers_rows(column_of(side)) and self._is_computed(bound))
            for comparison, side, bound in ((kind, left, right), (_MIRRORED.get(kind, kind), right, left))
        )

    def _is_computed(self, bound: object) -> bool:
        """Whether a bound is what a query makes of constants: perhaps nought."""
        query = bound.unnest() if isinstance(bound, exp.Expr) else None
        if not isinstance(query, exp.Query):
            return False
        return gives_constants(query) or not self._reads_rows(self._with_named(query))

    def _is_edge(self, bound: object) -> bool:
        """Whether a bound is the least, the greatest or the number of this very table, so that it leaves hardly a row out."""
        if (
            not isinstance(bound, exp.Expr)
            or bound.find(exp.Select) is None
            or bound.find(exp.Min, exp.Max, exp.Count) is None
        ):
            return False
        return self.is_read_by(bound)

    def _own(self, column: exp.Column | None) -> bool:
        """Whether the column is one of this table, for certain."""
        if column is None:
            return False
        if column.table:
            return column.table.lower() in self.source.known_as
        return not self.others and column.name.lower() not in _NO_COLUMNS

    def _apart(self, side: object, other: object, *, exact: bool = True) -> bool:
        """Whether ``side`` is a column of this table (perhaps wrapped) and ``other`` does not hold that same column.

        SQLite takes a quoted name that is no column for text: such a name counts only where it must equal another text.
        """
        column = column_of(side, parts=exact)
        if column is None or not self._own(column) or not isinstance(other, exp.Expr):
            return False
        if self.known.dialect == "sqlite" and not column.table and column.this.args.get("quoted"):
            literal = isinstance(other, exp.Literal | exp.Parameter | exp.Placeholder)
            if not exact or not literal or other.name.lower() == column.name.lower():
                return False
        query = other.unnest() if exact else None
        if isinstance(query, exp.Select) and not gives_one_row(query) and not self.is_left_out_by(query):
            return False
        around = of_row_around(other, self.known, self.source)
        return not any(self._same(column, found) or self._is_copy(found) for found, _ in around)

    def _same(self, one: exp.Column, two: exp.Column) -> bool:
        names = {one.name.lower(), two.name.lower()}
        if not two.table and two.name.lower() in self.source.known_as:
            return True  # the row as a value
        if len(names) > 1 and not names & _ROW_NUMBERS:
            return False
        table = two.table.lower()
        if not table or not one.table or table in self.source.known_as:
            return True
        return self._is_twin(table)

    def _is_twin(self, table: str) -> bool:
        """Whether the written table is read once more, under the name ``table``."""
        return any(table in other.known_as and other.table == self.source.table for other in self.others)

    def _is_copy(self, column: exp.Column) -> bool:
        """Whether a column may be that of a source that holds the rows of the written table once more."""
        table = column.table.lower()
        return any(other.copy and (not table or table in other.known_as) for other in self.others)

    def hands_back(self, query: exp.Expr) -> bool:
        """Whether what ``query`` reads or gives may be what a row of this table holds: the row around it."""
        return any(
            self._is_mine(column) for column, chooses in of_row_around(query, self.known, self.source) if not chooses
        )

    def _is_mine(self, column: exp.Column) -> bool:
        """Whether a column may be one of this table."""
        table = column.table.lower()
        if not table:
            return column.name.lower() not in _NO_COLUMNS
        return table in self.source.known_as or self._is_twin(table) or self._is_copy(column)

    def _with_named(self, query: exp.Expr) -> dict[str, exp.Expr]:
        """``query``, under no name, and the WITH queries that it reads, at any remove."""
        found: dict[str, exp.Expr] = {"": query}
        pending = [query]
        while pending:
            for table in self.known.tables(pending.pop()):
                name = table.name.lower()
                if name in self.known.queries and not table.db and name not in found:
                    found[name] = self.known.queries[name]
                    pending.append(found[name])
        return found

    def _reads_rows(self, queries: dict[str, exp.Expr]) -> bool:
        """Whether one of ``queries`` reads a table at all, so that they are not made of constants."""
        return any(
            not is_function(table) and (bool(table.db) or table.name.lower() not in {*self.known.queries, "dual"})
            for query in queries.values()
            for table in self.known.tables(query)
        )

    def counts_up(self, query: exp.Expr) -> bool:
        """Whether ``query`` reads what gives numbers one after the other: as many as there are rows."""
        queries = self._with_named(query)
        nodes = [node for one in queries.values() for node in self.known.nodes(one)]
        return (
            gives_row_numbers(query, nodes)
            or any(is_counter(node) for node in nodes)
            or any(self._feeds_itself(one, name) for name, one in queries.items())
        )

    def _feeds_itself(self, query: exp.Expr, name: str) -> bool:
        """Whether a query (a WITH query called ``name``) makes further rows of its own ones, and of no table's."""
        again = query.expression if isinstance(query, exp.SetOperation) else query
        repeats = name != "" and any(table.name.lower() == name for table in self.known.tables(again))
        if not repeats and not any(isinstance(node, exp.Connect) for node in self.known.nodes(again)):
            return False
        read = self._with_named(again)
        return not self._reads_rows({other: read[other] for other in read if other != name})

    def is_read_by(self, query: exp.Expr) -> bool:
        """Whether ``query``, or a WITH query that it names, reads this very table."""
        return any(True for _ in self._reads_itself(query))

    def _reads_itself(
        self, query: exp.Expr, path: frozenset[str] = frozenset(), done: set[str] | None = None
    ) -> Iterator[tuple[exp.Expr, exp.Table]]:
        """The places of ``query``, and of WITH queries that it names, that read this very table, with their queries."""
        queries = self.known.queries
        done = set() if done is None else done
        for table in self.known.tables(query):
            name = table.name.lower()
            if name in queries and not table.db and name not in path:
                if name not in done and not self._is_narrowed(table):
                    done.add(name)
                    yield from self._reads_itself(queries[name], path | {name}, done)
            elif self.source.may_be(table):
                within = table.find_ancestor(exp.Select)
                yield (within if within is not None else exp.Select()), table

    def _is_narrowed(self, source: exp.Expr) -> bool:
        """Whether the query that reads ``source``, or one around that, keeps only rows that compare with a constant."""
        while (place := source.parent) is not None and isinstance(select := place.parent, exp.Select):
            if not isinstance(place, exp.From | exp.Join):
                return False
            known_as = source.alias_or_name.lower()
            alone = Target(Source("", frozenset({known_as})), tuple(read_beside(select, source)[0]), self.known)
            where = select.args.get("where")
            parts = conjuncts(where.this) if isinstance(where, exp.Where) else ()
            if any(is_about(part, known_as) and alone.limited_by(part) for part in parts):
                around = of_row_around(select, self.known, self.source)
                return not any(chooses and not column.table for column, chooses in around)
            if not isinstance(select.parent, exp.Subquery):
                return False
            source = select.parent
        return False

    def _leaves_out(self, query: object) -> bool:
        """Whether ``column IN (query)`` leaves rows out: not when the query may be this table, all of it."""
        if not isinstance(query, exp.Query | exp.Values) or self.hands_back(query):
            return False
        return all(
            isinstance(part, exp.Select | exp.Values) and not self.counts_up(part) and self.is_left_out_by(part)
            for part in branches(query)
        )

    def is_left_out_by(self, query: exp.Expr) -> bool:
        """Whether ``query`` reads this very table nowhere, or only a part of it."""
        return keeps_few(query) or all(self._is_part(select, table) for select, table in self._reads_itself(query))

    def _is_part(self, select: exp.Expr, table: exp.Table) -> bool:
        """Whether ``select`` reads only a part of ``table``, which is this table once more."""
        asked = (id(table), self.source.known_as)
        found = self.known.parts.get(asked)
        if found is None:
            found = self.known.parts[asked] = (
                keeps_few(select)
                or self._is_limited(select, table)
                or (isinstance(select.parent, exp.Subquery) and self._is_narrowed(select.parent))
            )
        return found

    def _is_limited(self, select: exp.Expr, table: exp.Table) -> bool:
        """Whether ``select`` has a condition that limits ``table``; one on the row around it lets each find itself."""
        name = table.alias_or_name.lower()
        around = Source(self.source.table, self.source.known_as - {name}, copy=True)
        again = Source(self.source.table, frozenset({name}))
        others, ties = read_beside(select, table)
        alone, joined = (Target(again, beside, self.known) for beside in ((), (around, *others)))
        where = select.args.get("where")
        parts = list(conjuncts(where.this)) if isinstance(where, exp.Where) else []
        if any(alone.limited_by(part) for part in parts if not names_any(part, around.known_as)):
            return True
        return any(joined.limited_by(part) for part in (*parts, *ties))

    def _depends_on_row(self, query: object) -> bool:
        """Whether EXISTS (query) reads other tables only and requires of them to fit a column of this one."""
        if not isinstance(query, exp.Select) or not isinstance(where := query.args.get("where"), exp.Where):
            return False
        if not self._reads_rows(self._with_named(query)) or self.is_read_by(query):
            return False
        if gives_one_row(query) or self.counts_up(query):
            return False
        given = {id(column) for item in query.expressions for column in item.find_all(exp.Column)}
        outer: dict[int, exp.Column] = {}
        for column, chooses in of_row_around(query, self.known, self.source):
            if not chooses and id(column) not in given and self._is_mine(column):
                return False  # it reads what this row holds
            outer[id(column)] = column
        known_as = ("", *self.source.known_as)
        for part in conjuncts(where.this):
            part = part.unnest()
            if isinstance(part, exp.EQ):
                sides = [column_of(part.this), column_of(part.expression)]
                own = [outer[id(column)] for column in sides if id(column) in outer]
                if None not in sides and len(own) == 1 and own[0].table.lower() in known_as:
                    return True
        return False

    def _lacks_a_match(self, query: exp.Expr) -> bool:
        """Whether NOT EXISTS (query) picks out what stored tables, and not constants, have no row for."""
        where = query.args.get("where")
        if not self._depends_on_row(query) or not isinstance(where, exp.Where) or query.args.get("limit"):
            return False
        if len(self._with_named(query)) > 1 or any(part.find(exp.Column) is None for part in conjuncts(where.this)):
            return False
        return sum(isinstance(node, exp.Select) for node in self.known.nodes(query)) == 1
