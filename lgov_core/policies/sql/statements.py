"""Statements that are read by their form, not by a syntax tree: about transactions, about tables, shorthands of DuckDB."""

from __future__ import annotations

import re

from lgov_core.policies.options import names as words
from lgov_core.policies.sql.names import words as words_named
from lgov_core.policies.sql.text import MYSQL_FAMILY, Statement

#: First words of statements about transactions.
TRANSACTION_WORDS = frozenset({"BEGIN", "START", "COMMIT", "END", "ROLLBACK", "SAVEPOINT", "RELEASE"})
#: First words that leave the kind of statement to the syntax tree.
OPENINGS = frozenset({"WITH", "(", "TABLE", "FROM"})
#: DuckDB's statements that read and do not begin with a word of standard SQL.
SHORTHANDS = frozenset({"SUMMARIZE", "PIVOT", "UNPIVOT"})

_PLAIN_NAME = r"[^\W\d]\w*"
_NAME = rf'(?:{_PLAIN_NAME}|"[^"]+"|`[^`]+`)'
_PATH = rf"{_NAME}(?:\s*\.\s*{_NAME}){{0,2}}"
_PLAIN_PATH = rf"{_PLAIN_NAME}(?:\s*\.\s*{_PLAIN_NAME})?"
_PATH_ALONE = re.compile(_PATH)
_WORDS_OF_DUCKDB = SHORTHANDS | {"DESCRIBE", "DESC", "SHOW", "EXPLAIN"}
_ISOLATION = r"isolation\s+level\s+(?:serializable|snapshot|repeatable\s+read|read\s+(?:un)?committed)"
_TRANSACTION = re.compile(
    r"(?:begin(?:\s+(?:deferred|immediate|exclusive))?|start|commit|end|rollback)(?:\s+(?:transaction|work|tran))?",
    re.I,
)
#: Not to SQL Server, which would take such words for the name of a procedure.
_LONG_TRANSACTION = re.compile(
    rf"(?:begin|start)(?:\s+(?:transaction|work))?(?:\s*(?:\s|,)\s*(?:read\s+only|with\s+consistent\s+snapshot|{_ISOLATION}))+"
    rf"|savepoint\s+{_PLAIN_NAME}|release(?:\s+savepoint)?\s+{_PLAIN_NAME}"
    rf"|rollback(?:\s+(?:transaction|work))?\s+to(?:\s+savepoint)?\s+{_PLAIN_NAME}",
    re.I,
)
_VARIABLE = (
    r"@\w+\s+(?:as\s+)?[^\W\d]\w*(?:\s*\(\s*(?:\d+|max)(?:\s*,\s*\d+)?\s*\))?"
    r"(?:\s*=\s*(?:[-+]?\d+(?:\.\d+)?|n?'(?:[^']|'')*+'|null))?"
)
#: BigQuery's, which have a type, a plain value or both.
_DEFAULT = (
    r"default\s+(?:[-+]?\d+(?:\.\d+)?|(?:date|timestamp|datetime)?\s*'[^'\\]*'|true|false|null"
    r"|current_(?:date|timestamp|datetime)\s*(?:\(\s*\))?)"
)
_NAMED_VALUES = re.compile(
    rf"declare\s+{_PLAIN_NAME}(?:\s*,\s*{_PLAIN_NAME})*(?:\s+(?!default\b){_PLAIN_NAME})?(?:\s+{_DEFAULT})?", re.I
)
_VARIABLES = re.compile(rf"declare\s+{_VARIABLE}(?:\s*,\s*{_VARIABLE})*", re.I)
_PRAGMA = re.compile(
    r"""pragma\s+(?:\w+\s*\.\s*)?(\w+)\s*(?:\(\s*(['"`\[]?)([^'"`\[\]()=;]*)['"`\]]?\s*\))?""", re.IGNORECASE
)
_SHOW = MYSQL_FAMILY.union(
    words("snowflake duckdb clickhouse redshift hive spark databricks trino presto athena drill")
)
_DESCRIBE = (_SHOW - {"redshift"}) | {"oracle"}
_MUTATION = re.compile(
    rf"alter\s+table\s+(?P<path>{_PLAIN_PATH})\s+(?:(?P<delete>delete)\s+(?=where\b)|update\s+)", re.I
)
_LIKE = r"(?:\s+like\s+'[^'\\]*')?"
_DESCRIBES_ONE = re.compile(
    rf"(?:describe|desc)(?:\s+(?:table|view))?(?:\s+(?:extended|formatted))?\s+(?P<path>{_PATH})"
    rf"|(?:show\s+create\s+(?:table|view)|show\s+partitions|show\s+stats\s+for|exists(?:\s+(?:table|view))?)\s+(?P<made>{_PATH})"
    rf"|show(?:\s+(?:full|extended))*\s+(?:columns|fields|index|indexes|indices|keys)\s+(?:from|in)(?:\s+table)?\s+(?P<of>{_PATH})"
    rf"(?:\s+(?:from|in)\s+(?P<within>{_NAME}))?{_LIKE}",
    re.I,
)
_DESCRIBES_ALL = re.compile(
    rf"show(?:\s+(?:full|extended|all|terse))*\s+(?:tables|views|schemas|databases)"
    rf"{_LIKE}(?:\s+(?:from|in)(?:\s+(?:schema|database))?\s+(?P<within>{_PATH}))?{_LIKE}",
    re.I,
)


