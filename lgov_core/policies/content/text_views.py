"""One text in the forms in which something may hide in it, each with the way back to the place in the original.

A value does not stop being a value because it is written in another way. A closed set of decoders is applied to a text, to
what they make of it, and so on, to a bounded depth and at a bounded cost (`readings`): escapes are undone in their place,
runs of digits to a base are decoded and unpacked, texts in pieces are joined, and words are read backwards and by the
alphabet's other half.
"""

from __future__ import annotations

import base64
import binascii
import bz2
import html
import lzma
import re
import unicodedata
import zlib
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Final, cast

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
#: Of bytes and characters in URLs, JSON, many languages, HTML, and Unicode's own notation.
_ESCAPE = re.compile(
    r"%(?:u[0-9A-Fa-f]{4}|[0-9A-Fa-f]{2})"
    r"|(?<!\\)\\++(?:u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|[ux]\{[0-9A-Fa-f]{1,6}\}|x[0-9A-Fa-f]{2}|0?[0-3][0-7]{2})"
    r"|&(?:#(?:[xX][0-9A-Fa-f]{1,6}|[0-9]{1,7});?|[A-Za-z]{2,8};)"
    r"|[Uu]\+[0-9A-Fa-f]{4,6}"
)
#: Between two pieces of a text that a program joins: ``"a" + "b"``, ``'a' 'b'``, ``a""b``, ``"a", "b"``.
_JOINT = re.compile(r"""(?<=[\w/+=.-])["'`]\s{0,8}(?:(?:\+|\.|,|&|\|\||\\)?\s{0,8})["'`](?=[\w/+=.-])""")
_LINE_END = re.compile(r"(?<=[\w/+=-])[\\=]?\r?\n[ \t]{0,16}(?=[\w/+=-])")
#: A text whose characters, or pairs of them, stand apart: ``A K I A``, ``AK-IA-Q4``.
_APART = re.compile(
    r"(?<!\w)(?:\w([ .,:;|/_*~\-]{1,3})\w(?:\1\w(?![^\W_])){8,}+|\w\w([ .,:;|/_*~\-]{1,3})\w\w(?:\2\w\w(?![^\W_])){5,}+)"
)
#: A shorter run of digits holds no text that matters.
MIN_RUN = 16
_BASE64_RUN = re.compile(r"(?<![A-Za-z0-9+/_-])[A-Za-z0-9+/_-]{16,}={0,2}")
_BASE32_RUN = re.compile(r"(?<![A-Za-z0-9])(?:[A-Z2-7]{16,}|[a-z2-7]{16,})={0,6}(?![A-Za-z0-9])")
#: With signs that are seldom in names and paths.
_BASE85_RUN = re.compile(r"(?<![^\s\"'])(?=(?:[\w./:=-]*[^\w\s./:=-]){3})(?:<~)?[!-~]{20,400}(?![^\s\"'])")
_HEX_RUN = re.compile(
    r"(?<![0-9A-Za-z])(?:0[xX])?[0-9A-Fa-f]{2}(?:[ :,=-]{0,2}(?:0[xX])?[0-9A-Fa-f]{2}(?![0-9A-Fa-f]{0,8}[G-Zg-z])){9,}+"
)
_BITS_RUN = re.compile(r"(?<!\d)[01]{8}(?:[ ,]{0,2}[01]{8}){9,}+")
_CODES_RUN = re.compile(r"(?<![\d.])\d{2,3}(?:[^\d\n.]{1,12}\d{2,3}(?!\d|\.\d)){9,}+")
#: Longer ones are not read backwards: a key is short.
_WORD = re.compile(r"(?<![^\s\"'`<>()])(?=[^\s\"'`<>()\d]{0,4096}\d)[^\s\"'`<>()]{16,4096}(?![^\s\"'`<>()])")
_OTHER_HALF = str.maketrans(
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz", "NOPQRSTUVWXYZABCDEFGHIJKLMnopqrstuvwxyzabcdefghijklm"
)
#: How often decoders are applied to what decoders have made, and how much they make in all: times the text, and characters.
MAX_DEPTH, MAX_TIMES, MAX_MORE = 4, 4, 20_000
#: The most that is unpacked of one compressed run, in bytes.
MAX_UNPACKED = 20_000
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")
#: The most characters that `re` searches at once: 20 ms, in which no other thread of the process runs.
_MOST_HELD: Final = 200_000


