"""Which kinds of statement the nodes of a syntax tree stand for, and which CREATE, INSERT and MERGE are plain."""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

from lgov_core.policies.sql.names import kind_of_class, words
from lgov_core.policies.sql.tree import last_name

ROOTS = (
    exp.Select, exp.SetOperation, exp.Subquery, exp.Values, exp.Insert, exp.Update, exp.Delete, exp.Merge, exp.Create,
)  # fmt: skip
#: What a plain CREATE may say of its table: how its rows are kept, ordered and spread, in which characters.
_PLAIN_PROPERTIES = (
    exp.TemporaryProperty, exp.LikeProperty, exp.StrictProperty, exp.UnloggedProperty, exp.TransientProperty,
    exp.OnCommitProperty, exp.CharacterSetProperty, exp.CollateProperty, exp.AutoIncrementProperty, exp.RowFormatProperty,
    exp.SchemaCommentProperty, exp.PartitionedByProperty, exp.ClusterProperty, exp.DistKeyProperty, exp.DistStyleProperty,
    exp.SortKeyProperty, exp.Order, exp.PrimaryKey,
)  # fmt: skip
#: What a plain CREATE may make; the last two are indexes of SQL Server.
_CREATABLE = frozenset({"TABLE", "VIEW", "INDEX", "CLUSTERED INDEX", "NONCLUSTERED INDEX"})


def kinds(node: exp.Expr) -> tuple[str, ...]:
    """The kinds of statement that this one node stands for; an upsert and a replacing insert change rows as well."""
    kind = kind_of_class().get(type(node).__name__)
    return (*(() if kind is None else (kind,)), *_further(node))


def _further(node: exp.Expr) -> Iterator[str]:
    if isinstance(node, exp.Insert):
        yield from _of_insert(node)
    elif isinstance(node, exp.OnConflict):
        if "UPDATE" in str(node.args.get("action") or "").upper() or node.expressions:
            yield "UPDATE"
    elif isinstance(node, exp.Create) and node.args.get("replace"):
        yield "DROP"
    elif isinstance(node, exp.Select):
        settings = node.args.get("settings") or []
        if not all(isinstance(one, exp.EQ) and one.this.name.lower() in words("plain_settings") for one in settings):
            yield "SET"
    elif isinstance(node, exp.PropertyEQ) and isinstance(node.this, exp.Parameter):
        yield "SET"
    elif isinstance(node, exp.WithTableHint):
        if any(hint.name.lower() in words("locking_hints") for hint in node.expressions):
            yield "FOR UPDATE"
    elif isinstance(node, exp.Column) and node.table and node.name.lower() == "nextval":
        yield "UPDATE"  # a sequence moves


def _of_insert(node: exp.Insert) -> Iterator[str]:
    if str(node.args.get("alternative") or "").upper() == "REPLACE" or node.args.get("using"):
        yield from ("REPLACE", "UPDATE", "DELETE")
    if node.args.get("where"):  # INSERT INTO ... REPLACE WHERE
        yield "DELETE"
    if node.args.get("overwrite") or _empties_an_index(node):
        yield "TRUNCATE"
    if node.args.get("is_function"):
        yield "EXPORT"


def _empties_an_index(node: exp.Insert) -> bool:
    """Whether it is what SQLite's full-text index takes for a command: ``INSERT INTO docs(docs) VALUES ('delete-all')``."""
    schema = node.this
    if not isinstance(schema, exp.Schema) or not isinstance(schema.this, exp.Table):
        return False
    itself = schema.this.name.lower()
    return any(column.name.lower() == itself for column in schema.expressions) and any(
        literal.name.lower() == "delete-all" for literal in node.expression.find_all(exp.Literal)
    )


def removed_first(insert: exp.Insert) -> exp.Delete | None:
    """What ``INSERT INTO table REPLACE WHERE condition`` deletes before it inserts; None for another INSERT."""
    condition = insert.args.get("where")
    if not isinstance(condition, exp.Expr):
        return None
    table = insert.this.this if isinstance(insert.this, exp.Schema) else insert.this
    return exp.Delete(this=table.copy(), where=exp.Where(this=condition.copy()))


def changes_rows(insert: exp.Insert) -> bool:
    """Whether an INSERT may change rows that are there already."""
    conflict = insert.args.get("conflict")
    return "UPDATE" in (*_of_insert(insert), *(_further(conflict) if isinstance(conflict, exp.Expr) else ()))


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
        or (isinstance(found, exp.EngineProperty) and last_name(found.this).lower() in words("own_engines"))
        or (isinstance(found, exp.FileFormatProperty) and found.name.lower() in words("own_formats"))
        or (isinstance(found, exp.Property) and found.name.lower() in words("trino_properties"))
        for found in properties.expressions
    )
