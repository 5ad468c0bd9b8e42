"""Whether the condition of an UPDATE or DELETE limits what it touches.

The question is asked the safe way round: a condition limits only if it has a part that is recognised as limiting (a
column compared with something that does not hold that column). Whatever is not recognised, constants and tautologies
among it, does not limit. In an OR every side must limit, and open ranges and negations do not count there: two of them
together may cover every row.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from sqlglot import exp

_PATTERNS = (exp.Like, exp.ILike, exp.Glob)
_POSITIVE = (exp.EQ, exp.NullSafeEQ, exp.Match)
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
_KEYS = frozenset({"id", "pk", "key", "uuid", "guid", "rowid", "oid", "_rowid_"})
_REGEX_CLASSES = re.compile(r"\\[A-Za-z]|\[\^?\]?[^\]]*\]|\(\?\w+\)")
_SOME_TEXT = re.compile(r"\w(?![*?{])")
#: SQLite's names for the row's number, which an integer primary key is another name for.
_ROW_NUMBERS = frozenset({"rowid", "oid", "_rowid_"})


def limits(statement: exp.Update | exp.Delete) -> bool:
    """Whether the statement has a WHERE that is recognised as limiting.

    Where other tables stand beside the one that is written to, only columns that name it count.
    """
    where = statement.args.get("where")
    table = statement.this
    if not isinstance(where, exp.Where) or not isinstance(table, exp.Table):
        return False
    beside = [found for part in _beside(statement) for found in part.find_all(exp.Table)]
    meant = {table.alias_or_name.lower(), table.name.lower()}
    targets = [table, *(found for found in statement.args.get("tables") or () if isinstance(found, exp.Table))]
    written = {name.name.lower() for name in targets}
    own = [found for found in beside if found.alias_or_name.lower() in meant]
    if statement.args.get("tables"):
        if len(written - meant) > 1 or (written - meant and beside):
            return False  # more than one table is written to
        meant |= written
    names = {table.name.lower(), *(found.name.lower() for found in own)}
    return _Target(frozenset(names), frozenset(meant), strict=len(own) < len(beside)).limited_by(where.this)


def _beside(statement: exp.Update | exp.Delete) -> Iterator[exp.Expr]:
    """What names further tables: USING, FROM and joins."""
    for holder in (statement, statement.this):
        for part in ("using", "from_", "joins"):
            found = holder.args.get(part)
            for one in found if isinstance(found, list) else (found,):
                if isinstance(one, exp.Expr):
                    yield one


@dataclass(frozen=True, slots=True)
class _Target:
    """The table that is written to, and the names under which the condition knows it.

    ``strict`` says that a column without a table's name may be another table's, and does not count.
    """

    tables: frozenset[str]
    known_as: frozenset[str]
    strict: bool = False

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
            if in_or or isinstance(inner, exp.Is | exp.Exists) or not self._compares(inner):
                return False
            others = inner.expressions if isinstance(inner, exp.In) else [inner.args.get("expression")]
            return inner.args.get("query") is not None or not (_is_key(inner.this) and any(map(_is_nought, others)))
        if isinstance(atom, exp.Exists):
            return self._depends_on_row(atom.this)
        return not (in_or and isinstance(atom, _OPEN)) and self._compares(atom)

    def _compares(self, atom: object) -> bool:
        if isinstance(atom, exp.Escape):
            atom = atom.this
        if isinstance(atom, _PATTERNS):
            return self._apart(atom.this, atom.expression) and _leaves_text_out(atom.expression, "%_*?")
        if isinstance(atom, exp.RegexpLike | exp.RegexpILike):
            return self._apart(atom.this, atom.expression) and _leaves_text_out(atom.expression, "")
        if isinstance(atom, _POSITIVE + _OPEN):
            return self._compares_two(atom)
        if isinstance(atom, exp.Is):
            return self._apart(atom.this, atom.expression)
        if isinstance(atom, exp.Between):
            return self._apart(atom.this, atom.args.get("low")) and self._apart(atom.this, atom.args.get("high"))
        if isinstance(atom, exp.In):
            query = atom.args.get("query")
            if query is not None:
                return self._column(atom.this) is not None and self._leaves_out(query.unnest())
            return bool(atom.expressions) and all(self._apart(atom.this, item) for item in atom.expressions)
        return False

    def _compares_two(self, atom: exp.Expr) -> bool:
        left, right = atom.this, atom.args.get("expression")
        if isinstance(left, exp.Tuple) and isinstance(right, exp.Tuple):
            return any(self._apart(a, b) for a, b in zip(left.expressions, right.expressions, strict=False))
        for one, other in ((left, right), (right, left)):
            if isinstance(other, exp.Any | exp.All):
                if isinstance(atom, exp.EQ) and self._apart(one, other) and self._leaves_out(_unnested(other.this)):
                    return True
            elif self._apart(one, other) and not (isinstance(atom, _OPEN) and self._is_edge(atom, one, other)):
                return True
        return False

    def _is_edge(self, atom: exp.Expr, column: object, other: object) -> bool:
        """Whether an open comparison of ``column`` leaves hardly a row out: keys above nought, the least and the most."""
        if isinstance(atom, exp.NEQ | exp.NullSafeNEQ):
            return _is_nought(other) and (_is_key(column) or not _is_nought(other, text=False))
        if isinstance(other, exp.Expr) and other.find(exp.Select) and other.find(exp.Min, exp.Max):
            return any(table.name.lower() in self.tables for table in other.find_all(exp.Table))
        upwards = isinstance(atom, exp.GT | exp.GTE) == (atom.this is column)
        return upwards and _is_low(other) and (_is_key(column) or _is_low(other, number=False))

    def _apart(self, side: object, other: object) -> bool:
        """Whether ``side`` is a column (perhaps wrapped) and ``other`` does not hold that same column."""
        column = self._column(side)
        if column is None or not isinstance(other, exp.Expr):
            return False
        return not any(_same(column, found) for found in self._columns(other))

    def _column(self, side: object) -> exp.Column | None:
        """The column of the table that is written to, which ``side`` is, perhaps wrapped."""
        column = _column(side)
        if column is None or not (column.table or self.strict):
            return column
        return column if column.table.lower() in self.known_as else None

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
        if not self.tables & {table.name.lower() for table in query.find_all(exp.Table)}:
            return True
        where = query.args.get("where")
        return query.args.get("limit") is not None or (where is not None and self.limited_by(where.this))

    def _depends_on_row(self, query: object) -> bool:
        """Whether EXISTS (query) reads other tables only and compares them with a column of this one."""
        if not isinstance(query, exp.Select) or not isinstance(where := query.args.get("where"), exp.Where):
            return False
        tables = {table.name.lower() for table in query.find_all(exp.Table)}
        if not tables or self.tables & tables:
            return False
        return replace(self, strict=True).limited_by(where.this)


def _sides(disjunction: exp.Or) -> Iterator[object]:
    """The operands of a chain of ORs, without recursion."""
    pending: list[object] = [disjunction]
    while pending:
        part = pending.pop()
        if isinstance(part, exp.Or):
            pending.extend((part.this, part.expression))
        else:
            yield part


def _leaves_text_out(pattern: object, wild: str) -> bool:
    """Whether a pattern is known here and asks for some text: a regular expression when it has no ``wild`` characters."""
    if isinstance(pattern, exp.Placeholder | exp.Parameter):
        return True
    if not isinstance(pattern, exp.Literal):
        return False
    if wild:
        return bool(pattern.name.strip(wild))
    return "|" not in pattern.name and _SOME_TEXT.search(_REGEX_CLASSES.sub(".", pattern.name)) is not None


def _is_key(side: object) -> bool:
    """Whether the column's name is that of a key, which is hardly ever nought or less."""
    column = _column(side)
    return column is not None and (column.name.lower() in _KEYS or column.name.lower().endswith("_id"))


def _is_low(other: object, *, number: bool = True) -> bool:
    """Whether ``other`` is empty text or a number of at most one."""
    return _is_nought(other, number=number) or (
        number and isinstance(other, exp.Literal) and re.fullmatch(r"1(?:\.0*)?|0?\.\d+", other.name) is not None
    )


def _is_nought(other: object, *, text: bool = True, number: bool = True) -> bool:
    """Whether ``other`` is a number of at most nought, or empty text."""
    if isinstance(other, exp.Neg):
        return number
    if not isinstance(other, exp.Literal):
        return False
    return text and not other.name.strip() if other.is_string else number and not other.name.strip("0.")


def _unnested(query: object) -> object:
    return query.unnest() if isinstance(query, exp.Expr) else query


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
