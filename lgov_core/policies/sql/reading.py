"""How SQLPolicy reads SQL text in one dialect: statement by statement, by the syntax tree, against its settings.

Importing it loads the parser.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from sqlglot import exp

from lgov_core.policies.sql import names as sql_names
from lgov_core.policies.sql import tree as sql_tree
from lgov_core.policies.sql import where as sql_where
from lgov_core.policies.sql.columns import reached_column
from lgov_core.policies.sql.functions import is_harmless
from lgov_core.policies.sql.limit import NoLimit, limited, same_but_for_the_limit
from lgov_core.policies.sql.names import is_dangerous, is_dangerous_package
from lgov_core.policies.sql.parse import TooMuchWork, make_parser
from lgov_core.policies.sql.rules import SEVERITIES, Settings, folded, may_mean, names
from lgov_core.policies.sql.statements import (
    SHORTHANDS,
    TRANSACTION_WORDS,
    as_delete_or_update,
    as_query,
    declares_values,
    described,
    is_transaction,
)
from lgov_core.policies.sql.text import MYSQL_FAMILY, Lexicon, Statement, UnclearSQL, same_reading
from lgov_core.types import Severity

_EXPLAIN = re.compile(
    r"explain(?:\s+query\s+plan|\s*\([\w\s,]*\)|\s+(?:syntax|ast|plan|pipeline|estimate|using\s+(?:text|json|tabular)))?"
    r"(?:\s+(?:analyze|verbose|extended|formatted|cost|logical|distributed|format\s*=\s*\w+))*(?=\s|\()"
    r"|desc(?:ribe)?(?=\s+(?:select|with)\b)",
    re.IGNORECASE,
)
#: Dialects in which DESCRIBE before a query says how it is answered, or which columns it has, as EXPLAIN would.
_DESCRIBE_QUERIES = MYSQL_FAMILY | {"duckdb"}
_WITHOUT_ROWID = re.compile(
    r"\Acreate\s(?s:.*)\)(\s*(?:strict\s*,\s*)?without\s+rowid(?:\s*,\s*strict)?)\Z", re.IGNORECASE
)
_WRITE_TOP = re.compile(r"(?:update|delete)\s+(top\s*\(\s*\d+\s*\))", re.IGNORECASE)
#: First words that leave the kind of statement to the syntax tree.
_OPENINGS = frozenset({"WITH", "(", "TABLE", "FROM"})
#: Dialects in which a query may begin with FROM: DuckDB's, and BigQuery's with pipes.
_FROM_FIRST = frozenset({"duckdb", "bigquery"})
#: First words of queries.
_QUERIES = _OPENINGS | {"SELECT", "VALUES"}
_CREATABLE = frozenset({"table", "view", "index"})
_PLAIN_WORDS = frozenset(
    {"create", "temp", "temporary", "unique", "unlogged", "transient", "global", "local", "clustered", "nonclustered"}
)
#: Words that name a file where the parser may see an alias.
_FILE_WORDS = frozenset({"infile", "outfile", "dumpfile"})
_FILE_CLAUSES = MYSQL_FAMILY | {"clickhouse"}
_PLAIN_CREATE = "Only a plain CREATE TABLE, VIEW or INDEX is allowed."
_ADVICE = "Only SELECT is allowed here."
#: What ``TABLE(...)`` takes for the name of a table.
_NAMES_AS_VALUES = (exp.Literal, exp.Parameter, exp.Placeholder, exp.SessionParameter)
#: What SQL Server asks of a column of XML, by a path that is written out, and of a place.
_XML_METHODS = frozenset({"value", "query", "exist", "nodes"})
_PLACE_METHODS = frozenset({"stdistance", "stintersects", "stwithin", "stcontains", "stastext", "starea", "stlength"})
#: Qualifiers of functions that belong to the database and only compute.
_OWN_QUALIFIERS = frozenset({"", "pg_catalog", "safe", "net", "hll_count", "dbms_random"})


class Found(Exception):
    """A reason to deny, on its way out of a walk over one statement. ``rule`` is the slug of the denial.

    ``unread`` says that the dialect has no such text at all: its database would refuse it as well.
    """

    def __init__(self, rule: str, reason: str, severity: Severity, *, unread: bool = False) -> None:
        super().__init__(reason)
        self.rule, self.reason, self.severity, self.unread = rule, reason, severity, unread

    @property
    def weight(self) -> tuple[bool, int]:
        """How grave it is, to compare: what cannot be read comes after everything else."""
        return not self.unread, SEVERITIES[self.severity]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one reading makes of a text: ``found`` is the worst reason to deny; ``text`` another text to run instead."""

    found: Found | None = None
    text: str | None = None


