"""Reads SQL text in one dialect, statement by statement, against the settings of a SQLPolicy. Importing it loads the parser."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import takewhile

from sqlglot import Token, exp

from lgov_core.policies.sql import names as sql_names
from lgov_core.policies.sql import tree as sql_tree
from lgov_core.policies.sql import where as sql_where
from lgov_core.policies.sql.names import (
    Refusal,
    SQLRules,
    denied_function,
    denied_names,
    denied_statement,
    denied_table,
    folded,
    may_mean,
    names,
    stored_name,
    unbounded_write,
    unparsable,
)
from lgov_core.policies.sql.row_limit import NoLimit, limited, same_but_for_the_limit
from lgov_core.policies.sql.text import (
    MYSQL_FAMILY,
    OPENINGS,
    SHORTHANDS,
    TRANSACTION_WORDS,
    Lexicon,
    Statement,
    as_delete_or_update,
    as_query,
    declares_values,
    described,
    is_transaction,
    same_reading,
)
from lgov_core.policies.sql.tree import (
    ROOTS,
    TooMuchWork,
    changes_rows,
    is_plain_create,
    kinds,
    make_parser,
    merge_removes,
    reached_column,
    removed_first,
)
from lgov_core.types import Severity

NAMES_ROWS = "that names the rows: column = value or column IN (values), joined by AND"
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

    def __init__(self, settings: SQLRules, dialect: str, keywords: frozenset[str]) -> None:
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
            # What looks like a column of no table may call a function, which needs no parentheses.
            for qualifier, name in sql_tree.strange_columns(nodes):
                if f"{qualifier}.{name}" not in self.settings.functions:
                    reason = (
                        f"{qualifier}.{name} is not of a table that is read here; use a column or a standard function."
                    )
                    raise Refusal("sql-function", reason)
        # A second net: each time the text names a denied table, the tree must show that something else is meant.
        mentioned = [name for name in statement.names if name in self._exactly_denied]
        identifiers = tree.find_all(exp.Identifier) if mentioned else ()
        innocent = [
            identifier
            for identifier in identifiers
            if identifier.name.lower() in self._exactly_denied and sql_tree.is_innocent(identifier)
        ]
        if len(mentioned) > len(innocent):
            raise denied_table(mentioned[0])
        reached = reached_column(tree, self.settings.columns, self.dialect) if self.settings.columns else None
        if reached is not None:
            reason = f"{reached} must not be read or written; name the other columns that you need, with their tables."
            raise Refusal("sql-denied-column", reason, Severity.HIGH)

    def check_kinds(self, statement_kinds: tuple[str, ...]) -> None:
        """Refuses kinds of statement that are denied by name, that read_only does not know, or that nothing allows."""
        denied, read_only = self.settings.denied_kinds, self.settings.mode == "read_only"
        for kind in statement_kinds:
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
        """Refuses writes whose rows no value names, and what a plain CREATE does not do."""
        ranges = self.settings.ranges
        if isinstance(node, exp.Update | exp.Delete):
            if not isinstance(node.parent, exp.When) and not sql_where.limits(node, self.dialect, ranges):
                raise unbounded_write(f"{node.key.upper()} needs a WHERE {NAMES_ROWS}.")
        elif isinstance(node, exp.Insert):
            if changes_rows(node) and sql_where.upserts_itself(node, self.dialect):
                raise unbounded_write(
                    "An INSERT that changes rows must not take them all from the table that it changes."
                )
            removed = removed_first(node)
            if removed is not None and not sql_where.limits(removed, self.dialect, ranges):
                raise unbounded_write(f"REPLACE WHERE needs a condition {NAMES_ROWS}.")
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
        full_name = f"{qualifier}.{function}" if qualifier else function
        if self.dialect in _TSQL and qualifier and _is_method(node, function):
            return
        spellings = {full_name, function} if qualifier in _OWN_QUALIFIERS else {full_name}
        if spellings.isdisjoint(self.settings.functions) and not any(
            sql_names.is_harmless(name, self.dialect) for name in spellings
        ):
            raise Refusal("sql-function", f"The function {full_name} is not known to be harmless; use a standard one.")

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


def _is_method(call: exp.Expr, function: str) -> bool:
    """Returns whether a method of SQL Server's own types is called on a column."""
    arguments = call.expressions
    literal = bool(arguments) and all(isinstance(argument, exp.Literal) for argument in arguments)
    return function in _PLACE_METHODS or (function in _XML_METHODS and literal)


