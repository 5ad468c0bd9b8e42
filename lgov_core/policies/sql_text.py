"""SQL text before it is parsed: split into statements, without comments, with every name that occurs in it.

The parser and the database must read the same statement. What they might read differently (comments that some
servers execute, quotes that some escape, templates, invisible characters) is refused here rather than interpreted, and
comments never reach the parser. The scan is one pass without recursion, so that nesting too deep for a parser is found
before it runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

MAX_CHARACTERS = 20_000
MAX_DEPTH = 48
MAX_PREFIX_RUN = 24

#: Servers to which ``--`` begins a comment only before white space, and which execute the text of ``/*! ... */``.
MYSQL_FAMILY = frozenset({"mysql", "doris", "starrocks", "singlestore"})
_HASH_COMMENTS = MYSQL_FAMILY | {"bigquery", "clickhouse"}
_BRACKET_NAMES = frozenset({"sqlite", "tsql", "fabric", "exasol"})
_TEXT_IN_DOUBLE_QUOTES = MYSQL_FAMILY | {"bigquery", "databricks", "hive", "spark", "spark2"}

_PREFIXES = frozenset({"x", "b", "n", "e", "date", "time", "timestamp", "interval"})
_AMBIGUOUS = re.compile(r"""\\+['"`]|\$\w*\$|'''|\"\"\"|\b[uU]&['"]|\{[{%#]|/\*\+""")
_TSQL_STARTERS = re.compile(
    "alter|backup|bulk|create|dbcc|delete|deny|drop|exec|execute|grant|insert|kill|merge|restore|revoke|shutdown"
    "|truncate|update|use|waitfor|reconfigure|checkpoint|readtext|writetext|updatetext|raiserror|print|declare"
    "|deallocate|setuser"
)
_MAY_FOLLOW_WITH = frozenset({"insert", "update", "delete", "merge"})
#: Words before ``update`` and ``delete`` that make them part of a clause.
_CLAUSE_BEFORE = frozenset({"on", "do", "key", "for", "then"})


class UnclearSQL(Exception):
    """The text cannot be read with certainty. ``rule`` is the slug of the denial, the message its reason.

    ``refused`` says that no server of the dialect takes such a text either.
    """

    def __init__(self, rule: str, reason: str, *, refused: bool = False) -> None:
        super().__init__(reason)
        self.rule = rule
        self.reason = reason
        self.refused = refused


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement, comments replaced by a space.

    ``words`` are its bare words in lower case; ``names`` the words and quoted identifiers that could name a table, in
    lower case and without quotes; ``called`` those followed by an opening parenthesis, also once more with what stands
    before them (``utl_http.request``); ``quoted`` the half-open ranges
    of ``text`` that are quoted.
    """

    text: str
    words: tuple[str, ...]
    names: tuple[str, ...]
    called: tuple[str, ...]
    quoted: tuple[tuple[int, int], ...]


class Lexicon:
    """Splits texts of one dialect into statements. Immutable; safe to share between threads."""

    def __init__(self, dialect: str) -> None:
        self.dialect = dialect
        name_quotes = ['"', "`"] if dialect not in _TEXT_IN_DOUBLE_QUOTES else ["`"]
        if dialect in _BRACKET_NAMES:
            name_quotes.append("[")
        self._name_quotes = frozenset(name_quotes)
        self._prefixes = frozenset({"x"}) if dialect == "sqlite" else _PREFIXES
        bracket = {"sqlite": r"|\[[^\]]*+\]"}.get(dialect, r"|\[(?:[^\]]|\]\])*+\]")
        symbols = r"!$%&()*+,\-./:<=>?@|~" if dialect == "sqlite" else r"!#$%&()*+,\-./:<=>?@\[\\\]^{|}~"
        self._token = re.compile(
            r"(?P<line>--[^\n]*" + (r"|\#[^\n]*" if dialect in _HASH_COMMENTS else "") + ")"
            r"|(?P<block>/\*.*?(?:\*/|\Z))"
            r"""|(?P<quoted>'(?:[^']|'')*+'|"(?:[^"]|"")*+"|`(?:[^`]|``)*+`"""
            + (bracket if dialect in _BRACKET_NAMES else "")
            + r")|(?P<word>[^\W\d][\w$]*)"
            r"|(?P<number>(?:0[xX][0-9a-fA-F]+|\d+(?:\.\d+|\.(?!\w))?(?:[eE][+-]?\d+)?)(?!\w))"
            r"|(?P<space>[ \t\r\n\f]+)"
            r"|(?P<end>;)"
            r"|(?P<symbol>[" + symbols + "])"
            r"|(?P<other>.)",
            re.DOTALL,
        )

    def statements(self, text: str) -> list[Statement]:
        """The statements of ``text``, empty ones left out. Raises `UnclearSQL`."""
        if len(text) > MAX_CHARACTERS:
            raise UnclearSQL(
                "sql-too-long", f"The SQL is longer than {MAX_CHARACTERS} characters; write a shorter query."
            )
        if "\0" in text:
            raise UnclearSQL("sql-unparsable", "The SQL holds a NUL byte; write plain SQL.")
        if self.dialect == "oracle" and "@" in text:
            raise UnclearSQL("sql-unparsable", "The SQL holds @, which leads to another database; leave it out.")
        if self.dialect != "sqlite" and (found := _AMBIGUOUS.search(text)):
            raise UnclearSQL(
                "sql-unparsable", f"The SQL holds {found[0]!r}, which servers read differently; leave it out."
            )
        return [statement for scan in self._scans(text) if (statement := scan.finish(self.dialect)) is not None]

    def _scans(self, text: str) -> Iterator[_Scan]:
        scan = _Scan(self._name_quotes, self._prefixes)
        for match in self._token.finditer(text):
            kind, piece = match.lastgroup or "other", match[0]
            if kind == "end":
                yield scan
                scan = _Scan(self._name_quotes, self._prefixes)
            elif kind in ("line", "block"):
                self._check_comment(kind, piece)
                scan.add("space", " ")
            else:
                scan.add(kind, piece)
        yield scan

    def _check_comment(self, kind: str, piece: str) -> None:
        if kind == "line":
            if self.dialect in MYSQL_FAMILY and piece.startswith("--") and piece[2:3].strip():
                raise UnclearSQL("sql-unparsable", "Write a space after -- or leave the comment out.")
            if "\r" in piece[:-1].rstrip("\r"):
                raise UnclearSQL("sql-unparsable", "A comment holds a carriage return; leave the comment out.")
            return
        if piece.startswith(("/*!", "/*M!")):
            raise UnclearSQL("sql-executable-comment", "Comments like /*! ... */ are executed; write the SQL without.")
        if len(piece) < 4 or not piece.endswith("*/") or "/*" in piece[2:]:
            raise UnclearSQL("sql-unparsable", "A comment is not closed, or holds another one; leave the comment out.")


class _Scan:
    """Collects one statement."""

    def __init__(self, name_quotes: frozenset[str], prefixes: frozenset[str]) -> None:
        self._name_quotes = name_quotes
        self._prefixes = prefixes
        self._pieces: list[str] = []
        self._length = 0
        self._words: list[str] = []
        self._names: list[str] = []
        self._called: list[str] = []
        self._quoted: list[tuple[int, int]] = []
        self._last = ("", "")  # kind and text of the piece before, white space included
        self._callable: str | None = None  # the name that an opening parenthesis would call
        self._before: list[str] = []  # what stands before it: schema, package
        self._depth = self._cases = self._run = 0

    def add(self, kind: str, piece: str) -> None:
        """Takes the next piece of the text. Raises `UnclearSQL`."""
        if kind == "other":
            what = f"the character {piece!r}" if piece not in "'\"`" else f"an unclosed {piece}"
            raise UnclearSQL("sql-unparsable", f"The SQL holds {what}; write plain, complete SQL.", refused=True)
        before_kind, before = self._last
        if kind == "word":
            self._word(piece, before)
        elif kind == "quoted":
            self._quote(piece, before_kind, before)
        elif kind == "symbol":
            self._symbol(piece, before_kind, before)
        if kind in ("quoted", "number"):
            self._run = 0
        if kind == "number":
            self._callable = None
        self._last = (kind, piece)
        self._pieces.append(piece)
        self._length += len(piece)

    def _word(self, piece: str, before: str) -> None:
        if before in ("$", "@", ":") and before:
            self._callable = before + piece
            return
        word = piece.lower()
        self._words.append(word)
        self._names.append(word)
        if self._callable is not None:
            self._before.clear()
        self._callable = word
        self._run = self._run + 1 if word == "not" else 0
        self._cases += word == "case"
        self._check_depth()

    def _quote(self, piece: str, before_kind: str, before: str) -> None:
        if before_kind == "word" and before.lower() not in self._prefixes:
            raise UnclearSQL("sql-unparsable", f"Write a space between {before} and {piece[:20]}.")
        if before in ("$", "@", ":", "#") and before:
            raise UnclearSQL("sql-unparsable", f"The SQL holds {before}{piece[:20]}; write values into the SQL.")
        start = self._length
        self._quoted.append((start, start + len(piece)))
        mark = piece[0]
        self._callable = None
        if mark in self._name_quotes:
            inside = piece[1:-1] if mark == "[" else piece[1:-1].replace(mark * 2, mark)
            self._names.append(inside.lower())
            self._callable = inside.lower()

    def _symbol(self, piece: str, before_kind: str, before: str) -> None:
        if piece == "(" and self._callable is not None:
            if self._callable[0:1] in ("$", "@", ":"):
                raise UnclearSQL("sql-unparsable", f"{self._callable}( is not a function; write plain SQL.")
            self._called.append(self._callable)
            if self._before:
                self._called.append(".".join((*self._before, self._callable)))
        if piece != ".":
            self._before.clear()
        elif self._callable is not None:
            self._before.append(self._callable)
        self._callable = None
        if piece in "([{":
            self._depth += 1
        elif piece in ")]}":
            self._depth -= 1
        self._run = self._run + 1 if piece in "-+~!" else 0
        self._check_depth()

    def _check_depth(self) -> None:
        if self._depth > MAX_DEPTH or self._cases > MAX_DEPTH or self._run > MAX_PREFIX_RUN:
            raise UnclearSQL("sql-too-deep", "The SQL is nested too deeply; write a simpler query.")

    def finish(self, dialect: str) -> Statement | None:
        """The statement, or None when there is nothing in it. Raises `UnclearSQL`."""
        text = "".join(self._pieces)
        bare = text.strip(" \t\r\n\f")
        if not bare:
            return None
        if dialect in ("tsql", "fabric") and _begins_another(self._words):
            raise UnclearSQL("sql-unparsable", "Write one statement at a time, separated by semicolons.")
        shift = len(text) - len(text.lstrip(" \t\r\n\f"))
        quoted = tuple((start - shift, end - shift) for start, end in self._quoted)
        return Statement(bare, tuple(self._words), tuple(self._names), tuple(self._called), quoted)


def _begins_another(words: Sequence[str]) -> bool:
    """Whether, to a server that needs no semicolons, a second statement may begin among these words.

    The words that begin statements are reserved there: none of them names a column or a label.
    """
    found = [
        word
        for before, word in pairwise(("", *words))
        if _TSQL_STARTERS.fullmatch(word) and not (word in ("delete", "update") and before in _CLAUSE_BEFORE)
    ]
    if words and words[0] == "with":
        return len(found) > 1 or not _MAY_FOLLOW_WITH.issuperset(found)
    return len(found) > (not words or words[0] != "select")


def same_reading(statement: Statement, spans: Sequence[tuple[int, int]]) -> bool:
    """Whether the parser's tokens (half-open ``spans`` of the statement's text) see the same quoted pieces."""
    ends = {end: start for start, end in spans}
    return all(ends.get(end) in range(start - 2, start + 1) for start, end in statement.quoted)
