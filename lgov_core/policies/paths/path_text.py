"""Checks on the text of a path, before the file system is asked."""

from __future__ import annotations

import re
import unicodedata
from urllib.parse import unquote_to_bytes

from lgov_core.policies.base import Unclear

MAX_PATH_BYTES = 4096
MAX_NAME_BYTES = 255
#: Times a text may be percent-encoded over itself before its meaning is unclear.
MAX_DECODINGS = 4

#: Letters that look like a separator or a dot and that normalisation leaves as they are.
_LOOKALIKES = frozenset(
    "\u0337\u0338\u2044\u2215\u29f8\u29f6\u2571\u27cb\u2216\u29f5\u29f9\u2572\u27cd\u20e5\u1735\u3033\u2cc6\u2f03"
    "\u3002\ua4f8\u0701\u0702\u06d4\u2cf9\ua60e"
)
#: Kinds of invisible character: controls, formats (direction marks, zero width), lone surrogates, private use,
#: unassigned, line and paragraph separators.
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]+://|(?:file|jar|data|smb|nfs|dav|gopher|php|expect|zip):", re.I)
_DRIVE = re.compile(r"[A-Za-z]:")
_STREAM = re.compile(r"::|:\$|\.[A-Za-z0-9]{1,8}:")
_VARIABLE = re.compile(r"\$[\w{(\[@*#?!$'\"-]|`|%[A-Za-z_][A-Za-z0-9_()]*%")
_ENTITY = re.compile(r"&(?:#\d+|#x[0-9a-f]+|[a-z][a-z0-9]*);", re.I)
_BRACES = re.compile(r"\{[^{}]*(?:,|\.\.)[^{}]*\}")
_DEVICES = re.compile(r"(?:con|nul|aux|prn|conin\$|conout\$|com[0-9]|lpt[0-9])(?:\..*)?", re.I)

_SHORT_NAME = re.compile(r"[^.~]{1,6}~\d(?:\.[^.]{0,3})?")


def plain_path(text: str) -> tuple[str, ...]:
    """``text`` and what else a program may make of it (percent-encoding undone, Unicode normalised): POSIX paths, all.

    Raises `Unclear` when no such reading is beyond doubt.

    That is: no control or invisible characters, no backslash, drive, UNC share, stream, device or short name (``GIT~1``), no
    URL, no ``~``, variable, wildcard or brace to expand, no second reading when percent-encoding is undone or Unicode is
    normalised, no name that begins or ends with a space or ends with a dot.
    """
    _as_written(text)
    decoded = _decoded(text)
    if decoded != text:
        if decoded.count("/") != text.count("/") or _has_dots(decoded) != _has_dots(text):
            raise Unclear("path-encoded", "Write the path without percent-encoding.")
        _as_written(decoded)
    return tuple(dict.fromkeys((text, decoded, unicodedata.normalize("NFKC", decoded))))


def _as_written(text: str) -> None:
    if not text.strip():
        raise Unclear("path-missing", "The path is empty; write one.")
    try:
        length = len(text.encode())
    except UnicodeEncodeError:
        raise Unclear("path-characters", "The path holds characters that are not text.") from None
    if length > MAX_PATH_BYTES:
        raise Unclear("path-too-long", f"The path is longer than {MAX_PATH_BYTES} bytes.")
    _characters(text)
    _expansions(text)
    for part in text.split("/"):
        _name(part)


def _characters(text: str) -> None:
    if any(unicodedata.category(letter) in _UNSEEN and not _joins(text, at) for at, letter in enumerate(text)):
        raise Unclear("path-characters", "The path holds control or invisible characters; leave them out.")
    if "\\" in text:
        raise Unclear("path-windows", "Write the path with forward slashes; a backslash is not accepted.")
    if _DRIVE.match(text) or text.startswith("//") or _STREAM.search(text):
        raise Unclear("path-windows", "Drives, network shares and streams are not accepted; write a POSIX path.")
    if _SCHEME.match(text):
        raise Unclear("path-url", "Write a path, not a URL.")
    normal = unicodedata.normalize("NFKC", text)
    marks = "/\\.~:$%*?"
    if _LOOKALIKES.intersection(text) or any(normal.count(mark) != text.count(mark) for mark in marks):
        raise Unclear("path-lookalike", "The path holds characters that only look like a slash or a dot.")


def _joins(text: str, at: int) -> bool:
    """Whether the invisible character at ``at`` is a joiner that the writing needs: in an emoji, an Arabic or Indic word."""
    if text[at] not in "\u200c\u200d" or not 0 < at < len(text) - 1:
        return False
    before, after = text[at - 1], text[at + 1]
    if unicodedata.combining(before) == 9:  # a virama: the joiner says how the letters around it are shaped
        return True
    if text[at] == "\u200d" and unicodedata.category(after) == "So":
        return (
            unicodedata.category(before) == "So" or before in "\ufe0f\U0001f3fb\U0001f3fc\U0001f3fd\U0001f3fe\U0001f3ff"
        )
    return all(unicodedata.bidirectional(letter) == "AL" for letter in (before, after))


def _expansions(text: str) -> None:
    if text.startswith("~"):
        raise Unclear("path-expansion", "~ is not expanded; write the path out.")
    if _VARIABLE.search(text):
        raise Unclear("path-expansion", "Variables and commands in a path are not expanded; write the path out.")
    if "*" in text or "?" in text or _BRACES.search(text):
        raise Unclear("path-expansion", "Wildcards are not expanded; name one file or folder.")
    if _ENTITY.search(text) or re.search(r"%u[0-9a-fA-F]{4}", text):
        raise Unclear("path-encoded", "Write the path without character codes.")


def _name(part: str) -> None:
    if part in ("", ".", ".."):
        return
    if len(part.encode()) > MAX_NAME_BYTES:
        raise Unclear("path-too-long", f"A name in the path is longer than {MAX_NAME_BYTES} bytes.")
    if part != part.strip() or part.endswith("."):
        raise Unclear("path-characters", "A name in the path begins or ends with a space, or ends with a dot.")
    if part.startswith("..") and not part.strip(".;"):
        raise Unclear("path-characters", f"{part!r} is not a name.")
    if _DEVICES.fullmatch(part) is not None:
        raise Unclear("path-windows", f"{part!r} names a device on some systems; choose another name.")
    if "~" in part and _SHORT_NAME.fullmatch(part) is not None:  # GIT~1 is .git there
        raise Unclear("path-windows", f"{part!r} is the short name of another file on some systems; write it out.")


def _decoded(text: str) -> str:
    """``text`` with percent-encoding undone until nothing changes."""
    for _ in range(MAX_DECODINGS):
        if re.search(r"%[0-9a-fA-F]{2}", text) is None:
            return text
        try:
            text = unquote_to_bytes(text).decode()
        except UnicodeDecodeError:
            raise Unclear("path-encoded", "The percent-encoding in the path is not UTF-8.") from None
    raise Unclear("path-encoded", "The path is percent-encoded over and over.")


def _has_dots(text: str) -> int:
    return sum(part in (".", "..") for part in text.split("/"))
