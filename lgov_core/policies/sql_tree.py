"""What a statement does, read off its syntax tree: kinds of statements in it, tables, functions, unbounded writes."""

from __future__ import annotations

from collections.abc import Container, Iterator

from sqlglot import exp

#: Node classes that are statements, or turn a reading statement into one that is not, and the kind they stand for.
_KIND_OF_CLASS = {
    "Select": "SELECT",
    "Union": "SELECT",
    "Intersect": "SELECT",
    "Except": "SELECT",
    "Values": "VALUES",
    "Insert": "INSERT",
    "MultitableInserts": "INSERT",
    "Update": "UPDATE",
    "Delete": "DELETE",
    "Merge": "MERGE",
    "Create": "CREATE",
    "Drop": "DROP",
    "Alter": "ALTER",
    "AlterColumn": "ALTER",
    "TruncateTable": "TRUNCATE",
    "Into": "CREATE",
    "Copy": "COPY",
    "Attach": "ATTACH",
    "Detach": "DETACH",
    "Pragma": "PRAGMA",
    "Set": "SET",
    "SetItem": "SET",
    "Lock": "FOR UPDATE",
    "Use": "USE",
    "Kill": "KILL",
    "Grant": "GRANT",
    "Revoke": "REVOKE",
    "LoadData": "LOAD",
    "Analyze": "ANALYZE",
    "Describe": "DESCRIBE",
    "Show": "SHOW",
    "Comment": "COMMENT",
    "Transaction": "TRANSACTION",
    "Commit": "TRANSACTION",
    "Rollback": "TRANSACTION",
    "Refresh": "REFRESH",
    "Cache": "SET",
    "Uncache": "SET",
    "Export": "EXPORT",
    "Put": "COPY",
    "Get": "COPY",
    "Directory": "EXPORT",
    "Execute": "EXECUTE",
    "ExecuteSql": "EXECUTE",
    "Command": "COMMAND",
    "Declare": "DECLARE",
    "Block": "DECLARE",
    "IfBlock": "DECLARE",
    "CaseStatement": "DECLARE",
    "WhileBlock": "DECLARE",
    "LoopBlock": "DECLARE",
    "RepeatBlock": "DECLARE",
    "EndStatement": "DECLARE",
    "StoredProcedure": "CALL",
    "Install": "INSTALL",
    "Undrop": "UNDROP",
    "NextValueFor": "UPDATE",
    "QueryBand": "SET",
    "AlterSession": "SET",
    "Semicolon": "COMMAND",
    "QueryTransform": "EXECUTE",
}
_PLAIN_PROPERTIES = (exp.TemporaryProperty, exp.LikeProperty, exp.StrictProperty)

ROOTS = (exp.Select, exp.SetOperation, exp.Subquery, exp.Values, exp.Insert, exp.Update, exp.Delete, exp.Create)


def kinds(node: exp.Expr) -> Iterator[str]:
    """The kinds of statement that this one node stands for; an upsert and a replacing insert change rows as well."""
    kind = _KIND_OF_CLASS.get(type(node).__name__)
    if kind is not None:
        yield kind
    if isinstance(node, exp.Insert):
        if str(node.args.get("alternative") or "").upper() == "REPLACE":
            yield from ("REPLACE", "UPDATE", "DELETE")
        if node.args.get("overwrite"):
            yield "TRUNCATE"
        if node.args.get("is_function"):
            yield "EXPORT"
    elif isinstance(node, exp.OnConflict):
        if "UPDATE" in str(node.args.get("action") or "").upper() or node.expressions:
            yield "UPDATE"
    elif isinstance(node, exp.Create) and node.args.get("replace"):
        yield "DROP"
    elif isinstance(node, exp.PropertyEQ):
        if isinstance(node.this, exp.Parameter | exp.SessionParameter):
            yield "SET"
    elif isinstance(node, exp.Query) and node.args.get("settings"):
        yield "SET"


def table_names(node: exp.Expr) -> Iterator[tuple[str, str, str]]:
    """The (catalog, schema, table) names, in lower case, that this one node refers to; what is left out is empty.

    SQLite also reads a table named in ``x IN name``, and takes quoted text for a name there. BigQuery takes several parts
    in one pair of quotes.
    """
    if isinstance(node, exp.Table):
        name = _last_name(node.this)
        if "." in name and "information_schema" in name.lower():
            *before, name = name.split(".")
            yield ".".join((node.catalog, node.db, *before[:-1])).lower(), before[-1].lower(), name.lower()
            return
        yield node.catalog.lower(), node.db.lower(), name.lower()
    elif isinstance(node, exp.In) and (field := node.args.get("field")) is not None:
        if isinstance(field, exp.Column):
            yield "", field.table.lower(), field.name.lower()
        elif isinstance(field, exp.Expr):
            yield "", "", _last_name(field).lower()


def _last_name(inner: object) -> str:
    if isinstance(inner, exp.Dot):
        return _last_name(inner.expression)
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


def count_innocent(tree: exp.Expr, names: Container[str]) -> int:
    """How many identifiers of ``tree`` have one of ``names`` (in lower case) and are no reference to a table."""
    return sum(1 for found in tree.find_all(exp.Identifier) if found.name.lower() in names and is_innocent(found))


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


def unknown_function(node: exp.Expr) -> str | None:
    """The name, in lower case, of a function that the parser knows nothing about; None for any other node."""
    return node.name.lower() if isinstance(node, exp.Anonymous) else None


def is_plain_create(create: exp.Create) -> bool:
    """Whether a CREATE makes an ordinary table, view or index and replaces nothing."""
    if str(create.args.get("kind") or "").upper() not in ("TABLE", "VIEW", "INDEX") or create.args.get("replace"):
        return False
    if create.args.get("clone") is not None:
        return False
    properties = create.args.get("properties")
    return properties is None or all(isinstance(found, _PLAIN_PROPERTIES) for found in properties.expressions)
