"""What a line that a command prints may be, for a substitution, a variable or the next command of a pipeline."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from lgov_core.policies.shell.call import Call
from lgov_core.policies.shell.values import ANY, BELOW, STAR, UNKNOWN, is_wild

if TYPE_CHECKING:
    from lgov_core.policies.shell.session import Session


def files_of(call: Call) -> list[str]:
    """Words that stand for the files that a search finds."""
    named = [*call.of("tree"), *call.of("look"), *call.of("read")]
    roots = [root for root in named if root not in ("(", ")", "!", ",")] or ["."]
    negated = call.late or {"-not", "-o", "-or"} & call.options or {"!", ","} & set(call.operands)
    patterns = [] if negated else [name.replace("*", STAR).replace("?", ANY) for name in call.of("found")]
    return [
        f"{root.rstrip('/') or '/'}/{BELOW}{pattern}".replace("//", "/")
        for root in roots
        for pattern in patterns or [STAR]
    ]


def printed_by(session: Session, call: Call) -> list[str]:
    """What a line of the output may be, by the entry's ``prints``: for the first option given, or without one."""
    prints = call.entry.prints
    kind = next((prints[option] for option in prints if option in call.options), prints.get("", "text"))
    return _PRINTED[kind](session, call)


def _same(session: Session, call: Call) -> list[str]:
    """Lines of the input, where no file is named."""
    return [UNKNOWN] if call.of("read") or call.given.source == "file" else call.given.values


def _words(session: Session, call: Call) -> list[str]:
    text = " ".join(call.operands)
    return [UNKNOWN if "\\" in text else text]


def _format(session: Session, call: Call) -> list[str]:
    """The output of ``printf``."""
    first, *rest = call.operands or [UNKNOWN]
    if first in ("%s", "%s\\n"):
        return ["\n".join(rest)]
    return [UNKNOWN if re.search(r"[\\%]", first) else first]


def _part(session: Session, call: Call) -> list[str]:
    """The output of ``basename`` and ``dirname``."""
    base = call.entry.name == "basename"
    word, *suffix = call.operands or [UNKNOWN]
    if any(map(is_wild, suffix)) or (not base and (suffix or is_wild(word))):
        return [UNKNOWN]
    if UNKNOWN in word or BELOW in word:
        return [STAR]
    part = (posixpath.basename if base else posixpath.dirname)(word.rstrip("/"))
    return [part.removesuffix(suffix[0] if suffix and part != suffix[0] else "") or "."]


_PRINTED: dict[str, Callable[[Session, Call], list[str]]] = {
    "text": lambda session, call: [UNKNOWN],
    "nothing": lambda session, call: [""],
    "name": lambda session, call: [STAR],
    "number": lambda session, call: ["1"],
    "folder": lambda session, call: list(session.state.folders),
    "home": lambda session, call: [session.places.home],
    "temp": lambda session, call: ["/tmp/tmp.1234"],
    "files": lambda session, call: [UNKNOWN] if call.commands else files_of(call),
    "listed": lambda session, call: [f"./{BELOW}{STAR}"],
    "operands": lambda session, call: [*call.operands, BELOW + STAR],
    "same": _same,
    "words": _words,
    "format": _format,
    "base": _part,
    "parent": _part,
}
