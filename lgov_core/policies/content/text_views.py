"""One text in the forms in which something may hide in it, each with the way back to the place in the original.

A value does not stop being a value because zero-width characters stand in it, because it is written in full-width
digits, or because it is percent-encoded or base64. Every view is taken once; nothing is decoded twice.
"""

from __future__ import annotations

import base64
import binascii
import html
import re
import unicodedata
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

#: Characters that show nothing: soft hyphen, joiners, direction marks, variation selectors, tags.
INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\ufe00-\ufe0f\ufeff\U000e0000-\U000e0fff]"
)
_DASHES = re.compile("[\u2010-\u2015\u2212\ufe58\ufe63\uff0d]")
#: Digits of other scripts: a number is the same number in them.
_OTHER_DIGIT = re.compile(r"(?![0-9])\d")
#: Not begun anew inside a row of backslashes: that would take the square of its length.
_LINE_ESCAPE = re.compile(r"""(?<!\\)\\++[nrt"']""")
_ESCAPE = re.compile(
    r"%[0-9A-Fa-f]{2}|\\u[0-9A-Fa-f]{4}|\\x[0-9A-Fa-f]{2}"
    r"|&#(?:[xX][0-9A-Fa-f]{1,6}|[0-9]{1,7});|&(?:amp|quot|apos|lt|gt|commat|colon|period|lowbar|equals|sol);"
)
#: A shorter run of digits holds no text that matters.
MIN_RUN = 16
_BASE64_RUN = re.compile(r"(?<![A-Za-z0-9+/_-])[A-Za-z0-9+/_-]{16,}={0,2}")
_HEX_RUN = re.compile(r"(?<![0-9A-Za-z])(?:[0-9A-Fa-f]{2}){10,}(?![0-9A-Za-z])")
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")


@dataclass(frozen=True, slots=True)
class View:
    """A text made from another: where each of its characters begins and ends there. Without these it is the other text."""

    text: str
    starts: Sequence[int] = ()
    ends: Sequence[int] = ()

    def span(self, start: int, end: int) -> tuple[int, int]:
        """The place in the original of ``text[start:end]``, widened to whole escapes."""
        return (self.starts[start], self.ends[end - 1]) if self.starts else (start, end)

    def place(self, original: int) -> int:
        """Where the original's position ``original`` lies in ``text``."""
        return bisect_left(self.starts, original) if self.starts else original


def _replaced(text: str, pattern: re.Pattern[str], replacement: Callable[[re.Match[str]], str]) -> View:
    """``text`` with every match of ``pattern`` replaced. Time and memory are linear in the text."""
    parts: list[str] = []
    starts, ends = array("I"), array("I")
    last = 0
    for match in pattern.finditer(text):
        start, end = match.span()
        new = replacement(match)
        parts += [text[last:start], new]
        starts.extend([*range(last, start), *[start] * len(new)])
        ends.extend([*range(last + 1, start + 1), *[end] * len(new)])
        last = end
    starts.extend(range(last, len(text)))
    ends.extend(range(last + 1, len(text) + 1))
    return View("".join([*parts, text[last:]]), starts, ends)


def plain_view(text: str) -> View:
    r"""``text`` without invisible characters, in compatibility form with ASCII digits; ``\n`` of two characters is space."""
    plain = text.isascii() or not (
        INVISIBLE.search(text)
        or _DASHES.search(text)
        or _OTHER_DIGIT.search(text)
        or not unicodedata.is_normalized("NFKC", text)
    )
    view = View(text) if plain else _replaced(text, _NOT_ASCII, _compatible)
    if "\\" not in view.text:
        return view
    spaced = _LINE_ESCAPE.sub(_spaces, view.text)  # of the same length
    return View(spaced, view.starts, view.ends)


def _compatible(match: re.Match[str]) -> str:
    character = match.group()
    if INVISIBLE.match(character):
        return ""
    if _DASHES.match(character):
        return "-"
    if character.isdecimal():
        return str(unicodedata.decimal(character))
    return unicodedata.normalize("NFKC", character)


def _spaces(match: re.Match[str]) -> str:
    escape = match.group()
    return " " * (len(escape) - 1) + (escape[-1] if escape[-1] in "\"'" else " ")


def written_number(number: float) -> str | None:
    """A number as text; None for one that stands for nothing personal: a fraction, or one that is slow to write out."""
    if isinstance(number, float):  # to a program that reads JSON, 4111111111111111.0 is a whole number
        return str(int(number)) if number.is_integer() and abs(number) <= 1e19 else None
    return str(number) if abs(number) < 10**40 else None


def unescaped_view(text: str) -> View | None:
    """``text`` with percent, JSON and HTML escapes resolved once; None when there are none."""
    if _ESCAPE.search(text) is None:
        return None
    return _replaced(text, _ESCAPE, _character)


def _character(match: re.Match[str]) -> str:
    escape = match.group()
    if escape.startswith("&"):
        return html.unescape(escape)
    return chr(int(escape.lstrip("%\\ux"), 16)) if escape[0] == "%" else chr(int(escape[2:], 16))


def decoded_runs(text: str, start: int = 0) -> Iterator[tuple[int, int, str]]:
    """The runs of base64 or hexadecimal digits from ``start`` on that are text once decoded: (start, end, that text)."""
    for match in _BASE64_RUN.finditer(text, start):
        for begin, run in _segments(match):
            plain = _from_base64(run)
            if plain is not None:
                yield begin, begin + len(run), plain
    for match in _HEX_RUN.finditer(text, start):
        plain = _readable(bytes.fromhex(match.group()))
        if plain is not None:
            yield match.start(), match.end(), plain


def _segments(match: re.Match[str]) -> Iterator[tuple[int, str]]:
    """The run, and its parts between slashes: a slash is a digit of base64 and parts the segments of a path."""
    run, begin = match.group(), match.start()
    yield begin, run
    if "/" in run:
        for segment in run.split("/"):
            if len(segment) >= MIN_RUN:
                yield begin, segment
            begin += len(segment) + 1


def _from_base64(run: str) -> str | None:
    digits = run.rstrip("=").replace("-", "+").replace("_", "/")
    if len(digits) % 4 == 1:
        digits = digits[:-1]
    try:
        return _readable(base64.b64decode(digits + "=" * (-len(digits) % 4)))
    except (binascii.Error, ValueError):
        return None


def _readable(data: bytes) -> str | None:
    if b"\x00" in data and data[1::2].count(0) * 2 >= len(data) - 1:  # UTF-16, as PowerShell encodes
        data = data[::2]
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return text if text.replace("\n", "").replace("\r", "").replace("\t", "").isprintable() else None
