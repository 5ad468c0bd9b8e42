"""The parts of a condition, and what they speak of."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from sqlglot import exp

from lgov_core.policies.sql.bounds import modulus_of
from lgov_core.policies.sql.sources import Source

#: Columns that hold a truth value also where it is written as a number or a text.
_FLAG = re.compile(r"(?:is|has|was|can)_.+|(?:.*_)?(?:active|enabled|disabled|deleted|archived|flag)")
_WRITTEN = {"0": False, "f": False, "n": False, "false": False, "1": True, "t": True, "y": True, "true": True}
_COUNTERS = frozenset({"generate_series", "range", "numbers", "sequence", "zeros"})


def conjuncts(condition: exp.Expr) -> Iterator[exp.Expr]:
    """What all must hold for ``condition`` to hold."""
    return condition.flatten() if isinstance(condition, exp.And) else iter((condition,))


def names_any(condition: exp.Expr, tables: frozenset[str]) -> bool:
    """Whether a column in ``condition`` is said to be of one of ``tables`` (in lower case)."""
    return any(column.table.lower() in tables for column in condition.find_all(exp.Column))


def is_about(condition: exp.Expr, table: str) -> bool:
    """Whether all columns in a condition may be those of ``table``, and there is no subquery in it."""
    return condition.find(exp.Select) is None and all(
        column.table.lower() in ("", table) for column in condition.find_all(exp.Column)
    )


def sides(disjunction: exp.Or) -> Iterator[object]:
    """The operands of a chain of ORs, those in brackets among them, without recursion."""
    pending: list[object] = [disjunction]
    while pending:
        part = pending.pop()
        inner = part.unnest() if isinstance(part, exp.Paren) else part
        if isinstance(inner, exp.Or):
            pending.extend((inner.this, inner.expression))
        else:
            yield part


def branches(query: exp.Expr) -> Iterator[exp.Expr]:
    """The queries of which a query gives rows: both of a UNION, the first of EXCEPT and INTERSECT."""
    pending = [query]
    while pending:
        part = pending.pop().unnest()
        if isinstance(part, exp.SetOperation):
            pending.extend((part.this, part.expression) if isinstance(part, exp.Union) else (part.this,))
        else:
            yield part


def takes_both(column: object, values: Iterable[object]) -> bool:
    """Whether both truth values are among ``values``, with which ``column`` is compared; or all remainders of a division."""
    modulus = modulus_of(column)
    if modulus is not None:
        return len({value.name for value in values if isinstance(value, exp.Literal)}) >= modulus
    flag = isinstance(column, exp.Column) and _FLAG.fullmatch(column.name.lower()) is not None
    found = {value.this for value in values if isinstance(value, exp.Boolean)}
    if flag:
        found |= {_WRITTEN.get(value.name.lower()) for value in values if isinstance(value, exp.Literal)}
    return found >= {True, False}


def takes_both_in_or(operands: Iterable[object]) -> bool:
    """Whether an OR of ``operands`` takes the rows where a column is true and those where it is false, or all remainders."""
    found: dict[str, tuple[exp.Expr, list[object]]] = {}
    for operand in operands:
        part = operand.unnest() if isinstance(operand, exp.Expr) else operand
        if isinstance(part, exp.EQ | exp.NullSafeEQ | exp.Is):
            for side, value in ((part.this, part.expression), (part.expression, part.this)):
                column = side.unnest() if isinstance(side, exp.Expr) else side
                if isinstance(column, exp.Column | exp.Mod):
                    name = column.name if isinstance(column, exp.Column) else column.sql()
                    found.setdefault(name.lower(), (column, []))[1].append(value)
    return any(takes_both(column, values) for column, values in found.values())


def is_negated(atom: exp.Expr) -> bool:
    """Whether it is ``NOT LIKE`` or the like, for which the parser has no NOT of its own."""
    return bool((atom.this if isinstance(atom, exp.Escape) else atom).args.get("negate"))


def doubles_of(atom: exp.In) -> str | None:
    """The table (lower case) of ``x IN (SELECT min(x) FROM table GROUP BY columns)``, or max; None for anything else.

    Its opposite picks out the rows that have a double: one of each group stays.
    """
    column, select = atom.this, atom.args["query"].unnest()
    if not isinstance(column, exp.Column) or not isinstance(select, exp.Select) or len(select.expressions) != 1:
        return None
    from_, group, first = select.args.get("from_"), select.args.get("group"), select.expressions[0].unalias()
    set_parts = {part for part, value in select.args.items() if value}
    if set_parts != {"expressions", "from_", "group"} or not isinstance(first, exp.Min | exp.Max):
        return None
    table = from_.this if isinstance(from_, exp.From) else None
    if not isinstance(table, exp.Table) or table.args.get("joins") or not isinstance(group, exp.Group):
        return None
    names = ("", table.alias_or_name.lower())
    found = [first.this, *group.expressions]
    if len(found) < 2 or not all(isinstance(one, exp.Column) and one.table.lower() in names for one in found):
        return None
    return table.name.lower() if first.this.name.lower() == column.name.lower() else None


def quantifier_of(side: object) -> str | None:
    """Which word stands before a list that is compared with, where the parser takes it for a function: ``> ALL (ARRAY[1])``."""
    name = side.name.lower() if isinstance(side, exp.Anonymous) and side.expressions else ""
    return name if name in ("all", "some", "any") else None


def is_counter(function: exp.Expr) -> bool:
    """Whether a function gives numbers (or dates) one after the other."""
    if isinstance(function, exp.GenerateSeries | exp.GenerateDateArray | exp.GenerateTimestampArray | exp.Generator):
        return True
    return isinstance(function, exp.Anonymous) and function.name.lower() in _COUNTERS


def gives_one_row(select: exp.Select) -> bool:
    """Whether a query is an aggregate of all that it finds: it gives one row, also where it finds none."""
    grouped = select.args.get("group")
    if grouped and grouped.expressions:
        return False
    aggregates = (function for item in select.expressions for function in item.find_all(exp.AggFunc))
    return bool(select.args.get("having")) or any(not isinstance(one.parent, exp.Window) for one in aggregates)


def gives_constants(query: exp.Expr) -> bool:
    """Whether a query gives no column of what it reads, or is said to find nothing."""
    return all(isinstance(part, exp.Select) and _gives_constants(part) for part in branches(query))


def _gives_constants(select: exp.Select) -> bool:
    where, limit = select.args.get("where"), select.args.get("limit")
    return (
        not any(item.is_star or item.find(exp.Column) for item in select.expressions)
        or (isinstance(where, exp.Where) and where.find(exp.Column) is None)
        or (isinstance(limit, exp.Limit) and isinstance(limit.expression, exp.Literal) and limit.expression.name == "0")
    )


def gives_row_numbers(query: exp.Expr, nodes: Sequence[exp.Expr]) -> bool:
    """Whether ``query`` gives the numbers of rows as they come: counted by itself, or by a query among ``nodes``."""
    if not any(isinstance(node, exp.RowNumber) for node in nodes):
        return False
    items = query.expressions if isinstance(query, exp.Select) else []
    if any(isinstance(node, exp.TableAlias) and node.columns for node in nodes):
        return True  # the names are others further out
    names = {column.name.lower() for item in items for column in item.find_all(exp.Column, exp.Star)}
    named = [node for node in nodes if isinstance(node, exp.Alias) and names & {node.alias.lower(), "*"}]
    return any(item.find(exp.RowNumber) is not None for item in (*items, *named))


def removes_doubles(parts: Iterable[exp.Expr], target: Source, others: Sequence[Source]) -> bool:
    """Whether ``parts`` tie a table to itself by one column, and keep by another one the first or last row of each kind."""
    if len(others) != 1 or others[0].table != target.table or others[0].query is not None:
        return False
    known_as = {*target.known_as} - others[0].known_as, others[0].known_as
    same: set[str] = set()
    ordered: set[str] = set()
    for part in parts:
        one, two = (part.this, part.expression) if isinstance(part, exp.EQ | exp.LT | exp.GT) else (None, None)
        if isinstance(one, exp.Column) and isinstance(two, exp.Column) and one.name.lower() == two.name.lower():
            tables = one.table.lower(), two.table.lower()
            if all(any(table in names for table in tables) for names in known_as):
                (same if isinstance(part, exp.EQ) else ordered).add(one.name.lower())
    return bool(same - ordered and ordered - same)