def is_transaction(text: str, dialect: str) -> bool:
    """Whether a statement begins, ends or divides a transaction, and does nothing else."""
    if _TRANSACTION.fullmatch(text) is not None:
        return True
    return dialect not in ("tsql", "fabric") and _LONG_TRANSACTION.fullmatch(text) is not None


def declares_values(text: str, dialect: str) -> bool:
    """Whether a statement only gives variables of SQL Server, or BigQuery, their types and plain values."""
    if dialect == "bigquery":
        return _NAMED_VALUES.fullmatch(text) is not None
    return dialect in ("tsql", "fabric") and _VARIABLES.fullmatch(text) is not None


def described(text: str, kind: str, dialect: str) -> tuple[str, str] | None:
    """The schema and the table (lower case, perhaps empty) that a PRAGMA, DESCRIBE or SHOW describes.

    None where the statement may do anything else, to the dialect's database, than say how tables are made.
    """
    if kind == "PRAGMA":
        match = _PRAGMA.fullmatch(text)
        if dialect != "sqlite" or match is None or match[1].lower() not in words_named("describing_pragmas"):
            return None
        return "", (match[3] or "").strip().lower()
    if dialect not in (_SHOW if kind == "SHOW" else _DESCRIBE):
        return None
    if dialect in ("databricks", "spark"):
        text = re.sub(r"(?i)\A(desc(?:ribe)?)\s+(?:history|detail)\s", r"\1 ", text)
    if (match := _DESCRIBES_ALL.fullmatch(text)) is not None:
        return ".".join(_parts(match["within"] or "")), ""
    if (match := _DESCRIBES_ONE.fullmatch(text)) is None:
        return None
    *schema, table = _parts(match["path"] or match["made"] or match["of"])
    return ".".join([*_parts(match["within"] or ""), *schema]), table


def as_delete_or_update(statement: Statement) -> Statement | None:
    """What ClickHouse's ``ALTER TABLE t DELETE WHERE ...``, or UPDATE, does, as a statement of that name; None for another."""
    match = _MUTATION.match(statement.text)
    if match is None:
        return None
    opening = f"DELETE FROM {match['path']} " if match["delete"] else f"UPDATE {match['path']} SET "
    return statement.with_end(opening, statement.text[match.end() :])


def _parts(path: str) -> list[str]:
    return [part.strip('"`').lower() for part in re.findall(_NAME, path)]


def as_query(statement: Statement, word: str) -> Statement | None:
    """The query that reads what one of DuckDB's `SHORTHANDS` reads; None where that is not sure."""
    rest = statement.text[len(word) :].lstrip(" \t\r\n\f")
    first = re.match(r"\(|\w*", rest)
    opens = first is not None and first[0].upper() in OPENINGS | {"SELECT", "VALUES"}
    if word != "SUMMARIZE":  # its own words begin no table's name
        if first is None or first[0].upper() in _WORDS_OF_DUCKDB:
            return None
        return statement.with_end("FROM (", statement.text, ")")
    if opens:
        return statement.with_end("", rest)
    return statement.with_end("FROM ", rest) if _PATH_ALONE.fullmatch(rest) is not None else None
