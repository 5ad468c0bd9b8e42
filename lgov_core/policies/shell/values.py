"""Stand-ins in evaluated words: text that is not known, wildcards, and names of files in a folder."""

from __future__ import annotations

import re

#: Any text at all.
UNKNOWN = "\ue000"
#: Wildcards, or a name without a slash that a command prints: ``*`` and ``?``.
STAR, ANY = "\ue001", "\ue002"
#: Folders below a folder, any number of them and each with its slash: ``find src`` prints ``src/`` + BELOW + STAR.
BELOW = "\ue009"
#: Between two arguments of one word.
BREAK = "\ue007"
OPEN, CLOSE, COMMA, TILDE, CLASS = "\ue003", "\ue004", "\ue005", "\ue006", "\ue008"
#: What ``<(...)`` becomes: a file with what its commands print.
PIPE = f"/dev/fd/{UNKNOWN}"
#: The home folder of the user, which is not known here.
HOME = "/~"
#: The ``PATH`` that is set: folders of installed programs.
INSTALLED = "/usr/bin"

_GLOBS = str.maketrans({"*": STAR, "?": ANY, "[": CLASS})
_SPACE = re.compile(r"[ \t\n]+")
_WILD = re.compile(f"[{UNKNOWN}{STAR}{ANY}{BELOW}]")


def is_wild(word: str) -> bool:
    """Whether a word holds a stand-in, so that it may be several things."""
    return _WILD.search(word) is not None


def unquoted(value: str) -> str:
    """A value as part of a word without quotes: it is split at spaces, and its wildcards are expanded."""
    # A value that is not known, or a list of files, may be several words.
    if BELOW in value:
        value = f"{value} {value}"
    return _SPACE.sub(BREAK, value.translate(_GLOBS)).replace(UNKNOWN, UNKNOWN + BREAK + UNKNOWN)


def shown(word: str) -> str:
    """A word for a message, its stand-ins as the signs they stand for."""
    plain = word.replace(UNKNOWN, "$…").replace(BELOW, "**/").replace(STAR, "*").replace(ANY, "?").replace(HOME, "~")
    return repr(plain[:80])
