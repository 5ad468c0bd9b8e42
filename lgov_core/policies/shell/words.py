"""What the words of a shell text may become: quotes, variables, substitutions, braces and wildcards."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import chain, product
from math import prod

from lgov_core.governor.options import names
from lgov_core.policies.shell.refusal import Refused, unclear
from lgov_core.policies.shell.state import State
from lgov_core.policies.shell.syntax import Node
from lgov_core.policies.shell.values import (
    BREAK,
    MAX_CHARACTERS,
    MAX_READINGS,
    PIPE,
    ansi_c,
    braces,
    finished,
    in_quotes,
    marked,
    trimmed,
    unquoted,
)

#: Node types that are their own text, apart from quotes and wildcards.
_PLAIN = frozenset(
    names("word number regex extglob_pattern variable_name test_operator special_variable_name brace_expression")
)
_EXPANSION = re.compile(r"\$\{(#?)([A-Za-z_]\w*|[0-9@*?#$!-])(.*)\}", re.DOTALL)


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
            fields = [part for word in braces(reading) for part in word.split(BREAK) if part or BREAK not in word]
            self._spend(2 * len(fields) + len(reading) // 8)
            found[tuple(map(finished, fields))] = None
        return [list(fields) for fields in found]

    def commands(self, words: Sequence[list[list[str]]]) -> list[list[str]]:
        """Every command that ``words``, each with its readings, may become."""
        if prod(map(len, words)) > MAX_READINGS:
            raise Refused("shell-too-deep", "A command may become too many things; write it more simply.")
        return [list(chain.from_iterable(chosen)) for chosen in product(*words)]

    def values(self, node: Node) -> list[str]:
        """What a variable holds after ``name=node``: no splitting, no braces."""
        return [finished(value).replace(BREAK, " ") for value in dict.fromkeys(self._evaluated(node, quoted=True))]

    def body(self, node: Node) -> list[str]:
        """What a here-document that is not quoted may become."""
        return self._joined(node, node.start, node.end, in_quotes, quoted=True)

    def arithmetic(self, node: Node) -> None:
        """Evaluates the operands below an arithmetic node. Refuses values that the shell would evaluate further."""
        for child in node.named:
            if child.type in ("word", "variable_name", "number") and re.fullmatch(r"[\w#]+", child.text):
                found = self._state.values(child.text) if re.match(r"[A-Za-z_]", child.text) else ["1"]
            elif child.type in ("simple_expansion", "expansion", "command_substitution"):
                found = self._evaluated(child, quoted=True)
            elif child.type.endswith("_expression") or child.type == "arithmetic_expansion":
                self.arithmetic(child)
                continue
            else:
                raise unclear("Arithmetic with more than numbers and names is not followed; write it more simply.")
            if not all(re.fullmatch(r"(?:-?\d+)?", value) for value in found):
                raise unclear(f"It is not certain that {child.text[:40]!r} is a number; the shell may run its value.")

    def _evaluated(self, node: Node, *, quoted: bool) -> list[str]:
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
            self.arithmetic(node)
            return ["1"]
        raise unclear(f"A word of kind {kind.replace('_', ' ')} is not followed; write it more simply.")

    def _joined(self, node: Node, start: int, end: int, literal: Callable[[str], str], *, quoted: bool) -> list[str]:
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
        found = self._state.values(name)
        return found if quoted else [unquoted(value) for value in found]

    def _expansion(self, node: Node, *, quoted: bool) -> list[str]:
        match = _EXPANSION.fullmatch(node.text)
        if match is None or (match[3] and (match[1] or match[3][0] not in ":-+=?#%/^,")):
            raise unclear("Indirect and transforming expansions are not followed; write the value out.")
        if quoted and {"raw_string", "ansi_c_string"} & {inner.type for inner in node.walk()}:
            raise unclear("Quotes inside of a quoted expansion are read in several ways; leave them out.")
        length, name, rest = match.groups()
        if length:
            return ["1"]
        if rest.startswith((":+", "+")):
            return self._alternative(node, quoted=quoted, others=[""])
        found = self._variable(name, quoted=quoted)
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
        if rest[0] == ":" and not re.fullmatch(r":\s*-?\d+(?::\s*-?\d+)?", rest):
            raise unclear("The place of a part of a value is not followed unless it is a number.")
        for child in node.named[1:]:
            self._evaluated(child, quoted=True)
        return [trimmed(value, rest) for value in found]

    def _alternative(self, node: Node, *, quoted: bool, others: list[str]) -> list[str]:
        """The readings of the word behind ``:-``, and ``others``."""
        inner = [child for child in node.named if child.type not in ("variable_name", "special_variable_name")]
        made = self._product([self._evaluated(child, quoted=quoted) for child in inner])
        return list(dict.fromkeys([*others, *(made if quoted else map(unquoted, made))]))

    def _product(self, parts: list[list[str]]) -> list[str]:
        count = prod(map(len, parts))
        size = 1 + sum(max(map(len, part), default=0) for part in parts)
        self._spend(count)
        if count > MAX_READINGS or count * size > MAX_CHARACTERS:
            raise Refused("shell-too-deep", "A word may become too many things; write it more simply.")
        return ["".join(reading) for reading in product(*parts)]