def searching(pattern: re.Pattern[str], text: str) -> re.Pattern[str]:
    """``pattern``, for a long ``text`` as one of `regex`: half as fast on some texts, but other threads run meanwhile."""
    return pattern if len(text) <= _MOST_HELD else _unlocked(pattern)


@cache
def _unlocked(pattern: re.Pattern[str]) -> re.Pattern[str]:
    import regex

    ignore_case = regex.IGNORECASE if pattern.flags & re.IGNORECASE else 0
    return cast("re.Pattern[str]", regex.compile(pattern.pattern, ignore_case))


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
    for match in searching(pattern, text).finditer(text):
        start, end = match.span()
        new = replacement(match)
        if last < start:
            parts.append(text[last:start])
            starts.extend(range(last, start))
            ends.extend(range(last + 1, start + 1))
        parts.append(new)
        starts.extend([start] * len(new))
        ends.extend([end] * len(new))
        last = end
    starts.extend(range(last, len(text)))
    ends.extend(range(last + 1, len(text) + 1))
    return View("".join([*parts, text[last:]]), starts, ends)


def plain_view(text: str) -> View:
    r"""``text`` without invisible characters, in compatibility form with ASCII digits; ``\n`` of two characters is space."""
    plain = text.isascii() or not (
        searching(INVISIBLE, text).search(text)
        or searching(_DASHES, text).search(text)
        or searching(_OTHER_DIGIT, text).search(text)
        or not unicodedata.is_normalized("NFKC", text)
    )
    view = View(text) if plain else _replaced(text, _NOT_ASCII, _compatible)
    if "\\" not in view.text:
        return view
    spaced = searching(_LINE_ESCAPE, view.text).sub(_spaces, view.text)  # of the same length
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


@dataclass(frozen=True, slots=True)
class Reading:
    """A text made from the original by decoders. ``garbled``: by ones that make a text of any, so that words mean nothing."""

    text: str
    span: Callable[[int, int], tuple[int, int]]
    depth: int = 0
    garbled: bool = False


def readings(text: str) -> Iterator[Reading]:
    """``text`` in plain form, and what decoders make of it, step by step: each form once, `MAX_DEPTH` steps deep.

    Takes time in proportion to the text: what is made of it is at most `MAX_TIMES` as long in all, and `MAX_MORE` characters.
    """
    plain = plain_view(text)
    waiting = deque([Reading(plain.text, plain.span)])
    remaining, seen = MAX_TIMES * len(text) + MAX_MORE, {plain.text}
    while waiting:
        reading = waiting.popleft()
        yield reading
        for decoded in _decoded(reading) if reading.depth < MAX_DEPTH else ():
            remaining -= len(decoded.text)
            if remaining < 0:
                return
            if decoded.text and decoded.text not in seen:
                seen.add(decoded.text)
                waiting.append(decoded)


def _decoded(reading: Reading) -> Iterator[Reading]:
    """The readings that one decoder each makes of a reading."""
    text = reading.text
    for pattern, replacement in _IN_PLACE:
        if searching(pattern, text).search(text) is not None:
            yield _step(reading, _replaced(text, pattern, replacement))
    if (view := _fragments(decoded_runs(text))).text:
        yield _step(reading, view)
    if not reading.garbled and (view := _fragments(_garbled_words(text))).text:
        yield _step(reading, view, garbled=True)


def _step(reading: Reading, view: View, *, garbled: bool = False) -> Reading:
    def span(start: int, end: int) -> tuple[int, int]:
        return reading.span(*view.span(start, end))

    return Reading(view.text, span, reading.depth + 1, reading.garbled or garbled)


def _fragments(runs: Iterable[tuple[int, int, str]]) -> View:
    """A text with the decoded runs in lines, each of whose characters stands for the whole run."""
    lines: list[str] = []
    starts, ends = array("I"), array("I")
    for start, end, line in runs:
        lines.append(f"{line}\n\n")  # an empty line: the runs are not joined
        starts.extend([start] * (len(line) + 2))
        ends.extend([end] * (len(line) + 2))
    return View("".join(lines), starts, ends)


