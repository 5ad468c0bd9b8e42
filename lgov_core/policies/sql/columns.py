"""Whether a statement may read or write a protected column.

Nothing is known about the tables, so whatever may reach the column counts: its name in a statement on its table, unless
it is qualified by another table; every column at once (``*``, a row as a value, an INSERT that names no columns); names
for columns that a table alias gives anew; columns by their number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

from sqlglot import exp

from lgov_core.policies.sql.rules import folded, may_mean, stored_name
from lgov_core.policies.sql.tree import is_from_query, table_names

#: SQLite's names for the row's number, which an integer primary key is another name for; SQL Server's for key columns.
_ROW_NUMBERS = frozenset({"rowid", "oid", "_rowid_", "$identity", "$rowguid"})


def reached_column(tree: exp.Expr, protected: Sequence[tuple[str, str]], dialect: str) -> str | None:
    """The first protected column that ``tree`` may touch, as ``table.column``; None when it touches none.

    ``protected`` are pairs of globs, for the table and for the column.
    """
    tables = [
        (node, *stored_name(schema, table, dialect))
        for node in tree.walk()
        for schema, table in table_names(node)
        if not is_from_query(node, table)
    ]
    for table_glob, column_glob in protected:
        reached = [node for node, schema, table in tables if may_mean(table_glob, schema, table)]
        if reached and (
            _touches(tree, reached, [node for node, _, _ in tables], column_glob) or _counts_columns(tree, dialect)
        ):
            return f"{table_glob}.{column_glob}"
    return None


def _touches(tree: exp.Expr, reached: list[exp.Expr], tables: list[exp.Expr], glob: str) -> bool:
    known_as = {folded(node.alias_or_name) for node in reached} | {folded(node.name) for node in reached}
    elsewhere = {folded(node.alias_or_name) for node in tables if node not in reached} - known_as
    elsewhere |= {folded(node.alias_or_name) for node in tree.find_all(exp.Subquery)} - known_as
    elsewhere |= {folded(node.alias_or_name) for node in tree.find_all(exp.CTE)} - known_as
    if any(_takes_all(node) for node in reached):
        return True
    for node in tree.walk():
        if isinstance(node, exp.Star):
            if _star_reaches(node, reached, known_as, elsewhere) and not _excluded(node, glob):
                return True
        elif (
            isinstance(node, exp.Columns)
            or (isinstance(node, exp.Join) and node.method.upper() == "NATURAL")
            or (isinstance(node, exp.Identifier) and _names_it(node, glob, known_as, elsewhere))
        ):
            return True
    return False


def _counts_columns(tree: exp.Expr, dialect: str) -> bool:
    """Whether a column is named by its number: ``#2`` in DuckDB, ``$2`` in Snowflake."""
    if dialect == "snowflake":
        return any(isinstance(found.this, exp.Literal) for found in tree.find_all(exp.Parameter))
    return tree.find(exp.PositionalColumn) is not None


def _takes_all(node: exp.Expr) -> bool:
    """Whether a protected table is used as a whole: renamed columns, ``x IN table``, PIVOT, an INSERT without columns."""
    if not isinstance(node, exp.Table):
        return True
    alias = node.args.get("alias")
    if isinstance(alias, exp.TableAlias) and alias.args.get("columns"):
        return True
    parent = node.parent
    return isinstance(parent, exp.Insert | exp.Pivot | exp.Summarize) and node.arg_key == "this"


def _star_reaches(star: exp.Star, reached: list[exp.Expr], known_as: set[str], elsewhere: set[str]) -> bool:
    parent = star.parent
    if isinstance(parent, exp.Count) or (isinstance(parent, exp.Anonymous) and parent.name.lower() == "count"):
        return False
    if isinstance(parent, exp.Column):
        return folded(parent.table) not in elsewhere
    if isinstance(parent, exp.Select) and star.arg_key == "expressions":
        direct = set(map(id, _direct(parent)))
        return any(id(node) in direct for node in reached)
    return bool(known_as)


def _direct(select: exp.Select) -> Iterator[exp.Expr]:
    """What a query reads from directly, joins included."""
    pending: list[object] = [
        select.args.get("from_"),
        *(select.args.get("joins") or []),
        *(select.args.get("laterals") or []),
    ]
    while pending:
        node = pending.pop()
        if isinstance(node, exp.From | exp.Join | exp.Paren):
            pending.append(node.this)
        elif isinstance(node, exp.Table):
            yield node
            pending.extend(node.args.get("joins") or [])
        elif isinstance(node, exp.Subquery):
            if not isinstance(node.this, exp.Query):
                pending.append(node.this)
            pending.extend(node.args.get("joins") or [])


def _excluded(star: exp.Star, glob: str) -> bool:
    """Whether ``* EXCEPT (...)`` leaves the column out by its full name."""
    if set(glob) & set("*?["):
        return False
    return any(folded(item.name) == glob for item in star.args.get("except_") or [])


def _names_it(identifier: exp.Identifier, glob: str, known_as: set[str], elsewhere: set[str]) -> bool:
    name, parent, place = folded(identifier.name), identifier.parent, identifier.arg_key
    if isinstance(parent, exp.Column):
        if place != "this":
            return False
        if isinstance(parent.parent, exp.Star):
            return False  # in EXCEPT
        if name in known_as and not parent.table:
            return True  # the whole row as a value
        meant = name in _ROW_NUMBERS or fnmatchcase(name, glob)
        return meant and not (parent.table and folded(parent.table) in elsewhere)
    if isinstance(parent, exp.Table | exp.TableAlias) or (isinstance(parent, exp.Alias) and place == "alias"):
        return False
    return fnmatchcase(name, glob)
