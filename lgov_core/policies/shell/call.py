"""Reads one command by its entry in the table: options, their values, operands, and what it prints."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from lgov_core.policies.shell.refusal import unclear, unknown
from lgov_core.policies.shell.table import Entry, Kind, Table
from lgov_core.policies.shell.values import ANY, BELOW, STAR, UNKNOWN, is_wild, shown
from lgov_core.policies.shell.workspace import Workspace

#: What a flag may carry behind ``=``: a word that names no file elsewhere.
_PLAIN_VALUE = re.compile(r"[\w.,:+%@-]*")


@dataclass
class Input:
    """What a command reads: ``file`` is a redirected file or nothing, ``text`` known text, ``pipe`` another command's output.

    ``values`` are what lines of it may be.
    """

    source: str = "file"
    values: list[str] = field(default_factory=lambda: [UNKNOWN])

    @property
    def empty(self) -> bool:
        """Whether nothing is redirected to the command."""
        return self.source == "file" and self.values == [""]

    @property
    def certain(self) -> bool:
        """Whether the text is known."""
        return self.source != "file" and UNKNOWN not in "".join(self.values)


NO_INPUT = Input("file", [""])


@dataclass
class Call:
    """A command as its entry reads it: ``checks`` are its words with their kinds."""

    entry: Entry
    input: Input
    checks: list[tuple[Kind, str]] = field(default_factory=list[tuple[Kind, str]])
    #: Commands that it runs: the kind they are given as, and their words.
    commands: list[tuple[str, list[str]]] = field(default_factory=list[tuple[str, list[str]]])
    operands: list[str] = field(default_factory=list[str])
    options: set[str] = field(default_factory=set[str])
    #: Whether an option that acts precedes one that selects the files.
    late: bool = False

    def words_of(self, kind: str) -> list[str]:
        """The words of one kind."""
        return [word for found, word in self.checks if found.name == kind]


def read_call(table: Table, entry: Entry, words: Sequence[str], stdin: Input) -> Call:
    """Reads ``words`` (without the command's name). Raises `Refused` for an option that the entry does not know."""
    call = Call(entry, stdin)
    rest = list(words)
    while True:
        call.entry = entry
        operands, rest, verbatim = _Reader(call, entry, rest).read()
        if not entry.sub or not rest:
            break
        name = rest.pop(0)
        found = table.sub(entry, name)
        if found is None:
            found = table.sub(entry, "*")
            rest.insert(0, name)
        if found is None:
            raise unknown(
                f"{entry.name} {name[:40]} is not known here; add it to commands of the policy if it should be."
            )
        entry = found
    entry = call.entry = table.switched(entry, call.options)
    call.operands = [*operands, *verbatim]
    if verbatim:
        _assign_kinds(call, entry.after or (), verbatim)
    _assign_kinds(call, entry.args, operands)
    return call


class _Reader:
    """Takes the options out of a list of words."""

    def __init__(self, call: Call, entry: Entry, words: list[str]) -> None:
        self.call, self.entry, self.words = call, entry, words
        self.operands: list[str] = []

    def read(self) -> tuple[list[str], list[str], list[str]]:
        """The operands; where the entry has sub-commands, the words from its name on; and what follows ``--``."""
        entry, words = self.entry, self.words
        if entry.dashless and words and not words[0].startswith("-"):
            words[:] = self._undashed(words[0], words[1:])
        while words:
            word = words.pop(0)
            if word == "--":
                if entry.sub:
                    raise unclear("Options before -- are not followed here; leave it out.")
                return (self.operands, [], words) if entry.after is not None else (self.operands + words, [], [])
            if word.startswith("-") and word != "-" and (not entry.plain or not entry.any or self._is_flag(word)):
                self._option(word)
                continue
            if word.startswith(UNKNOWN) and not entry.plain:
                raise unclear("It is not clear whether a word is an option; write it out, or put -- before it.")
            if entry.sub:
                return self.operands, [word, *words], []
            self.operands.append(word)
            if entry.first or self._ends():
                return self.operands + words, [], []
        return self.operands, [], []

    def _is_flag(self, word: str) -> bool:
        """Whether a word is options of a command that takes all other words as text (``echo ---``)."""
        return all(f"-{letter}" in self.entry.flags for letter in word[1:])

    def _undashed(self, letters: str, rest: list[str]) -> list[str]:
        """``cfv a.tar b`` as ``-c -f a.tar -v b``: values follow all letters, in their order."""
        found: list[str] = []
        for option in (f"-{letter}" for letter in letters):
            found.append(option)
            if option in self.entry.values and rest:
                found.append(rest.pop(0))
        return found + rest

    def _ends(self) -> bool:
        """Whether all further words are taken as they are."""
        at = len(self.operands) - 1
        kinds = self.entry.args
        if at < len(kinds) and kinds[at].count == "!":
            return True
        return at + 1 < len(kinds) and kinds[at + 1].count == "!" and kinds[at + 1].name != "command"

    def _option(self, word: str) -> None:
        name, equals, value = word.partition("=")
        entry, kind = self.entry, self.entry.values.get(name)
        if word in entry.flags:
            return self._note(word)
        if kind is not None and (equals or entry.long or name.startswith("--") or len(name) == 2):
            self._note(name)
            return self._value(name, kind, value if equals else None)
        if name in entry.flags and (not equals or _PLAIN_VALUE.fullmatch(value)):
            return self._note(name)
        if not word.startswith("--") and not entry.long and self._cluster(word):
            return None
        if re.fullmatch(r"-\d+", word) and "-#" in entry.flags:
            return None
        if entry.any:
            self.call.checks.append((Kind("argument"), word))
            return None
        raise unknown(f"{entry.name} {shown(name)[1:-1]} is not an option that is known here; leave it out.")

    def _cluster(self, word: str) -> bool:
        """Options of one letter, ``-xzf``; whether all are known."""
        found: list[str] = []
        for at, letter in enumerate(word[1:], 1):
            option = f"-{letter}"
            kind = self.entry.values.get(option)
            if kind is not None:
                for flag in (*found, option):
                    self._note(flag)
                self._value(option, kind, word[at + 1 :] or None)
                return True
            if option not in self.entry.flags:
                return False
            found.append(option)
        for flag in found:
            self._note(flag)
        return True

    def _note(self, option: str) -> None:
        self.call.options.add(option)
        if option in self.entry.acts:
            self.call.checks.append((self.entry.acts[option], option))

    def _value(self, option: str, kind: Kind, value: str | None) -> None:
        words = self.words
        if kind.name == "exec" and not kind.count:
            ends = [at for at, word in enumerate(words) if word in (";", "+")]
            if not ends:
                raise unclear(f"The command behind {option} does not end.")
            self.call.commands.append(("exec", words[: ends[0]]))
            del words[: ends[0] + 1]
            return
        if kind.count == "!":
            self.call.commands.append((kind.name, [*([value] if value else []), *words]))
            words.clear()
            return
        if value is None:
            if kind.count == "?":
                return
            if not words:
                raise unclear(f"{option} has no value.")
            value = words.pop(0)
        self.call.late |= kind.name == "found" and bool(self.call.commands or self.call.words_of("delfound"))
        self.call.checks.append((kind, value))


def _assign_kinds(call: Call, kinds: Sequence[Kind], operands: list[str]) -> None:
    """Gives each operand its kind: those at the start, those at the end, and the repeated one between."""
    at = next((at for at, kind in enumerate(kinds) if kind.count in ("*", "!")), len(kinds))
    lead, repeated, trail = kinds[:at], kinds[at : at + 1], kinds[at + 1 :]
    middle = operands
    if trail:
        cut = max(len(operands) - len(trail), 0)
        middle, ends = operands[:cut], operands[cut:]
        call.checks.extend(zip(trail[-len(ends) :] if ends else [], ends, strict=True))
    call.checks.extend(zip(lead, middle, strict=False))
    more = middle[len(lead) :]
    if not more:
        return
    if not repeated:
        if call.entry.any:
            call.checks.extend((Kind("argument"), word) for word in more)
            return
        raise unknown(f"{call.entry.name} takes fewer words than this; leave {shown(more[0])} out.")
    if repeated[0].count == "!" and repeated[0].name in ("command", "module", "environment", "tool"):
        call.commands.append((repeated[0].name, more))
    else:
        call.checks.extend((repeated[0], word) for word in more)


# ---------------------------------------------------------------------- what it prints


def files_of(call: Call) -> list[str]:
    """Words that stand for the files that a search finds."""
    named = [*call.words_of("tree"), *call.words_of("look"), *call.words_of("read")]
    roots = [root for root in named if root not in ("(", ")", "!", ",")] or ["."]
    negated = call.late or {"-not", "-o", "-or"} & call.options or {"!", ","} & set(call.operands)
    patterns = [] if negated else [name.replace("*", STAR).replace("?", ANY) for name in call.words_of("found")]
    return [
        f"{root.rstrip('/') or '/'}/{BELOW}{pattern}".replace("//", "/")
        for root in roots
        for pattern in patterns or [STAR]
    ]


def printed_by(workspace: Workspace, call: Call) -> list[str]:
    """What a line of the output may be, by the entry's ``prints``: for the first option given, or without one."""
    prints = call.entry.prints
    kind = next((prints[option] for option in prints if option in call.options), prints.get("", "text"))
    return _PRINTED[kind](workspace, call)


def _same(workspace: Workspace, call: Call) -> list[str]:
    """Lines of the input, where no file is named."""
    return [UNKNOWN] if call.words_of("read") or call.input.source == "file" else call.input.values


def _words(workspace: Workspace, call: Call) -> list[str]:
    text = " ".join(call.operands)
    return [UNKNOWN if "\\" in text else text]


def _format(workspace: Workspace, call: Call) -> list[str]:
    """The output of ``printf``."""
    first, *rest = call.operands or [UNKNOWN]
    if first in ("%s", "%s\\n"):
        return ["\n".join(rest)]
    return [UNKNOWN if re.search(r"[\\%]", first) else first]


def _part(workspace: Workspace, call: Call) -> list[str]:
    """The output of ``basename`` and ``dirname``."""
    base = call.entry.name == "basename"
    word, *suffix = call.operands or [UNKNOWN]
    if any(map(is_wild, suffix)) or (not base and (suffix or is_wild(word))):
        return [UNKNOWN]
    if UNKNOWN in word or BELOW in word:
        return [STAR]
    part = (posixpath.basename if base else posixpath.dirname)(word.rstrip("/"))
    return [part.removesuffix(suffix[0] if suffix and part != suffix[0] else "") or "."]


_PRINTED: dict[str, Callable[[Workspace, Call], list[str]]] = {
    "text": lambda workspace, call: [UNKNOWN],
    "nothing": lambda workspace, call: [""],
    "name": lambda workspace, call: [STAR],
    "number": lambda workspace, call: ["1"],
    "folder": lambda workspace, call: list(workspace.state.folders),
    "home": lambda workspace, call: [workspace.home],
    "temp": lambda workspace, call: ["/tmp/tmp.1234"],
    "files": lambda workspace, call: [UNKNOWN] if call.commands else files_of(call),
    "listed": lambda workspace, call: [f"./{BELOW}{STAR}"],
    "operands": lambda workspace, call: [*call.operands, BELOW + STAR],
    "same": _same,
    "words": _words,
    "format": _format,
    "base": _part,
    "parent": _part,
}
