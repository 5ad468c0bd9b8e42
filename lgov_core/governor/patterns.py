"""Globs of names, and regular expressions in bounded time: RE2 runs them, and the searches of a judgement share a budget."""

from __future__ import annotations

import importlib
import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from fnmatch import fnmatchcase
from typing import Any, Final

from lgov_core.errors import PolicyError

#: Instructions of a pattern times bytes of text, in one judgement: RE2 needs up to 14 ns for each, 42 ms in all.
MAX_STEPS: Final = 3_000_000
#: A pattern for which texts of this many bytes would be too long is refused when it is made.
MIN_BYTES: Final = 500

_left: ContextVar[int] = ContextVar("lgov_pattern_steps", default=0)


class PatternLimit(Exception):
    """The texts of one judgement are longer than its patterns may be run on: treat the act as denied."""


@contextmanager
def pattern_steps() -> Generator[None]:
    """One judgement: the searches inside it may take `MAX_STEPS` together."""
    before = _left.set(MAX_STEPS)
    try:
        yield
    finally:
        _left.reset(before)


class LinearPattern:
    """A regular expression of ``steps`` instructions. Immutable; may be used from several threads at once.

    Raises `PolicyError`, which begins with ``what``, when RE2 does not accept it or it is too large.
    """

    __slots__ = ("_program", "steps")

    def __init__(self, what: str, pattern: str) -> None:
        re2: Any = importlib.import_module("re2")
        options = re2.Options()
        options.log_errors = False
        options.never_capture = True  # groups take time, and nothing asks for them
        python_end = re.compile(r"\\(Z|.)", re.DOTALL)  # the end of the text is \z in RE2
        try:
            self._program = re2.compile(python_end.sub(lambda at: r"\z" if at[1] == "Z" else at[0], pattern), options)
        except re2.error as error:
            raise PolicyError(
                f"{what} has the pattern {pattern!r}, which RE2 does not accept: {error.args[0].decode()}",
                hint="write it without look-around, back-references, possessive repeats, or counts above 1000",
            ) from error
        self.steps: int = self._program.programsize
        if self.steps > MAX_STEPS // MIN_BYTES:
            raise PolicyError(
                f"{what} has the pattern {pattern[:80]!r}, whose {self.steps} instructions take too long",
                hint="write + or * for large counts (and limit the length), and fewer alternatives and classes such as \\pL",
            )

    def search(self, text: str) -> bool:
        """Returns whether ``text`` holds it. Only inside `pattern_steps`.

        Raises `PatternLimit`, and `UnicodeEncodeError` for a lone surrogate.
        """
        remaining = _left.get() - self.steps * (len(text.encode()) + 1)
        if remaining < 0:
            raise PatternLimit(f"text longer than {MAX_STEPS // self.steps} bytes, all that its pattern may be run on")
        _left.set(remaining)
        return self._program.search(text) is not None


def matches_any(text: str, globs: Sequence[str]) -> bool:
    """Returns whether any of ``globs`` matches ``text``; letter case matters."""
    return any(fnmatchcase(text, glob) for glob in globs)


def surely_matches(text: str, globs: Sequence[str]) -> bool:
    """`matches_any` for globs that permit: they mean no text with a line end, NUL or another control character."""
    return text in globs or (text.isprintable() and matches_any(text, globs))
