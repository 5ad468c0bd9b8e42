"""Reads SQL text in one dialect, statement by statement, against the settings of a SQLPolicy. Importing it loads the parser."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import takewhile

from sqlglot import Token, exp

from lgov_core.policies.sql import names as sql_names
from lgov_core.policies.sql.limit import NoLimit, limited, same_but_for_the_limit
from lgov_core.policies.sql.parse import TooMuchWork, make_parser
from lgov_core.policies.sql.refusal import Refusal, denied_statement, unparsable
from lgov_core.policies.sql.rules import Settings
from lgov_core.policies.sql.statement_checks import PLAIN_CREATE, TreeChecks
from lgov_core.policies.sql.statements import (
    OPENINGS,
    SHORTHANDS,
    TRANSACTION_WORDS,
    as_delete_or_update,
    as_query,
    declares_values,
    described,
    is_transaction,
)
from lgov_core.policies.sql.text import MYSQL_FAMILY, Lexicon, Statement, same_reading
from lgov_core.types import Severity

_EXPLAIN = re.compile(
    r"explain(?:\s+query\s+plan|\s*\([\w\s,]*\)|\s+(?:syntax|ast|plan|pipeline|estimate|using\s+(?:text|json|tabular)))?"
    r"(?:\s+(?:analyze|verbose|extended|formatted|cost|logical|distributed|format\s*=\s*\w+))*(?=\s|\()"
    r"|desc(?:ribe)?(?=\s+(?:select|with)\b)",
    re.IGNORECASE,
)
#: Dialects in which DESCRIBE before a query says how it is answered, or which columns it has, as EXPLAIN would.
_DESCRIBE_QUERIES = MYSQL_FAMILY | {"duckdb"}
#: What the parser does not know, or takes for something else, and reads in place of which spaces.
_WITHOUT_ROWID = re.compile(
    r"\Acreate\s(?s:.*)\)(\s*(?:strict\s*,\s*)?without\s+rowid(?:\s*,\s*strict)?)\Z", re.IGNORECASE
)
_WRITE_TOP = re.compile(r"(?:update|delete)\s+(top\s*\(\s*\d+\s*\))", re.IGNORECASE)
_BLANKED = {"sqlite": _WITHOUT_ROWID, "tsql": _WRITE_TOP, "fabric": _WRITE_TOP}
#: Dialects in which a query may begin with FROM: DuckDB's, and BigQuery's with pipes.
_FROM_FIRST = frozenset({"duckdb", "bigquery"})
_CREATABLE = frozenset({"table", "view", "index"})
_PLAIN_WORDS = frozenset(
    {"create", "temp", "temporary", "unique", "unlogged", "transient", "global", "local", "clustered", "nonclustered"}
)


@dataclass(frozen=True, slots=True)
class ReadText:
    """What one dialect makes of a text: ``refusal`` is the gravest reason to deny it; ``text`` another text to run instead."""

    refusal: Refusal | None = None
    text: str | None = None


class Reader:
    """Reads texts in one dialect. Immutable; safe to share between threads. Loads the parser when it is made."""

    def __init__(self, settings: Settings, dialect: str) -> None:
        self.settings = settings
        self.dialect = dialect
        self._lexicon = Lexicon(dialect)
        self._parse, keywords = make_parser(dialect)
        self._checks = TreeChecks(settings, dialect, keywords)

    def read(self, text: str) -> ReadText:
        """Checks one text, which may hold several statements. May raise RecursionError."""
        try:
            statements = self._lexicon.statements(text)
        except Refusal as refusal:
            return ReadText(refusal)
        if not statements:
            return ReadText(Refusal("sql-unparsable", "There is no SQL in it; write one statement."))
        gravest: Refusal | None = None
        instead: list[str | None] = []
        for statement in statements:
            try:
                instead.append(self._check_statement(statement))
            except Refusal as refusal:
                gravest = refusal if gravest is None or refusal.weight > gravest.weight else gravest
        if gravest is not None or not any(instead):
            return ReadText(gravest)
        return ReadText(text="; ".join(new or old.text for new, old in zip(instead, statements, strict=True)))

    def _check_statement(self, statement: Statement, *, explained: bool = False) -> str | None:
        """The text to run instead of a statement, or None. Raises `Refusal`."""
        first = statement.text[0] if statement.text[0] == "(" else statement.text.split(None, 1)[0]
        word = re.split(r"\W", first, maxsplit=1)[0].upper() or first
        if (usual := self._in_usual_words(statement, word)) is not None:
            return self._check_statement(usual, explained=explained or word == "SUMMARIZE")
        kind = self._kind_of(word)
        if kind not in sql_names.kinds() and (
            kind not in OPENINGS or (kind == "FROM" and self.dialect not in _FROM_FIRST)
        ):
            raise Refusal("sql-unparsable", f"{first[:20]!r} does not begin a statement.")
        if kind not in self.settings.denied_kinds:
            if self._only_says(statement, kind):
                return None
            if kind == "DESCRIBE" and self.dialect in _DESCRIBE_QUERIES and _EXPLAIN.match(statement.text):
                kind = word = "EXPLAIN"
        self._checks.check_kinds((kind, word))
        self._checks.check_called(statement)
        if kind == "EXPLAIN":
            prefix = _EXPLAIN.match(statement.text)
            rest = statement.text[prefix.end() :].lstrip(" \t\r\n\f") if prefix is not None and not explained else ""
            if not rest:
                raise unparsable("this EXPLAIN")
            self._check_statement(statement.with_end("", rest), explained=True)
        elif kind == "PRAGMA":
            allowed = ", ".join(sorted(sql_names.words("describing_pragmas")))
            raise denied_statement(f"Only these pragmas are allowed: {allowed}.")
        elif kind == "TRANSACTION":
            if not is_transaction(statement.text, self.dialect):
                raise unparsable(f"this {word}")
        elif kind == "CREATE" and not _PLAIN_WORDS.issuperset(
            takewhile(lambda word: word not in _CREATABLE, statement.words)
        ):
            raise denied_statement(PLAIN_CREATE)
        else:
            return self._check_parsed(statement, kind, explained)
        return None

    def _kind_of(self, word: str) -> str:
        if word in TRANSACTION_WORDS:
            return "TRANSACTION"
        describes = word == "DESC" or (word == "EXISTS" and self.dialect == "clickhouse")
        return "DESCRIBE" if describes else word

    def _in_usual_words(self, statement: Statement, word: str) -> Statement | None:
        """What a shorthand of DuckDB, or ClickHouse's ALTER TABLE ... DELETE, stands for; None for anything else."""
        if self.dialect == "clickhouse" and word == "ALTER" and word not in self.settings.denied_kinds:
            return as_delete_or_update(statement)
        if self.dialect != "duckdb" or word not in SHORTHANDS:
            return None
        query = as_query(statement, word)
        if query is None:
            raise unparsable(f"this {word}")
        return query

    def _only_says(self, statement: Statement, kind: str) -> bool:
        """Whether the statement only describes tables, or names values. Raises `Refusal` for a table that is closed."""
        if kind == "DECLARE":  # in guarded mode a value could undo the limits of a later write
            return self.settings.mode == "read_only" and declares_values(statement.text, self.dialect)
        about = described(statement.text, kind, self.dialect) if kind in ("PRAGMA", "DESCRIBE", "SHOW") else None
        if about is not None:
            self._checks.check_table(*about)
        return about is not None

    def _check_parsed(self, statement: Statement, kind: str, explained: bool) -> str | None:
        try:
            tree, tokens = self._tree(statement, kind)
            self._checks.check(statement, tree)
            if self.settings.max_rows is None or explained:
                return None
            return self._limited(statement, tree, tokens, self.settings.max_rows)
        except TooMuchWork:
            raise Refusal("sql-too-deep", "The SQL is too intricate to read; write a simpler query.") from None

    def _tree(self, statement: Statement, kind: str) -> tuple[exp.Expr, list[Token]]:
        text, shift = statement.text, 0
        if kind == "REPLACE":  # the parser has no tree for REPLACE; it means INSERT OR REPLACE
            text, shift = f"INSERT OR {text}", len("INSERT OR ")
        elif self.dialect in _BLANKED and (part := _BLANKED[self.dialect].match(text)):
            text = text[: part.start(1)] + " " * len(part[1]) + text[part.end(1) :]
        tree, tokens = self._parse(text)
        if tree is None:
            raise unparsable("this statement", unread=True)
        if not same_reading(statement, tokens, shift):
            raise unparsable("this statement")
        return tree, tokens

    def _limited(self, statement: Statement, tree: exp.Expr, tokens: list[Token], rows: int) -> str | None:
        try:
            text = limited(tree, statement.text, tokens, rows, self.dialect)
        except NoLimit as unclear:
            raise Refusal("sql-max-rows", str(unclear), Severity.LOW) from None
        if text is None:
            return None
        again, _ = self._parse(text)
        if again is None or not same_but_for_the_limit(tree, again, rows):
            raise Refusal("sql-max-rows", f"At most {rows} rows may be read; write that limit.", Severity.LOW)
        return text
