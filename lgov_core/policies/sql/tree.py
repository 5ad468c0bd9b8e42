"""Tables and functions that a syntax tree names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from sqlglot import exp

from lgov_core.policies.sql.names import pattern, words

_NO_TABLES = frozenset({"SHOW", "DESCRIBE", "SUMMARIZE", "PIVOT", "UNPIVOT"})


def table_names(node: exp.Expr) -> Iterator[tuple[str, str]]:
    """The (schema, table) names, in lower case, that this one node refers to; schema is empty when it is left out.

    SQLite also reads a table named in ``x IN name``, and takes quoted text for a name there.
    """
    if isinstance(node, exp.Table):
        *schema, table = (part.lower() for part in _parts(node))
        yield ".".join(schema), table
    elif isinstance(node, exp.In) and (field := node.args.get("field")) is not None:
        if isinstance(field, exp.Column):
            yield field.table.lower(), field.name.lower()
        elif isinstance(field, exp.Expr):
            yield "", last_name(field).lower()
    elif isinstance(node, exp.Summarize) and isinstance(node.this, exp.Literal):
        yield "", node.this.name.lower()


def is_misread(node: exp.Expr) -> bool:
    """Whether the parser takes for a table's name what begins a statement of DuckDB, also in the place of a table."""
    inner = node.this if isinstance(node, exp.Table) and not node.db else None
    return isinstance(inner, exp.Identifier) and not inner.quoted and inner.name.upper() in _NO_TABLES


def _parts(table: exp.Table) -> Iterator[str]:
    """The parts of a table's name, from the outermost in; one may hold dots itself."""
    if table.args.get("catalog"):
        yield table.catalog
    if table.args.get("db"):
        yield table.db
    inner = table.this
    while isinstance(inner, exp.Dot):
        yield last_name(inner.this)
        inner = inner.expression
    yield last_name(inner)


def last_name(inner: object) -> str:
    """The last part of a name, which may be a function's."""
    if isinstance(inner, exp.Dot):
        return last_name(inner.expression)
    if isinstance(inner, exp.DirectoryStage):
        return last_name(inner.this)
    if isinstance(inner, exp.Anonymous):
        return inner.name
    if isinstance(inner, exp.Func):
        return inner.sql_name()
    return inner.name if isinstance(inner, exp.Expr) else str(inner or "")


def is_innocent(identifier: exp.Identifier) -> bool:
    """Whether an identifier names a column or a label, where the same name would not refer to a table."""
    parent, place = identifier.parent, identifier.arg_key
    if isinstance(parent, exp.Column):
        return place == "this" and not (isinstance(parent.parent, exp.In) and parent.arg_key == "field")
    if isinstance(parent, exp.Alias):
        return place == "alias"
    if isinstance(parent, exp.TableAlias):
        return place == "columns"
    if isinstance(parent, exp.Join):
        return place == "using"
    if isinstance(parent, exp.Schema | exp.PrimaryKey | exp.ForeignKey):
        return place == "expressions"
    return isinstance(parent, exp.ColumnDef) and place == "this"


def is_from_query(node: exp.Expr, table: str) -> bool:
    """Whether a reference to ``table`` (lower case) is to a function, an index, or a WITH query that it can see.

    A query sees the WITH queries of the queries around it; a WITH query sees those before it, and all when RECURSIVE.
    """
    if isinstance(node, exp.Table) and (isinstance(node.this, exp.Func) or node.arg_key == "indexed"):
        return True
    if not isinstance(node, exp.Table) or node.db:
        return False
    child, parent = node, node.parent
    within: exp.Expr | None = None  # the WITH query that holds the node, on the way through its WITH
    while parent is not None:
        if isinstance(child, exp.CTE):
            within = child
        with_ = parent.args.get("with_")
        if isinstance(with_, exp.With):
            inside = child is with_
            for query in with_.expressions:
                if inside and query is within and not with_.args.get("recursive"):
                    break
                if query.alias.lower() == table:
                    return True
        child, parent = parent, parent.parent
    return False


def unknown_function(node: exp.Expr) -> tuple[str, str] | None:
    """The qualifier and the name, in lower case, of a function that the parser knows nothing about.

    None for any other node. A function with a qualifier is user-defined, whatever it is called.
    """
    if isinstance(node, exp.Anonymous):
        parent = node.parent
        if isinstance(parent, exp.Dot) and node.arg_key == "expression":
            return last_name(parent.this).lower(), node.name.lower()
        return (parent.db.lower() if isinstance(parent, exp.Table) else ""), node.name.lower()
    inner = node.expression if isinstance(node, exp.Dot) else node.this if isinstance(node, exp.Table) else None
    if isinstance(inner, exp.Func) and not isinstance(inner, exp.Anonymous):
        qualifier = last_name(node.this) if isinstance(node, exp.Dot) else node.text("db")
        return (qualifier.lower(), inner.sql_name().lower()) if qualifier else None
    return None


def strange_columns(nodes: Iterable[exp.Expr]) -> Iterator[tuple[str, str]]:
    """The qualifier and the name (lower case) of what looks like a column, of no table that the statement reads.

    To Oracle that is a function, or one of a package, which needs no parentheses.
    """
    nodes = list(nodes)
    tables = {node.name.lower() for node in nodes if isinstance(node, exp.Table)}
    given = {node.alias.lower() for node in nodes if isinstance(node, exp.Alias)} | {"dummy"} | words("not_columns")
    known: set[str] = set()
    columns: list[exp.Column] = []
    for node in nodes:
        if isinstance(node, exp.Column):
            columns.append(node)
        elif isinstance(node, exp.Table | exp.TableAlias):
            known.add(node.name.lower())
        elif isinstance(node, exp.MatchRecognize):
            known.update(re.findall(r"\w+", str(node.text("pattern")).lower()))
    for column in columns:
        around = {part.name.lower() for part in column.parts[:-1]}
        if around and not around & known:
            yield column.table.lower(), column.name.lower()
        elif not around and tables == {"dual"} and column.name.lower() not in given:
            yield "dual", column.name.lower()


def dangerous_function(node: exp.Expr) -> str | None:
    """The name of a function that does more than compute, when the parser has a class for it."""
    dangerous = isinstance(node, exp.Func) and pattern("dangerous_classes").fullmatch(type(node).__name__)
    return node.key if dangerous else None
