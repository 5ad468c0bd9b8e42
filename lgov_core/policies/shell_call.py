"""One command of a shell text on its way to its judge: its words, its input, and what a judge may ask about them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NoReturn, Protocol

from lgov_core.policies.shell_places import Places, Refused
from lgov_core.policies.shell_words import ANY, STAR, UNKNOWN


@dataclass(frozen=True, slots=True)
class Input:
    """What a command reads: nothing of note, a text that stands in the script, or something nobody can read here."""

    kind: Literal["none", "text", "stream"] = "none"
    text: str = ""
    #: Where it is a list of names: words that stand for the files so called.
    listed: tuple[str, ...] = ()
    #: Whether it is fetched or decoded on the way.
    hidden: bool = False


NO_INPUT, STREAM = Input(), Input("stream")


class Runner(Protocol):
    """Judges what a command runs in its turn."""

    places: Places

    def run(self, words: Sequence[str], given: Input) -> None:
        """Judges a command given as words."""
        ...

    def script(self, text: str) -> None:
        """Judges a text that a shell will read."""
        ...

    def writes(self, word: str) -> None:
        """Takes note of a file that is written."""
        ...

    def builds(self, word: str, sources: Iterable[str] = ()) -> None:
        """Takes note of a program that is built, and what it is built from."""
        ...


@dataclass(frozen=True, slots=True)
class Call:
    """A command: its name without the folder, its arguments as evaluated words, and what it reads."""

    name: str
    args: tuple[str, ...]
    given: Input
    runner: Runner

    @property
    def places(self) -> Places:
        """Where the text may read and write."""
        return self.runner.places

    def refuse(self, why: str, rule: str = "shell-dangerous") -> NoReturn:
        """Denies the command."""
        raise Refused(rule, f"{self.name}: {why}")

    def parsed(self, values: str = "") -> Parsed:
        """The arguments as options and operands; ``values`` names the options that take the next word."""
        return parse(self.args, values)

    def literal(self, word: str, what: str) -> str:
        """``word``, which must hold nothing that only the run will tell. Raises `Refused`."""
        if UNKNOWN in word:
            self.refuse(f"{what} is not written out; write it as plain text.", "shell-unclear")
        return word

    def reads(self, words: Iterable[str]) -> None:
        """Judges words that name files to read."""
        for word in words:
            self.places.read(word)


Judge = Callable[[Call], None]


@dataclass(frozen=True, slots=True)
class Parsed:
    """Options as written (``-x`` one by one, ``--long`` without its value), their values, and the rest."""

    options: tuple[str, ...]
    values: tuple[tuple[str, str], ...]
    operands: tuple[str, ...]

    def has(self, *names: str) -> bool:
        """Whether one of the options was given, also by a beginning of its long name."""
        for given in self.options:
            for name in names:
                if given == name or _begins(given, name):
                    return True
        return False

    def tries(self) -> bool:
        """Whether ``-n`` or ``--dry-run`` was given, and is not perhaps the value of an option that was cut short."""
        asked = "-n" in self.options or "--dry-run" in self.options
        return asked and not any(value.startswith("-") for _, value in self.values)

    def programs(self, *names: str) -> tuple[list[str], tuple[str, ...]]:
        """The programs behind the named options, or else the first operand; and the other operands."""
        given = self.of(*names)
        return (given, self.operands) if given else (list(self.operands[:1]), self.operands[1:])

    def of(self, *names: str) -> list[str]:
        """The values of the named options."""
        return [value for given, value in self.values for name in names if given == name or _begins(given, name)]


def _begins(given: str, name: str) -> bool:
    """Whether an option as it was given may be short for the long option ``name``."""
    return len(given) > 2 and given.startswith("--") and name.startswith(given)


def parse(args: Sequence[str], values: str = "") -> Parsed:
    """Splits ``args``; ``values`` are the options that take a value, separated by spaces (``"-o --output"``).

    The word behind an option that may be short for one of these (``--out``) is its value and a word of its own as well.
    """
    taking = set(values.split())
    options: list[str] = []
    found: list[tuple[str, str]] = []
    operands: list[str] = []
    waiting = list(reversed(args))
    while waiting:
        word = waiting.pop()
        if word == "--":
            operands.extend(reversed(waiting))
            break
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            options.append(name)
            if equals:
                found.append((name, value))
            elif name in taking and waiting:
                found.append((name, waiting.pop()))
            elif waiting and any(_begins(name, long) for long in taking):
                found.append((name, waiting[-1]))
        elif len(word) > 1 and word.startswith("-"):
            _short(word, taking, waiting, options, found)
        else:
            operands.append(word)
    return Parsed(tuple(options), tuple(found), tuple(operands))


def _short(word: str, taking: set[str], waiting: list[str], options: list[str], found: list[tuple[str, str]]) -> None:
    if word in taking:  # a long option with one dash, or one letter with its value in the next word
        options.append(word)
        if waiting:
            found.append((word, waiting.pop()))
        return
    options.append(word)
    for at, letter in enumerate(word[1:], 1):
        option = f"-{letter}"
        options.append(option)
        if option in taking:
            value = word[at + 1 :] or (waiting.pop() if waiting else "")
            found.append((option, value))
            return


def wild(word: str) -> bool:
    """Whether a word holds a hole or a wildcard."""
    return any(sign in word for sign in (UNKNOWN, STAR, ANY))


def is_option(word: str) -> bool:
    """Whether a program takes the word for an option."""
    return len(word) > 1 and word.startswith("-") and re.fullmatch(r"-\d+", word) is None
