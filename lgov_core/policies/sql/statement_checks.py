"""What SQLPolicy refuses in the syntax tree of one statement. Importing it loads the parser."""

from __future__ import annotations

from sqlglot import exp

from lgov_core.policies.sql import names as sql_names
from lgov_core.policies.sql import tree as sql_tree
from lgov_core.policies.sql import where as sql_where
from lgov_core.policies.sql.columns import reached_column
from lgov_core.policies.sql.kinds import ROOTS, changes_rows, is_plain_create, kinds, merge_removes, removed_first
from lgov_core.policies.sql.refusal import (
    Refusal,
    denied_function,
    denied_statement,
    denied_table,
    unbounded_write,
    unparsable,
)
from lgov_core.policies.sql.rules import Settings, denied_names, folded, may_mean, names, stored_name
from lgov_core.policies.sql.statements import OPENINGS, TRANSACTION_WORDS
from lgov_core.policies.sql.text import MYSQL_FAMILY, Statement
from lgov_core.types import Severity

PLAIN_CREATE = "Only a plain CREATE TABLE, VIEW or INDEX is allowed."
#: Words that name a file where the parser may see an alias, and the dialects that have them.
_FILE_WORDS = frozenset({"infile", "outfile", "dumpfile"})
_FILE_CLAUSES = MYSQL_FAMILY | {"clickhouse"}
#: What ``TABLE(...)`` takes for the name of a table.
_NAMES_AS_VALUES = (exp.Literal, exp.Parameter, exp.Placeholder, exp.SessionParameter)
#: Methods of SQL Server on a column of XML, by a path that is written out, and on a place.
_XML_METHODS = frozenset({"value", "query", "exist", "nodes"})
_PLACE_METHODS = frozenset({"stdistance", "stintersects", "stwithin", "stcontains", "stastext", "starea", "stlength"})
#: Qualifiers of functions that belong to the database and only compute.
_OWN_QUALIFIERS = frozenset({"", "pg_catalog", "safe", "net", "hll_count", "dbms_random"})
_TSQL = ("tsql", "fabric")
_POSTGRES = ("postgres", "redshift", "materialize", "risingwave")
_SAMPLES = ("BERNOULLI", "SYSTEM")


