"""A second layer under SQLPolicy: SQLite itself refuses, whatever the SQL looked like."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, get_args

from lgov_core.errors import PolicyError
from lgov_core.governor.options import matches_any, one_of, string_tuple
from lgov_core.policies.sql.names import is_dangerous, words
from lgov_core.policies.sql.rules import Mode

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
