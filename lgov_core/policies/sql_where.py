"""Whether the condition of an UPDATE or DELETE limits what it touches.

The question is asked the safe way round: a condition limits only if it has a part that is recognised as limiting (a
column compared with something that does not hold that column). Whatever is not recognised, constants and tautologies
among it, does not limit. In an OR every side must limit, and open ranges and negations do not count there: two of them
together may cover every row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sqlglot import exp

_PATTERNS = (exp.Like, exp.ILike, exp.Glob)
_POSITIVE = (exp.EQ, exp.NullSafeEQ, exp.RegexpLike, exp.Match, *_PATTERNS)
_OPEN = (exp.NEQ, exp.NullSafeNEQ, exp.GT, exp.GTE, exp.LT, exp.LTE)
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
    exp.Year,
    exp.Month,
    exp.Mod,
)
#: SQLite's names for the row's number, which an integer primary key is another name for.
_ROW_NUMBERS = frozenset({"rowid", "oid", "_rowid_"})


def limits(statement: exp.Update | exp.Delete) -> bool:
    """Whether the statement has a WHERE that is recognised as limiting."""
    where = statement.args.get("where")
    table = statement.this
    if not isinstance(where, exp.Where) or not isinstance(table, exp.Table):
        return False
    known_as = frozenset({table.name.lower(), table.alias_or_name.lower()})
    return _Target(table.name.lower(), known_as).limited_by(where.this)


@dataclass(frozen=True, slots=True)
class _Target:
    """The table that is written to, and the names under which the condition knows it."""

    table: str
    known_as: frozenset[str]

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
            inner = atom.this.unnest()
            return not in_or and not isinstance(inner, exp.Is | exp.Exists) and self._compares(inner)
        if isinstance(atom, exp.Exists):
            return self._depends_on_row(atom.this)
        return not (in_or and isinstance(atom, _OPEN)) and self._compares(atom)

    def _compares(self, atom: object) -> bool:
        if isinstance(atom, exp.Escape):
            atom = atom.this
        if isinstance(atom, _POSITIVE + _OPEN):
            left, right = atom.this, atom.expression
            if isinstance(atom, _PATTERNS) and isinstance(right, exp.Literal) and not right.name.strip("%*"):
                return False
            if isinstance(left, exp.Tuple) and isinstance(right, exp.Tuple):
                return any(self._apart(a, b) for a, b in zip(left.expressions, right.expressions, strict=False))
            return self._apart(left, right) or self._apart(right, left)
        if isinstance(atom, exp.Is):
            return self._apart(atom.this, atom.expression)
        if isinstance(atom, exp.Between):
            return self._apart(atom.this, atom.args.get("low")) and self._apart(atom.this, atom.args.get("high"))
        if isinstance(atom, exp.In):
            query = atom.args.get("query")
            if query is not None:
                return _column(atom.this) is not None and self._leaves_out(query.unnest())
            return bool(atom.expressions) and all(self._apart(atom.this, item) for item in atom.expressions)
        return False

    def _apart(self, side: object, other: object) -> bool:
        """Whether ``side`` is a column (perhaps wrapped) and ``other`` does not hold that same column."""
        column = _column(side)
        if column is None or not isinstance(other, exp.Expr):
            return False
        return not any(_same(column, found) for found in self._columns(other))

    def _columns(self, other: exp.Expr) -> Iterator[exp.Column]:
        """The columns of this row that ``other`` holds: those of a subquery only where it names this table."""
        stack: list[tuple[exp.Expr, bool]] = [(other, False)]
        while stack:
            node, inside = stack.pop()
            inside = inside or (isinstance(node, exp.Select) and node.args.get("from_") is not None)
            if isinstance(node, exp.Column) and (not inside or node.table.lower() in self.known_as):
                yield node
            stack.extend((child, inside) for child in node.iter_expressions())

    def _leaves_out(self, query: object) -> bool:
        """Whether ``column IN (query)`` leaves rows out: not when the query may be this table, all of it."""
        if isinstance(query, exp.Values):
            return True
        if not isinstance(query, exp.Select):
            return False
        if any(True for item in query.expressions for _ in self._columns(item) if query.args.get("from_") is None):
            return False
        if any(c.table.lower() in self.known_as for item in query.expressions for c in item.find_all(exp.Column)):
            return False
        if self.table not in {table.name.lower() for table in query.find_all(exp.Table)}:
            return True
        where = query.args.get("where")
        return query.args.get("limit") is not None or (where is not None and self.limited_by(where.this))

    def _depends_on_row(self, query: object) -> bool:
        """Whether EXISTS (query) reads other tables only and compares them with a column of this one."""
        if not isinstance(query, exp.Select) or not isinstance(where := query.args.get("where"), exp.Where):
            return False
        tables = {table.name.lower() for table in query.find_all(exp.Table)}
        if not tables or self.table in tables:
            return False
        return any(column.table.lower() in self.known_as for column in where.find_all(exp.Column))


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


def _same(one: exp.Column, two: exp.Column) -> bool:
    names = {one.name.lower(), two.name.lower()}
    if len(names) > 1 and not names & _ROW_NUMBERS:
        return False
    return not one.table or not two.table or one.table.lower() == two.table.lower()
