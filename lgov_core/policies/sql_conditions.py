"""The parts of a condition, and what they speak of."""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

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
    """The operands of a chain of ORs, without recursion."""
    pending: list[object] = [disjunction]
    while pending:
        part = pending.pop()
        if isinstance(part, exp.Or):
            pending.extend((part.this, part.expression))
        else:
            yield part


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


def counts_up(function: exp.Func) -> bool:
    """Whether a function gives numbers (or dates) one after the other."""
    if isinstance(function, exp.GenerateSeries | exp.GenerateDateArray | exp.GenerateTimestampArray | exp.Generator):
        return True
    return isinstance(function, exp.Anonymous) and function.name.lower() in _COUNTERS
