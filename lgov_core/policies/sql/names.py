"""Names that SQLPolicy knows: dialects, kinds of statements, functions, catalogs; its rules, and the refusals.

The lists are in ``names.yaml``.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from typing import Final, Literal

from lgov_core.errors import PolicyError, suggest_name
from lgov_core.governor.options import DataFile
from lgov_core.types import Severity

#: Statements that only read, and those that guarded mode lets through after a closer look.
READS = frozenset({"SELECT", "VALUES", "EXPLAIN"})
GUARDED = READS | {"FOR UPDATE", "INSERT", "REPLACE", "UPDATE", "DELETE", "CREATE", "PRAGMA", "TRANSACTION", "MERGE"}

#: A quoted name that is a path or an address: some databases open it as a file.
FILE_NAME = re.compile(r"[/\\]|:|\.(?:csv|tsv|json|jsonl|ndjson|parquet|orc|avro|arrow|xlsx?|db|sqlite3?|duckdb|txt)\b")
_SPARK = frozenset({"spark", "spark2", "databricks"})


DATA: Final = DataFile("lgov_core.policies.sql", "names.yaml")
#: Lists of words, and regular expressions, of ``names.yaml``.
words, pattern = DATA.words, DATA.pattern


@cache
def kinds() -> frozenset[str]:
    """Every kind of statement that ``deny`` may name."""
    return GUARDED | words("further_kinds")


@cache
def kind_of_class() -> Mapping[str, str]:
    """The kind of statement that a class of the parser stands for, by the name of the class."""
    return {name: kind for kind, names in DATA.content["classes"].items() for name in names.split()}


@cache
def _dangerous_somewhere() -> frozenset[str]:
    return frozenset().union(*(words("dangerous_only_in", dialect) for dialect in DATA.content["dangerous_only_in"]))


def is_file(schema: str, table: str, dialect: str) -> bool:
    """Returns whether a database may open what a table is called as a file, or fetch it. Names in lower case."""
    if dialect == "snowflake" and table.startswith("@"):  # a stage, of which files are read
        return True
    if dialect == "duckdb":  # which puts the parts of a name together, when there is no such table
        table = f"{schema}.{table}"
    return FILE_NAME.search(table) is not None or (
        dialect in _SPARK and schema.rpartition(".")[2].strip() in words("file_formats")
    )


def is_dangerous(function: str, dialect: str) -> bool:
    """Returns whether ``function`` (lower case) must not be called in ``dialect``, whatever the mode."""
    if function in _dangerous_somewhere():
        return function in words("dangerous_only_in", dialect)
    return pattern("dangerous_functions").fullmatch(function) is not None


def is_harmless(function: str, dialect: str) -> bool:
    """Returns whether ``function`` (lower case), for which the parser has no class, is known to only compute."""
    families = str(DATA.content["families"].get(dialect, dialect)).split()
    if any(function in words("functions", family) for family in ("everywhere", *families)):
        return True
    return dialect == "clickhouse" and pattern("clickhouse_functions").fullmatch(function) is not None


def is_catalog(schema: str, table: str, dialect: str) -> bool:
    """Returns whether the table belongs to the database's own catalog.

    Names in lower case; ``schema`` may be several, from the outermost in, with dots between.
    """
    own = DATA.content["catalog_of"].get(dialect)
    if own is not None and any(re.fullmatch(own, name) for name in (table, *schema.split("."))):
        return True
    if pattern("catalog_tables").fullmatch(table) or schema.partition(".")[0] in words("catalogs"):
        return True
    return bool(schema) and any(pattern("catalog_schemas").fullmatch(name) for name in schema.split("."))


def known_dialect(dialect: object) -> str:
    """The dialect's own name. Raises `PolicyError` with a suggestion."""
    dialects, aliases = DATA.content["dialects"].split(), DATA.content["dialect_aliases"]
    if not isinstance(dialect, str) or dialect not in (*dialects, *aliases):
        hint = suggest_name(str(dialect).lower(), (*dialects, *aliases), f"write one of {', '.join(dialects)}")
        raise PolicyError(f"the SQL dialect {dialect!r} is unknown", hint=hint)
    return aliases.get(dialect, dialect)


def known_kind(policy: str, kind: str) -> str:
    """The kind of statement in upper case. Raises `PolicyError` with a suggestion."""
    upper = kind.strip().upper()
    if upper not in kinds():
        hint = suggest_name(upper, sorted(kinds()), "write a kind of statement such as DROP, or table:NAME")
        raise PolicyError(f"{policy}: deny has {kind!r}, which is not a kind of statement", hint=hint)
    return upper


#: How bad a severity is, to compare.
SEVERITIES: Final = {severity: rank for rank, severity in enumerate(Severity)}


class Refusal(Exception):
    """A reason to deny. ``rule`` is the slug of the denial.

    ``unread`` says that the dialect has no such text at all: its database would refuse it as well.
    """

    def __init__(self, rule: str, reason: str, severity: Severity = Severity.MEDIUM, *, unread: bool = False) -> None:
        super().__init__(reason)
        self.rule, self.reason, self.severity, self.unread = rule, reason, severity, unread

    @property
    def weight(self) -> tuple[bool, int]:
        """How grave it is, to compare: what cannot be read comes after everything else."""
        return not self.unread, SEVERITIES[self.severity]


def denied_statement(reason: str) -> Refusal:
    """For what a plain statement of its kind does not do."""
    return Refusal("sql-denied-statement", reason, Severity.CRITICAL)


def denied_table(table: str) -> Refusal:
    """For a table that ``deny`` names."""
    return Refusal("sql-denied-table", f"The table {table} must not be touched; answer without it.", Severity.HIGH)


def denied_function(function: str) -> Refusal:
    """For a function that does more than compute."""
    return Refusal("sql-function", f"The function {function} is not allowed; leave it out.", Severity.CRITICAL)


def unbounded_write(reason: str) -> Refusal:
    """For a write that may change every row of a table."""
    return Refusal("sql-unbounded-write", reason, Severity.CRITICAL)


def unparsable(what: str, *, unread: bool = False) -> Refusal:
    """For a text that cannot be read with certainty."""
    return Refusal("sql-unparsable", f"The policy cannot read {what}; write plain, correct SQL.", unread=unread)


Mode = Literal["guarded", "read_only"]


@dataclass(frozen=True, slots=True)
class SQLRules:
    """The options of a `SQLPolicy` that judge a text, checked. Names and globs are in lower case.

    ``columns`` and ``ranges`` are pairs of globs: for the table and for the column.
    """

    mode: Mode
    denied_kinds: frozenset[str]
    denied_tables: tuple[str, ...]
    tables: tuple[str, ...] | None
    columns: tuple[tuple[str, str], ...]
    functions: frozenset[str]
    max_rows: int | None
    ranges: tuple[tuple[str, str], ...] = ()


_TRINO = frozenset({"trino", "presto", "athena"})
_SPARK_FILES_ARE_VALUES = frozenset({"spark", "databricks", "hive"})


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
    return [(schema, table), (outer, inner)] if inner and dialect in _SPARK_FILES_ARE_VALUES else [(schema, table)]


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
