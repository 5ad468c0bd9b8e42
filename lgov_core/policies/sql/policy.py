"""SQLPolicy: judges SQL by its syntax tree."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, Final

from lgov_core.errors import PolicyError
from lgov_core.governor.options import argument_names, matches_any, string_tuple
from lgov_core.policies.base import BoundedPolicy
from lgov_core.policies.sql import names as sql_names
from lgov_core.policies.sql.names import SEVERITIES
from lgov_core.policies.sql.rules import Mode, settings_of
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


class SQLPolicy(BoundedPolicy):
    """Checks the SQL that a tool is about to run, statement by statement, by its syntax tree.

    ``mode`` is ``read_only`` (only statements that read, only known functions) or ``guarded`` (also INSERT, plain CREATE,
    transactions, UPDATE and DELETE with a WHERE that limits the rows, and MERGE that removes nothing and is tied to its
    source). Both allow statements that only describe tables (``DESCRIBE t``, ``SHOW TABLES``, ``PRAGMA table_info(t)``).

    ``deny`` closes kinds of statement (``"DELETE"``, at any level of nesting) and tables (``"table:salary*"``: globs, letter
    case ignored; with a dot for ``schema.table``, without one for every schema). ``tables`` are such globs for the only
    tables that may be used. The database's own catalog (``sqlite_master``, ``pg_catalog``, ...) is closed unless a glob in
    ``tables`` that does not begin with a wildcard names it. ``columns`` are globs, ``table.column``, for columns that may be
    neither read nor written; `sql.columns` lists what counts as using one. ``functions`` are further functions that
    ``read_only`` may call, with their schema where the SQL names it.

    ``dialect`` (``sqlite``, ``postgres``, ``mysql``, ...) is the database's. ``"from_tool"`` takes it from
    ``action.context["dialect"]`` and denies where that is missing. In Python it may be left out: then the action's context
    counts, and else the text must pass in each of `COMMON_DIALECTS` in which it is SQL. That proves nothing: name the dialect.

    ``argument`` names the arguments that may hold the SQL: each that is present is checked, and a call without any is
    denied. ``tools`` are globs for the tools that it checks; it has no opinion on others, on hand-offs and on agents.

    ``max_rows`` limits queries to that many rows, and needs a dialect. A query without a limit, or with a higher one, is
    changed (LIMIT; TOP for SQL Server; FETCH FIRST for Oracle; comments are lost) and checked again: the decision is a
    transform. Where that is not certain to be right, the query is denied. Rows that RETURNING gives are not counted.

    What it cannot see: a view or trigger that uses a closed table. Name such views in ``deny``, open the connection
    read-only where you can, and put `guard_sqlite` on a SQLite connection.

    May be called from several threads at once. Whatever is unclear, too long (20,000 characters) or too deep is denied:
    fails closed. Raises `PolicyError` for an option without a meaning. The parser loads when a policy with a dialect is
    made, else with the first text.
    """

    permits = True
    #: A policy file must give these, although Python need not.
    required_in_files: ClassVar[tuple[str, ...]] = ("dialect",)

    def __init__(
        self,
        deny: Sequence[str] | None = None,
        *,
        dialect: str | None = None,
        mode: Mode = "guarded",
        argument: str | Sequence[str] = SQL_ARGUMENTS,
        tools: Sequence[str] = ("*",),
        tables: Sequence[str] | None = None,
        columns: Sequence[str] = (),
        functions: Sequence[str] = (),
        max_rows: int | None = None,
        name: str = "SQLPolicy",
    ) -> None:
        self.name = name
        self.dialect = dialect if dialect is None or dialect == FROM_TOOL else sql_names.known_dialect(dialect)
        self._settings = settings_of(name, mode, deny, tables, columns, functions, max_rows)
        if max_rows is not None and dialect is None:
            hint = f"write dialect= as well, or dialect={FROM_TOOL!r}"
            raise PolicyError(f"{name}: max_rows needs a dialect", hint=hint)
        self.mode: Mode = mode
        self.arguments = argument_names(name, argument, "the SQL")
        self.tools = string_tuple(name, "tools", tools)
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