class SQLTouches:
    """Reads texts of one dialect. Immutable; loads the parser when it is made."""

    def __init__(self, dialect: str) -> None:
        self.dialect = sql_names.known_dialect(dialect)
        self._lexicon = Lexicon(self.dialect)
        self._parse, _ = make_parser(self.dialect)

    def read(self, text: str) -> tuple[frozenset[str], frozenset[str]]:
        """The tables (``schema.table`` where the text says so, lower case) and the kinds of statement in ``text``.

        Statements that cannot be parsed add nothing: it describes, and judges nothing.
        """
        tables: set[str] = set()
        statement_kinds: set[str] = set()
        try:
            for statement in self._lexicon.statements(text):
                tree, _ = self._parse(statement.text)
                for node in () if tree is None else tree.walk():
                    statement_kinds.update(kinds(node))
                    for schema, table in sql_tree.table_names(node):
                        if table and not sql_tree.is_from_query(node, table):
                            tables.add(".".join(filter(None, stored_name(schema, table, self.dialect))))
        except (Refusal, TooMuchWork, RecursionError):
            pass
        return frozenset(tables), frozenset(statement_kinds)


_EXPLAIN = re.compile(
    r"explain(?:\s+query\s+plan|\s*\([\w\s,]*\)|\s+(?:syntax|ast|plan|pipeline|estimate|using\s+(?:text|json|tabular)))?"
    r"(?:\s+(?:analyze|verbose|extended|formatted|cost|logical|distributed|format\s*=\s*\w+))*(?=\s|\()"
    r"|desc(?:ribe)?(?=\s+(?:select|with)\b)",
    re.IGNORECASE,
)
#: Dialects in which DESCRIBE before a query says how it is answered, or which columns it has, as EXPLAIN would.
_DESCRIBE_QUERIES = MYSQL_FAMILY | {"duckdb"}
#: What the parser does not know, or takes for something else, and reads in place of which spaces.
_WITHOUT_ROWID = re.compile(
    r"\Acreate\s(?s:.*)\)(\s*(?:strict\s*,\s*)?without\s+rowid(?:\s*,\s*strict)?)\Z", re.IGNORECASE
)
_WRITE_TOP = re.compile(r"(?:update|delete)\s+(top\s*\(\s*\d+\s*\))", re.IGNORECASE)
_BLANKED = {"sqlite": _WITHOUT_ROWID, "tsql": _WRITE_TOP, "fabric": _WRITE_TOP}
#: Dialects in which a query may begin with FROM: DuckDB's, and BigQuery's with pipes.
_FROM_FIRST = frozenset({"duckdb", "bigquery"})
_CREATABLE = frozenset({"table", "view", "index"})
_PLAIN_WORDS = frozenset(
    {"create", "temp", "temporary", "unique", "unlogged", "transient", "global", "local", "clustered", "nonclustered"}
)


@dataclass(frozen=True, slots=True)
class ReadText:
    """A text as one dialect reads it: ``refusal`` is the gravest reason to deny it; ``text`` another text to run instead."""

    refusal: Refusal | None = None
    text: str | None = None