class TreeChecks:
    """The checks of one policy's settings in one dialect. Every method raises `Refusal`; immutable."""

    def __init__(self, settings: Settings, dialect: str, keywords: frozenset[str]) -> None:
        self.settings = settings
        self.dialect = dialect
        self._exactly_denied = {glob for glob in settings.denied_tables if not set(glob) & set("*?[.")} - keywords

    def check(self, statement: Statement, tree: exp.Expr) -> None:
        """Checks every node of ``tree``, which was parsed from ``statement``. May raise `TooMuchWork`."""
        several = self.dialect == "oracle" and isinstance(tree, exp.MultitableInserts)  # INSERT ALL
        if not several and not isinstance(tree, ROOTS):
            raise unparsable("this statement")
        if self.dialect in _FILE_CLAUSES and not _FILE_WORDS.isdisjoint(statement.words):
            raise denied_statement("INFILE and OUTFILE are not allowed.")
        nodes = list(tree.walk())
        for node in nodes:
            self.check_kinds(kinds(node))
            if self.dialect == "duckdb" and sql_tree.is_misread(node):
                raise unparsable("a statement in the place of a table")
            if isinstance(node, exp.TableFromRows) and isinstance(node.this, _NAMES_AS_VALUES):
                raise Refusal("sql-denied-table", "Name the table itself, not by a text or a variable.", Severity.HIGH)
            for schema, table in sql_tree.table_names(node):
                self.check_table(schema, table, listed=not sql_tree.is_from_query(node, table))
            self._check_write(node)
            self._check_function(node)
        if self.dialect == "oracle" and self.settings.mode == "read_only":
            self._check_packages(nodes)
        # A second net: each time the text names a denied table, the tree must show that something else is meant.
        mentioned = [name for name in statement.names if name in self._exactly_denied]
        identifiers = tree.find_all(exp.Identifier) if mentioned else ()
        innocent = [
            one for one in identifiers if one.name.lower() in self._exactly_denied and sql_tree.is_innocent(one)
        ]
        if len(mentioned) > len(innocent):
            raise denied_table(mentioned[0])
        reached = reached_column(tree, self.settings.columns, self.dialect) if self.settings.columns else None
        if reached is not None:
            reason = f"{reached} must not be read or written; name the other columns that you need, with their tables."
            raise Refusal("sql-denied-column", reason, Severity.HIGH)

    def check_kinds(self, found: tuple[str, ...]) -> None:
        """Refuses kinds of statement that are denied by name, that read_only does not know, or that nothing allows."""
        denied, read_only = self.settings.denied_kinds, self.settings.mode == "read_only"
        for kind in found:
            if kind in OPENINGS or (kind in sql_names.READS and kind not in denied):
                continue
            severity = Severity.CRITICAL if kind in sql_names.words("destructive_kinds") else Severity.HIGH
            if read_only and kind not in denied:
                raise Refusal("sql-read-only", f"{kind} is not allowed. Only SELECT is allowed here.", severity)
            if kind in denied or (kind not in sql_names.GUARDED and kind not in TRANSACTION_WORDS):
                raise Refusal("sql-denied-statement", f"{kind} statements are not allowed.", severity)

    def check_called(self, statement: Statement) -> None:
        """Refuses functions and packages that do more than compute, by their names in the text."""
        for function in statement.called:
            if sql_names.is_dangerous(folded(function), self.dialect):
                raise denied_function(function)
        for qualifier in statement.qualifiers:
            if sql_names.pattern("dangerous_packages").fullmatch(folded(qualifier)):
                # Short ones (ml, ai, http) are also names that people give to tables.
                alias = len(qualifier) <= 4 and statement.names.count(qualifier) > statement.qualifiers.count(qualifier)
                if not alias:
                    raise denied_function(qualifier)

    def check_table(self, schema: str, table: str, *, listed: bool = True) -> None:
        """Refuses a table that is denied, of the catalog, or (when ``listed``, a real one) not among ``tables``."""
        tables = self.settings.tables
        schema, table = stored_name(schema, table, self.dialect)
        for name in denied_names(schema, table, self.dialect):
            if any(may_mean(glob, *name) for glob in self.settings.denied_tables):
                raise denied_table(name[1])
        if self.dialect in _TSQL and schema.count(".") > 1:
            reason = f"{schema}.{table} is on another server; query the tables of this one."
            raise Refusal("sql-catalog", reason, Severity.HIGH)
        if sql_names.is_catalog(schema, folded(table), self.dialect) or sql_names.is_file(schema, table, self.dialect):
            named = [glob for glob in tables or () if not glob.startswith(("*", "?", "["))]
            if not any(names(glob, schema, table) for glob in named):
                reason = f"{table} belongs to the database itself; query the ordinary tables."
                raise Refusal("sql-catalog", reason, Severity.HIGH)
        elif listed and tables is not None and table and not any(names(glob, schema, table) for glob in tables):
            raise Refusal("sql-denied-table", f"The table {table} must not be touched.", Severity.HIGH)

    def _check_write(self, node: exp.Expr) -> None:
        """Refuses writes that may touch every row, and what a plain CREATE does not do."""
        if isinstance(node, exp.Update | exp.Delete):
            if not isinstance(node.parent, exp.When) and not sql_where.limits(node, self.dialect):
                raise unbounded_write(
                    f"{node.key.upper()} needs a WHERE that compares a column of its table with a value."
                )
        elif isinstance(node, exp.Insert):
            if changes_rows(node) and sql_where.upserts_itself(node, self.dialect):
                raise unbounded_write(
                    "An INSERT that changes rows must not take them all from the table that it changes."
                )
            removed = removed_first(node)
            if removed is not None and not sql_where.limits(removed, self.dialect):
                raise unbounded_write(
                    "REPLACE WHERE needs a condition that compares a column of its table with a value."
                )
        elif isinstance(node, exp.Merge):
            if merge_removes(node):
                raise denied_statement("MERGE may only insert rows, and update those that match.")
            if not sql_where.ties(node, self.dialect):
                raise unbounded_write("MERGE needs an ON that compares a column of its table with one of the source.")
        elif isinstance(node, exp.Create) and not is_plain_create(node):
            raise denied_statement(PLAIN_CREATE)

    def _check_function(self, node: exp.Expr) -> None:
        """Refuses functions that do more than compute; in read_only, and in the place of a table, unknown ones too."""
        if self.dialect in _POSTGRES:
            self._check_called_otherwise(node)
        dangerous = sql_tree.dangerous_function(node)
        if dangerous is not None:
            raise denied_function(dangerous)
        unknown = sql_tree.unknown_function(node)
        in_table = isinstance(node, exp.Table) or isinstance(node.parent, exp.Table)
        if unknown is None or (self.settings.mode != "read_only" and not in_table):
            return
        qualifier, function = unknown
        shown = f"{qualifier}.{function}" if qualifier else function
        if self.dialect in _TSQL and qualifier and _is_method(node, function):
            return
        known = {shown, function} if qualifier in _OWN_QUALIFIERS else {shown}
        if known.isdisjoint(self.settings.functions) and not any(
            sql_names.is_harmless(name, self.dialect) for name in known
        ):
            raise Refusal("sql-function", f"The function {shown} is not known to be harmless; use a standard one.")

    def _check_called_otherwise(self, node: exp.Expr) -> None:
        """Refuses what PostgreSQL calls without parentheses: fields that are functions, and operators and samples by name."""
        named = node.this if isinstance(node, exp.Column) and node.table else None
        named = node.expression if isinstance(node, exp.Dot) else named
        if named is not None and sql_names.pattern("fields_that_call").fullmatch(folded(named.name)):
            raise denied_function(named.name)
        method = str(node.args.get("method") or "BERNOULLI") if isinstance(node, exp.TableSample) else "BERNOULLI"
        operator = str(node.args.get("operator")) if isinstance(node, exp.Operator) else ""
        *schema, _ = operator.rpartition(".") if "." in operator else ("", "")
        if method.upper() not in _SAMPLES or schema[0] not in ("", "pg_catalog"):
            raise Refusal("sql-function", f"{operator or method} is not known to be harmless; use a standard one.")

    def _check_packages(self, nodes: list[exp.Expr]) -> None:
        """Refuses what looks like a column of no table: in Oracle it may call a function, which needs no parentheses."""
        for qualifier, name in sql_tree.strange_columns(nodes):
            if f"{qualifier}.{name}" not in self.settings.functions:
                reason = f"{qualifier}.{name} is not of a table that is read here; use a column or a standard function."
                raise Refusal("sql-function", reason)


def _is_method(call: exp.Expr, function: str) -> bool:
    """Whether a method of SQL Server's own types is called on a column."""
    arguments = call.expressions
    literal = bool(arguments) and all(isinstance(one, exp.Literal) for one in arguments)
    return function in _PLACE_METHODS or (function in _XML_METHODS and literal)