def _garbled_words(text: str) -> Iterator[tuple[int, int, str]]:
    """The words with digits, backwards, by the other half of the alphabet, and both."""
    for match in searching(_WORD, text).finditer(text):
        word, other_half = match.group(), match.group().translate(_OTHER_HALF)
        for garbled in (word[::-1], other_half, other_half[::-1]):
            yield *match.span(), garbled


def _character(match: re.Match[str]) -> str:
    return _unescaped(match.group())


@lru_cache(1024)
def _unescaped(escape: str) -> str:
    if escape.startswith("&"):
        return html.unescape(escape if escape.endswith(";") else f"{escape};")
    digits = escape.lstrip("%\\+uUx").strip("{}")
    octal = escape[0] == "\\" and escape.lstrip("\\")[0].isdigit()
    code = int(digits, 8 if octal else 16)
    return chr(code) if code < 0x110000 and not 0xD800 <= code < 0xE000 else escape


def _together(match: re.Match[str]) -> str:
    return match.group().replace(match[1] or match[2], "")


def _nothing(match: re.Match[str]) -> str:
    return ""


#: Decoders of what stands in the middle of other text, which stays around it.
_IN_PLACE = ((_ESCAPE, _character), (_JOINT, _nothing), (_LINE_END, _nothing), (_APART, _together))


def decoded_runs(text: str) -> Iterator[tuple[int, int, str]]:
    """The runs of digits to a base that are text once decoded, and unpacked: (start, end, that text)."""
    for match in searching(_BASE64_RUN, text).finditer(text):
        for begin, run in _segments(match):
            plain = _from_base64(run)
            if plain is not None:
                yield begin, begin + len(run), plain
    for pattern, to_bytes in _RUNS:
        for match in searching(pattern, text).finditer(text):
            data = to_bytes(match.group())
            plain = None if data is None else _readable(data)
            if plain is not None:
                yield *match.span(), plain


def _hex(run: str) -> bytes:
    return bytes.fromhex(re.sub(r"0[xX]|[ :,=-]", "", run))


def _base32(run: str) -> bytes | None:
    digits = run.rstrip("=").upper()
    try:
        return base64.b32decode(digits + "=" * (-len(digits) % 8))
    except (binascii.Error, ValueError):
        return None


def _base85(run: str) -> bytes | None:
    digits = run.removeprefix("<~").rstrip(".,:").removesuffix("~>")  # a sentence may go on behind it
    for decode in (base64.a85decode, base64.b85decode):
        with suppress(ValueError):
            data = decode(digits)
            if _readable(data) is not None:
                return data
    return None


def _bits(run: str) -> bytes:
    return bytes(int(bits, 2) for bits in re.findall("[01]{8}", run))


def _codes(run: str) -> bytes | None:
    codes = [int(code) for code in re.findall(r"\d+", run)]
    return bytes(codes) if max(codes) < 127 else None


_RUNS: tuple[tuple[re.Pattern[str], Callable[[str], bytes | None]], ...] = (
    (_HEX_RUN, _hex),
    (_BASE32_RUN, _base32),
    (_BITS_RUN, _bits),
    (_CODES_RUN, _codes),
    (_BASE85_RUN, _base85),
)


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
    """The text that ``data`` is, after unpacking."""
    data = _unpacked(data)
    if b"\x00" in data and data[1::2].count(0) * 2 >= len(data) - 1:  # UTF-16, as PowerShell encodes
        data = data[::2]
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return text if text.replace("\n", "").replace("\r", "").replace("\t", "").isprintable() else None


def _unpacked(data: bytes) -> bytes:
    """``data``, or the beginning of what it is the compressed form of."""
    try:
        if data[:2] == b"\x1f\x8b":
            return zlib.decompressobj(31).decompress(data, MAX_UNPACKED)
        if data[:1] == b"\x78" and len(data) > 1 and (data[0] * 256 + data[1]) % 31 == 0:
            return zlib.decompressobj().decompress(data, MAX_UNPACKED)
        if data[:3] == b"BZh":
            return bz2.BZ2Decompressor().decompress(data, MAX_UNPACKED)
        if data[:6] == b"\xfd7zXZ\x00":
            return lzma.LZMADecompressor(memlimit=1 << 26).decompress(data, MAX_UNPACKED)
    except (zlib.error, OSError, EOFError, lzma.LZMAError):
        return data
    return data
