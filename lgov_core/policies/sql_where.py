"""Whether the condition of an UPDATE, DELETE or MERGE limits what it touches.

The question is asked the safe way round: a condition limits only if it has a part that is recognised as limiting (a
column of the table that is written, compared with something that does not hold that column). Whatever is not
recognised, constants and tautologies among it, does not limit. In an OR every side must limit, and open ranges and
negations do not count there: two of them together may cover every row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from sqlglot import exp

from lgov_core.policies.options import names as words
from lgov_core.policies.sql_bounds import is_far, is_wild
from lgov_core.policies.sql_sources import Source, named_queries, sources_of

_PATTERNS = (exp.Like, exp.ILike, exp.Glob, exp.RegexpLike, exp.RegexpILike, exp.SimilarTo)
_POSITIVE = (exp.EQ, exp.NullSafeEQ, exp.Match, *_PATTERNS)
_OPEN = (exp.NEQ, exp.NullSafeNEQ, exp.GT, exp.GTE, exp.LT, exp.LTE)
#: What an open comparison says when it is negated.
_OPPOSITE: dict[type[exp.Expr], type[exp.Expr]] = {
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
#: What may stand around a column on its side of a comparison without making the comparison always true.
_WRAPPERS = (
    exp.Paren,
    exp.Cast,
    exp.TryCast,
    exp.Collate,
    exp.Lower,
    exp.Upper,
    exp.Trim,
    exp.Substring,
    exp.Date,
    exp.TsOrDsToDate,
    exp.TsOrDsToTimestamp,
    exp.TimeToStr,
    exp.TimestampTrunc,
    exp.DateTrunc,
    exp.Year,
    exp.Month,
    exp.Mod,
)
#: SQLite's names for the row's number, which an integer primary key is another name for.
_ROW_NUMBERS = frozenset({"rowid", "oid", "_rowid_"})
#: Names without parentheses that are no columns: the same for every row, or a number given to rows as they come.
_NO_COLUMNS = frozenset(
    words(
        "rownum level sysdate systimestamp user uid current_user session_user system_user current_role current_date"
        " current_time current_timestamp localtime localtimestamp current_catalog current_schema true false null nan"
        " infinity on off yes no"
    )
)


def limits(statement: exp.Update | exp.Delete, dialect: str = "") -> bool:
    """Whether the statement has a WHERE that is recognised as limiting the rows of the table that it writes to.

    With several tables the WHERE may limit another one, if an inner join ties the written one to it.
    """
    where = statement.args.get("where")
    if not isinstance(where, exp.Where):
        return False
    found = sources_of(statement)
    if found is None:
        return False
    target, others, ties = found
    queries = named_queries(statement)

    def asked(source: Source) -> _Target:
        return _Target(source, tuple(o for o in (target, *others) if o is not source), dialect, queries)

    if not any(asked(source).limited_by(where.this) for source in (target, *others)):
        return False
    return any(asked(target).limited_by(condition) for condition in (where.this, *ties))


def ties(merge: exp.Merge, dialect: str = "") -> bool:
    """Whether a MERGE compares a column of its table with what it merges, so that it touches those rows only."""
    target, using = merge.this, merge.args.get("using")
    if not isinstance(target, exp.Table) or not isinstance(using, exp.Expr):
        return False
    one = Source(target.name.lower(), frozenset({target.alias_or_name.lower()}))
    if any(table.name.lower() == one.table for table in using.find_all(exp.Table)):
        return False
    other = Source("", frozenset({using.alias_or_name.lower()}))
    return _Target(one, (other,), dialect, named_queries(merge)).limited_by(merge.args.get("on"))


@dataclass(frozen=True, slots=True)
class _Target:
    """The table in question, the other tables that the condition sees, and the WITH queries by name."""

    source: Source
    others: tuple[Source, ...]
    dialect: str
    queries: dict[str, exp.Expr] = field(default_factory=dict)

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
                if all(self.limited_by(side, in_or=True) for side in _sides(part)):
                    return True
            elif self._limited_by_atom(part, in_or=in_or):
                return True
        return False

    def _limited_by_atom(self, atom: object, *, in_or: bool) -> bool:
        if isinstance(atom, exp.Not):
            return not in_or and self._limited_by_not(atom.this.unnest())
        if isinstance(atom, exp.Exists):
            return self._depends_on_row(atom.this)
        return not (in_or and isinstance(atom, _OPEN)) and self._compares(atom)

    def _limited_by_not(self, inner: object) -> bool:
        if isinstance(inner, exp.Is | exp.Exists | exp.Between):
            return False
        if isinstance(inner, exp.In) and (query := inner.args.get("query")) is not None:
            return query.find(exp.Table) is not None and self._compares(inner)
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
            return self._apart(atom.this, atom.expression)
        if isinstance(atom, exp.Between):
            low, high = atom.args.get("low"), atom.args.get("high")
            if is_far(exp.GTE, _column(atom.this), low) and is_far(exp.LTE, _column(atom.this), high):
                return False
            return self._apart(atom.this, low, exact=False) and self._apart(atom.this, high, exact=False)
        if isinstance(atom, exp.In):
            query = atom.args.get("query")
            if query is not None:
                return self._own(_column(atom.this)) and self._leaves_out(query.unnest())
            return bool(atom.expressions) and all(self._apart(atom.this, item) for item in atom.expressions)
        return False

    def _compares_sides(self, atom: exp.Expr) -> bool:
        left, right = atom.this, atom.expression
        kind = type(atom)
        if isinstance(atom, _PATTERNS) and isinstance(right, exp.Literal) and is_wild(right.name):
            return False
        if isinstance(left, exp.Tuple) and isinstance(right, exp.Tuple):
            return any(self._apart(a, b) for a, b in zip(left.expressions, right.expressions, strict=False))
        if isinstance(right, exp.Any | exp.All):
            select = right.find(exp.Select)
            if select is None:
                return kind is exp.EQ and isinstance(right, exp.Any) and self._apart(left, right)
            return kind is exp.EQ and self._own(_column(left)) and self._leaves_out(select)
        if isinstance(atom, _OPEN) and (self._is_edge(left) or self._is_edge(right)):
            return False
        if isinstance(atom, _OPEN) and (
            is_far(kind, _column(left), right) or is_far(_MIRRORED.get(kind, kind), _column(right), left)
        ):
            return False
        exact = isinstance(atom, exp.EQ | exp.NullSafeEQ)
        return self._apart(left, right, exact=exact) or self._apart(right, left, exact=exact)

    def _is_edge(self, bound: object) -> bool:
        """Whether a bound is the least or the greatest of this very table, so that it leaves hardly a row out."""
        if not isinstance(bound, exp.Expr) or bound.find(exp.Select) is None or bound.find(exp.Min, exp.Max) is None:
            return False
        return any(True for _ in self._reads_itself(bound))

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
        column = _column(side)
        if column is None or not self._own(column) or not isinstance(other, exp.Expr):
            return False
        if self.dialect == "sqlite" and not column.table and column.this.args.get("quoted"):
            literal = isinstance(other, exp.Literal | exp.Parameter | exp.Placeholder)
            if not exact or not literal or other.name.lower() == column.name.lower():
                return False
        return not any(self._same(column, found) for found in self._columns(other))

    def _same(self, one: exp.Column, two: exp.Column) -> bool:
        names = {one.name.lower(), two.name.lower()}
        if len(names) > 1 and not names & _ROW_NUMBERS:
            return False
        table = two.table.lower()
        if not table or not one.table or table in self.source.known_as:
            return True
        return any(table in o.known_as and o.table == self.source.table for o in self.others)

    def _columns(self, other: exp.Expr) -> Iterator[exp.Column]:
        """The columns of this row that ``other`` holds: those of a subquery only where it names this table."""
        stack: list[tuple[exp.Expr, bool]] = [(other, False)]
        while stack:
            node, inside = stack.pop()
            inside = inside or (isinstance(node, exp.Select) and node.args.get("from_") is not None)
            if isinstance(node, exp.Column) and (not inside or node.table.lower() in self.source.known_as):
                yield node
            stack.extend((child, inside) for child in node.iter_expressions())

    def _reads_itself(self, query: exp.Expr, seen: frozenset[str] = frozenset()) -> Iterator[exp.Select]:
        """The parts of ``query``, and of WITH queries that it names, that read this very table."""
        for table in query.find_all(exp.Table):
            name = table.name.lower()
            if name in self.queries and not table.db and name not in seen:
                yield from self._reads_itself(self.queries[name], seen | {name})
            elif name == self.source.table:
                within = table.find_ancestor(exp.Select)
                yield within if within is not None else exp.Select()

    def _leaves_out(self, query: object) -> bool:
        """Whether ``column IN (query)`` leaves rows out: not when the query may be this table, all of it."""
        if isinstance(query, exp.Values):
            return True
        if not isinstance(query, exp.Select):
            return False
        if any(True for item in query.expressions for _ in self._columns(item) if query.args.get("from_") is None):
            return False
        known_as = self.source.known_as
        if any(c.table.lower() in known_as for item in query.expressions for c in item.find_all(exp.Column)):
            return False
        alone = _Target(Source(self.source.table, self.source.known_as), (), self.dialect, self.queries)
        return query.args.get("limit") is not None or all(
            reading.args.get("limit") is not None
            or ((where := reading.args.get("where")) is not None and alone.limited_by(where.this))
            for reading in self._reads_itself(query)
        )

    def _depends_on_row(self, query: object) -> bool:
        """Whether EXISTS (query) reads other tables only and requires of them to fit a column of this one."""
        if not isinstance(query, exp.Select) or not isinstance(where := query.args.get("where"), exp.Where):
            return False
        if query.find(exp.Table) is None or any(True for _ in self._reads_itself(query)):
            return False
        known_as = self.source.known_as
        for part in where.this.flatten() if isinstance(where.this, exp.And) else (where.this,):
            part = part.unnest()
            if isinstance(part, exp.EQ):
                sides = [_column(part.this), _column(part.expression)]
                own = [column is not None and column.table.lower() in known_as for column in sides]
                if own.count(True) == 1 and None not in sides:
                    return True
        return False


def _sides(disjunction: exp.Or) -> Iterator[object]:
    """The operands of a chain of ORs, without recursion."""
    pending: list[object] = [disjunction]
    while pending:
        part = pending.pop()
        if isinstance(part, exp.Or):
            pending.extend((part.this, part.expression))
        else:
            yield part


def _column(side: object) -> exp.Column | None:
    while isinstance(side, _WRAPPERS):
        if isinstance(side, exp.Mod) and not _tells_apart(side.expression):
            return None
        side = side.this
    return side if isinstance(side, exp.Column) and not isinstance(side.this, exp.Star) else None


def _tells_apart(modulus: object) -> bool:
    """Whether a remainder by ``modulus`` differs between rows: a number other than nought and one."""
    return isinstance(modulus, exp.Literal) and not modulus.is_string and modulus.name not in ("0", "1")
