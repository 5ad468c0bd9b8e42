"""What the words of a shell text may become: quotes, variables, braces and wildcards, as far as the text tells."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping
from itertools import product
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lgov_core.policies.shell_syntax import Node
    from lgov_core.policies.shell_work import Work
#: Stand-ins in an evaluated word. UNKNOWN is any text at all; the others are wildcards that nobody quoted.
UNKNOWN, STAR, ANY = "\ue000", "\ue001", "\ue002"
#: What stands in the place of ``<(...)``: a file that holds what the commands in it print.
PIPE = f"/dev/fd/{UNKNOWN}"
#: The home folder of whoever runs the command, which the judge does not know.
HOME = "/~"
#: What stands for the PATH that is set: folders of installed programs.
INSTALLED = "/usr/bin"
_OPEN, _CLOSE, _COMMA, _TILDE, _BREAK, _CLASS = "\ue003", "\ue004", "\ue005", "\ue006", "\ue007", "\ue008"
_ACTIVE = {"*": STAR, "?": ANY, "[": _CLASS, "{": _OPEN, "}": _CLOSE, ",": _COMMA}
_INERT = {_OPEN: "{", _CLOSE: "}", _COMMA: ",", _TILDE: "~"}
PRIVATE = re.compile("[\ue000-\uf8ff]")
MAX_READINGS = 64
#: Variables of the shell that hold a number.
_NUMBERS = frozenset(
    {"?", "#", "$", "RANDOM", "SECONDS", "LINENO", "UID", "EUID", "PPID", "BASHPID", "OPTIND", "EPOCHSECONDS"}
)
#: Nodes that are their source, but for quotes and wildcards.
_PLAIN = frozenset(
    {
        *("word", "number", "regex", "extglob_pattern", "variable_name", "test_operator", "special_variable_name"),
        "brace_expression",
    }
)
_ESCAPES = {"a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_ANSI = re.compile(
    r"\\(?:x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|U([0-9a-fA-F]{1,8})|([0-7]{1,3})|c(.)|(.))", re.DOTALL
)
_RANGE = re.compile(r"(-?\d{1,4}|[A-Za-z])\.\.(-?\d{1,4}|[A-Za-z])(?:\.\.-?\d{1,4})?")


#: Substitutions that make a date or a number: nothing of this machine, which a name could carry away.
_ONE_NAME = re.compile(
    r"""date(?: -u)?(?: -d ["'][\w ]+["']| --date=["'][\w ]+["'])?(?: ["']?\+["']?[%\w:.\-]+["']?)?"""
    r"|nproc|seq (?:[01] )?[1-9]\d*"
)


class UnclearWord(Exception):
    """A word whose form is not understood; the text is denied."""


class Words:
    """Evaluates words of one text.

    ``variables`` are the values that the text itself may have given to a name (UNKNOWN among them when it may be
    anything); names that are not in it belong to the environment. ``folder`` is what ``$PWD`` stands for. Every reading
    is kept, up to `MAX_READINGS`; beyond that a word is UNKNOWN.
    """

    def __init__(
        self,
        source: bytes,
        variables: Mapping[str, Iterable[str]],
        folder: str,
        kept: dict[Node, list[str]] | None = None,
        work: Work | None = None,
    ) -> None:
        self.source = source
        self._work = work
        #: The arguments that nodes may become, until a variable is given another value.
        self.kept: dict[Node, list[str]] = {} if kept is None else kept
        self.variables = variables
        self.folder = folder

    def text(self, node: Node) -> str:
        """The source of a node."""
        if node.source is None:
            node.source = self.source[node.start_byte : node.end_byte].decode()
        return node.source

    def fields(self, node: Node) -> list[str]:
        """The arguments that ``node`` may become, all readings together. The list is not to be changed."""
        if node in self.kept:
            return self.kept[node]
        found: list[str] = []
        for reading in self._readings(node, quoted=False):
            for braced in _braces(reading):
                fields = [part for part in braced.split(_BREAK) if part] if _BREAK in braced else [braced]
                if len(found) + len(fields) > MAX_READINGS:
                    self.kept[node] = [UNKNOWN]
                    return self.kept[node]
                found.extend(map(_finished, fields))
        if self._work is not None:
            self._work.spend(2 * len(found))
        self.kept[node] = list(dict.fromkeys(found))
        return self.kept[node]

    def values(self, node: Node) -> list[str]:
        """What a variable may hold after ``name=node``: no splitting, no braces."""
        return [_finished(reading) for reading in self._readings(node, quoted=True)]

    # ------------------------------------------------------------------ one node

    def _readings(self, node: Node, *, quoted: bool) -> list[str]:
        kind = node.type
        if kind in _PLAIN:
            return [_unquoted(self.text(node))]
        if kind == "raw_string":
            return [self.text(node)[1:-1]]
        if kind == "ansi_c_string":
            return [ansi_c(self.text(node)[2:-1])]
        if kind == "string":
            return self._string(node)
        if kind in ("concatenation", "command_name"):
            return self._joined(node, quoted=quoted)
        if kind == "simple_expansion":
            return self._variable(self.text(node)[1:], quoted=quoted)
        if kind == "expansion":
            return self._expansion(node, quoted=quoted)
        if kind == "command_substitution":
            return self._substitution(node)
        if kind == "process_substitution":
            return [PIPE]
        if kind in ("arithmetic_expansion", "array", "subscript", "translated_string"):
            return [UNKNOWN]
        raise UnclearWord(kind)

    def _string(self, node: Node) -> list[str]:
        parts: list[list[str]] = []
        at = node.start_byte + 1
        if self.source[node.start_byte : at] != b'"':
            return [UNKNOWN]
        for child in node.named_children:
            if child.type == "string_content":
                continue
            parts.append([_in_quotes(self.source[at : child.start_byte].decode())])
            parts.append(self._readings(child, quoted=True))
            at = child.end_byte
        parts.append([_in_quotes(self.source[at : node.end_byte - 1].decode())])
        return _product(parts)

    def _joined(self, node: Node, *, quoted: bool) -> list[str]:
        parts: list[list[str]] = []
        at = node.start_byte
        for child in node.named_children:
            if child.start_byte != at:  # a sign between the parts, such as a lone $ or a comma
                parts.append([_unquoted(self.source[at : child.start_byte].decode())])
            # Braces are expanded before variables: $x{1,2} is $x1 $x2.
            glued = child.type == "simple_expansion" and self.source[child.end_byte : child.end_byte + 1] == b"{"
            parts.append([UNKNOWN] if glued else self._readings(child, quoted=quoted))
            at = child.end_byte
        if at != node.end_byte:
            parts.append([_unquoted(self.source[at : node.end_byte].decode())])
        return _product(parts)

    def _variable(self, name: str, *, quoted: bool) -> list[str]:
        if name in self.variables:
            found = list(self.variables[name]) or [UNKNOWN]
        elif name in _NUMBERS:
            found = ["1234"]
        elif name == "!":
            found = ["$!"]
        else:
            known = {"HOME": HOME, "PWD": self.folder, "TMPDIR": "/tmp", "IFS": " ", "PATH": INSTALLED}
            found = [known.get(name, UNKNOWN)]
        return found if quoted else [_breaking(value) for value in found]

    def _expansion(self, node: Node, *, quoted: bool) -> list[str]:
        text = self.text(node)[2:-1]
        match = re.match(r"([A-Za-z_]\w*|[?#$!])(.*)", text, re.DOTALL)
        if match is None:
            return ["1234"] if re.fullmatch(r"#\w+(\[[@*]\])?", text) else [UNKNOWN]
        name, rest = match[1], match[2]
        found = self._variable(name, quoted=quoted)
        if not rest or re.fullmatch(r"\[\d+\]", rest):  # one of an array's values
            return found
        if rest.startswith((":-", "-", ":=", "=", ":+", "+")):
            inner = [child for child in node.named_children if child.type != "variable_name"]
            other = _product([self._readings(child, quoted=quoted) for child in inner]) if inner else [""]
            if not quoted:
                other = [_breaking(reading) for reading in other]
            plus = "+" in rest[:2]
            return [*([] if plus else found), *other, *([""] if plus else [])]
        if rest.startswith((":?", "?")):
            return found
        return [_trimmed(value, rest) for value in found]

    def _substitution(self, node: Node) -> list[str]:
        text = self.text(node)
        inner = (text[2:-1] if text.startswith("$(") else text[1:-1]).strip()
        if _ONE_NAME.fullmatch(inner):
            return ["1234"]
        if (
            match := re.fullmatch(r"""(base|dir)name "?\$\{?([A-Za-z_]\w*)\}?"?(?: ["']?(\.\w+)["']?)?""", inner)
        ) is not None:
            values = self._variable(match[2], quoted=True)
            if not all(re.fullmatch(rf"[\w./{STAR}{ANY}~-]+", value) and ".." not in value for value in values):
                return [UNKNOWN]
            part = posixpath.basename if match[1] == "base" else posixpath.dirname
            return [(part(value) or ".").removesuffix(match[3] or "\0") for value in values]
        if re.fullmatch(r"mktemp(?: -d)?", inner):
            return ["/tmp/tmp.1234"]
        if inner == "pwd":
            return [self.folder]
        if re.fullmatch(r"pkg-config(?: [\w.+-]+)+", inner):  # options for a compiler
            return ["-lm"]
        if (match := re.fullmatch(r"(?:echo|printf) ([A-Za-z0-9][\w./-]*)", inner)) is not None:
            return [match[1]]
        return [UNKNOWN]


def _breaking(value: str) -> str:
    """A value as it stands in a word without quotes: a space in it begins another word."""
    return value.replace(" ", _BREAK).replace("\t", _BREAK).replace("\n", _BREAK)


def ansi_c(text: str) -> str:
    """The inside of ``$'...'`` with its escapes undone."""

    def letter(match: re.Match[str]) -> str:
        hexadecimal = match[1] or match[2] or match[3]
        if hexadecimal:
            return chr(min(int(hexadecimal, 16), 0x10FFFF))
        if match[4]:
            return chr(int(match[4], 8) & 0xFF)
        if match[5]:
            return chr(ord(match[5].upper()) & 0x1F)
        return _ESCAPES.get(match[6], match[6] if match[6] in "\\'\"?" else "\\" + match[6])

    return _ANSI.sub(letter, text).partition("\0")[0]


def _unquoted(text: str) -> str:
    """Source outside quotes: escapes undone, what the shell acts on replaced by its stand-in."""
    made: list[str] = []
    letters = iter(text)
    for at, letter in enumerate(letters):
        if letter == "\\":
            made.append(next(letters, "\\"))
        elif letter == "~" and at == 0:
            made.append(_TILDE)
        else:
            made.append(_ACTIVE.get(letter, letter))
    return "".join(made)


def _in_quotes(text: str) -> str:
    return re.sub(r'\\([$`"\\\n])', lambda match: "" if match[1] == "\n" else match[1], text)


def _trimmed(value: str, operator: str) -> str:
    """``${name%suffix}`` and ``${name#prefix}`` with a literal, and the two idioms for a name and its folder."""
    if UNKNOWN in value:
        return UNKNOWN
    if operator == "##*/":
        return value.rpartition("/")[2]
    if operator == "%/*":
        return value.rpartition("/")[0] or value
    match = re.fullmatch(r"(%%?|##?)([\w./\-]+)", operator)
    if match is None:
        return UNKNOWN
    return value.removesuffix(match[2]) if match[1][0] == "%" else value.removeprefix(match[2])


def _product(parts: list[list[str]]) -> list[str]:
    count = 1
    for part in parts:
        count *= len(part)
    return ["".join(reading) for reading in product(*parts)] if count <= MAX_READINGS else [UNKNOWN]


def _braces(word: str) -> list[str]:
    """Brace expansion. An incomplete brace stands for itself."""
    done: list[str] = []
    waiting = [word]
    while waiting:
        current = waiting.pop()
        if len(waiting) + len(done) > MAX_READINGS:
            return [UNKNOWN]
        close = current.find(_CLOSE)
        start = current.rfind(_OPEN, 0, close) if close >= 0 else -1
        if start < 0:
            done.append(current.replace(_CLOSE, "}", 1) if close >= 0 else current)
            if close >= 0:
                waiting.append(done.pop())
            continue
        before, inner, after = current[:start], current[start + 1 : close], current[close + 1 :]
        if inner.count(_COMMA) + len(waiting) + len(done) > MAX_READINGS:
            return [UNKNOWN]
        if _COMMA in inner:
            waiting.extend(before + item + after for item in inner.split(_COMMA))
        elif _RANGE.fullmatch(inner):
            waiting.extend(before + item + after for item in _range(inner))
        else:
            waiting.append(f"{before}{{{inner}}}{after}")
    return done


def _range(text: str) -> list[str]:
    first, last = text.split("..")[:2]
    if first.lstrip("-").isdigit() and last.lstrip("-").isdigit():
        low, high = sorted((int(first), int(last)))
        return [str(number) for number in range(low, high + 1)] if high - low < MAX_READINGS else [UNKNOWN]
    low, high = sorted((ord(first[0]), ord(last[0])))
    return [chr(code) for code in range(low, high + 1)]


def _finished(field: str) -> str:
    if field.startswith(_TILDE):
        rest = field[1:]
        field = HOME + rest if rest[:1] in ("", "/") else f"/home/{rest}" if rest[:1].isalpha() else UNKNOWN + rest
    # name=~/x and --option=~/x: some shells and programs expand it
    if "=" in field:
        field = re.sub(f"=~(?=/|$)|={_TILDE}(?=/|$)", f"={HOME}", field)
    if _CLASS in field:
        inside, closing, rest = field.rpartition("]")  # behind the last one nothing closes
        field = (re.sub(f"{_CLASS}[^]]*]", ANY, inside + closing) + rest).replace(_CLASS, "[")
    for stand_in, letter in _INERT.items():
        field = field.replace(stand_in, letter)
    return field.replace(_BREAK, " ")
