"""What the words of a shell text may become: quotes, variables, substitutions, braces and wildcards."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from typing import TYPE_CHECKING

from lgov_core.policies.options import names
from lgov_core.policies.shell.refusal import Refused, unclear
from lgov_core.policies.shell.values import (
    ANY,
    BREAK,
    CLASS,
    CLOSE,
    COMMA,
    HOME,
    OPEN,
    PIPE,
    STAR,
    TILDE,
    UNKNOWN,
    unquoted,
)

if TYPE_CHECKING:
    from lgov_core.policies.shell.state import State
    from lgov_core.policies.shell.syntax import Node

#: Readings of one word, and characters of all its readings together.
MAX_READINGS, MAX_CHARACTERS = 64, 60_000
#: Node types that are their own text, apart from quotes and wildcards.
_PLAIN = frozenset(
    names("word number regex extglob_pattern variable_name test_operator special_variable_name brace_expression")
)
_ACTIVE = {"*": STAR, "?": ANY, "[": CLASS, "{": OPEN, "}": CLOSE, ",": COMMA}
_INERT = {OPEN: "{", CLOSE: "}", COMMA: ",", TILDE: "~"}
_ESCAPES = {"a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_ANSI = re.compile(
    r"\\(?:x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|U([0-9a-fA-F]{1,8})|([0-7]{1,3})|c(.)|(.))", re.DOTALL
)
_RANGE = re.compile(r"(-?\d{1,4}|[A-Za-z])\.\.(-?\d{1,4}|[A-Za-z])(?:\.\.-?\d{1,4})?")
_EXPANSION = re.compile(r"\$\{(#?)([A-Za-z_]\w*|[0-9@*?#$!-])(\[[@*]\]|\[\d+\])?(.*)\}", re.DOTALL)
_NUMBER = re.compile(r"-?\d+")


class Words:
    """Evaluates the words of one text in the current `State`.

    A word has several readings where a variable may hold several values; a reading is the list of arguments it becomes.
    ``run`` judges the commands of a substitution and returns what they may print.
    """

    def __init__(self, state: State, run: Callable[[Node], list[str]], spend: Callable[[int], None]) -> None:
        self._state, self._run, self._spend = state, run, spend

    def readings(self, node: Node) -> list[list[str]]:
        """The lists of arguments that ``node`` may become."""
        found: dict[tuple[str, ...], None] = {}
        for reading in self._evaluated(node, quoted=False):
            fields = [part for braced in _braces(reading) for part in _split(braced)]
            self._spend(2 * len(fields) + len(reading) // 8)
            found[tuple(map(_finished, fields))] = None
        return [list(fields) for fields in found]

    def values(self, node: Node) -> list[str]:
        """What a variable holds after ``name=node``: no splitting, no braces."""
        return list(dict.fromkeys(map(_finished, self._evaluated(node, quoted=True))))

    def body(self, node: Node) -> list[str]:
        """What a here-document that is not quoted may become."""
        return self._interpolated(node, node.start, node.end, node.start)

    def arithmetic(self, node: Node) -> None:
        """Evaluates the words below an arithmetic node. Refuses values that the shell would evaluate further."""
        for child in node.named:
            self.operand(child)

    def operand(self, node: Node) -> None:
        """Evaluates one operand of an arithmetic expression, or an expression in it, as `arithmetic` does."""
        if node.type in ("word", "variable_name", "number"):
            if not re.fullmatch(r"[\w#]+", node.text):
                raise unclear("Arithmetic with more than numbers and names is not followed; write it more simply.")
            found = self._state.values(node.text) if re.match(r"[A-Za-z_]", node.text) else ["1"]
        elif node.type in ("simple_expansion", "expansion", "command_substitution"):
            found = self._evaluated(node, quoted=True)
        elif node.type.endswith("_expression") or node.type == "arithmetic_expansion":
            return self.arithmetic(node)
        else:
            raise unclear("Arithmetic with text is not followed; write it more simply.")
        if not all(_NUMBER.fullmatch(value) or not value for value in found):
            raise unclear(f"It is not certain that {node.text[:40]!r} is a number; the shell may run what it holds.")
        return None

    # ------------------------------------------------------------------ one node

    def _evaluated(self, node: Node, *, quoted: bool) -> list[str]:
        kind = node.type
        if kind in _PLAIN:
            return [_marked(node.text)]
        if kind == "raw_string":
            return [node.text[1:-1]]
        if kind == "ansi_c_string":
            return [_ansi_c(node.text[2:-1])]
        if kind == "string":
            if not node.text.startswith('"'):
                raise unclear("A translated string is not followed; write it in plain quotes.")
            return self._interpolated(node, node.start + 1, node.end - 1, node.start)
        if kind in ("concatenation", "command_name"):
            return self._joined(node, quoted=quoted)
        if kind == "simple_expansion":
            return self._variable(node.text[1:], quoted=quoted)
        if kind == "expansion":
            return self._expansion(node, quoted=quoted)
        if kind == "command_substitution":
            return [value if quoted else unquoted(value) for value in self._run(node)]
        if kind == "process_substitution":
            self._run(node)
            return [PIPE]
        if kind == "arithmetic_expansion":
            self.arithmetic(node)
            return ["1"]
        raise unclear(f"A word of kind {kind.replace('_', ' ')} is not followed; write it more simply.")

    def _interpolated(self, node: Node, start: int, end: int, base: int) -> list[str]:
        source = node.text.encode()
        parts: list[list[str]] = []
        at = start
        for child in node.named:
            if child.type in ("string_content", "heredoc_content"):
                continue
            parts.append([_in_quotes(source[at - base : child.start - base].decode())])
            parts.append(self._evaluated(child, quoted=True))
            at = child.end
        parts.append([_in_quotes(source[at - base : end - base].decode())])
        return self._product(parts)

    def _joined(self, node: Node, *, quoted: bool) -> list[str]:
        source, base, at = node.text.encode(), node.start, node.start
        parts: list[list[str]] = []
        for child in node.named:
            if child.start != at:  # a sign between the parts, such as a lone $ or a comma
                parts.append([_marked(source[at - base : child.start - base].decode())])
            # Braces are expanded before variables: $x{1,2} is $x1 $x2.
            if child.type == "simple_expansion" and source[child.end - base : child.end - base + 1] == b"{":
                raise unclear("A variable before a brace is not followed; write ${name}.")
            parts.append(self._evaluated(child, quoted=quoted))
            at = child.end
        if at != node.end:
            parts.append([_marked(source[at - base :].decode())])
        return self._product(parts)

    def _variable(self, name: str, *, quoted: bool) -> list[str]:
        found = self._state.values(name)
        return found if quoted else [unquoted(value) for value in found]

    def _expansion(self, node: Node, *, quoted: bool) -> list[str]:
        match = _EXPANSION.fullmatch(node.text)
        if match is None or (match[4] and (match[1] or match[4][0] not in ":-+=?#%/^,")):
            raise unclear("Indirect and transforming expansions are not followed; write the value out.")
        if quoted and _holds_quotes(node):
            raise unclear("Quotes inside of a quoted expansion are read in several ways; leave them out.")
        length, name, index, rest = match.groups()
        if length:
            return ["1"]
        if rest.startswith((":+", "+")):
            return self._alternative(node, quoted=quoted, others=[""])
        if index in ("[@]", "[*]"):
            found = self._state.values(f"{name}[@]")
            if index == "[*]":
                found = [value.replace(BREAK, " ") for value in found]
            found = [value if quoted else unquoted(value) for value in found]
            return found if not rest else [UNKNOWN for _ in found]
        if index is not None:
            found = [part for value in self._state.values(f"{name}[@]") for part in value.split(BREAK)]
        else:
            found = self._state.values(name)
        found = found if quoted else [unquoted(value) for value in found]
        if not rest:
            return found
        if rest.startswith((":-", "-", ":=", "=")):
            made = self._alternative(node, quoted=quoted, others=found)
            if "=" in rest[:2]:
                self._state.assign(name, made)
            return made
        if rest.startswith((":?", "?")):
            self._alternative(node, quoted=True, others=[])
            return found
        for child in node.named[1:]:
            self._evaluated(child, quoted=True)
        return [_trimmed(value, rest) for value in found]

    def _alternative(self, node: Node, *, quoted: bool, others: list[str]) -> list[str]:
        """The readings of the word behind ``:-``, and ``others``."""
        inner = [child for child in node.named if child.type not in ("variable_name", "special_variable_name")]
        made = self._product([self._evaluated(child, quoted=quoted) for child in inner])
        return list(dict.fromkeys([*others, *(made if quoted else map(unquoted, made))]))

    def _product(self, parts: list[list[str]]) -> list[str]:
        count = size = 1
        for part in parts:
            count *= len(part)
            size += max(map(len, part), default=0)
        self._spend(count)
        if count > MAX_READINGS or count * size > MAX_CHARACTERS:
            raise Refused("shell-too-deep", "A word may become too many things; write it more simply.")
        return ["".join(reading) for reading in product(*parts)]


def _holds_quotes(node: Node) -> bool:
    """Whether single quotes, which quote nothing inside of double quotes, belong to an expansion."""
    inner = [child for child in node.named if child.type != "command_substitution"]
    return any(child.type in ("raw_string", "ansi_c_string") or _holds_quotes(child) for child in inner)


def product_of(words: Iterable[list[list[str]]], most: int) -> Iterator[list[str]]:
    """Every command that ``words``, each with its readings, may become. Raises `Refused` beyond ``most``."""
    kept = list(words)
    count = 1
    for readings in kept:
        count *= len(readings)
    if count > most:
        raise Refused("shell-too-deep", "A command may become too many things; write it more simply.")
    for chosen in product(*kept):
        yield [field for fields in chosen for field in fields]


def _marked(text: str) -> str:
    """Source outside quotes: escapes undone, active signs replaced by their stand-ins."""
    made: list[str] = []
    letters = iter(text)
    for at, letter in enumerate(letters):
        if letter == "\\":
            made.append(next(letters, "\\"))
        elif letter == "~" and at == 0:
            made.append(TILDE)
        else:
            made.append(_ACTIVE.get(letter, letter))
    return "".join(made)


def _ansi_c(text: str) -> str:
    """The inside of ``$'...'`` with its escapes undone."""

    def letter(match: re.Match[str]) -> str:
        if hexadecimal := match[1] or match[2] or match[3]:
            return chr(min(int(hexadecimal, 16), 0x10FFFF))
        if match[4]:
            return chr(int(match[4], 8) & 0xFF)
        if match[5]:
            return chr(ord(match[5].upper()) & 0x1F)
        return _ESCAPES.get(match[6], match[6] if match[6] in "\\'\"?" else "\\" + match[6])

    return _ANSI.sub(letter, text).partition("\0")[0]


def _in_quotes(text: str) -> str:
    return re.sub(r'\\([$`"\\\n])', lambda match: "" if match[1] == "\n" else match[1], text)


def _trimmed(value: str, operator: str) -> str:
    """``${name%suffix}``, ``${name#prefix}``, ``${name%%,*}`` with literals; UNKNOWN for the rest."""
    if operator == "##*/" and UNKNOWN not in value:
        return value.rpartition("/")[2]
    match = re.fullmatch(r"(%%?|##?)([\w./\-]+)", operator)
    if match is None or UNKNOWN in value:
        return UNKNOWN
    return value.removesuffix(match[2]) if match[1][0] == "%" else value.removeprefix(match[2])


def _braces(word: str) -> list[str]:
    """Brace expansion. An incomplete brace stands for itself."""
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
        items = [OPEN]
        if ".." in inner and COMMA not in inner and not _RANGE.fullmatch(inner):
            raise unclear("A range in braces that is not understood; write it more simply.")
        if COMMA in inner:
            items = inner.split(COMMA)
        elif _RANGE.fullmatch(inner):
            items = _range(inner)
        if items == [OPEN]:
            waiting.append(f"{before}{{{inner}}}{after}")
            continue
        if (len(items) + len(waiting) + len(done)) * len(current) > MAX_CHARACTERS or len(items) > 4 * MAX_READINGS:
            raise Refused("shell-too-deep", "A brace expansion makes too many words; write fewer.")
        waiting.extend(before + item + after for item in reversed(items))
    return done


def _range(text: str) -> list[str]:
    first, last = text.split("..")[:2]
    if _NUMBER.fullmatch(first) and _NUMBER.fullmatch(last):
        return ["1"]
    low, high = sorted((ord(first[0]), ord(last[0])))
    return [chr(code) for code in range(low, high + 1)]


def _split(field: str) -> list[str]:
    return [part for part in field.split(BREAK) if part] if BREAK in field else [field]


def _finished(field: str) -> str:
    if field.startswith(TILDE):
        rest = field[1:]
        field = HOME + rest if rest[:1] in ("", "/") else f"/home/{rest}" if rest[:1].isalpha() else UNKNOWN + rest
    if "=" in field or ":" in field:  # name=~/x, and some shells and programs expand --option=~/x
        field = re.sub(f"(?<=[=:])[~{TILDE}](?=/|:|$)", HOME, field)
    if CLASS in field:
        inside, closing, rest = field.rpartition("]")
        field = (re.sub(f"{CLASS}[^]]*]", ANY, inside + closing) + rest).replace(CLASS, "[")
    for stand_in, letter in _INERT.items():
        field = field.replace(stand_in, letter)
    return field
