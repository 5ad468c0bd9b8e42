"""The state of the shell, and what the words of a text may become in it: quotes, variables, substitutions, wildcards."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, product
from math import prod

from lgov_core.places import is_harmless_variable
from lgov_core.policies.shell.syntax import (
    BREAK,
    DIGITS,
    HOME,
    INSTALLED,
    MAX_CHARACTERS,
    MAX_READINGS,
    NUMBER,
    PIPE,
    UNKNOWN,
    ShellRefusal,
    SyntaxNode,
    ansi_c,
    braces,
    finished,
    in_quotes,
    marked,
    trimmed,
    unclear,
    unquoted,
)
from lgov_core.policies.shell.table import names

#: Values of one variable beyond which it may hold anything, and folders beyond which a text is refused.
MAX_VALUES, MAX_FOLDERS = 48, 48
#: Characters of all folders together.
MAX_PATHS = 8_000


class State:
    """Variables and folders. Copied where the text branches, and merged where the branches meet."""

    def __init__(self, folder: str) -> None:
        #: Values by name; other variables have the value of the environment, which is not known.
        self.variables: dict[str, list[str]] = {}
        self.folders: tuple[str, ...] = (folder,)
        #: Folders it is still in where a ``cd`` has failed.
        self.failed: tuple[str, ...] = ()

    def copy(self) -> State:
        """An independent state with the same values."""
        state = State("")
        state.replace(self)
        return state

    def replace(self, other: State) -> None:
        """Takes over the values of ``other``."""
        self.variables, self.folders, self.failed = dict(other.variables), other.folders, other.failed

    def merge(self, other: State) -> bool:
        """Adds the values of ``other`` to the possible ones; whether that changed anything."""
        before = (self.variables, self.folders)
        self.variables = dict(self.variables)
        for name in {*self.variables, *other.variables}:
            self.assign(name, [*self.variables.get(name, [UNKNOWN]), *other.variables.get(name, [UNKNOWN])])
        self.folders = _distinct(self.folders, other.folders)
        if len(self.folders) > MAX_FOLDERS:
            raise ShellRefusal("shell-too-deep", "The command may be in too many folders; write it more simply.")
        self.failed = _distinct(self.failed, other.failed)
        return (self.variables, self.folders) != before

    def assign(self, name: str, values: Iterable[str]) -> None:
        """Gives a variable one of ``values``."""
        distinct = list(dict.fromkeys(values))
        self.variables[name] = distinct if len(distinct) <= MAX_VALUES else [UNKNOWN]

    def add(self, name: str, values: Iterable[str]) -> None:
        """Adds ``values`` to what a variable may hold."""
        self.assign(name, [*self.variables.get(name, [UNKNOWN]), *values])

    def values(self, name: str) -> list[str]:
        """The values that ``$name`` may have. Refuses secrets of the environment."""
        if name in self.variables:
            return self.variables[name]
        if name in names("variables", "numbers"):
            return [DIGITS]
        own = name in names("variables", "shell") or re.match(r"[A-Za-z_]", name) is None
        if not own and not is_harmless_variable(name):
            raise ShellRefusal(
                "shell-secret", f"${name} of the environment may be a secret, which is not shown or sent."
            )
        fixed = {"!": "$!", "HOME": HOME, "TMPDIR": "/tmp", "IFS": " ", "PATH": INSTALLED}
        return list(self.folders) if name == "PWD" else [fixed.get(name, UNKNOWN)]

    def go(self, target: str) -> None:
        """Changes the folder, as ``cd`` does; it may fail."""
        if UNKNOWN in target or target == "-":
            raise unclear("It is not clear which folder this goes to; write its name out.")
        there = [posixpath.normpath(posixpath.join(folder, target)) for folder in self.folders]
        self.failed = _distinct(self.failed, self.folders)
        self.folders = _distinct(there)
        if len(self.failed) > MAX_FOLDERS or sum(map(len, there)) > MAX_PATHS:
            raise ShellRefusal("shell-too-deep", "The command goes to too many folders; write it more simply.")

    def settle(self) -> None:
        """Marks the end of a statement that does not stop the text where it fails: a failed ``cd`` changed nothing."""
        self.folders, self.failed = _distinct(self.folders, self.failed), ()


def _distinct(*folders: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(folder for some in folders for folder in some))


#: SyntaxNode types that are their own text, apart from quotes and wildcards.
_PLAIN = frozenset((
    "word", "number", "regex", "extglob_pattern", "variable_name", "test_operator", "special_variable_name", "brace_expression",
))  # fmt: skip
#: In arithmetic: a variable is changed.
_ASSIGNS = re.compile(r"\+\+|--|(?<![=!<>])=(?!=)")
_EXPANSION = re.compile(r"\$\{(#?)([A-Za-z_]\w*|[0-9@*?#$!-])(|:?-.*|[#%].*)\}", re.DOTALL)


class Words:
    """Evaluates the words of one text in the current `State`.

    A word has several readings where a variable may hold several values; a reading is the list of arguments it becomes.
    ``run`` judges the commands of a substitution and returns what they may print.
    """

    def __init__(self, state: State, run: Callable[[SyntaxNode], list[str]], spend: Callable[[int], None]) -> None:
        self._state, self._run, self._spend = state, run, spend

    def readings(self, node: SyntaxNode) -> list[list[str]]:
        """The lists of arguments that ``node`` may become."""
        readings: dict[tuple[str, ...], None] = {}
        for reading in self._evaluated(node, quoted=False):
            fields = [field for word in braces(reading) for field in word.split(BREAK) if field or BREAK not in word]
            self._spend(2 * len(fields) + len(reading) // 8)
            readings[tuple(map(finished, fields))] = None
        return [list(fields) for fields in readings]

    def commands(self, words: Sequence[list[list[str]]]) -> list[list[str]]:
        """Every command that ``words``, each with its readings, may become."""
        if prod(map(len, words)) > MAX_READINGS:
            raise ShellRefusal("shell-too-deep", "A command may become too many things; write it more simply.")
        return [list(chain.from_iterable(chosen)) for chosen in product(*words)]

    def values(self, node: SyntaxNode) -> list[str]:
        """The values of a variable after ``name=node``: no splitting, no braces."""
        return [finished(value).replace(BREAK, " ") for value in dict.fromkeys(self._evaluated(node, quoted=True))]

    def body(self, node: SyntaxNode) -> list[str]:
        """The texts that a here-document that is not quoted may become."""
        return self._joined(node, node.start, node.end, in_quotes, quoted=True)

    def arithmetic(self, node: SyntaxNode) -> None:
        """Evaluates the operands below an arithmetic node. Refuses values that the shell would evaluate further."""
        for child in node.named:
            if child.type in ("word", "variable_name", "number") and re.fullmatch(r"[\w#]+", child.text):
                values = self._state.values(child.text) if re.match(r"[A-Za-z_]", child.text) else [DIGITS]
            elif child.type in ("simple_expansion", "expansion", "command_substitution"):
                values = self._evaluated(child, quoted=True)
            elif child.type.endswith("_expression") or child.type == "arithmetic_expansion":
                self.arithmetic(child)
                continue
            else:
                raise unclear("Arithmetic with more than numbers and names is not followed; write it more simply.")
            if not all(not value or NUMBER.fullmatch(value) for value in values):
                raise unclear(f"It is not certain that {child.text[:40]!r} is a number; the shell may run its value.")

    def _number(self, node: SyntaxNode) -> list[str]:
        """The value of ``$((...))``, which may change its variables."""
        self.arithmetic(node)
        for name in re.findall(r"[A-Za-z_]\w*", node.text) if _ASSIGNS.search(node.text) else ():
            self._state.assign(name, [DIGITS])
        return [DIGITS]

    def _evaluated(self, node: SyntaxNode, *, quoted: bool) -> list[str]:
        kind = node.type
        if kind in _PLAIN:
            return [marked(node.text)]
        if kind == "raw_string":
            return [node.text[1:-1]]
        if kind == "ansi_c_string":
            return [ansi_c(node.text[2:-1])]
        if kind == "string":
            if not node.text.startswith('"'):
                raise unclear("A translated string is not followed; write it in plain quotes.")
            return self._joined(node, node.start + 1, node.end - 1, in_quotes, quoted=True)
        if kind in ("concatenation", "command_name"):
            return self._joined(node, node.start, node.end, marked, quoted=quoted)
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
            return self._number(node)
        raise unclear(f"A word of kind {kind.replace('_', ' ')} is not followed; write it more simply.")

    def _joined(
        self, node: SyntaxNode, start: int, end: int, literal: Callable[[str], str], *, quoted: bool
    ) -> list[str]:
        """The readings of a node with text of its own between its children; ``literal`` undoes the quotes of that text."""
        source, at = node.text.encode(), start - node.start
        parts: list[list[str]] = []
        for child in node.named:
            if child.type in ("string_content", "heredoc_content"):
                continue
            begin, after = child.start - node.start, child.end - node.start
            # Braces are expanded before variables: $x{1,2} is $x1 $x2.
            if literal is marked and child.type == "simple_expansion" and source[after : after + 1] == b"{":
                raise unclear("A variable before a brace is not followed; write ${name}.")
            parts.append([literal(source[at:begin].decode())])
            parts.append(self._evaluated(child, quoted=quoted))
            at = after
        parts.append([literal(source[at : end - node.start].decode())])
        return self._product(parts)

    def _variable(self, name: str, *, quoted: bool) -> list[str]:
        values = self._state.values(name)
        return values if quoted else [unquoted(value) for value in values]

    def _expansion(self, node: SyntaxNode, *, quoted: bool) -> list[str]:
        match = _EXPANSION.fullmatch(node.text)
        if match is None or (match[1] and match[3]):
            raise unclear("Of expansions only ${name}, ${name:-other}, ${name#begin} and ${name%end} are followed.")
        if quoted and {"raw_string", "ansi_c_string"} & {inner.type for inner in node.walk()}:
            raise unclear("Quotes inside of a quoted expansion are read in several ways; leave them out.")
        length, name, rest = match.groups()
        values = [DIGITS] if length else self._variable(name, quoted=quoted)
        inner = [child for child in node.named if child.type not in ("variable_name", "special_variable_name")]
        others = self._product([self._evaluated(child, quoted=quoted or rest[0] in "#%") for child in inner])
        if rest.startswith((":-", "-")):
            return list(dict.fromkeys([*values, *(others if quoted else map(unquoted, others))]))
        return [trimmed(value, rest) for value in values] if rest else values

    def _product(self, parts: list[list[str]]) -> list[str]:
        count = prod(map(len, parts))
        size = 1 + sum(max(map(len, alternatives), default=0) for alternatives in parts)
        self._spend(count)
        if count > MAX_READINGS or count * size > MAX_CHARACTERS:
            raise ShellRefusal("shell-too-deep", "A word may become too many things; write it more simply.")
        return ["".join(reading) for reading in product(*parts)]
