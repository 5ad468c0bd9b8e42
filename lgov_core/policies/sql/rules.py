"""The settings of a SQLPolicy: kinds of statements, tables, columns and functions, and how names are matched with them."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, get_args

from lgov_core.errors import PolicyError
from lgov_core.governor.options import one_of, positive_integer, string_tuple
from lgov_core.policies.sql import names as sql_names

Mode = Literal["guarded", "read_only"]


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of a `SQLPolicy` that judge a text, checked. Names and globs are in lower case.

    ``columns`` are pairs of globs: for the table and for the column.
    """

    mode: Mode
    denied_kinds: frozenset[str]
    denied_tables: tuple[str, ...]
    tables: tuple[str, ...] | None
    columns: tuple[tuple[str, str], ...]
    functions: frozenset[str]
    max_rows: int | None


def settings_of(
    name: str,
    mode: Mode,
    deny: Sequence[str] | None,
    tables: Sequence[str] | None,
    columns: Sequence[str] | None,
    functions: Sequence[str],
    max_rows: int | None,
) -> Settings:
    """The options, checked. Raises `PolicyError` for one that has no meaning."""
    one_of(name, "mode", mode, get_args(Mode))
    denied = string_tuple(name, "deny", () if deny is None else deny)
    denied_tables = tuple(item[6:].strip().lower() for item in denied if item.lower().startswith("table:"))
    if not all(denied_tables):
        raise PolicyError(f"{name}: deny has a table: without a name", hint="write table:NAME")
    return Settings(
        mode=mode,
        denied_kinds=frozenset(
            sql_names.known_kind(name, item) for item in denied if not item.lower().startswith("table:")
        ),
        denied_tables=denied_tables,
        tables=None if tables is None else tuple(glob.lower() for glob in string_tuple(name, "tables", tables)),
        columns=tuple(_column(name, glob.lower()) for glob in string_tuple(name, "columns", columns or ())),
        functions=frozenset(function.lower() for function in string_tuple(name, "functions", functions)),
        max_rows=None if max_rows is None else positive_integer(name, "max_rows", max_rows),
    )


def _column(name: str, glob: str) -> tuple[str, str]:
    table, _, column = glob.strip().rpartition(".")
    if not table or not column:
        raise PolicyError(f"{name}: columns has {glob!r}", hint="write table.column")
    return table, column


_TRINO = frozenset({"trino", "presto", "athena"})
_SPARK = frozenset({"spark", "databricks", "hive"})


def folded(name: str) -> str:
    """A name as a database may see it that makes no difference of letter case, width or accents."""
    if name.isascii():
        return name.lower()
    plain = unicodedata.normalize("NFKD", name)
    return "".join(char for char in plain if not unicodedata.combining(char)).casefold()


def stored_name(schema: str, table: str, dialect: str) -> tuple[str, str]:
    """The schema and the table that a name in FROM reads.

    BigQuery takes ``project.dataset.table`` in one pair of quotes, and decorators for a part (``$20260301``) or a moment
    (``@-3600000``) of a table. Trino's ``table$partitions`` holds values of the table.
    """
    if dialect in _TRINO:
        return schema, table.split("$")[0]
    if dialect != "bigquery":
        return schema, table
    *outer, table = re.split(r"[$@]", table, maxsplit=1)[0].split(".")
    return ".".join(name for name in (schema, *outer) if name), table


def denied_names(schema: str, table: str, dialect: str) -> list[tuple[str, str]]:
    """The names that must not be denied. Spark's ``table.files`` holds values of the table, which looks like a schema."""
    outer, _, inner = schema.rpartition(".")
    return [(schema, table), (outer, inner)] if inner and dialect in _SPARK else [(schema, table)]


def may_mean(glob: str, schema: str, table: str) -> bool:
    """Returns whether a glob for denied tables may mean this one; without a schema in the SQL it may be any schema's.

    A table that ends with ``*`` stands for every table that begins so (BigQuery's wildcard tables).
    """
    table = folded(table)
    if "." in glob and schema:
        outer, _, inner = folded(schema).rpartition(".")
        return _may_match(f"{inner}.{table}", glob) or _may_match(f"{outer}.{inner}.{table}", glob)
    return _may_match(table, glob.rsplit(".", 1)[-1])


def _may_match(name: str, glob: str) -> bool:
    if not name.endswith("*"):
        return fnmatchcase(name, glob)
    opening = re.split(r"[*?[]", glob, maxsplit=1)[0]  # how everything that the glob matches begins
    prefix = name[:-1]
    return opening.startswith(prefix) or (opening != glob and prefix.startswith(opening))


def names(glob: str, schema: str, table: str) -> bool:
    """Returns whether a glob for permitted tables surely names this one, or every one that a wildcard table stands for."""
    dots = glob.count(".")
    name = ".".join([*schema.split("."), table][-dots - 1 :])
    return fnmatchcase(name.removesuffix("*"), glob) and (glob.endswith("*") or not name.endswith("*"))
