"""Columns that a statement may reach: names, stars, whole rows, renamings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

from sqlglot import exp

from lgov_core.policies import sql_tree

_ROW_NUMBERS = frozenset({"rowid", "oid", "_rowid_"})


def reached_column(tree: exp.Expr, globs: Sequence[tuple[str, str]]) -> str | None:
    """What in ``tree`` reaches one of the columns (``globs``: of the table's and of the column's name), or may.

    Only where the statement names a fitting table. None when nothing does. A name counts as another table's column only
    when it is qualified with that table; a star, a whole row, and what renames or joins by name count as reaching.
    """
    tables = [node for node in tree.find_all(exp.Table)]
    closed = [
        (column, {found for found in tables if fnmatchcase(_name(found), table)})
        for table, column in globs
        if any(fnmatchcase(_name(found), table) for found in tables)
    ]
    if not closed:
        return None
    fitting = set[exp.Table]().union(*(found for _, found in closed))
    elsewhere = {t.alias_or_name.lower() for t in tables if t not in fitting} - {
        name for t in fitting for name in (t.alias_or_name.lower(), _name(t))
    }
    rows = {name for t in fitting for name in (t.alias_or_name.lower(), _name(t))}
    patterns = [column for column, _ in closed]
    for node in tree.walk():
        found = _reaches(node, patterns, rows, elsewhere, fitting)
        if found is not None:
            return found
    return None


def _reaches(
    node: exp.Expr, patterns: Sequence[str], rows: set[str], elsewhere: set[str], fitting: set[exp.Table]
) -> str | None:
    if isinstance(node, exp.Star):
        around = node.parent
        if isinstance(around, exp.Count) or (isinstance(around, exp.Column) and around.table.lower() in elsewhere):
            return None
        return "*"
    if isinstance(node, exp.Columns):
        return "*"
    if isinstance(node, exp.Join) and str(node.args.get("method") or "").upper() == "NATURAL":
        return "NATURAL JOIN"
    if isinstance(node, exp.Insert) and isinstance(node.this, exp.Table) and node.this in fitting:
        return "INSERT without a list of columns"
    if isinstance(node, exp.Table) and node in fitting:
        if node.args.get("alias") is not None and node.args["alias"].args.get("columns"):
            return "a list of columns beside the table's alias"
        return "the table as a list" if isinstance(node.parent, exp.In) else None
    if isinstance(node, exp.In) and (field := node.args.get("field")) is not None:
        return f"IN {field.name}" if field.name.lower() in rows else None
    if isinstance(node, exp.Identifier):
        return next(_by_name(node, patterns, rows, elsewhere), None)
    return None


def _by_name(node: exp.Identifier, patterns: Sequence[str], rows: set[str], elsewhere: set[str]) -> Iterator[str]:
    name, around, place = node.name.lower(), node.parent, node.arg_key
    if isinstance(around, exp.Table) or (isinstance(around, exp.Alias | exp.TableAlias) and place == "alias"):
        return
    if isinstance(around, exp.TableAlias) and place == "this":
        return
    if isinstance(around, exp.Column):
        if place != "this" or around.table.lower() in elsewhere:
            return
        if not around.table and name in rows:
            yield name  # the whole row
    if name in _ROW_NUMBERS or any(fnmatchcase(name, pattern) for pattern in patterns):
        yield name


def _name(table: exp.Table) -> str:
    return next(name for _, _, name in sql_tree.table_names(table))
