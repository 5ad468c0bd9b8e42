"""The SQL parser, as SQLPolicy uses it. sqlglot is imported when a parser is made."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqlglot import exp

Parse = Callable[[str], "tuple[exp.Expr | None, list[Any]]"]


def make_parser(dialect: str) -> tuple[Parse, frozenset[str]]:
    """A parser, and the dialect's keywords in lower case.

    The parser goes from the text of one statement to its tree (None: not understood) and its tokens, each with its
    ``text`` and the places of its first and last character, ``start`` and ``end``.
    """
    from sqlglot.dialects.dialect import Dialect
    from sqlglot.errors import ErrorLevel, SqlglotError

    reader = Dialect.get_or_raise(dialect)

    class OfThread(threading.local):
        """A tokenizer for each thread: making one takes a good part of what using it does."""

        def __init__(self) -> None:
            self.tokenizer = reader.tokenizer()

    of_thread = OfThread()

    def parse(text: str) -> tuple[exp.Expr | None, list[Any]]:
        try:
            tokens = of_thread.tokenizer.tokenize(text)
            trees = reader.parser(error_level=ErrorLevel.RAISE).parse(tokens, text)
        except (SqlglotError, ValueError, TypeError, AttributeError, KeyError, IndexError):
            return None, []  # the parser's own slips on odd text count as text that it does not understand
        return (trees[0] if len(trees) == 1 else None), tokens

    return parse, frozenset(word.lower() for keyword in reader.tokenizer_class.KEYWORDS for word in keyword.split())
