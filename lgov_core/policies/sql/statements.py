"""Statements that are read by their form, not by a syntax tree: about transactions, about tables, shorthands of DuckDB."""

from __future__ import annotations

import re

from lgov_core.policies.sql.names import pattern as _re
from lgov_core.policies.sql.names import words
from lgov_core.policies.sql.text import Statement

#: First words of statements about transactions.
TRANSACTION_WORDS = frozenset({"BEGIN", "START", "COMMIT", "END", "ROLLBACK", "SAVEPOINT", "RELEASE"})
#: First words that leave the kind of statement to the syntax tree.
OPENINGS = frozenset({"WITH", "(", "TABLE", "FROM"})
#: DuckDB's statements that read and do not begin with a word of standard SQL.
SHORTHANDS = frozenset({"SUMMARIZE", "PIVOT", "UNPIVOT"})

_NAME = re.compile(r'[^\W\d]\w*|"[^"]+"|`[^`]+`')
_WORDS_OF_DUCKDB = SHORTHANDS | {"DESCRIBE", "DESC", "SHOW", "EXPLAIN"}


def is_transaction(text: str, dialect: str) -> bool:
    """Whether a statement begins, ends or divides a transaction, and does nothing else."""
    if _re("transaction").fullmatch(text) is not None:
        return True
    return dialect not in ("tsql", "fabric") and _re("long_transaction").fullmatch(text) is not None


def declares_values(text: str, dialect: str) -> bool:
    """Whether a statement only gives variables of SQL Server, or BigQuery, their types and plain values."""
    if dialect == "bigquery":
        return _re("named_values").fullmatch(text) is not None
    return dialect in ("tsql", "fabric") and _re("variables").fullmatch(text) is not None


def described(text: str, kind: str, dialect: str) -> tuple[str, str] | None:
    """The schema and the table (lower case, perhaps empty) that a PRAGMA, DESCRIBE or SHOW describes.

    None where the statement may do anything else, to the dialect's database, than say how tables are made.
    """
    if kind == "PRAGMA":
        match = _re("pragma").fullmatch(text)
        if dialect != "sqlite" or match is None or match[1].lower() not in words("describing_pragmas"):
            return None
        return "", (match[3] or "").strip().lower()
    if dialect not in words("show_dialects" if kind == "SHOW" else "describe_dialects"):
        return None
    if dialect in ("databricks", "spark"):
        text = re.sub(r"(?i)\A(desc(?:ribe)?)\s+(?:history|detail)\s", r"\1 ", text)
    if (match := _re("describes_all").fullmatch(text)) is not None:
        return ".".join(_parts(match["within"] or "")), ""
    if (match := _re("describes_one").fullmatch(text)) is None:
        return None
    *schema, table = _parts(match["path"] or match["made"] or match["of"])
    return ".".join([*_parts(match["within"] or ""), *schema]), table


def as_delete_or_update(statement: Statement) -> Statement | None:
    """What ClickHouse's ``ALTER TABLE t DELETE WHERE ...``, or UPDATE, does, as a statement of that name; None for another."""
    match = _re("mutation").match(statement.text)
    if match is None:
        return None
    opening = f"DELETE FROM {match['path']} " if match["delete"] else f"UPDATE {match['path']} SET "
    return statement.with_end(opening, statement.text[match.end() :])


def _parts(path: str) -> list[str]:
    return [part.strip('"`').lower() for part in _NAME.findall(path)]


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
    return statement.with_end("FROM ", rest) if _re("path_alone").fullmatch(rest) is not None else None