class Reader:
    """Reads texts in one dialect. Immutable; safe to share between threads. Loads the parser when it is made."""

    def __init__(self, settings: SQLRules, dialect: str) -> None:
        self.settings = settings
        self.dialect = dialect
        self._lexicon = Lexicon(dialect)
        self._parse, keywords = make_parser(dialect)
        self._checks = TreeChecks(settings, dialect, keywords)

    def read(self, text: str) -> ReadText:
        """Checks one text, which may hold several statements. May raise RecursionError."""
        try:
            statements = self._lexicon.statements(text)
        except Refusal as refusal:
            return ReadText(refusal)
        if not statements:
            return ReadText(Refusal("sql-unparsable", "There is no SQL in it; write one statement."))
        gravest: Refusal | None = None
        instead: list[str | None] = []
        for statement in statements:
            try:
                instead.append(self._check_statement(statement))
            except Refusal as refusal:
                gravest = refusal if gravest is None or refusal.weight > gravest.weight else gravest
        if gravest is not None or not any(instead):
            return ReadText(gravest)
        return ReadText(text="; ".join(new or old.text for new, old in zip(instead, statements, strict=True)))

    def _kind_of(self, word: str) -> str:
        if word in TRANSACTION_WORDS:
            return "TRANSACTION"
        describes = word == "DESC" or (word == "EXISTS" and self.dialect == "clickhouse")
        return "DESCRIBE" if describes else word

    def _check_statement(self, statement: Statement, *, explained: bool = False) -> str | None:
        """The text to run instead of a statement, or None. Raises `Refusal`."""
        first = statement.text[0] if statement.text[0] == "(" else statement.text.split(None, 1)[0]
        word = re.split(r"\W", first, maxsplit=1)[0].upper() or first
        if (usual := self._in_usual_words(statement, word)) is not None:
            return self._check_statement(usual, explained=explained or word == "SUMMARIZE")
        kind = self._kind_of(word)
        if kind not in sql_names.kinds() and (
            kind not in OPENINGS or (kind == "FROM" and self.dialect not in _FROM_FIRST)
        ):
            raise Refusal("sql-unparsable", f"{first[:20]!r} does not begin a statement.")
        if kind not in self.settings.denied_kinds:
            if self._only_says(statement, kind):
                return None
            if kind == "DESCRIBE" and self.dialect in _DESCRIBE_QUERIES and _EXPLAIN.match(statement.text):
                kind = word = "EXPLAIN"
        self._checks.check_kinds((kind, word))
        self._checks.check_called(statement)
        if kind == "EXPLAIN":
            prefix = _EXPLAIN.match(statement.text)
            rest = statement.text[prefix.end() :].lstrip(" \t\r\n\f") if prefix is not None and not explained else ""
            if not rest:
                raise unparsable("this EXPLAIN")
            self._check_statement(statement.with_end("", rest), explained=True)
        elif kind == "PRAGMA":
            allowed = ", ".join(sorted(sql_names.words("describing_pragmas")))
            raise denied_statement(f"Only these pragmas are allowed: {allowed}.")
        elif kind == "TRANSACTION":
            if not is_transaction(statement.text, self.dialect):
                raise unparsable(f"this {word}")
        elif kind == "CREATE" and not _PLAIN_WORDS.issuperset(
            takewhile(lambda word: word not in _CREATABLE, statement.words)
        ):
            raise denied_statement(PLAIN_CREATE)
        else:
            return self._check_parsed(statement, kind, explained)
        return None

    def _in_usual_words(self, statement: Statement, word: str) -> Statement | None:
        """The statement that DuckDB's shorthand, or ClickHouse's ALTER TABLE ... DELETE, stands for; None for anything else."""
        if self.dialect == "clickhouse" and word == "ALTER" and word not in self.settings.denied_kinds:
            return as_delete_or_update(statement)
        if self.dialect != "duckdb" or word not in SHORTHANDS:
            return None
        query = as_query(statement, word)
        if query is None:
            raise unparsable(f"this {word}")
        return query

    def _only_says(self, statement: Statement, kind: str) -> bool:
        """Returns whether the statement only describes tables, or names values. Raises `Refusal` for a table that is closed."""
        if kind == "DECLARE":  # in guarded mode a value could undo the limits of a later write
            return self.settings.mode == "read_only" and declares_values(statement.text, self.dialect)
        about = described(statement.text, kind, self.dialect) if kind in ("PRAGMA", "DESCRIBE", "SHOW") else None
        if about is not None:
            self._checks.check_table(*about)
        return about is not None

    def _check_parsed(self, statement: Statement, kind: str, explained: bool) -> str | None:
        try:
            tree, tokens = self._tree(statement, kind)
            self._checks.check(statement, tree)
            if self.settings.max_rows is None or explained:
                return None
            return self._limited(statement, tree, tokens, self.settings.max_rows)
        except TooMuchWork:
            raise Refusal("sql-too-deep", "The SQL is too intricate to read; write a simpler query.") from None

    def _tree(self, statement: Statement, kind: str) -> tuple[exp.Expr, list[Token]]:
        text, shift = statement.text, 0
        if kind == "REPLACE":  # the parser has no tree for REPLACE; it means INSERT OR REPLACE
            text, shift = f"INSERT OR {text}", len("INSERT OR ")
        elif self.dialect in _BLANKED and (blanked := _BLANKED[self.dialect].match(text)):
            text = text[: blanked.start(1)] + " " * len(blanked[1]) + text[blanked.end(1) :]
        tree, tokens = self._parse(text)
        if tree is None:
            raise unparsable("this statement", unread=True)
        if not same_reading(statement, tokens, shift):
            raise unparsable("this statement")
        return tree, tokens

    def _limited(self, statement: Statement, tree: exp.Expr, tokens: list[Token], rows: int) -> str | None:
        try:
            text = limited(tree, statement.text, tokens, rows, self.dialect)
        except NoLimit as unclear:
            raise Refusal("sql-max-rows", str(unclear), Severity.LOW) from None
        if text is None:
            return None
        again, _ = self._parse(text)
        if again is None or not same_but_for_the_limit(tree, again, rows):
            raise Refusal("sql-max-rows", f"At most {rows} rows may be read; write that limit.", Severity.LOW)
        return text
