"""SQL text before it is parsed: split into statements, without comments, with every name that occurs in it.

The parser and the database must read the same statement. What they might read differently (comments that some
servers execute, quotes that some escape, templates, invisible characters) is refused here rather than interpreted, and
comments never reach the parser. The scan is one pass without recursion, so that nesting too deep for a parser is found
before it runs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from lgov_core.policies.sql.names import Refusal, words
from lgov_core.policies.sql.names import pattern as _re

if TYPE_CHECKING:
    from sqlglot import Token


MAX_CHARACTERS = 20_000
MAX_DEPTH = 48
MAX_PREFIX_RUN = 24
#: What a subscript may follow, beside a word.
_SUBSCRIPTED = ("_", '"', "`", ")", "]", "}")
#: Of one text. The parser takes the square of the length of a chain like ``a[1].b[2]``.
MAX_SUBSCRIPTS = 300

#: Servers to which ``--`` begins a comment only before white space, and which execute the text of ``/*! ... */``.
MYSQL_FAMILY = frozenset({"mysql", "doris", "starrocks", "singlestore"})
_HASH_COMMENTS = MYSQL_FAMILY | {"bigquery", "clickhouse"}
_BRACKET_NAMES = frozenset({"sqlite", "tsql", "fabric", "exasol"})
_TEXT_IN_DOUBLE_QUOTES = MYSQL_FAMILY | {"bigquery", "databricks", "hive", "spark", "spark2"}

#: Words that may stand right before a quoted text.
_PREFIXES = frozenset({"x", "b", "n", "e", "date", "time", "timestamp", "interval"})
#: Escaped quotes, texts between dollars or three quotes, Unicode escapes, templates, hints.
_AMBIGUOUS = re.compile(r"""\\['"`]|\$\w*\$|'''|\"\"\"|\b[uU]&['"]|\{[{%#]|/\*\+""")
#: Dialects of servers in which a hint only says how a query is run, and a hint that holds no more than words and names.
_HINTED = frozenset({"oracle", "spark", "databricks"})
_PLAIN_HINT = re.compile(r"/\*\+[\w\s(),.@%]*\*/")
_MAY_FOLLOW_WITH = frozenset({"insert", "update", "delete", "merge"})
#: Words before ``update`` and ``delete`` that make them part of a clause.
_CLAUSE_BEFORE = frozenset({"on", "do", "key", "for", "then"})
#: Dialects in which ``r'...'`` is a text whose backslashes mean themselves.
_RAW_TEXTS = frozenset({"bigquery", "spark", "databricks"})
#: What may be asked of a server by ``@@name``: counters of the session's own last statement.
_OWN_COUNTERS = frozenset({"rowcount", "identity", "error", "trancount", "fetch_status"})


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement, comments replaced by a space.

    ``words`` are its bare words in lower case; ``names`` the words and quoted identifiers that could name a table, in
    lower case and without quotes; ``called`` those followed by an opening parenthesis; ``qualifiers`` those followed by a
    dot; ``quoted`` the half-open ranges of ``text`` that are quoted.
    """

    text: str
    words: tuple[str, ...]
    names: tuple[str, ...]
    called: tuple[str, ...]
    qualifiers: tuple[str, ...]
    quoted: tuple[tuple[int, int], ...]

    def with_end(self, opening: str, rest: str, closing: str = "") -> Statement:
        """The statement with ``opening`` in place of what stands before its end ``rest``, and ``closing`` behind."""
        shift = len(opening) + len(rest) - len(self.text)
        quoted = tuple((start + shift, end + shift) for start, end in self.quoted if start + shift >= len(opening))
        return replace(self, text=opening + rest + closing, quoted=quoted)


class Lexicon:
    """Splits texts of one dialect into statements. Immutable; safe to share between threads."""

    def __init__(self, dialect: str) -> None:
        self.dialect = dialect
        name_quotes = ['"', "`"] if dialect not in _TEXT_IN_DOUBLE_QUOTES else ["`"]
        if dialect in _BRACKET_NAMES:
            name_quotes.append("[")
        self.name_quotes = frozenset(name_quotes)
        self.prefixes = frozenset({"x"}) if dialect == "sqlite" else _PREFIXES
        if dialect in _RAW_TEXTS:
            self.prefixes |= {"r", "rb", "br"}
        #: Doubled marks that mean something else than one and one. SQLite reads ``:name(...)`` as a parameter.
        self.doubled = {"@": "@@"} if dialect == "sqlite" else {"@": "@@", ":": "::"}
        bracket = {"sqlite": r"|\[[^\]]*+\]"}.get(dialect, r"|\[(?:[^\]]|\]\])*+\]")
        symbols = r"!$%&()*+,\-./:<=>?@|~" if dialect == "sqlite" else r"!#$%&()*+,\-./:<=>?@\[\\\]^{|}~"
        if dialect == "oracle":
            symbols = symbols.replace("@", "")  # leads to another database
        self._token = re.compile(  # the most frequent first, where it makes no difference
            r"(?P<space>[ \t\r\n\f]+)"
            r"|(?P<word>[^\W\d][\w$]*)"
            r"|(?P<line>--[^\n]*" + (r"|\#[^\n]*" if dialect in _HASH_COMMENTS else "") + ")"
            r"|(?P<block>/\*.*?(?:\*/|\Z))"
            r"""|(?P<quoted>'(?:[^']|'')*+'|"(?:[^"]|"")*+"|`(?:[^`]|``)*+`"""
            + (bracket if dialect in _BRACKET_NAMES else "")
            + r")|(?P<number>(?:0[xX][0-9a-fA-F]+|\d+(?:\.\d+|\.(?!\w))?(?:[eE][+-]?\d+)?)(?!\w))"
            r"|(?P<end>;)"
            r"|(?P<symbol>[" + symbols + "])"
            r"|(?P<other>.)",
            re.DOTALL,
        )

    def statements(self, text: str) -> list[Statement]:
        """The statements of ``text``, empty ones left out. Raises `Refusal`."""
        if len(text) > MAX_CHARACTERS:
            raise Refusal("sql-too-long", f"The SQL is longer than {MAX_CHARACTERS} characters; write a shorter query.")
        if "\0" in text:
            raise Refusal("sql-unparsable", "The SQL holds a NUL byte; write plain SQL.")
        plain = _PLAIN_HINT.sub(" ", text) if self.dialect in _HINTED and "/*+" in text else text
        if self.dialect != "sqlite" and (ambiguous := _AMBIGUOUS.search(plain)):
            raise Refusal(
                "sql-unparsable", f"The SQL holds {ambiguous[0]!r}, which servers read differently; leave it out."
            )
        read: list[Statement | None] = []
        scan = _Scan(self)
        for match in self._token.finditer(text):
            kind = match.lastgroup or "other"
            if kind == "end":
                read.append(scan.statement())
                scan = _Scan(self, scan.subscripts)
                continue
            if kind in ("line", "block"):
                self._check_comment(kind, match[0])
            scan.add(kind, " " if kind in ("line", "block") else match[0])
        read.append(scan.statement())
        return [statement for statement in read if statement is not None]

    def _check_comment(self, kind: str, piece: str) -> None:
        if kind == "line":
            if self.dialect in MYSQL_FAMILY and piece.startswith("--") and piece[2:3].strip():
                raise Refusal("sql-unparsable", "Write a space after -- or leave the comment out.")
            if "\r" in piece[:-1].rstrip("\r"):
                raise Refusal("sql-unparsable", "A comment holds a carriage return; leave the comment out.")
            return
        if piece.startswith(("/*!", "/*M!")):
            raise Refusal("sql-executable-comment", "Comments like /*! ... */ are executed; write the SQL without.")
        if len(piece) < 4 or not piece.endswith("*/") or "/*" in piece[2:]:
            raise Refusal("sql-unparsable", "A comment is not closed, or holds another one; leave the comment out.")


class _Scan:
    """Collects one statement of a text, piece by piece."""

    def __init__(self, lexicon: Lexicon, subscripts: int = 0) -> None:
        self._lexicon = lexicon
        self._words: list[str] = []
        self._names: list[str] = []
        self._called: list[str] = []
        self._qualifiers: list[str] = []
        self._quoted: list[tuple[int, int]] = []
        self._pieces: list[str] = []  # without comments
        self._length = 0
        self._before = self._before_kind = ""  # the text and kind of the piece before; both empty after white space
        self._callable: str | None = None  # the name that an opening parenthesis would call
        self._last = ""  # the text of the piece before, white space left out
        self._depth = self._cases = self._run = 0
        self.subscripts = subscripts  # of the whole text so far

    def add(self, kind: str, piece: str) -> None:
        """Takes the next piece. Raises `Refusal`."""
        start, before_kind, before = self._length, self._before_kind, self._before
        self._pieces.append(piece)
        self._length += len(piece)
        if kind in ("space", "line", "block"):
            self._before = self._before_kind = ""
            return
        self._before, self._before_kind = piece, kind
        if kind == "symbol":
            self._symbol(piece)
            if before == piece:
                self._before = self._lexicon.doubled.get(piece, piece)
        else:
            self._run = self._run + 1 if piece.lower() == "not" else 0
            self._callable = None
            if kind == "word":
                self._word(piece, before)
            elif kind == "quoted":
                self._quote(piece, start, before_kind, before)
            elif kind != "number":
                what = f"the character {piece!r}" if piece not in "'\"`" else f"an unclosed {piece}"
                raise Refusal("sql-unparsable", f"The SQL holds {what}; write plain, complete SQL.", unread=True)
        self._last = piece.lower() if kind == "word" else piece
        too_long = self._run > MAX_PREFIX_RUN or self.subscripts > MAX_SUBSCRIPTS
        if self._depth > MAX_DEPTH or self._cases > MAX_DEPTH or too_long:
            raise Refusal("sql-too-deep", "The SQL is nested too deeply; write a simpler query.")

    def _word(self, piece: str, before: str) -> None:
        word = piece.lower()
        if before in ("$", "@", ":"):
            self._callable = before + piece
            return
        if before == "@@" and word not in _OWN_COUNTERS:
            raise Refusal("sql-catalog", f"@@{piece[:40]} reads server settings; leave it out.")
        self._words.append(word)
        self._names.append(word)
        self._callable = word
        self._cases += word == "case"

    def _quote(self, piece: str, start: int, before_kind: str, before: str) -> None:
        if before_kind == "word" and before.lower() not in self._lexicon.prefixes:
            raise Refusal("sql-unparsable", f"Leave out the {before} before {piece[:20]}, or write a space between.")
        if before and before in ("$", "@", ":", "#"):
            raise Refusal("sql-unparsable", f"The SQL holds {before}{piece[:20]}; write values into the SQL.")
        self._quoted.append((start, start + len(piece)))
        mark = piece[0]
        if mark in self._lexicon.name_quotes:
            inside = piece[1:-1] if mark == "[" else piece[1:-1].replace(mark * 2, mark)
            self._names.append(inside.lower())
            self._callable = inside.lower()

    def _symbol(self, piece: str) -> None:
        name, self._callable, last = self._callable, None, self._last
        if piece in "([{":
            if piece == "[" and last != "array" and (last[:1].isalnum() or last.startswith(_SUBSCRIPTED)):
                self.subscripts += 1
            if piece == "(" and name is not None:
                if name[0:1] in ("$", "@", ":"):
                    raise Refusal("sql-unparsable", f"{name}( is not a function; write plain SQL.")
                self._called.append(name)
            self._depth += 1
        elif piece in ")]}":
            self._depth -= 1
        elif piece == "." and name is not None:
            self._qualifiers.append(name)
        self._run = self._run + 1 if piece in "-+~!" else 0

    def statement(self) -> Statement | None:
        """The statement, or None when there is nothing in it. Raises `Refusal`."""
        text = "".join(self._pieces)
        bare = text.strip(" \t\r\n\f")
        if not bare:
            return None
        if self._lexicon.dialect in ("tsql", "fabric") and _begins_another(self._words):
            raise Refusal("sql-unparsable", "Write one statement at a time, separated by semicolons.")
        shift = len(text) - len(text.lstrip(" \t\r\n\f"))
        quoted = tuple((start - shift, end - shift) for start, end in self._quoted)
        words, names = tuple(self._words), tuple(self._names)
        return Statement(bare, words, names, tuple(self._called), tuple(self._qualifiers), quoted)


def _begins_another(written: Sequence[str]) -> bool:
    """Returns whether, to a server that needs no semicolons, a second statement may begin among these words.

    The words that begin statements are reserved there: none of them names a column or a label.
    """
    starters = [
        word
        for before, word in pairwise(("", *written))
        if word in words("tsql_starters")
        and not (word in ("delete", "update") and before in _CLAUSE_BEFORE)
        and not (word == "insert" and before == "then")  # of a MERGE
    ]
    if written and written[0] == "with":
        return len(starters) > 1 or not _MAY_FOLLOW_WITH.issuperset(starters)
    return len(starters) > (not written or written[0] != "select")


def same_reading(statement: Statement, tokens: Sequence[Token], shift: int = 0) -> bool:
    """Returns whether the parser's ``tokens`` see the same quoted pieces; ``shift`` is what their places are too great by."""
    if not statement.quoted:
        return True
    starts = {token.end + 1 - shift: token.start - shift for token in tokens}
    return all(start - 2 <= starts.get(end, -9) <= start for start, end in statement.quoted)


#: First words of statements about transactions.
TRANSACTION_WORDS = frozenset({"BEGIN", "START", "COMMIT", "END", "ROLLBACK", "SAVEPOINT", "RELEASE"})
#: First words that leave the kind of statement to the syntax tree.
OPENINGS = frozenset({"WITH", "(", "TABLE", "FROM"})
#: DuckDB's statements that read and do not begin with a word of standard SQL.
SHORTHANDS = frozenset({"SUMMARIZE", "PIVOT", "UNPIVOT"})

_NAME = re.compile(r'[^\W\d]\w*|"[^"]+"|`[^`]+`')
_WORDS_OF_DUCKDB = SHORTHANDS | {"DESCRIBE", "DESC", "SHOW", "EXPLAIN"}


def is_transaction(text: str, dialect: str) -> bool:
    """Returns whether a statement begins, ends or divides a transaction, and does nothing else."""
    if _re("transaction").fullmatch(text) is not None:
        return True
    return dialect not in ("tsql", "fabric") and _re("long_transaction").fullmatch(text) is not None


def declares_values(text: str, dialect: str) -> bool:
    """Returns whether a statement only gives variables of SQL Server, or BigQuery, their types and plain values."""
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
    """ClickHouse's ``ALTER TABLE t DELETE WHERE ...``, or UPDATE, as a DELETE or UPDATE statement; None for another."""
    match = _re("mutation").match(statement.text)
    if match is None:
        return None
    opening = f"DELETE FROM {match['path']} " if match["delete"] else f"UPDATE {match['path']} SET "
    return statement.with_end(opening, statement.text[match.end() :])


def _parts(path: str) -> list[str]:
    return [name.strip('"`').lower() for name in _NAME.findall(path)]


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
