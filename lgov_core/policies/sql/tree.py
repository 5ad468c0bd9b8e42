"""Parses a statement, and reads the syntax tree: its kinds, and the tables, functions and columns that it reaches.

A column counts as reached also where no name says so: every column at once (``*``, a row as a value, an INSERT that names no
columns); names for columns that a table alias gives anew; columns by their number.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from sqlglot import exp

from lgov_core.policies.sql.names import folded, kind_of_class, may_mean, pattern, stored_name, words

if TYPE_CHECKING:
    from sqlglot import Token, exp


Parse = Callable[[str], "tuple[exp.Expr | None, list[Token]]"]

#: How many nodes the parser may make, in all its attempts. It tries some texts in both of two ways at each step (joins
#: without ON among them), which doubles the work each time; an ordinary text takes two nodes a token.
_NODES, _NODES_OF_TOKEN = 2_000, 8

_READING: ContextVar[bool] = ContextVar("lgov_reads_sql", default=False)


def _not_of_a_policy(_record: logging.LogRecord) -> bool:
    """The filter of the parser's log: a policy says in its decision what it cannot read."""
    return not _READING.get()


class TooMuchWork(Exception):
    """The parser gave up, though the text may be SQL."""


def make_parser(dialect: str) -> tuple[Parse, frozenset[str]]:
    """A parser, and the dialect's keywords in lower case.

    The parser goes from the text of one statement to its tree (None: not understood) and its tokens, each with its
    ``text`` and the places of its first and last character, ``start`` and ``end``. It raises `TooMuchWork`, and may raise
    RecursionError.
    """
    from sqlglot import exp
    from sqlglot.dialects.dialect import Dialect
    from sqlglot.errors import ErrorLevel, ParseError, SqlglotError

    reader = Dialect.get_or_raise(dialect)
    logging.getLogger("sqlglot").addFilter(_not_of_a_policy)

    def parse(text: str) -> tuple[exp.Expr | None, list[Token]]:
        reading = _READING.set(True)
        try:
            tokens = reader.tokenize(text)
            most = _NODES + _NODES_OF_TOKEN * len(tokens)
            trees = reader.parser(error_level=ErrorLevel.IMMEDIATE, max_nodes=most).parse(tokens, text)
        except ParseError as error:
            if "Maximum number of AST nodes" in str(error):
                raise TooMuchWork from error
            return None, []
        except (SqlglotError, ValueError, TypeError, AttributeError, KeyError, IndexError):
            return None, []  # the parser's own slips on odd text count as text that it does not understand
        finally:
            _READING.reset(reading)
        tree = trees[0] if len(trees) == 1 else None
        if tree is not None and dialect == "clickhouse":
            for node in tree.find_all(exp.In):  # ClickHouse reads ``x IN (name)`` as ``x IN name``, a table's
                if len(node.expressions) == 1 and (name := node.expressions[0]).key == "column":
                    node.set("expressions", [])
                    node.set("field", name)
        return tree, tokens

    return parse, frozenset(word.lower() for keyword in reader.tokenizer_class.KEYWORDS for word in keyword.split())


_NO_TABLES = frozenset({"SHOW", "DESCRIBE", "SUMMARIZE", "PIVOT", "UNPIVOT"})


def table_names(node: exp.Expr) -> Iterator[tuple[str, str]]:
    """The (schema, table) names, in lower case, that this one node refers to; schema is empty when it is left out.

    SQLite also reads a table named in ``x IN name``, and takes quoted text for a name there.
    """
    if isinstance(node, exp.Table):
        *schema, table = (name.lower() for name in _parts(node))
        yield ".".join(schema), table
    elif isinstance(node, exp.In) and (field := node.args.get("field")) is not None:
        if isinstance(field, exp.Column):
            yield field.table.lower(), field.name.lower()
        elif isinstance(field, exp.Expr):
            yield "", last_name(field).lower()
    elif isinstance(node, exp.Summarize) and isinstance(node.this, exp.Literal):
        yield "", node.this.name.lower()


def is_misread(node: exp.Expr) -> bool:
    """Returns whether the parser takes for a table's name what begins a statement of DuckDB, also in the place of a table."""
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
    """Returns whether an identifier names a column or a label, where the same name would not refer to a table."""
    parent, role = identifier.parent, identifier.arg_key
    if isinstance(parent, exp.Column):
        return role == "this" and not (isinstance(parent.parent, exp.In) and parent.arg_key == "field")
    if isinstance(parent, exp.Alias):
        return role == "alias"
    if isinstance(parent, exp.TableAlias):
        return role == "columns"
    if isinstance(parent, exp.Join):
        return role == "using"
    if isinstance(parent, exp.Schema | exp.PrimaryKey | exp.ForeignKey):
        return role == "expressions"
    return isinstance(parent, exp.ColumnDef) and role == "this"