class Reading:
    """Reads texts in one dialect. Immutable; safe to share between threads. Loads the parser when it is made."""

    def __init__(self, settings: Settings, dialect: str) -> None:
        self.settings = settings
        self.dialect = dialect
        self._lexicon = Lexicon(dialect)
        self._parse, keywords = make_parser(dialect)
        exact = frozenset(glob for glob in settings.denied_tables if not set(glob) & set("*?[."))
        self._exactly_denied = exact - keywords

    def verdict(self, text: str) -> Verdict:
        """The verdict on one text, which may hold several statements. May raise RecursionError."""
        try:
            statements = self._lexicon.statements(text)
        except UnclearSQL as unclear:
            return Verdict(Found(unclear.rule, unclear.reason, Severity.MEDIUM, unread=unclear.refused))
        if not statements:
            return Verdict(Found("sql-unparsable", "There is no SQL in it; write one statement.", Severity.MEDIUM))
        worst: Found | None = None
        changed = False
        texts: list[str] = []
        for statement in statements:
            try:
                other = self._check_statement(statement)
                changed = changed or other is not None
                texts.append(statement.text if other is None else other)
            except Found as found:
                if worst is None or found.weight > worst.weight:
                    worst = found
        if worst is not None:
            return Verdict(worst)
        return Verdict(text="; ".join(texts)) if changed else ALLOWED

    # ------------------------------------------------------------------ one statement

    def _check_statement(self, statement: Statement, *, explained: bool = False) -> str | None:
        """Raises `Found`; gives the text to run instead, or None."""
        first = statement.text[0] if statement.text[0] == "(" else statement.text.split(None, 1)[0]
        word = re.split(r"\W", first, maxsplit=1)[0].upper() or first
        kind = self._kind_of(word)
        if (same := self._in_usual_words(statement, word)) is not None:
            return self._check_statement(same, explained=explained or word == "SUMMARIZE")
        if not self._begins_statement(kind):
            raise Found("sql-unparsable", f"{first[:20]!r} does not begin a statement.", Severity.MEDIUM)
        if self._only_describes(statement, kind) or self._only_declares(statement, kind):
            return None
        if self._describes_query(statement, kind):
            kind = word = "EXPLAIN"
        self._check_kinds((kind, word))
        self._check_functions(statement)
        if kind == "EXPLAIN" and not explained:
            prefix = _EXPLAIN.match(statement.text)
            if prefix is None:
                raise _unparsable("this EXPLAIN")
            self._check_statement(_rest(statement, prefix.end()), explained=True)
        elif kind == "PRAGMA":
            allowed = ", ".join(sorted(sql_names.DESCRIBING_PRAGMAS))
            raise Found("sql-denied-statement", f"Only these pragmas are allowed: {allowed}.", Severity.CRITICAL)
        elif kind == "TRANSACTION":
            if not is_transaction(statement.text, self.dialect):
                raise _unparsable(f"this {word}")
        elif kind == "EXPLAIN":
            raise _unparsable("an EXPLAIN of an EXPLAIN")
        elif kind == "CREATE" and not _PLAIN_WORDS.issuperset(takewhile(_makes_nothing, statement.words)):
            raise Found("sql-denied-statement", _PLAIN_CREATE, Severity.CRITICAL)
        else:
            return self._check_parsed(statement, kind, explained)
        return None

    def _kind_of(self, word: str) -> str:
        if word in TRANSACTION_WORDS:
            return "TRANSACTION"
        describes = word == "DESC" or (word == "EXISTS" and self.dialect == "clickhouse")
        return "DESCRIBE" if describes else word

    def _begins_statement(self, kind: str) -> bool:
        return kind in sql_names.KINDS or (kind in _OPENINGS and (kind != "FROM" or self.dialect in _FROM_FIRST))

    def _in_usual_words(self, statement: Statement, word: str) -> Statement | None:
        """What a shorthand of DuckDB, or ClickHouse's ALTER TABLE ... DELETE, stands for; None for anything else."""
        if self.dialect == "clickhouse" and word == "ALTER" and word not in self.settings.denied_kinds:
            return as_delete_or_update(statement)
        if self.dialect != "duckdb" or word not in SHORTHANDS:
            return None
        query = as_query(statement, word, _QUERIES)
        if query is None:
            raise _unparsable(f"this {word}")
        return query

    def _only_describes(self, statement: Statement, kind: str) -> bool:
        """Whether the statement says how tables are made, and no more; raises `Found` for a table that is closed."""
        if kind not in ("PRAGMA", "DESCRIBE", "SHOW") or kind in self.settings.denied_kinds:
            return False
        about = described(statement.text, kind, self.dialect)
        if about is not None:
            self._check_table(*about)
        return about is not None

    def _only_declares(self, statement: Statement, kind: str) -> bool:
        """Whether the statement only names values for later ones, which read: a value could undo the limits of a write."""
        if kind != "DECLARE" or kind in self.settings.denied_kinds or self.settings.mode != "read_only":
            return False
        return declares_values(statement.text, self.dialect)

    def _describes_query(self, statement: Statement, kind: str) -> bool:
        if kind != "DESCRIBE" or kind in self.settings.denied_kinds or self.dialect not in _DESCRIBE_QUERIES:
            return False
        return _EXPLAIN.match(statement.text) is not None

    def _check_parsed(self, statement: Statement, kind: str, explained: bool) -> str | None:
        try:
            tree, tokens = self._tree(statement, kind)
        except TooMuchWork:
            raise _intricate() from None
        nodes = sql_tree.nodes_of(tree)
        try:
            self._check_tree(statement, tree, nodes)
            if self.settings.max_rows is None or explained:
                return None
            return self._limit(statement, tree, tokens, self.settings.max_rows)
        except TooMuchWork:
            raise _intricate() from None
        finally:
            sql_tree.take_apart(nodes)

    def _check_kinds(self, kinds: tuple[str, ...]) -> None:
        """Refuses kinds that are denied by name, that read_only does not know, or that nothing lets through."""
        denied, read_only = self.settings.denied_kinds, self.settings.mode == "read_only"
        for kind in kinds:
            if kind in _OPENINGS or (kind in sql_names.READS and kind not in denied):
                continue
            severity = Severity.CRITICAL if kind in sql_names.DESTRUCTIVE else Severity.HIGH
            if kind in denied:
                raise Found("sql-denied-statement", f"{kind} statements are not allowed.", severity)
            if read_only and kind not in sql_names.READS:
                raise Found("sql-read-only", f"{kind} is not allowed. {_ADVICE}", severity)
            if kind not in sql_names.GUARDED and kind not in TRANSACTION_WORDS:
                raise Found("sql-denied-statement", f"{kind} statements are not allowed.", severity)

    def _check_functions(self, statement: Statement) -> None:
        for function in statement.called:
            if is_dangerous(folded(function), self.dialect):
                raise _denied_function(function)
        for qualifier in statement.qualifiers:
            if is_dangerous_package(folded(qualifier)) and self._is_no_alias(statement, qualifier):
                raise _denied_function(qualifier)

    def _is_no_alias(self, statement: Statement, qualifier: str) -> bool:
        """Whether ``qualifier`` is not also a name of its own in the statement, as a table's or an alias is."""
        short = len(qualifier) <= 4  # ml, ai, cron, http: as good as names of tables
        return not short or statement.names.count(qualifier) == statement.qualifiers.count(qualifier)

    def _tree(self, statement: Statement, kind: str) -> tuple[exp.Expr, list[Any]]:
        text, shift = statement.text, 0
        if kind == "REPLACE":  # the parser has no tree for REPLACE; it means INSERT OR REPLACE
            text, shift = f"INSERT OR {text}", len("INSERT OR ")
        elif self.dialect == "sqlite" and (option := _WITHOUT_ROWID.search(text)):  # which the parser does not know
            text = text[: option.start(1)] + " " * len(option[1]) + text[option.end(1) :]
        elif self.dialect in ("tsql", "fabric") and (
            top := _WRITE_TOP.match(text)
        ):  # which the parser takes for a table
            text = text[: top.start(1)] + " " * len(top[1]) + text[top.end(1) :]
        tree, tokens = self._parse(text)
        if tree is None:
            raise _unparsable("this statement", unread=True)
        if not same_reading(statement, tokens, shift):
            raise _unparsable("this statement")
        return tree, tokens

    def _check_tree(self, statement: Statement, tree: exp.Expr, nodes: list[exp.Expr]) -> None:
        several = self.dialect == "oracle" and isinstance(tree, exp.MultitableInserts)  # INSERT ALL
        if not several and not isinstance(tree, sql_tree.ROOTS):
            raise _unparsable("this statement")
        if self.dialect in _FILE_CLAUSES and not _FILE_WORDS.isdisjoint(statement.words):
            raise Found("sql-denied-statement", "INFILE and OUTFILE are not allowed.", Severity.CRITICAL)
        for node in sql_tree.nodes_of_interest(nodes, columns="nextval" in statement.names):
            kinds = sql_tree.kinds(node)
            if kinds:
                self._check_kinds(kinds)
            if self.dialect == "duckdb" and sql_tree.is_misread(node):
                raise _unparsable("a statement in the place of a table")
            if isinstance(node, exp.TableFromRows) and isinstance(node.this, _NAMES_AS_VALUES):
                raise Found("sql-denied-table", "Name the table itself, not by a text or a variable.", Severity.HIGH)
            for schema, table in sql_tree.table_names(node):
                self._check_table(schema, table, listed=not sql_tree.is_from_query(node, table))
            self._check_write(node)
            self._check_function(node)
        if self.dialect == "oracle" and self.settings.mode == "read_only":
            self._check_packages(nodes)
        # A second net: each time the text names a denied table, the tree must show that something else is meant.
        mentioned = [name for name in statement.names if name in self._exactly_denied] if self._exactly_denied else ()
        if mentioned and len(mentioned) > sql_tree.count_innocent(tree, self._exactly_denied):
            raise _denied_table(mentioned[0])
        if self.settings.columns:
            self._check_columns(tree)

    def _check_write(self, node: exp.Expr) -> None:
        """Refuses writes that may touch every row, and what a plain CREATE does not do."""
        if isinstance(node, exp.Update | exp.Delete):
            if not sql_tree.is_part_of_merge(node) and not sql_where.limits(node, self.dialect):
                reason = f"{node.key.upper()} needs a WHERE that compares a column of its table with a value."
                raise Found("sql-unbounded-write", reason, Severity.CRITICAL)
        elif isinstance(node, exp.Insert):
            if "UPDATE" in sql_tree.changes(node) and sql_where.upserts_itself(node, self.dialect):
                reason = "An INSERT that changes rows must not take them all from the table that it changes."
                raise Found("sql-unbounded-write", reason, Severity.CRITICAL)
            removed = sql_tree.removed_first(node)
            if removed is not None and not sql_where.limits(removed, self.dialect):
                reason = "REPLACE WHERE needs a condition that compares a column of its table with a value."
                raise Found("sql-unbounded-write", reason, Severity.CRITICAL)
        elif isinstance(node, exp.Merge):
            if sql_tree.merge_removes(node):
                reason = "MERGE may only insert rows, and update those that match."
                raise Found("sql-denied-statement", reason, Severity.CRITICAL)
            if not sql_where.ties(node, self.dialect):
                reason = "MERGE needs an ON that compares a column of its table with one of the source."
                raise Found("sql-unbounded-write", reason, Severity.CRITICAL)
        elif isinstance(node, exp.Create) and not sql_tree.is_plain_create(node):
            raise Found("sql-denied-statement", _PLAIN_CREATE, Severity.CRITICAL)

    def _check_function(self, node: exp.Expr) -> None:
        dangerous = sql_tree.dangerous_function(node)
        if dangerous is not None:
            raise _denied_function(dangerous)
        unknown = sql_tree.unknown_function(node)
        if unknown is None or not (
            self.settings.mode == "read_only" or isinstance(node, exp.Table) or isinstance(node.parent, exp.Table)
        ):
            return
        qualifier, function = unknown
        shown = f"{qualifier}.{function}" if qualifier else function
        if self.dialect in ("tsql", "fabric") and qualifier and _asks_a_column(node, function):
            return
        own = qualifier in _OWN_QUALIFIERS
        if shown in self.settings.functions or (own and function in self.settings.functions):
            return
        if not is_harmless(shown, self.dialect) and not (own and is_harmless(function, self.dialect)):
            reason = f"The function {shown} is not known to be harmless; use a standard one."
            raise Found("sql-function", reason, Severity.MEDIUM)

    def _check_packages(self, nodes: list[exp.Expr]) -> None:
        for qualifier, name in sql_tree.strange_columns(nodes):
            if f"{qualifier}.{name}" not in self.settings.functions:
                reason = f"{qualifier}.{name} is of no table that is read here; use a column or a standard function."
                raise Found("sql-function", reason, Severity.MEDIUM)

    # ------------------------------------------------------------------ tables, columns, rows

    def _check_table(self, schema: str, table: str, *, listed: bool = True) -> None:
        """Refuses a table that is denied, of the catalog, or (when ``listed``, a real one) not among ``tables``."""
        tables = self.settings.tables
        if self.dialect == "bigquery" and "." in table:  # in one pair of quotes, or of its INFORMATION_SCHEMA
            *outer, table = table.split(".")
            schema = ".".join(part for part in (schema, *outer) if part)
        if any(may_mean(glob, schema, table) for glob in self.settings.denied_tables):
            raise _denied_table(table)
        if self.dialect in ("tsql", "fabric") and schema.count(".") > 1:
            raise Found(
                "sql-catalog", f"{schema}.{table} is on another server; query the tables of this one.", Severity.HIGH
            )
        if sql_names.is_catalog(schema, folded(table), self.dialect) or sql_names.is_file(schema, table, self.dialect):
            named = [glob for glob in tables or () if not glob.startswith(("*", "?", "["))]
            if not any(names(glob, schema, table) for glob in named):
                reason = f"{table} belongs to the database itself; query the ordinary tables."
                raise Found("sql-catalog", reason, Severity.HIGH)
        elif listed and tables is not None and table and not any(names(glob, schema, table) for glob in tables):
            raise Found("sql-denied-table", f"The table {table} must not be touched.", Severity.HIGH)

    def _check_columns(self, tree: exp.Expr) -> None:
        reached = reached_column(tree, self.settings.columns, self.dialect)
        if reached is not None:
            reason = f"{reached} must not be read or written; name the other columns that you need, with their tables."
            raise Found("sql-denied-column", reason, Severity.HIGH)

    def _limit(self, statement: Statement, tree: exp.Expr, tokens: list[Any], rows: int) -> str | None:
        try:
            text = limited(tree, statement.text, tokens, rows, self.dialect)
        except NoLimit as unclear:
            raise Found("sql-max-rows", str(unclear), Severity.LOW) from None
        if text is None:
            return None
        try:
            again, _ = self._parse(text)
        except TooMuchWork:
            again = None
        if again is None or not same_but_for_the_limit(tree, again, rows):
            raise Found("sql-max-rows", f"At most {rows} rows may be read; write that limit.", Severity.LOW)
        return text


