"""The refusal of a shell text, and words as values: placeholders for unknown text, quotes, escapes and braces of bash."""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager

#: Commands of one text, those of the texts inside it included.
MAX_COMMANDS = 1_000
#: Steps of one judgement, of about a microsecond each.
MAX_STEPS = 150_000
#: Shells inside shells, functions inside functions.
MAX_DEPTH = 6


class Refused(Exception):
    """A reason to deny: ``rule`` is a stable slug, ``reason`` a sentence for the model."""

    def __init__(self, rule: str, reason: str) -> None:
        super().__init__(reason)
        self.rule, self.reason = rule, reason


def unclear(reason: str) -> Refused:
    """Something in the text whose meaning cannot be read for certain."""
    return Refused("shell-unclear", reason)


def unknown(reason: str) -> Refused:
    """A command, option or program text that the table does not know."""
    return Refused("shell-unknown", reason)


class Budget:
    """Counts down the steps and commands of one judgement. Made for one judgement, used by one thread."""

    def __init__(self) -> None:
        self.steps, self.commands, self.depth = MAX_STEPS, MAX_COMMANDS, 0

    def spend(self, steps: int) -> None:
        """Counts steps. Raises `Refused` beyond `MAX_STEPS`."""
        self.steps -= steps
        if self.steps < 0:
            raise Refused("shell-too-deep", "The command takes too much work to judge; split it into smaller ones.")

    def command(self, words: Sequence[str]) -> None:
        """Counts a command and its words. Raises `Refused` beyond `MAX_COMMANDS`."""
        self.spend(sum(map(len, words)) // 8)
        self.commands -= 1
        if self.commands < 0:
            raise Refused("shell-too-deep", "The text runs too many commands; write fewer.")

    @contextmanager
    def nested(self) -> Generator[None, None, None]:
        """Counts an inner shell or function call. Raises `Refused` beyond `MAX_DEPTH`."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Refused("shell-too-deep", "Shells or functions call each other too deeply; write the commands out.")
        yield
        self.depth -= 1


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

_ACTIVE = {"*": STAR, "?": ANY, "[": CLASS, "{": OPEN, "}": CLOSE, ",": COMMA}
_INERT = str.maketrans({OPEN: "{", CLOSE: "}", COMMA: ",", TILDE: "~"})
_RANGE = re.compile(r"(?:-?\d{1,4}\.\.-?\d{1,4}|([A-Za-z])\.\.([A-Za-z]))(?:\.\.-?\d{1,4})?")
#: Readings of one word, and characters of all its readings together.
MAX_READINGS, MAX_CHARACTERS = 64, 60_000
_GLOBS = str.maketrans({"*": STAR, "?": ANY, "[": CLASS})
_SPACE = re.compile(r"[ \t\n]+")
_WILD = re.compile(f"[{UNKNOWN}{STAR}{ANY}{BELOW}]")


def is_wild(word: str) -> bool:
    """Returns whether a word holds a placeholder, so that it may be several things."""
    return _WILD.search(word) is not None


def literal(word: str) -> str:
    """A word without its placeholders."""
    return _WILD.sub("", word)


def as_glob(word: str) -> str:
    """A word as a glob of `fnmatch`."""
    return word.replace(BELOW, "*").replace(STAR, "*").replace(ANY, "?")


def unquoted(value: str) -> str:
    """A value as part of a word without quotes: it is split at spaces, and its wildcards are expanded."""
    # A value that is not known, or a list of files, may be several words.
    if BELOW in value:
        value = f"{value} {value}"
    return _SPACE.sub(BREAK, value.translate(_GLOBS)).replace(UNKNOWN, UNKNOWN + BREAK + UNKNOWN)


def shown(word: str) -> str:
    """A word for a message, its placeholders as the characters they replace."""
    return repr(as_glob(word.replace(UNKNOWN, "$…").replace(BELOW, "**/").replace(HOME, "~"))[:80])


def marked(text: str) -> str:
    """Source outside quotes: escapes undone, special characters replaced by placeholders."""
    text = TILDE + text[1:] if text.startswith("~") else text
    return re.sub(r"\\(.?)|[*?[{},]", lambda match: _ACTIVE.get(match[0]) or match[1] or "\\", text, flags=re.DOTALL)


def ansi_c(text: str) -> str:
    """The inside of ``$'...'``, which has no escapes other than of a line end, a tab, a quote and a backslash."""
    return re.sub(r"\\(.)", lambda match: {"n": "\n", "t": "\t"}.get(match[1], match[1]), text, flags=re.DOTALL)


def in_quotes(text: str) -> str:
    """Source inside of double quotes, its escapes undone."""
    return re.sub(r'\\([$`"\\\n])', lambda match: "" if match[1] == "\n" else match[1], text)


def trimmed(value: str, operator: str) -> str:
    """``${name%suffix}``, ``${name#prefix}``, ``${name%%,*}`` with literals; UNKNOWN for the rest."""
    if operator == "##*/" and UNKNOWN not in value:
        return value.rpartition("/")[2]
    match = re.fullmatch(r"(%%?|##?)([\w./\-]+)", operator)
    if match is None or UNKNOWN in value:
        return UNKNOWN
    return value.removesuffix(match[2]) if match[1][0] == "%" else value.removeprefix(match[2])


def braces(word: str) -> list[str]:
    """Brace expansion. An incomplete brace is literal text."""
    done: list[str] = []
    waiting = [word]
    while waiting:
        current = waiting.pop()
        close = current.find(CLOSE)
        start = current.rfind(OPEN, 0, close) if close >= 0 else -1
        if start < 0:
            (waiting if close >= 0 else done).append(current.replace(CLOSE, "}", 1))
            continue
        before, inner, after = current[:start], current[start + 1 : close], current[close + 1 :]
        span = _RANGE.fullmatch(inner)
        if COMMA in inner:
            items = inner.split(COMMA)
        elif span is not None:
            low, high = sorted((ord(span[1] or "1"), ord(span[2] or "1")))
            items = [chr(code) for code in range(low, high + 1)]  # for numbers: 1
        elif ".." in inner:
            raise unclear("A range in braces that is not understood; write it more simply.")
        else:
            waiting.append(f"{before}{{{inner}}}{after}")
            continue
        if (len(items) + len(waiting) + len(done)) * len(current) > MAX_CHARACTERS or len(items) > 4 * MAX_READINGS:
            raise Refused("shell-too-deep", "A brace expansion makes too many words; write fewer.")
        waiting.extend(before + item + after for item in reversed(items))
    return done


def finished(field: str) -> str:
    """An argument with its tilde, brackets and other special characters restored."""
    if field.startswith(TILDE):
        rest = field[1:]
        field = HOME + rest if rest[:1] in ("", "/") else f"/home/{rest}" if rest[:1].isalpha() else UNKNOWN + rest
    if "=" in field or ":" in field:  # name=~/x, and some shells and programs expand --option=~/x
        field = re.sub(f"(?<=[=:])[~{TILDE}](?=/|:|$)", HOME, field)
    if CLASS in field:
        inside, closing, rest = field.rpartition("]")
        field = (re.sub(f"{CLASS}[^]]*]", ANY, inside + closing) + rest).replace(CLASS, "[")
    return field.translate(_INERT)
