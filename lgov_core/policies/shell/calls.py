"""Reads one command by its entry in the table: options, values, operands, and what it prints."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from lgov_core.policies.shell.syntax import (
    ANY,
    BELOW,
    DIGITS,
    LISTED,
    NUMBER,
    STAR,
    UNKNOWN,
    is_wild,
    shown,
    unclear,
    unknown,
)
from lgov_core.policies.shell.table import Entry, Kind, Table
from lgov_core.policies.shell.workspace import Workspace

#: What a flag may carry behind ``=``: a word that names no file elsewhere.
_PLAIN_VALUE = re.compile(r"[\w.,:+%@-]*")
#: What programs read each in its own way in a pattern of names.
_UNCLEAR_GLOB = re.compile(r"\\|\[(?![!^]?[\w.,@+~-]+\])")
#: A format of ``date`` that prints no text of its own, and no slash.
_PLAIN_DATE = re.compile(r"\+(?:%[-_0^#]?[aAbBdeFGHIjklmMNpPRsSTuUVwWyYz]|[-_: T])+(?:\.%N)?")


@dataclass
class Input:
    """The input of a command; ``values`` are the texts that its lines may be."""

    #: ``file``: a redirected file or nothing, ``text``: known text, ``pipe``: another command's output.
    source: str = "file"
    values: list[str] = field(default_factory=lambda: [UNKNOWN])


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
    expands: list[str] = field(default_factory=list[str])  # those that a wildcard begins
    options: set[str] = field(default_factory=set[str])
    #: Whether an option that acts precedes one that selects the files.
    late: bool = False
    #: Whether some options run programs or write elsewhere: a wildcard may become one.
    wary: bool = False

    def words_of(self, kind: str) -> list[str]:
        """The words of one kind."""
        return [word for check, word in self.checks if check.name == kind]


def read_call(table: Table, entry: Entry, words: Sequence[str], stdin: Input) -> Call:
    """Reads ``words`` (without the command's name). Raises `ShellRefusal` for an option that the entry does not know."""
    call = Call(entry, stdin, wary=entry.wary or entry.history)
    rest = list(words)
    while True:
        operands, rest = _Reader(call, rest).read()
        if not call.entry.sub or not rest:
            break
        sub_entry = table.sub(call.entry, rest[0])
        if sub_entry is not None:
            rest.pop(0)
        else:
            sub_entry = table.sub(call.entry, "*")
        if sub_entry is None:
            raise unknown(f"{call.entry.name} {rest[0][:40]} is not known; add it to commands of the policy.")
        call.entry = sub_entry
    call.entry = table.switched(call.entry, call.options)
    call.operands = operands
    _assign_kinds(call, call.entry.args, operands)
    return call


class _Reader:
    """Takes the options out of a list of words."""

    def __init__(self, call: Call, words: list[str]) -> None:
        self.call, self.entry, self.words = call, call.entry, words
        self.operands: list[str] = []

    def read(self) -> tuple[list[str], list[str]]:
        """The operands, and where the entry has sub-commands, the words from its name on."""
        entry, words = self.entry, self.words
        signs = ("-", "+") if "+e" in entry.flags else ("-",)  # set +e
        if entry.dashless and words and not words[0].startswith("-"):
            words[:] = self._undashed(words[0], words[1:])
        while words:
            word = words.pop(0)
            if word == "--":
                if entry.sub:
                    raise unclear("Options before -- are not followed here; leave it out.")
                return self.operands + words, []
            text = entry.plain and entry.any and not entry.flags.issuperset(f"-{letter}" for letter in word[1:])
            if word.startswith(signs) and word != "-" and not text:  # text: echo ---
                self._option(word)
                continue
            if (word.startswith(UNKNOWN) and not entry.plain) or (self.call.wary and is_wild(word[:1])):
                raise unclear(f"It is not clear whether {shown(word)} is an option; write ./ or put -- before it.")
            if entry.sub:
                return self.operands, [word, *words]
            self.operands.append(word)
            if is_wild(word[:1]) and not entry.plain:
                self.call.expands.append(word)
            if entry.first or self._ends():
                return self.operands + words, []
        return self.operands, []

    def _undashed(self, letters: str, rest: list[str]) -> list[str]:
        """``cfv a.tar b`` as ``-c -f a.tar -v b``: values follow all letters, in their order."""
        dashed: list[str] = []
        for option in (f"-{letter}" for letter in letters):
            dashed.append(option)
            if option in self.entry.values and rest:
                dashed.append(rest.pop(0))
        return dashed + rest

    def _ends(self) -> bool:
        """Returns whether all further words are taken as they are."""
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
        if word[:1] == "-" and NUMBER.fullmatch(word) and "-#" in entry.flags:
            return None
        if entry.any:
            self.call.checks.append((Kind("argument"), word))
            return None
        raise unknown(f"{entry.name} {shown(name)[1:-1]} is not an option that is known here; leave it out.")

    def _cluster(self, word: str) -> bool:
        """Options of one letter, ``-xzf``; whether all are known."""
        options = [f"-{letter}" for letter in word[1:]]
        at = next((at for at, option in enumerate(options) if option in self.entry.values), len(options))
        if not self.entry.flags.issuperset(options[:at]):
            return False
        for option in options[: at + 1]:
            self._note(option)
        if at < len(options):
            self._value(options[at], self.entry.values[options[at]], word[at + 2 :] or None)
        return True

    def _note(self, option: str) -> None:
        self.call.options.add(option)
        if option in self.entry.acts:
            self.call.checks.append((self.entry.acts[option], option))

    def _value(self, option: str, kind: Kind, value: str | None) -> None:
        words = self.words
        if kind.count == "!":
            self.call.commands.append((kind.name, [*([value] if value else []), *words]))
            words.clear()
        elif kind.name == "exec":
            end = next((at for at, word in enumerate(words) if word in (";", "+")), None)
            if end is None:
                raise unclear(f"The command behind {option} does not end.")
            self.call.commands.append(("exec", words[:end]))
            del words[: end + 1]
        elif value is not None or kind.count != "?":
            count = 2 if kind.name == "pair" else 1
            texts = [] if value is None else [value]
            while words and len(texts) < count:
                texts.append(words.pop(0))
            if len(texts) < count:
                raise unclear(f"{option} has no value.")
            self.call.late |= kind.name == "found" and bool(self.call.commands or self.call.words_of("delfound"))
            self.call.checks.extend((kind, word) for word in texts)


def _assign_kinds(call: Call, kinds: Sequence[Kind], operands: list[str]) -> None:
    """Gives each operand its kind: those at the start, those at the end, and the repeated one between."""
    at = next((at for at, kind in enumerate(kinds) if kind.count in ("*", "!")), len(kinds))
    lead, repeated, trail = kinds[:at], kinds[at : at + 1], kinds[at + 1 :]
    count = len(operands)
    if repeated and repeated[0].count == "!" and repeated[0].name in ("command", "environment"):
        if count > at:
            call.commands.append((repeated[0].name, operands[at:]))
        operands, repeated = operands[:at], ()
    elif not repeated and count > at:
        if not call.entry.any:
            raise unknown(f"{call.entry.name} takes fewer words than this; leave {shown(operands[at])} out.")
        repeated = (Kind("argument"),)
    more = count - at - len(trail)
    assigned = [*lead[: max(count - len(trail), 0)], *([*repeated] * max(more, 0)), *trail[max(-more - at, 0) :]]
    call.checks.extend(zip(assigned, operands, strict=False))


def files_of(call: Call) -> list[str]:
    """Words that stand for the files that a search finds."""
    named = [*call.words_of("tree"), *call.words_of("searched"), *call.words_of("look"), *call.words_of("read")]
    roots = [root for root in named if root not in ("(", ")", "!", ",")] or ["."]
    negated = call.late or {"-not", "-o", "-or"} & call.options or {"!", ","} & set(call.operands)
    patterns = [
        STAR if _UNCLEAR_GLOB.search(name) else re.sub(r"\[[^]]+\]", ANY, name).replace("*", STAR).replace("?", ANY)
        for name in call.words_of("found")
    ]
    return [
        f"{root.rstrip('/') or '/'}/{BELOW}{pattern}".replace("//", "/")
        for root in roots
        for pattern in (patterns if patterns and not negated else [*patterns, STAR])
    ]


def printed_by(workspace: Workspace, call: Call) -> list[str]:
    """The texts that a line of the output may be, by the entry's ``prints``: for the first option given, or without one."""
    prints = call.entry.prints
    kind = next((prints[option] for option in prints if option in call.options), prints.get("", "text"))
    return _PRINTED[kind](workspace, call)


def _names_files(call: Call) -> bool:
    """Returns whether files may be named beside their counts: ``wc`` names one file too."""
    files = call.words_of("read")[int(call.entry.name != "wc") :]
    return bool(files or call.words_of("searched")) or any(map(is_wild, call.operands))


_PRINTED: dict[str, Callable[[Workspace, Call], list[str]]] = {
    "text": lambda workspace, call: [UNKNOWN],
    "nothing": lambda workspace, call: [""],
    "name": lambda workspace, call: [STAR],
    "base": lambda workspace, call: [
        UNKNOWN if UNKNOWN in word else word.rstrip("/").rpartition("/")[2].removesuffix("".join(call.operands[1:2]))
        for word in call.operands[:1]
    ],
    "number": lambda workspace, call: [DIGITS],
    "date": lambda workspace, call: [STAR if all(map(_PLAIN_DATE.fullmatch, call.operands)) else UNKNOWN],
    "count": lambda workspace, call: [UNKNOWN if _names_files(call) else DIGITS],
    "folder": lambda workspace, call: list(workspace.state.folders),
    "home": lambda workspace, call: [workspace.home],
    "temp": lambda workspace, call: ["/tmp/tmp.1234"],
    "files": lambda workspace, call: [UNKNOWN] if call.commands else files_of(call),
    "listed": lambda workspace, call: [f"./{LISTED}{STAR}"],
    "operands": lambda workspace, call: [
        *call.operands,
        BELOW + STAR if {"-a", "-A", "-f", "--all", "--almost-all"} & call.options else STAR + BELOW,
    ],
    "same": lambda workspace, call: (
        [UNKNOWN] if call.words_of("read") or call.input.source == "file" else call.input.values
    ),
    "words": lambda workspace, call: [UNKNOWN if "\\" in "".join(call.operands) else " ".join(call.operands)],
}
