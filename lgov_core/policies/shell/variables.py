"""Assignments, declarations, tests and arithmetic: what changes the variables of a text, or evaluates what they hold."""

from __future__ import annotations

import re

from lgov_core.policies.shell.refusal import Refused, unclear
from lgov_core.policies.shell.session import Session
from lgov_core.policies.shell.syntax import WORDS, Node
from lgov_core.policies.shell.values import UNKNOWN
from lgov_core.policies.shell.words import Words

_COMPARISONS = re.compile(r"-(?:eq|ne|lt|le|gt|ge)")


class Variables:
    """Judges what one text does with its variables, in the current state. Each method raises `Refused`."""

    def __init__(self, session: Session, words: Words) -> None:
        self._session, self._state, self._words = session, session.state, words

    def assign(self, node: Node, *, prefix: bool = False) -> tuple[str, list[str]]:
        """Judges an assignment, and gives the variable its values unless it is one for a single command."""
        name, value = node.children[0].text, node.first("value")
        if re.fullmatch(r"\w+", name) is None or (value is not None and value.type == "array"):
            raise unclear("Arrays are not followed; use a variable for each value.")
        values = [""] if value is None else self._words.values(value)
        if "+=" in node.text[: len(name) + 4]:
            values = [old + new for old in self._state.values(name) for new in values]
        if prefix and name == "IFS":
            return name, values
        self._session.budget.spend(sum(map(len, values)) // 8)
        self._session.check_variable(name, values)
        if not prefix:
            self._state.assign(name, values)
        return name, values

    def declare(self, node: Node) -> None:
        """Judges ``export``, ``local``, ``declare`` and the like."""
        words = [child for child in node.named if child.type != "variable_assignment"]
        if len(node.children) == 1:
            raise Refused("shell-secret", "All variables of the environment, secrets among them, are not shown.")
        for child in node.named:
            if child.type == "variable_assignment":
                self.assign(child)
                continue
            for word in (field for reading in self._words.readings(child) for field in reading):
                name, equals, value = word.partition("=")
                if word.startswith("-") and not re.fullmatch(r"-[xragA]+", word):
                    raise unclear(f"{node.children[0].text} {word[:20]} is not followed; leave it out.")
                if not word.startswith("-") and re.fullmatch(r"\w+", name) is None:
                    raise unclear("It is not clear which variable this is; write its name out.")
                if equals or (node.children[0].text == "local" and not word.startswith("-")):
                    self._session.check_variable(name, [value])
                    self._state.assign(name, [value])
        if words and all(word.text.startswith("-") for word in words) and len(words) == len(node.named):
            raise Refused("shell-secret", "All variables of the environment, secrets among them, are not shown.")

    def unset(self, node: Node) -> None:
        """Judges ``unset``: of variables only."""
        for child in node.named:
            if re.fullmatch(r"\w+|-v", child.text) is None:
                raise unclear("Only variables are unset, and by their plain names.")
            if child.text != "-v":
                self._session.check_variable(child.text, ["", UNKNOWN])
                self._state.assign(child.text, [""])

    def arithmetic(self, node: Node) -> None:
        """Judges ``(( ... ))``."""
        self._words.arithmetic(node)
        self._note_counted(node)

    def _note_counted(self, node: Node) -> None:
        """Variables that an arithmetic expression may change hold numbers from then on."""
        for name in {inner.text for inner in node.walk() if inner.type in ("variable_name", "word")}:
            if re.match(r"[A-Za-z_]", name):
                self._session.check_variable(name, ["1"])

    def test(self, node: Node) -> None:
        """Judges ``[ ... ]`` and ``[[ ... ]]``."""
        self._test(node, double=node.text.startswith("[["))

    def _test(self, node: Node, *, double: bool) -> None:
        operator = next((child.text for child in node.children if child.type == "test_operator"), "")
        compares = double and _COMPARISONS.fullmatch(operator) is not None
        for child in node.named:
            if child.type == "test_operator":
                continue
            if child.type not in WORDS:
                self._test(child, double=double)
                continue
            asked = re.fullmatch(r"[\"']?\$\{?(\w+)(?::?[-+]\w*)?\}?[\"']?", child.text)
            if asked is not None and asked[1] not in self._state.variables and operator in ("-n", "-z"):
                continue  # only whether there is a value
            values = self._words.values(child)
            if operator in ("-v", "-R") and not all(re.fullmatch(r"\w+", value) for value in values):
                raise unclear("The name of a variable is not certain; the shell may run what stands in its brackets.")
            if compares and not all(re.fullmatch(r"-?\d+", value) for value in values):
                raise unclear("It is not certain that this is a number; the shell may run what it holds.")
