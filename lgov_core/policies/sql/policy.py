"""SQLPolicy: judges SQL by its syntax tree. A guard under it: SQLite itself refuses, whatever the SQL looked like."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, get_args

from lgov_core.errors import PolicyError
from lgov_core.governor.options import argument_names, one_of, string_tuple
from lgov_core.governor.patterns import matches_any
from lgov_core.policies.base import BoundedPolicy
from lgov_core.policies.options import Count, Names, PolicyOptions, Text, Texts, takes
from lgov_core.policies.sql import names as sql_names
from lgov_core.policies.sql.names import SEVERITIES, Mode, SQLRules, is_dangerous, words
from lgov_core.types import Action, Decision, Effect, Point, Severity

if TYPE_CHECKING:
    from lgov_core.policies.sql.reader import Reader


CACHED_TEXTS = 1024
#: Where neither policy nor action names a dialect, a text is read in each of these.
COMMON_DIALECTS: Final = ("sqlite", "postgres", "mysql", "tsql")
#: The arguments that may hold the SQL, where the policy does not say.
SQL_ARGUMENTS: Final = ("query", "sql", "statement", "input")
#: For ``dialect``: the action carries it, and one that does not is denied.
FROM_TOOL: Final = "from_tool"


class SQLOptions(PolicyOptions, frozen=True):
    """The options of a `SQLPolicy`."""

    needed_in_files = ("dialect",)

    deny: Texts | None = None
    dialect: Text | None = None
    mode: Mode = "guarded"
    argument: Names = SQL_ARGUMENTS
    tools: Texts = ("*",)
    tables: Texts | None = None
    columns: Texts | None = ()
    functions: Texts = ()
    ranges: Texts = ()
    max_rows: Count | None = None
    name: Text = "SQLPolicy"


def _rules_of(options: SQLOptions) -> SQLRules:
    """The rules that the options mean. Raises `PolicyError` for one that has no meaning."""
    name, denied = options.name, options.deny or ()
    denied_tables = tuple(item[6:].strip().lower() for item in denied if item.lower().startswith("table:"))
    if not all(denied_tables):
        raise PolicyError(f"{name}: deny has a table: without a name", hint="write table:NAME")
    return SQLRules(
        mode=options.mode,
        denied_kinds=frozenset(
            sql_names.known_kind(name, item) for item in denied if not item.lower().startswith("table:")
        ),
        denied_tables=denied_tables,
        tables=None if options.tables is None else tuple(glob.lower() for glob in options.tables),
        columns=_columns(name, "columns", options.columns or ()),
        ranges=_columns(name, "ranges", options.ranges),
        functions=frozenset(function.lower() for function in options.functions),
        max_rows=options.max_rows,
    )


def _columns(policy: str, option: str, globs: Sequence[str]) -> tuple[tuple[str, str], ...]:
    for glob in globs:
        if not all(glob.strip().rpartition(".")[::2]):
            raise PolicyError(f"{policy}: {option} has {glob!r}", hint="write table.column")
    return tuple((table, column) for table, _, column in (glob.lower().strip().rpartition(".") for glob in globs))


class SQLPolicy(BoundedPolicy):
    """Checks the SQL that a tool is about to run, statement by statement, by its syntax tree.

    ``mode`` is ``read_only`` (only statements that read, only known functions) or ``guarded`` (also INSERT, plain CREATE,
    transactions, UPDATE and DELETE with a WHERE that names the rows, and MERGE that removes nothing and is tied to its
    source). A WHERE names rows by ``column = value`` or ``column IN (values)``, joined by AND. Open comparisons (``<``,
    ``<>``, LIKE), OR and NOT never do, except ``<``, ``>`` and BETWEEN of the columns in ``ranges`` (globs,
    ``table.column``). Both modes allow statements that only describe tables (``DESCRIBE t``, ``SHOW TABLES``, ``PRAGMA
    table_info(t)``).

    ``deny`` closes kinds of statement (``"DELETE"``, at any level of nesting) and tables (``"table:salary*"``: globs,
    letter case ignored; with a dot for ``schema.table``, without one for every schema). ``tables`` are such globs for the
    only tables that may be used. The database's own catalog (``sqlite_master``, ``pg_catalog``, ...) is closed unless a
    glob in ``tables`` that does not begin with a wildcard names it. ``columns`` are globs, ``table.column``, for columns
    that may be neither read nor written; `sql.columns` lists what counts as using one. ``functions`` are further functions
    that ``read_only`` may call, with their schema where the SQL names it.

    ``dialect`` (``sqlite``, ``postgres``, ``mysql``, ...) is the database's. ``"from_tool"`` takes it from
    ``action.context["dialect"]`` and denies where that is missing. Python code may leave it out: then the action's context
    counts, or else the text must pass in each of `COMMON_DIALECTS` in which it is SQL. That proves nothing: name the
    dialect.

    ``argument`` names the arguments that may hold the SQL: each that is present is checked, and a call without any is
    denied. ``tools`` are globs for the tools to check; the policy has no opinion on others, on hand-offs and on agents.

    ``max_rows`` limits queries to that many rows, and needs a dialect. A query without a limit, or with a higher one, is
    changed (LIMIT; TOP for SQL Server; FETCH FIRST for Oracle; comments are lost) and checked again: the decision is a
    transform. Where the change is not certain to be right, the query is denied. Rows that RETURNING gives are not counted.

    What it cannot see: a view or trigger that uses a closed table. Name such views in ``deny``, open the connection
    read-only where you can, and put `guard_sqlite` on a SQLite connection.

    Whatever is unclear, too long (20,000 characters) or too deep is denied. The parser loads when a policy with a dialect
    is made, else with the first text. May be called from several threads at once. Fails closed. Raises `PolicyError` for an
    option without a meaning.
    """

    permits = True

    @takes(SQLOptions)
    def __init__(self, options: SQLOptions) -> None:
        self.name = options.name
        dialect = options.dialect
        self.dialect = dialect if dialect is None or dialect == FROM_TOOL else sql_names.known_dialect(dialect)
        self._settings = _rules_of(options)
        if options.max_rows is not None and dialect is None:
            hint = f"write dialect= as well, or dialect={FROM_TOOL!r}"
            raise PolicyError(f"{self.name}: max_rows needs a dialect", hint=hint)
        self.mode: Mode = options.mode
        self.arguments = argument_names(self.name, options.argument, "the SQL")
        self.tools = tuple(options.tools)
        #: Whether the policy itself knows in which dialect to read.
        self._settled = dialect is not None and dialect != FROM_TOOL
        self._readers: dict[str, Reader] = {}
        self._judge_cached = lru_cache(CACHED_TEXTS)(self._judge_text)
        if self.dialect is not None and self._settled:
            self._reader(self.dialect)

    def judge(self, action: Action) -> Decision | None:
        """The verdict on a tool call that carries SQL; None for anything else."""
        if action.point is not Point.PRE_TOOL_CALL or action.kind in ("handoff", "agent"):
            return None
        if not matches_any(action.name, self.tools):
            return None
        arguments, dialect = action.arguments, self.dialect
        present = [name for name in self.arguments if name in arguments]
        if not self._settled:
            dialect = action.context.get("dialect")
            if dialect is not None:
                try:
                    dialect = sql_names.known_dialect(dialect)
                except PolicyError as error:
                    return self.deny("dialect-unknown", f"{error.message}.", Severity.MEDIUM)
        if not present or not all(isinstance(arguments[name], str) for name in present):
            names = " or ".join(self.arguments)
            return self.deny("sql-missing", f"Give the SQL as text in the argument {names}.", Severity.MEDIUM)
        decisions = {name: self.judge_sql(arguments[name], dialect=dialect) for name in present}
        worst = max(decisions.values(), key=lambda decision: (decision.effect, SEVERITIES[decision.severity]))
        if worst.effect is not Effect.TRANSFORM:
            return worst
        changed = {name: decision.text for name, decision in decisions.items() if decision.text is not None}
        return self.transform(worst.rule, worst.reason, arguments={**arguments, **changed})

    def judge_sql(self, text: str, *, dialect: str | None = None) -> Decision:
        """The verdict on one SQL text, which may hold several statements. Recent verdicts are kept.

        ``dialect`` stands in for that of an action, where the policy has none of its own; `PolicyError` when it is unknown.
        With ``max_rows`` the verdict may be a transform, whose ``text`` is the SQL to run instead.
        """
        if self._settled:
            dialect = self.dialect
        elif dialect is not None:
            dialect = sql_names.known_dialect(dialect)
        elif self.dialect == FROM_TOOL:
            return self.deny("dialect-unknown", "The tool does not say what SQL dialect it takes.", Severity.MEDIUM)
        try:
            return self._judge_cached(text, dialect)
        except RecursionError:  # depends on the caller's stack as well, so it is not kept
            return self.deny("sql-too-deep", "The SQL is nested too deeply; write a simpler query.", Severity.MEDIUM)

    def _judge_text(self, text: str, dialect: str | None) -> Decision:
        if dialect is not None:
            read = [self._reader(dialect).read(text)]
        else:  # what no database of a dialect would take does not count, unless that is all of them
            read = [self._reader(common).read(text) for common in COMMON_DIALECTS]
            read = [reading for reading in read if reading.refusal is None or not reading.refusal.unread] or read[:1]
        refusals = [reading.refusal for reading in read if reading.refusal is not None]
        if refusals:
            gravest = max(refusals, key=lambda refusal: SEVERITIES[refusal.severity])
            return self.deny(gravest.rule, gravest.reason, gravest.severity)
        if read[0].text is None:
            return self.allow()
        return self.transform("sql-max-rows", f"At most {self._settings.max_rows} rows are read.", text=read[0].text)

    def _reader(self, dialect: str) -> Reader:
        # Two threads may make the same one at the same time; either will do.
        reader = self._readers.get(dialect)
        if reader is None:
            from lgov_core.policies.sql.reader import Reader

            reader = self._readers[dialect] = Reader(self._settings, dialect)
        return reader


_HARMLESS: Final = frozenset(
    {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_RECURSIVE, sqlite3.SQLITE_TRANSACTION, sqlite3.SQLITE_SAVEPOINT}
)
_WRITES: Final = frozenset({sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE})
#: What guarded mode may create; SQLite asks for these with the table's name first or second.
_CREATES: Final = frozenset(
    getattr(sqlite3, f"SQLITE_CREATE_{temp}{what}") for temp in ("", "TEMP_") for what in ("TABLE", "VIEW", "INDEX")
)
_SCHEMA_TABLES: Final = frozenset({"sqlite_master", "sqlite_schema", "sqlite_temp_master", "sqlite_temp_schema"})


def guard_sqlite(
    connection: sqlite3.Connection,
    mode: Mode = "read_only",
    *,
    deny_tables: Sequence[str] = (),
    deny_columns: Sequence[str] = (),
    functions: Sequence[str] = (),
) -> sqlite3.Connection:
    """Makes ``connection`` refuse, when a statement is prepared, what it must not do; returns the same connection.

    ``read_only`` lets statements read; ``PRAGMA query_only`` is on as well. ``guarded`` also lets them insert, update,
    delete, use transactions, and create tables, views and indexes. In both modes ``ATTACH``, ``DETACH``, extensions,
    triggers, virtual tables, ``DROP``, ``ALTER``, every pragma that does not describe a table, and the schema tables as
    something to query are refused. ``deny_tables`` and ``deny_columns`` (``table.column``) are globs, letter case ignored,
    that may be neither read nor written. Unlike `SQLPolicy` this sees them behind views and triggers too, which were there
    before. A denied column is refused where its value is used; ``count(*)`` over its table is not. ``functions`` are
    further ones to let through of those that are refused because they reach files or native code.

    A refused statement raises ``sqlite3.DatabaseError``, as does an error inside of the guard. Not limited: how many rows a
    WHERE picks out (`SQLPolicy` does that), time, and memory. Code that holds the connection object can take the guard off
    again: give agents SQL, not the object.

    The guard replaces an authorizer that was set before. Raises `PolicyError` for what has no meaning. Call it on the
    thread that the connection belongs to, while no transaction is open.
    """
    if not isinstance(connection, sqlite3.Connection):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise PolicyError(f"guard_sqlite: {connection!r} is not a sqlite3 connection", hint="pass sqlite3.connect(...)")
    one_of("guard_sqlite", "mode", mode, get_args(Mode))
    tables = tuple(glob.lower() for glob in string_tuple("guard_sqlite", "deny_tables", deny_tables))
    columns = tuple(glob.lower() for glob in string_tuple("guard_sqlite", "deny_columns", deny_columns))
    for glob in columns:
        if "." not in glob:
            raise PolicyError(f"guard_sqlite: deny_columns has {glob!r}", hint="write table.column")
    allowed = frozenset(name.lower() for name in string_tuple("guard_sqlite", "functions", functions))
    connection.set_authorizer(None)
    if hasattr(connection, "enable_load_extension"):
        connection.enable_load_extension(False)
    connection.execute(f"PRAGMA query_only = {'ON' if mode == 'read_only' else 'OFF'}")
    connection.execute("PRAGMA trusted_schema = OFF")
    rules = _Rules(mode == "read_only", tables, columns, allowed)

    def authorizer(code: int, first: str | None, second: str | None, database: str | None, source: str | None) -> int:
        try:
            refused = rules.refuse(code, (first or "").lower(), (second or "").lower())
        except Exception:  # noqa: BLE001 - whatever goes wrong, it is refused
            refused = True
        return sqlite3.SQLITE_DENY if refused else sqlite3.SQLITE_OK

    connection.set_authorizer(authorizer)
    return connection


@dataclass(frozen=True, slots=True)
class _Rules:
    """The rules of refusal, by the code that SQLite asks with and its two names in lower case."""

    reads_only: bool
    tables: tuple[str, ...]
    columns: tuple[str, ...]
    functions: frozenset[str]

    def refuse(self, code: int, first: str, second: str) -> bool:
        if code in _HARMLESS:
            return False
        if code in (sqlite3.SQLITE_READ, *_WRITES):
            return self._refuse_access(code, first, second)
        if code == sqlite3.SQLITE_FUNCTION:
            return second not in self.functions and is_dangerous(second, "sqlite")
        if code == sqlite3.SQLITE_PRAGMA:
            return first not in words("describing_pragmas") or self._closed(second)
        if code == sqlite3.SQLITE_REINDEX:  # asked for after an index is made, too
            return self.reads_only
        if code in _CREATES:
            return self.reads_only or self._closed(first) or self._closed(second)
        return True

    def _refuse_access(self, code: int, first: str, second: str) -> bool:
        if first in _SCHEMA_TABLES:
            # Making a table writes them and reads their row numbers. As SQL, SQLite itself refuses to write them.
            return self.reads_only or (code == sqlite3.SQLITE_READ and second != "rowid")
        if first.startswith("pragma_"):
            return True
        return self._closed(first, second) or (code in _WRITES and self.reads_only)

    def _closed(self, table: str, column: str = "") -> bool:
        return matches_any(table, self.tables) or (bool(column) and matches_any(f"{table}.{column}", self.columns))
