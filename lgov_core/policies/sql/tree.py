"""What a statement does, read off its syntax tree: kinds of statements in it, tables, functions, what a CREATE makes."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator
from functools import cache

from sqlglot import exp

from lgov_core.policies.options import names as words

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
#: Functions that the parser has a class for and that do more than compute: models elsewhere, files, secrets, names as text.
_DANGEROUS_FUNCTION = re.compile(
    r"AI\w+|ML\w+|Generate(?:Text|Table|Embedding|Bool|Double|Int)|Predict|FeaturesAtTime|Secret|ReadCSV|ReadParquet|ToFile"
    r"|DynamicIdentifier"
)
#: Reserved words of DuckDB that begin statements, also in the place of a table.
_NO_TABLES = frozenset({"SHOW", "DESCRIBE", "SUMMARIZE", "PIVOT", "UNPIVOT"})
#: Hints to SQL Server that take locks which others wait for.
_LOCKING_HINTS = frozenset(words("TABLOCKX TABLOCK XLOCK UPDLOCK HOLDLOCK SERIALIZABLE REPEATABLEREAD PAGLOCK ROWLOCK"))
#: What a plain CREATE may say of its table: how its rows are kept, ordered and spread, in which characters.
_PLAIN_PROPERTIES = (
    exp.TemporaryProperty, exp.LikeProperty, exp.StrictProperty, exp.UnloggedProperty, exp.TransientProperty,
    exp.OnCommitProperty, exp.CharacterSetProperty, exp.CollateProperty, exp.AutoIncrementProperty, exp.RowFormatProperty,
    exp.SchemaCommentProperty, exp.PartitionedByProperty, exp.ClusterProperty, exp.DistKeyProperty, exp.DistStyleProperty,
    exp.SortKeyProperty, exp.Order, exp.PrimaryKey,
)  # fmt: skip
#: Engines that keep a table's rows in the database itself.
_OWN_ENGINES = frozenset(
    words(
        "innodb myisam aria memory heap mergetree replacingmergetree summingmergetree aggregatingmergetree"
        " collapsingmergetree versionedcollapsingmergetree log tinylog stripelog"
    )
)
#: Formats of the files in which a warehouse keeps a table's rows, in a place of its own unless one is named.
_OWN_FORMATS = frozenset(words("parquet orc avro delta iceberg"))
#: What a plain CREATE may make; the last two are indexes of SQL Server.
_CREATABLE = frozenset({"TABLE", "VIEW", "INDEX", "CLUSTERED INDEX", "NONCLUSTERED INDEX"})

ROOTS = (
    exp.Select,
    exp.SetOperation,
    exp.Subquery,
    exp.Values,
    exp.Insert,
    exp.Update,
    exp.Delete,
    exp.Merge,
    exp.Create,
)
#: Settings of a query in ClickHouse that only say how it is answered.
_PLAIN_SETTINGS = frozenset(
    words("max_threads max_block_size join_algorithm join_use_nulls final optimize_read_in_order use_query_cache")
)
#: Properties of a table in Trino that say how its rows are spread over files, and not where these lie.
_TRINO_PROPERTIES = frozenset(words("partitioning partitioned_by sorted_by bucketed_by bucket_count format_version"))


def kinds(node: exp.Expr) -> tuple[str, ...]:
    """The kinds of statement that this one node stands for; an upsert and a replacing insert change rows as well."""
    kind = _KIND_OF_CLASS.get(type(node).__name__)
    further = _FURTHER.get(type(node))
    own = () if kind is None else (kind,)
    return own if further is None else own + tuple(further(node))


def _of_insert(node: exp.Expr) -> Iterator[str]:
    if str(node.args.get("alternative") or "").upper() == "REPLACE" or node.args.get("using"):
        yield from ("REPLACE", "UPDATE", "DELETE")
    if node.args.get("where"):  # INSERT INTO ... REPLACE WHERE
        yield "DELETE"
    if node.args.get("overwrite") or _empties_an_index(node):
        yield "TRUNCATE"
    if node.args.get("is_function"):
        yield "EXPORT"


def _empties_an_index(node: exp.Expr) -> bool:
    """Whether it is what SQLite's full-text index takes for a command: ``INSERT INTO docs(docs) VALUES ('delete-all')``."""
    schema = node.this
    if not isinstance(schema, exp.Schema) or not isinstance(schema.this, exp.Table):
        return False
    itself = schema.this.name.lower()
    return any(column.name.lower() == itself for column in schema.expressions) and any(
        literal.name.lower() == "delete-all" for literal in node.expression.find_all(exp.Literal)
    )


