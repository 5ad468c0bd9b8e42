"""How SQLPolicy reads SQL text in one dialect: statement by statement, by the syntax tree, against its settings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import takewhile
from typing import TYPE_CHECKING, Literal

from lgov_core.policies import sql_names
from lgov_core.policies.sql_functions import is_harmless
from lgov_core.policies.sql_parse import make_parser
from lgov_core.policies.sql_text import Lexicon, Statement, UnclearSQL, same_reading
from lgov_core.types import Severity

if TYPE_CHECKING:
    from sqlglot import exp

Mode = Literal["guarded", "read_only"]

_EXPLAIN = re.compile(
    r"explain(?:\s+query\s+plan|\s*\([\w\s,]*\))?(?:\s+(?:analyze|verbose|extended|format\s*=\s*\w+))*(?=\s|\()",
    re.IGNORECASE,
)
_PRAGMA = re.compile(
    r"""pragma\s+(?:\w+\s*\.\s*)?(\w+)\s*(?:\(\s*(['"`\[]?)([^'"`\[\]()=;]*)['"`\]]?\s*\))?""", re.IGNORECASE
)
_TRANSACTION = re.compile(
    r"(?:begin(?:\s+(?:deferred|immediate|exclusive))?|start|commit|end|rollback)(?:\s+(?:transaction|work))?",
    re.IGNORECASE,
)
#: Statements that give no rows of a table, or are no tree.
_OTHER = re.compile(
    r"(?:explain|pragma|begin|start|commit|end|rollback|replace|insert|update|delete|create)\b", re.IGNORECASE
)
#: First words that leave the kind of statement to the syntax tree, and those of statements about transactions.
_OPENINGS = frozenset({"WITH", "(", "TABLE"})
_TRANSACTION_WORDS = frozenset({"BEGIN", "START", "COMMIT", "END", "ROLLBACK"})
_CREATABLE = frozenset({"table", "view", "index"})
_PLAIN_WORDS = frozenset({"create", "temp", "temporary", "unique"})
_PLAIN_CREATE = "Only a plain CREATE TABLE, VIEW or INDEX is allowed."
_ADVICE = "Only SELECT is allowed here."


class Found(Exception):
    """A reason to deny, on its way out of a walk over one statement.

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
class Settings:
    """What `SQLPolicy` was made with, names in lower case and kinds of statement in upper case."""

    mode: Mode
    denied_kinds: frozenset[str]
    denied_tables: tuple[str, ...]
    tables: tuple[str, ...] | None
    functions: frozenset[str]
    columns: tuple[tuple[str, str], ...] = ()
    max_rows: int | None = None


class Reading:
    """Reads texts in one dialect. Immutable; safe to share between threads. Loads the parser when it is made."""

    def __init__(self, settings: Settings, dialect: str) -> None:
        self.settings = settings
        self.mode, self.dialect = settings.mode, dialect
        self._lexicon = Lexicon(dialect)
        self._parse, keywords = make_parser(dialect)
        exact = (glob for glob in settings.denied_tables if not set(glob) & set("*?[."))
        self._exactly_denied = frozenset(exact) - keywords

    def found_in(self, text: str) -> Found | None:
        """The gravest reason to deny ``text``, None when there is none. May raise RecursionError."""
        try:
            statements = self._lexicon.statements(text)
        except UnclearSQL as unclear:
            return Found(unclear.rule, unclear.reason, Severity.MEDIUM, unread=unclear.refused)
        if not statements:
            return Found("sql-unparsable", "There is no SQL in it; write one statement.", Severity.MEDIUM)
        worst: Found | None = None
        for statement in statements:
            try:
                self._check_statement(statement)
            except Found as found:
                if worst is None or found.weight > worst.weight:
                    worst = found
        return worst

    def limited(self, text: str) -> str | Found | None:
        """A text that nothing was found in, with ``max_rows`` written into it; None when it need not be changed."""
        from lgov_core.policies.sql_limit import is_limited, with_limit

        most = self.settings.max_rows
        if most is None:
            return None
        statements = self._lexicon.statements(text)
        for statement in statements:
            tree = None if _OTHER.match(statement.text) else self._parse(statement.text)[0]
            if tree is None or is_limited(tree, most):
                continue
            changed = with_limit(statement.text, tree, most, self.dialect) if len(statements) == 1 else None
            again = None if changed is None else self._parse(changed)[0]
            if changed is None or again is None or not is_limited(again, most) or self.found_in(changed) is not None:
                return Found("sql-max-rows", f"At most {most} rows may be read; write that limit.", Severity.MEDIUM)
            return changed
        return None

    # ------------------------------------------------------------------ one statement

    def _check_statement(self, statement: Statement, *, explained: bool = False) -> None:
        first = statement.text[0] if statement.text[0] == "(" else statement.text.split(None, 1)[0]
        word = re.split(r"\W", first, maxsplit=1)[0].upper() or first
        kind = "TRANSACTION" if word in _TRANSACTION_WORDS else word
        if kind not in sql_names.KINDS | _OPENINGS:
            raise Found("sql-unparsable", f"{first[:20]!r} does not begin a statement.", Severity.MEDIUM)
        self._check_kinds({kind, word})
        self._check_functions(statement)
        if kind == "EXPLAIN" and not explained:
            prefix = _EXPLAIN.match(statement.text)
            if prefix is None:
                raise _unparsable("this EXPLAIN")
            self._check_statement(_rest(statement, prefix.end()), explained=True)
        elif kind == "PRAGMA":
            self._check_pragma(statement)
        elif kind == "TRANSACTION":
            if _TRANSACTION.fullmatch(statement.text) is None:
                raise _unparsable(f"this {word}")
        elif kind == "EXPLAIN":
            raise _unparsable("an EXPLAIN of an EXPLAIN")
        elif kind == "CREATE" and not _PLAIN_WORDS.issuperset(takewhile(_makes_nothing, statement.words)):
            raise Found("sql-denied-statement", _PLAIN_CREATE, Severity.CRITICAL)
        else:
            self._check_tree(statement, self._tree(statement, kind))

    def _check_kinds(self, kinds: set[str]) -> None:
        """Refuses kinds that are denied by name, that read_only does not know, or that nothing lets through."""
        for kind in sorted(kinds):
            if kind in _OPENINGS:
                continue
            severity = Severity.CRITICAL if kind in sql_names.DESTRUCTIVE else Severity.HIGH
            if kind in self.settings.denied_kinds:
                raise Found("sql-denied-statement", f"{kind} statements are not allowed.", severity)
            if self.mode == "read_only" and kind not in sql_names.READS:
                raise Found("sql-read-only", f"{kind} is not allowed. {_ADVICE}", severity)
            if kind not in sql_names.GUARDED and kind not in _TRANSACTION_WORDS:
                raise Found("sql-denied-statement", f"{kind} statements are not allowed.", severity)

    def _check_functions(self, statement: Statement) -> None:
        for function in statement.called:
            if sql_names.is_dangerous(function, self.dialect) or (
                "." in function and any(map(sql_names.is_dangerous_package, function.split(".")))
            ):
                raise Found("sql-function", f"The function {function} is not allowed; leave it out.", Severity.CRITICAL)

    def _check_pragma(self, statement: Statement) -> None:
        match = _PRAGMA.fullmatch(statement.text)
        if self.dialect != "sqlite" or match is None or match[1].lower() not in sql_names.DESCRIBING_PRAGMAS:
            allowed = ", ".join(sorted(sql_names.DESCRIBING_PRAGMAS))
            raise Found("sql-denied-statement", f"Only these pragmas are allowed: {allowed}.", Severity.CRITICAL)
        self._check_table("", (match[3] or "").strip().lower())

    def _tree(self, statement: Statement, kind: str) -> exp.Expr:
        text, shift = statement.text, 0
        if kind == "REPLACE":  # the parser has no tree for REPLACE; it means INSERT OR REPLACE
            text, shift = f"INSERT OR {text}", len("INSERT OR ")
        tree, spans = self._parse(text)
        if tree is None:
            raise _unparsable("this statement", unread=True)
        if not same_reading(statement, [(start - shift, end - shift) for start, end in spans]):
            raise _unparsable("this statement")
        return tree

    def _check_tree(self, statement: Statement, tree: exp.Expr) -> None:
        from sqlglot import exp

        from lgov_core.policies import sql_tree
        from lgov_core.policies.sql_where import limits

        if not isinstance(tree, sql_tree.ROOTS):
            raise _unparsable("this statement")
        for node in tree.walk():
            self._check_kinds(set(sql_tree.kinds(node)))
            for catalog, schema, table in sql_tree.table_names(node):
                self._check_table(schema, table, listed=not sql_tree.is_from_query(node, table), catalog=catalog)
            if isinstance(node, exp.Update | exp.Delete) and not limits(node):
                reason = f"{node.key.upper()} needs a WHERE that compares a column with a value."
                raise Found("sql-unbounded-write", reason, Severity.CRITICAL)
            if isinstance(node, exp.Create) and not sql_tree.is_plain_create(node):
                raise Found("sql-denied-statement", _PLAIN_CREATE, Severity.CRITICAL)
            function = sql_tree.unknown_function(node)
            if function is not None and (self.mode == "read_only" or isinstance(node.parent, exp.Table)):
                self._check_unknown(function)
        if self.settings.columns:
            from lgov_core.policies.sql_columns import reached_column

            reached = reached_column(tree, self.settings.columns)
            if reached is not None:
                reason = f"{reached} reaches a column that must not be touched; name the columns that you need."
                raise Found("sql-denied-column", reason, Severity.HIGH)
        # A second net: each time the text names a denied table, the tree must show that something else is meant.
        mentioned = [name for name in statement.names if name in self._exactly_denied]
        if mentioned and len(mentioned) > sql_tree.count_innocent(tree, self._exactly_denied):
            raise _denied_table(mentioned[0])

    def _check_unknown(self, function: str) -> None:
        if function not in self.settings.functions and not is_harmless(function, self.dialect):
            reason = f"The function {function} is not known to be harmless; use a standard one."
            raise Found("sql-function", reason, Severity.MEDIUM)

    # ------------------------------------------------------------------ tables

    def _check_table(self, schema: str, table: str, *, listed: bool = True, catalog: str = "") -> None:
        """Refuses a table that is denied, of the catalog, or (when ``listed``, a real one) not among ``tables``."""
        if any(_may_mean(glob, schema, table) for glob in self.settings.denied_tables):
            raise _denied_table(table)
        if sql_names.is_catalog(schema, table, self.dialect, catalog) or sql_names.FILE_NAME.search(table):
            named = [glob for glob in self.settings.tables or () if not glob.startswith(("*", "?", "["))]
            if not any(_names(glob, schema, table) for glob in named):
                reason = f"{table} belongs to the database itself; query the ordinary tables."
                raise Found("sql-catalog", reason, Severity.HIGH)
        elif (
            listed
            and self.settings.tables is not None
            and table
            and not any(_names(glob, schema, table) for glob in self.settings.tables)
        ):
            raise Found("sql-denied-table", f"The table {table} must not be touched.", Severity.HIGH)


#: How grave each severity is.
SEVERITIES = {severity: rank for rank, severity in enumerate(Severity)}


def _makes_nothing(word: str) -> bool:
    return word not in _CREATABLE


def _may_mean(glob: str, schema: str, table: str) -> bool:
    """Whether a glob for denied tables may mean this one; without a schema in the SQL it may be any schema's."""
    if "." in glob and schema:
        return fnmatchcase(f"{schema}.{table}", glob)
    return fnmatchcase(table, glob.rsplit(".", 1)[-1])


def _names(glob: str, schema: str, table: str) -> bool:
    """Whether a glob for permitted tables surely names this one."""
    return fnmatchcase(f"{schema}.{table}" if "." in glob else table, glob)


def _denied_table(table: str) -> Found:
    return Found("sql-denied-table", f"The table {table} must not be touched; answer without it.", Severity.HIGH)


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
    return Statement(text, statement.words, statement.names, statement.called, quoted)
