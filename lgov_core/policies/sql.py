"""SQLPolicy: judges SQL by its syntax tree."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Final

from lgov_core.errors import PolicyError
from lgov_core.policies import sql_names
from lgov_core.policies.base import BoundedPolicy
from lgov_core.policies.options import string_tuple
from lgov_core.policies.sql_reading import SEVERITIES, Found, Mode, Reading, Settings
from lgov_core.types import Action, Decision, Effect, Point, Severity

MODES: tuple[Mode, ...] = ("guarded", "read_only")
CACHED_TEXTS = 1024
#: Where neither policy nor action names a dialect, a text is read in each of these.
COMMON_DIALECTS: Final = ("sqlite", "postgres", "mysql", "tsql")
#: The arguments that may hold the SQL, where the policy does not say.
SQL_ARGUMENTS: Final = ("query", "sql", "statement", "input")
#: For ``dialect``: the action carries it, and one that does not is denied.
FROM_TOOL: Final = "from_tool"


class SQLPolicy(BoundedPolicy):
    """Judges the SQL that a tool is about to run, statement by statement, by its syntax tree.

    ``mode`` is ``read_only`` (only reading statements, only known functions) or ``guarded`` (also INSERT, plain CREATE,
    transactions, and UPDATE and DELETE whose WHERE limits them). ``deny`` adds kinds of statement (``"DELETE"``, at any
    level of nesting) and tables (``"table:salary*"``, globs, letter case ignored; with a dot for ``schema.table``, without
    one for every schema). ``tables``, when given, are such globs for the only tables that may be touched. The database's
    own catalog (``sqlite_master``, ``pg_catalog``, ...) is closed unless a glob in ``tables`` that does not begin with a
    wildcard names it.

    ``dialect`` names the database's dialect (``sqlite``, ``postgres``, ``mysql``, ...) and goes before what the action
    says. Without it, and with ``"from_tool"``, the dialect is ``action.context["dialect"]``. Where the action names none
    either, ``"from_tool"`` denies, and a policy without a dialect reads the text in each of `COMMON_DIALECTS`: a reading in
    which the text is no SQL at all does not count, of the others the most severe verdict wins, and a text that none can
    read is denied. That is a net, not a proof: what another database makes of the text is not asked. Name the dialect.

    ``argument`` names the argument that holds the SQL; of several names, each that is present is judged and at least
    one must be. ``tools`` are globs for the tools it judges; about others, and about hand-offs and agents, it has no
    opinion. ``functions`` are further functions that read_only may call.

    ``columns`` are globs ``table.column`` that may be neither read nor written. Where a statement names a fitting table, it
    must say which columns it wants: ``*``, a whole row, NATURAL JOIN, an INSERT into that table, column lists beside an
    alias, and the name of such a column that is not surely another table's (``other.name``) are denied. ``count(*)`` is not.
    A key by its other names in SQLite (``rowid``) counts as such a column. ``max_rows`` limits what a SELECT gives: a plain
    limit is lowered, a missing one is written in (LIMIT, TOP or FETCH FIRST: the decision is a transform, comments are
    lost), and where that takes more than an edit of one statement's text (several statements, parameters, percentages,
    locks), it is denied. It needs a dialect. Other statements are not limited by it.

    What it cannot see: a view or trigger that exists already and touches a protected table. Name such views in
    ``deny``, and open the connection read-only where you can.

    May be called from several threads at once. Whatever is unclear, too long (20,000 characters) or too deep is denied:
    fails closed. Raises `PolicyError` when made with a setting that has no meaning. The parser loads when a policy with a
    dialect is made, else with the first text.
    """

    def __init__(
        self,
        deny: Sequence[str] | None = None,
        *,
        dialect: str | None = None,
        mode: Mode = "guarded",
        argument: str | Sequence[str] = SQL_ARGUMENTS,
        tools: Sequence[str] = ("*",),
        tables: Sequence[str] | None = None,
        functions: Sequence[str] = (),
        columns: Sequence[str] = (),
        max_rows: int | None = None,
        name: str = "SQLPolicy",
    ) -> None:
        self.name = name
        self.dialect = dialect if dialect is None or dialect == FROM_TOOL else sql_names.known_dialect(dialect)
        if mode not in MODES:
            raise PolicyError(f"{name}: mode {mode!r} is unknown", hint="write guarded or read_only")
        self.mode: Mode = mode
        self.arguments = (argument,) if isinstance(argument, str) else string_tuple(name, "argument", argument)
        if not self.arguments or not all(self.arguments):
            raise PolicyError(f"{name}: argument is empty", hint="name the tool argument that holds the SQL")
        self.tools = string_tuple(name, "tools", tools)
        denied = () if deny is None else string_tuple(name, "deny", deny)
        denied_tables = tuple(item[6:].strip().lower() for item in denied if item.lower().startswith("table:"))
        if not all(denied_tables):
            raise PolicyError(f"{name}: deny has a table: without a name", hint="write table:NAME")
        self._settings = Settings(
            mode=mode,
            denied_kinds=frozenset(
                sql_names.known_kind(name, item) for item in denied if not item.lower().startswith("table:")
            ),
            denied_tables=denied_tables,
            tables=None if tables is None else tuple(g.lower() for g in string_tuple(name, "tables", tables)),
            functions=frozenset(function.lower() for function in string_tuple(name, "functions", functions)),
            columns=tuple(_column(name, glob) for glob in string_tuple(name, "columns", columns)),
            max_rows=_most(name, max_rows, self.dialect),
        )
        self._readings: dict[str, Reading] = {}
        self._judge_cached = lru_cache(CACHED_TEXTS)(self._judge_text)
        if self.dialect is not None and self.dialect != FROM_TOOL:
            self._reading(self.dialect)

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
        dialect = self.dialect
        if dialect is None or dialect == FROM_TOOL:
            dialect = action.context.get("dialect")
            if dialect is None and self.dialect == FROM_TOOL:
                return self.deny("dialect-unknown", "The tool does not say what SQL dialect it takes.", Severity.MEDIUM)
            if dialect is not None:
                try:
                    dialect = sql_names.known_dialect(dialect)
                except PolicyError as error:
                    return self.deny("dialect-unknown", f"{error.message}.", Severity.MEDIUM)
        if len(texts) == 1 and self._settings.max_rows is None:
            return self.judge_sql(texts[0], dialect=dialect)
        verdicts = [self.judge_sql(text, dialect=dialect) for text in texts]
        worst = max(verdicts, key=lambda verdict: (verdict.effect, SEVERITIES[verdict.severity]))
        if worst.effect is not Effect.TRANSFORM:
            return worst
        names = [name for name in self.arguments if name in action.arguments]
        given = {name: one.text for name, one in zip(names, verdicts, strict=True) if one.effect is Effect.TRANSFORM}
        return self.transform(worst.rule, worst.reason, arguments={**action.arguments, **given})

    def judge_sql(self, text: str, *, dialect: str | None = None) -> Decision:
        """The verdict on one SQL text, which may hold several statements. Recent verdicts are kept.

        With ``max_rows`` it may be a transform whose ``text`` is the SQL with the limit. ``dialect`` stands in for
        that of an action, where the policy has none of its own; `PolicyError` when it is unknown.
        """
        if self.dialect is not None and self.dialect != FROM_TOOL:
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
        found = self._found_in_any(text) if dialect is None else self._reading(dialect).found_in(text)
        if found is None and dialect is not None and self._settings.max_rows is not None:
            found = self._reading(dialect).limited(text)
            if isinstance(found, str):
                return self.transform(
                    "sql-max-rows", f"At most {self._settings.max_rows} rows may be read.", text=found
                )
        return self.allow() if found is None else self.deny(found.rule, found.reason, found.severity)

    def _found_in_any(self, text: str) -> Found | None:
        """The gravest finding of the dialects that can read ``text``; when none can, that."""
        readings = [self._reading(dialect).found_in(text) for dialect in COMMON_DIALECTS]
        return max(
            (found for found in readings if found is None or not found.unread),
            key=lambda found: -1 if found is None else SEVERITIES[found.severity],
            default=readings[0],
        )

    def _reading(self, dialect: str) -> Reading:
        # Two threads may make the same one at the same time; either will do.
        reading = self._readings.get(dialect)
        if reading is None:
            reading = self._readings[dialect] = Reading(self._settings, dialect)
        return reading


def _column(policy: str, glob: str) -> tuple[str, str]:
    table, dot, column = glob.strip().lower().rpartition(".")
    if not (table and dot and column):
        raise PolicyError(f"{policy}: columns has {glob!r}", hint="write table.column")
    return table.rpartition(".")[2], column


def _most(policy: str, max_rows: object, dialect: str | None) -> int | None:
    if max_rows is None:
        return None
    if isinstance(max_rows, bool) or not isinstance(max_rows, int) or max_rows < 1:
        raise PolicyError(f"{policy}: max_rows is {max_rows!r}", hint="write a number of rows, at least 1")
    if dialect is None:
        raise PolicyError(f"{policy}: max_rows needs a dialect", hint="write dialect= as well, or dialect='from_tool'")
    return max_rows


def sql_rule(
    *,
    dialect: str,
    deny: Sequence[str] | None = None,
    mode: Mode = "guarded",
    argument: str | Sequence[str] = SQL_ARGUMENTS,
    tools: Sequence[str] = ("*",),
    tables: Sequence[str] | None = None,
    functions: Sequence[str] = (),
    columns: Sequence[str] = (),
    max_rows: int | None = None,
    name: str = "SQLPolicy",
) -> SQLPolicy:
    """`SQLPolicy` as a policy file makes it: there the dialect must be said, if only as ``from_tool``."""
    if dialect is None:  # pyright: ignore[reportUnnecessaryComparison] - files hold anything
        sql_names.known_dialect(dialect)
    return SQLPolicy(
        deny,
        dialect=dialect,
        mode=mode,
        argument=argument,
        tools=tools,
        tables=tables,
        functions=functions,
        columns=columns,
        max_rows=max_rows,
        name=name,
    )