def _of_conflict(node: exp.Expr) -> Iterator[str]:
    if "UPDATE" in str(node.args.get("action") or "").upper() or node.expressions:
        yield "UPDATE"


def _of_create(node: exp.Expr) -> Iterator[str]:
    if node.args.get("replace"):
        yield "DROP"


def _of_select(node: exp.Expr) -> Iterator[str]:
    settings = node.args.get("settings") or []
    if not all(isinstance(one, exp.EQ) and one.this.name.lower() in _PLAIN_SETTINGS for one in settings):
        yield "SET"


def _of_assignment(node: exp.Expr) -> Iterator[str]:
    if isinstance(node.this, exp.Parameter):
        yield "SET"


def _of_hint(node: exp.Expr) -> Iterator[str]:
    if any(hint.name.upper() in _LOCKING_HINTS for hint in node.expressions):
        yield "FOR UPDATE"


def _of_column(node: exp.Expr) -> Iterator[str]:
    if isinstance(node, exp.Column) and node.table and node.name.lower() == "nextval":
        yield "UPDATE"  # a sequence moves


_FURTHER: dict[type[exp.Expr], Callable[[exp.Expr], Iterator[str]]] = {
    exp.Insert: _of_insert,
    exp.OnConflict: _of_conflict,
    exp.Create: _of_create,
    exp.Select: _of_select,
    exp.PropertyEQ: _of_assignment,
    exp.WithTableHint: _of_hint,
    exp.Column: _of_column,
}


def removed_first(insert: exp.Insert) -> exp.Delete | None:
    """What ``INSERT INTO table REPLACE WHERE condition`` deletes before it inserts; None for another INSERT."""
    condition = insert.args.get("where")
    if not isinstance(condition, exp.Expr):
        return None
    table = insert.this.this if isinstance(insert.this, exp.Schema) else insert.this
    return exp.Delete(this=table.copy(), where=exp.Where(this=condition.copy()))


def changes(insert: exp.Insert) -> set[str]:
    """The kinds of change that an INSERT may make to rows that are there already."""
    conflict = insert.args.get("conflict")
    return {*_of_insert(insert), *(_of_conflict(conflict) if isinstance(conflict, exp.Expr) else ())}


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
            yield "", _last_name(field).lower()
    elif isinstance(node, exp.Summarize) and isinstance(node.this, exp.Literal):
        yield "", node.this.name.lower()


def is_misread(node: exp.Expr) -> bool:
    """Whether the parser takes a word for a table's name that begins a statement of DuckDB and names nothing there."""
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
        yield _last_name(inner.this)
        inner = inner.expression
    yield _last_name(inner)


def _last_name(inner: object) -> str:
    if isinstance(inner, exp.Dot):
        return _last_name(inner.expression)
    if isinstance(inner, exp.DirectoryStage):
        return _last_name(inner.this)
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


def unknown_function(node: exp.Expr) -> tuple[str, str] | None:
    """The qualifier and the name, in lower case, of a function that the parser knows nothing about.

    None for any other node. A function with a qualifier is somebody's own, whatever it is called.
    """
    if isinstance(node, exp.Anonymous):
        parent = node.parent
        if isinstance(parent, exp.Dot) and node.arg_key == "expression":
            return _last_name(parent.this).lower(), node.name.lower()
        return (parent.db.lower() if isinstance(parent, exp.Table) else ""), node.name.lower()
    inner = node.expression if isinstance(node, exp.Dot) else node.this if isinstance(node, exp.Table) else None
    if isinstance(inner, exp.Func) and not isinstance(inner, exp.Anonymous):
        qualifier = _last_name(node.this) if isinstance(node, exp.Dot) else node.text("db")
        return (qualifier.lower(), inner.sql_name().lower()) if qualifier else None
    return None


