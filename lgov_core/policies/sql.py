"""SQLPolicy: judges SQL by its syntax tree."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import takewhile
from typing import TYPE_CHECKING, Literal

from lgov_core.errors import PolicyError
from lgov_core.policies import sql_names
from lgov_core.policies.base import BoundedPolicy
from lgov_core.policies.options import string_tuple
from lgov_core.policies.sql_parse import make_parser
from lgov_core.policies.sql_text import Lexicon, Statement, UnclearSQL, same_reading
from lgov_core.types import Action, Decision, Point, Severity

if TYPE_CHECKING:
    from sqlglot import exp

Mode = Literal["guarded", "read_only"]
MODES: tuple[Mode, ...] = ("guarded", "read_only")
CACHED_TEXTS = 1024

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
#: First words that leave the kind of statement to the syntax tree, and those of statements about transactions.
_OPENINGS = frozenset({"WITH", "(", "TABLE"})
_TRANSACTION_WORDS = frozenset({"BEGIN", "START", "COMMIT", "END", "ROLLBACK"})
_CREATABLE = frozenset({"table", "view", "index"})
_PLAIN_WORDS = frozenset({"create", "temp", "temporary", "unique"})
_PLAIN_CREATE = "Only a plain CREATE TABLE, VIEW or INDEX is allowed."
_ADVICE = "Only SELECT is allowed here."


class _Found(Exception):
    """A reason to deny, on its way out of a walk over one statement."""

    def __init__(self, rule: str, reason: str, severity: Severity) -> None:
        super().__init__(reason)
        self.rule, self.reason, self.severity = rule, reason, severity


class SQLPolicy(BoundedPolicy):
    """Judges the SQL that a tool is about to run, statement by statement, by its syntax tree.

    ``dialect`` names the database's dialect (``sqlite``, ``postgres``, ``mysql``, ...). ``mode`` is ``read_only`` (only
    reading statements, only known functions) or ``guarded`` (also INSERT, plain CREATE, transactions, and UPDATE and
    DELETE whose WHERE limits them). ``deny`` adds kinds of statement (``"DELETE"``, at any level of nesting) and tables
    (``"table:salary*"``, globs, letter case ignored; with a dot for ``schema.table``, without one for every schema).
    ``tables``, when given, are such globs for the only tables that may be touched. The database's own catalog
    (``sqlite_master``, ``pg_catalog``, ...) is closed unless a glob in ``tables`` that does not begin with a wildcard
    names it.
    ``argument`` names the argument that holds the SQL; of several names, each that is present is judged and at least
    one must be. ``tools`` are globs for the tools it judges; about others, and about hand-offs and agents, it has no
    opinion. ``functions`` are further functions that read_only may call.

    What it cannot see: a view or trigger that exists already and touches a protected table. Name such views in
    ``deny``, and open the connection read-only where you can.

    May be called from several threads at once. Whatever is unclear, too long (20,000 characters) or too deep is denied:
    fails closed. Raises `PolicyError` when made with a setting that has no meaning.
    """

    def __init__(
        self,
        *,
        dialect: str,
        mode: Mode = "guarded",
        deny: Sequence[str] = (),
        argument: str | Sequence[str] = "query",
        tools: Sequence[str] = ("*",),
        tables: Sequence[str] | None = None,
        functions: Sequence[str] = (),
        name: str = "sql",
    ) -> None:
        self.name = name
        self.dialect = sql_names.known_dialect(dialect)
        if mode not in MODES:
            raise PolicyError(f"{name}: mode {mode!r} is unknown", hint="write guarded or read_only")
        self.mode: Mode = mode
        self.arguments = (argument,) if isinstance(argument, str) else string_tuple(name, "argument", argument)
        if not self.arguments or not all(self.arguments):
            raise PolicyError(f"{name}: argument is empty", hint="name the tool argument that holds the SQL")
        self.tools = string_tuple(name, "tools", tools)
        denied = string_tuple(name, "deny", deny)
        self.denied_kinds = frozenset(
            sql_names.known_kind(name, item) for item in denied if not item.lower().startswith("table:")
        )
        self.denied_tables = tuple(item[6:].strip().lower() for item in denied if item.lower().startswith("table:"))
        if not all(self.denied_tables):
            raise PolicyError(f"{name}: deny has a table: without a name", hint="write table:NAME")
        self.tables = None if tables is None else tuple(g.lower() for g in string_tuple(name, "tables", tables))
        self.functions = frozenset(function.lower() for function in string_tuple(name, "functions", functions))
        self._lexicon = Lexicon(self.dialect)
        self._parse, keywords = make_parser(self.dialect)
        self._exactly_denied = frozenset(glob for glob in self.denied_tables if not set(glob) & set("*?[.")) - keywords
        self._judge_cached = lru_cache(CACHED_TEXTS)(self._judge_text)

    def judge(self, action: Action) -> Decision | None:
        """The verdict on a tool call that carries SQL; None for anything else."""
        if action.point is not Point.PRE_TOOL_CALL or action.kind in ("handoff", "agent"):
            return None
        if not any(glob == "*" or fnmatchcase(action.name, glob) for glob in self.tools):
            return None
        texts = [action.arguments[name] for name in self.arguments if name in action.arguments]
        if not texts or not all(isinstance(text, str) for text in texts):
            wanted = " or ".join(self.arguments)
            return self.deny("sql-missing", f"Give the SQL as text in the argument {wanted}.", Severity.MEDIUM)
        verdicts = [self.judge_sql(text) for text in texts]
        return max(verdicts, key=lambda verdict: verdict.effect)

    def judge_sql(self, text: str) -> Decision:
        """The verdict on one SQL text, which may hold several statements. Recent verdicts are kept."""
        try:
            return self._judge_cached(text)
        except RecursionError:  # depends on the caller's stack as well, so it is not kept
            return self.deny("sql-too-deep", "The SQL is nested too deeply; write a simpler query.", Severity.MEDIUM)

    def _judge_text(self, text: str) -> Decision:
        try:
            statements = self._lexicon.statements(text)
        except UnclearSQL as unclear:
            return self.deny(unclear.rule, unclear.reason, Severity.MEDIUM)
        if not statements:
            return self.deny("sql-unparsable", "There is no SQL in it; write one statement.", Severity.MEDIUM)
        worst: _Found | None = None
        for statement in statements:
            try:
                self._check_statement(statement)
            except _Found as found:
                if worst is None or _RANK[found.severity] > _RANK[worst.severity]:
                    worst = found
        return self.allow() if worst is None else self.deny(worst.rule, worst.reason, worst.severity)

    # ------------------------------------------------------------------ one statement

    def _check_statement(self, statement: Statement, *, explained: bool = False) -> None:
        first = statement.text[0] if statement.text[0] == "(" else statement.text.split(None, 1)[0]
        word = re.split(r"\W", first, maxsplit=1)[0].upper() or first
        kind = "TRANSACTION" if word in _TRANSACTION_WORDS else word
        if kind not in sql_names.KINDS | _OPENINGS:
            raise _Found("sql-unparsable", f"{first[:20]!r} does not begin a statement.", Severity.MEDIUM)
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
            raise _Found("sql-denied-statement", _PLAIN_CREATE, Severity.CRITICAL)
        else:
            self._check_tree(statement, self._tree(statement, kind))

    def _check_kinds(self, kinds: set[str]) -> None:
        """Refuses kinds that are denied by name, that read_only does not know, or that nothing lets through."""
        for kind in sorted(kinds):
            if kind in _OPENINGS:
                continue
            severity = Severity.CRITICAL if kind in sql_names.DESTRUCTIVE else Severity.HIGH
            if kind in self.denied_kinds:
                raise _Found("sql-denied-statement", f"{kind} statements are not allowed.", severity)
            if self.mode == "read_only" and kind not in sql_names.READS:
                raise _Found("sql-read-only", f"{kind} is not allowed. {_ADVICE}", severity)
            if kind not in sql_names.GUARDED and kind not in _TRANSACTION_WORDS:
                raise _Found("sql-denied-statement", f"{kind} statements are not allowed.", severity)

    def _check_functions(self, statement: Statement) -> None:
        for function in statement.called:
            if sql_names.is_dangerous(function, self.dialect):
                raise _Found(
                    "sql-function", f"The function {function} is not allowed; leave it out.", Severity.CRITICAL
                )

    def _check_pragma(self, statement: Statement) -> None:
        match = _PRAGMA.fullmatch(statement.text)
        if self.dialect != "sqlite" or match is None or match[1].lower() not in sql_names.DESCRIBING_PRAGMAS:
            allowed = ", ".join(sorted(sql_names.DESCRIBING_PRAGMAS))
            raise _Found("sql-denied-statement", f"Only these pragmas are allowed: {allowed}.", Severity.CRITICAL)
        self._check_table("", (match[3] or "").strip().lower())

    def _tree(self, statement: Statement, kind: str) -> exp.Expr:
        text, shift = statement.text, 0
        if kind == "REPLACE":  # the parser has no tree for REPLACE; it means INSERT OR REPLACE
            text, shift = f"INSERT OR {text}", len("INSERT OR ")
        tree, spans = self._parse(text)
        if tree is None or not same_reading(statement, [(start - shift, end - shift) for start, end in spans]):
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
            for schema, table in sql_tree.table_names(node):
                self._check_table(schema, table, listed=not sql_tree.is_from_query(node, table))
            if isinstance(node, exp.Update | exp.Delete) and not limits(node):
                reason = f"{node.key.upper()} needs a WHERE that compares a column with a value."
                raise _Found("sql-unbounded-write", reason, Severity.CRITICAL)
            if isinstance(node, exp.Create) and not sql_tree.is_plain_create(node):
                raise _Found("sql-denied-statement", _PLAIN_CREATE, Severity.CRITICAL)
            function = sql_tree.unknown_function(node)
            if function is not None and (self.mode == "read_only" or isinstance(node.parent, exp.Table)):
                self._check_unknown(function)
        # A second net: each time the text names a denied table, the tree must show that something else is meant.
        mentioned = [name for name in statement.names if name in self._exactly_denied]
        if mentioned and len(mentioned) > sql_tree.count_innocent(tree, self._exactly_denied):
            raise _denied_table(mentioned[0])

    def _check_unknown(self, function: str) -> None:
        if function not in self.functions and not sql_names.is_harmless(function, self.dialect):
            reason = f"The function {function} is not known to be harmless; use a standard one."
            raise _Found("sql-function", reason, Severity.MEDIUM)

    # ------------------------------------------------------------------ tables

    def _check_table(self, schema: str, table: str, *, listed: bool = True) -> None:
        """Refuses a table that is denied, of the catalog, or (when ``listed``, a real one) not among ``tables``."""
        if any(_may_mean(glob, schema, table) for glob in self.denied_tables):
            raise _denied_table(table)
        if sql_names.is_catalog(schema, table, self.dialect) or sql_names.FILE_NAME.search(table):
            named = [glob for glob in self.tables or () if not glob.startswith(("*", "?", "["))]
            if not any(_names(glob, schema, table) for glob in named):
                reason = f"{table} belongs to the database itself; query the ordinary tables."
                raise _Found("sql-catalog", reason, Severity.HIGH)
        elif (
            listed
            and self.tables is not None
            and table
            and not any(_names(glob, schema, table) for glob in self.tables)
        ):
            raise _Found("sql-denied-table", f"The table {table} must not be touched.", Severity.HIGH)


_RANK = {severity: rank for rank, severity in enumerate(Severity)}


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


def _denied_table(table: str) -> _Found:
    return _Found("sql-denied-table", f"The table {table} must not be touched; answer without it.", Severity.HIGH)


def _unparsable(what: str) -> _Found:
    return _Found("sql-unparsable", f"The policy cannot read {what}; write plain, correct SQL.", Severity.MEDIUM)


def _rest(statement: Statement, at: int) -> Statement:
    """The statement without its first ``at`` characters (which hold no quotes)."""
    text = statement.text[at:].lstrip(" \t\r\n\f")
    if not text:
        raise _unparsable("this EXPLAIN")
    shift = len(statement.text) - len(text)
    quoted = tuple((start - shift, end - shift) for start, end in statement.quoted)
    return Statement(text, statement.words, statement.names, statement.called, quoted)
