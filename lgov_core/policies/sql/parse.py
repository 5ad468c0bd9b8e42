"""The SQL parser, as SQLPolicy uses it. sqlglot is imported when a parser is made."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlglot import Token, exp

Parse = Callable[[str], "tuple[exp.Expr | None, list[Token]]"]

#: How many nodes the parser may make, in all its attempts. It tries some texts in both of two ways at each step (joins
#: without ON among them), which doubles the work each time; an ordinary text takes two nodes a token.
_NODES, _NODES_OF_TOKEN = 2_000, 8

_READING: ContextVar[bool] = ContextVar("lgov_reads_sql", default=False)


def _not_of_a_policy(_record: logging.LogRecord) -> bool:
    """The filter of the parser's log: a policy says in its decision what it cannot read."""
    return not _READING.get()


class TooMuchWork(Exception):
    """The parser gave up, though the text may be SQL."""


def make_parser(dialect: str) -> tuple[Parse, frozenset[str]]:
    """A parser, and the dialect's keywords in lower case.

    The parser goes from the text of one statement to its tree (None: not understood) and its tokens, each with its
    ``text`` and the places of its first and last character, ``start`` and ``end``. It raises `TooMuchWork`, and may raise
    RecursionError.
    """
    from sqlglot import exp
    from sqlglot.dialects.dialect import Dialect
    from sqlglot.errors import ErrorLevel, ParseError, SqlglotError

    reader = Dialect.get_or_raise(dialect)
    logging.getLogger("sqlglot").addFilter(_not_of_a_policy)

    def parse(text: str) -> tuple[exp.Expr | None, list[Token]]:
        reading = _READING.set(True)
        try:
            tokens = reader.tokenize(text)
            most = _NODES + _NODES_OF_TOKEN * len(tokens)
            trees = reader.parser(error_level=ErrorLevel.IMMEDIATE, max_nodes=most).parse(tokens, text)
        except ParseError as error:
            if "Maximum number of AST nodes" in str(error):
                raise TooMuchWork from error
            return None, []
        except (SqlglotError, ValueError, TypeError, AttributeError, KeyError, IndexError):
            return None, []  # the parser's own slips on odd text count as text that it does not understand
        finally:
            _READING.reset(reading)
        tree = trees[0] if len(trees) == 1 else None
        if tree is not None and dialect == "clickhouse":
            for node in tree.find_all(exp.In):  # ClickHouse reads ``x IN (name)`` as ``x IN name``, a table's
                if len(node.expressions) == 1 and (name := node.expressions[0]).key == "column":
                    node.set("expressions", [])
                    node.set("field", name)
        return tree, tokens

    return parse, frozenset(word.lower() for keyword in reader.tokenizer_class.KEYWORDS for word in keyword.split())