def strange_columns(nodes: Iterable[exp.Expr]) -> Iterator[tuple[str, str]]:
    """The qualifier and the name (lower case) of what looks like a column, of no table that the statement reads.

    To Oracle that is a function of a package, which needs no parentheses.
    """
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


def dangerous_function(node: exp.Expr) -> str | None:
    """The name of a function that does more than compute, when the parser has a class for it."""
    return node.key if isinstance(node, exp.Func) and _DANGEROUS_FUNCTION.fullmatch(type(node).__name__) else None


_CHECKED = (
    exp.Table, exp.TableFromRows, exp.Summarize, exp.In, exp.Update, exp.Delete, exp.Merge, exp.Create, exp.Anonymous,
    exp.Dot, exp.OnConflict, exp.WithTableHint, exp.PropertyEQ,
)  # fmt: skip


@cache
def _needs_a_look(kind: type[exp.Expr]) -> bool:
    return (
        kind.__name__ in _KIND_OF_CLASS
        or issubclass(kind, _CHECKED)
        or (issubclass(kind, exp.Func) and _DANGEROUS_FUNCTION.fullmatch(kind.__name__) is not None)
    )


def nodes_of(tree: exp.Expr) -> list[exp.Expr]:
    """All nodes of ``tree``, each before those within it."""
    found = [tree]
    for node in found:  # grows meanwhile
        for value in node.args.values():
            if isinstance(value, exp.Expr):
                found.append(value)
            elif type(value) is list:
                found.extend([item for item in value if isinstance(item, exp.Expr)])
    return found


def nodes_of_interest(nodes: Iterable[exp.Expr], *, columns: bool) -> list[exp.Expr]:
    """Those of which any question here has another answer than no; ``columns``: columns as well."""
    return [node for node in nodes if _needs_a_look(type(node)) or (columns and isinstance(node, exp.Column))]


def take_apart(nodes: Iterable[exp.Expr]) -> None:
    """Ends the use of a tree, given all its nodes.

    Each node refers to the one around it, so that none is freed before the garbage collector comes by. On the path of
    every new statement that would be a fifth of the cost, and most of its pauses.
    """
    for node in nodes:
        node.parent = None


def is_part_of_merge(node: exp.Expr) -> bool:
    """Whether an INSERT, UPDATE or DELETE is what a MERGE does with a row."""
    return isinstance(node.parent, exp.When)


def merge_removes(merge: exp.Merge) -> bool:
    """Whether a MERGE may delete rows, or changes rows that it finds no source for."""
    for when in merge.find_all(exp.When):
        then = when.args.get("then")
        if not isinstance(then, exp.Insert | exp.Update) or when.args.get("source"):
            return True
        if isinstance(then, exp.Update) and not when.args.get("matched"):
            return True
    return False


def is_plain_create(create: exp.Create) -> bool:
    """Whether a CREATE makes an ordinary table, view or index and replaces nothing."""
    if str(create.args.get("kind") or "").upper() not in _CREATABLE or create.args.get("replace"):
        return False
    if create.args.get("clone") is not None:
        return False
    properties = create.args.get("properties")
    return properties is None or all(
        isinstance(found, _PLAIN_PROPERTIES)
        or (isinstance(found, exp.EngineProperty) and _last_name(found.this).lower() in _OWN_ENGINES)
        or (isinstance(found, exp.FileFormatProperty) and found.name.lower() in _OWN_FORMATS)
        or (isinstance(found, exp.Property) and found.name.lower() in _TRINO_PROPERTIES)
        for found in properties.expressions
    )
