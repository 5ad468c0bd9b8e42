"""Names that SQLPolicy knows: dialects, kinds of statements, functions, catalogs; and the refusals with their severities.

The lists are in ``names.yaml``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Final

from lgov_core._util.words import suggest_name
from lgov_core.errors import PolicyError
from lgov_core.policies.data import DataFile
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
    if dialect == "oracle" and pattern("oracle_catalog_tables").fullmatch(table):
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