def is_from_query(node: exp.Expr, table: str) -> bool:
    """Returns whether a reference to ``table`` (lower case) is to a function, an index, or a WITH query that it can see.

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
    not_columns = (
        {node.alias.lower() for node in nodes if isinstance(node, exp.Alias)} | {"dummy"} | words("not_columns")
    )
    qualifiers: set[str] = set()
    columns: list[exp.Column] = []
    for node in nodes:
        if isinstance(node, exp.Column):
            columns.append(node)
        elif isinstance(node, exp.Table | exp.TableAlias):
            qualifiers.add(node.name.lower())
        elif isinstance(node, exp.MatchRecognize):
            qualifiers.update(re.findall(r"\w+", str(node.text("pattern")).lower()))
    for column in columns:
        around = {qualifier.name.lower() for qualifier in column.parts[:-1]}
        if around and not around & qualifiers:
            yield column.table.lower(), column.name.lower()
        elif not around and tables == {"dual"} and column.name.lower() not in not_columns:
            yield "dual", column.name.lower()


def dangerous_function(node: exp.Expr) -> str | None:
    """The name of a function that does more than compute, when the parser has a class for it."""
    dangerous = isinstance(node, exp.Func) and pattern("dangerous_classes").fullmatch(type(node).__name__)
    return node.key if dangerous else None


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
        if not all(
            isinstance(setting, exp.EQ) and setting.this.name.lower() in words("plain_settings") for setting in settings
        ):
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
    """True for what SQLite's full-text index takes for a command: ``INSERT INTO docs(docs) VALUES ('delete-all')``."""
    schema = node.this
    if not isinstance(schema, exp.Schema) or not isinstance(schema.this, exp.Table):
        return False
    itself = schema.this.name.lower()
    return any(column.name.lower() == itself for column in schema.expressions) and any(
        literal.name.lower() == "delete-all" for literal in node.expression.find_all(exp.Literal)
    )


def removed_first(insert: exp.Insert) -> exp.Delete | None:
    """The deletion that ``INSERT INTO table REPLACE WHERE condition`` makes before it inserts; None for another INSERT."""
    condition = insert.args.get("where")
    if not isinstance(condition, exp.Expr):
        return None
    table = insert.this.this if isinstance(insert.this, exp.Schema) else insert.this
    return exp.Delete(this=table.copy(), where=exp.Where(this=condition.copy()))


def changes_rows(insert: exp.Insert) -> bool:
    """Returns whether an INSERT may change rows that are there already."""
    conflict = insert.args.get("conflict")
    return "UPDATE" in (*_of_insert(insert), *(_further(conflict) if isinstance(conflict, exp.Expr) else ()))


def merge_removes(merge: exp.Merge) -> bool:
    """Returns whether a MERGE may delete rows, or changes rows that it finds no source for."""
    for when in merge.find_all(exp.When):
        then = when.args.get("then")
        if not isinstance(then, exp.Insert | exp.Update) or when.args.get("source"):
            return True
        if isinstance(then, exp.Update) and not when.args.get("matched"):
            return True
    return False


def is_plain_create(create: exp.Create) -> bool:
    """Returns whether a CREATE makes an ordinary table, view or index and replaces nothing."""
    if str(create.args.get("kind") or "").upper() not in _CREATABLE or create.args.get("replace"):
        return False
    if create.args.get("clone") is not None:
        return False
    properties = create.args.get("properties")
    return properties is None or all(
        isinstance(prop, _PLAIN_PROPERTIES)
        or (isinstance(prop, exp.EngineProperty) and last_name(prop.this).lower() in words("own_engines"))
        or (isinstance(prop, exp.FileFormatProperty) and prop.name.lower() in words("own_formats"))
        or (isinstance(prop, exp.Property) and prop.name.lower() in words("trino_properties"))
        for prop in properties.expressions
    )


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
    """Returns whether a column is named by its number: ``#2`` in DuckDB, ``$2`` in Snowflake."""
    if dialect == "snowflake":
        return any(isinstance(parameter.this, exp.Literal) for parameter in tree.find_all(exp.Parameter))
    return tree.find(exp.PositionalColumn) is not None


def _takes_all(node: exp.Expr) -> bool:
    """True where a protected table is used as a whole: renamed columns, ``x IN table``, PIVOT, an INSERT without columns."""
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
    """Yields the tables that a query reads from directly, joins included."""
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
    """Returns whether ``* EXCEPT (...)`` leaves the column out by its full name."""
    if set(glob) & set("*?["):
        return False
    return any(folded(item.name) == glob for item in star.args.get("except_") or [])


def _names_it(identifier: exp.Identifier, glob: str, known_as: set[str], elsewhere: set[str]) -> bool:
    name, parent, role = folded(identifier.name), identifier.parent, identifier.arg_key
    if isinstance(parent, exp.Column):
        if role != "this":
            return False
        if isinstance(parent.parent, exp.Star):
            return False  # in EXCEPT
        if name in known_as and not parent.table:
            return True  # the whole row as a value
        meant = name in _ROW_NUMBERS or fnmatchcase(name, glob)
        return meant and not (parent.table and folded(parent.table) in elsewhere)
    if isinstance(parent, exp.Table | exp.TableAlias) or (isinstance(parent, exp.Alias) and role == "alias"):
        return False
    return fnmatchcase(name, glob)