ALLOWED = Verdict()


def _makes_nothing(word: str) -> bool:
    return word not in _CREATABLE


def _asks_a_column(call: exp.Expr, function: str) -> bool:
    """Whether a method of SQL Server's own types is called on a column."""
    if function in _PLACE_METHODS:
        return True
    arguments = call.expressions
    return function in _XML_METHODS and bool(arguments) and all(isinstance(one, exp.Literal) for one in arguments)


def _denied_table(table: str) -> Found:
    return Found("sql-denied-table", f"The table {table} must not be touched; answer without it.", Severity.HIGH)


def _denied_function(function: str) -> Found:
    return Found("sql-function", f"The function {function} is not allowed; leave it out.", Severity.CRITICAL)


def _intricate() -> Found:
    return Found("sql-too-deep", "The SQL is too intricate to read; write a simpler query.", Severity.MEDIUM)


def _unparsable(what: str, *, unread: bool = False) -> Found:
    reason = f"The policy cannot read {what}; write plain, correct SQL."
    return Found("sql-unparsable", reason, Severity.MEDIUM, unread=unread)


def _rest(statement: Statement, at: int) -> Statement:
    """The statement without its first ``at`` characters (which hold no quotes)."""
    text = statement.text[at:].lstrip(" \t\r\n\f")
    if not text:
        raise _unparsable("this EXPLAIN")
    shift = len(statement.text) - len(text)
    quoted = tuple((start - shift, end - shift) for start, end in statement.quoted)
    return Statement(text, statement.words, statement.names, statement.called, statement.qualifiers, quoted)
