"""What a shell text tells of its variables, and in which folders it may stand."""

from __future__ import annotations

import posixpath
import re
from bisect import bisect
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lgov_core.policies.shell_call import is_option
from lgov_core.policies.shell_syntax import REDIRECTS, WORDS, every_node, nodes_above, nodes_of
from lgov_core.policies.shell_words import INSTALLED, MAX_READINGS, UNKNOWN, Words

if TYPE_CHECKING:
    from lgov_core.policies.shell_syntax import Node
    from lgov_core.policies.shell_work import Work
#: Commands that put what they read into the variables they are given, and those that leave a variable empty.
_FILLING = ({"read"}, {"mapfile"}, {"readarray"}, {"getopts"}, {"printf", "-v"}, {"wait", "-p"})
#: An option with the name of a variable behind it (``printf -vx``, ``read -ax``).
_GLUED = re.compile(r"-\w*?[avp]([A-Za-z_]\w*)")
_EMPTYING = ("local ", "declare ", "typeset ")
#: An expansion that gives the variable it asks for a value, where that has none.
ASSIGNING = re.compile(r"\$\{([A-Za-z_]\w*):?=")
#: Names in a text that another reading will run, but for those that are only asked (``$x``): it may give them a value.
_NAMED = re.compile(r"(?<![$\w{])[A-Za-z_]\w*|(?<=\{)[A-Za-z_]\w*(?=:?=)")
#: A text that may stand in more folders than this may stand anywhere.
MAX_FOLDERS = 64
_LOOPS = frozenset({"while_statement", "for_statement", "c_style_for_statement"})


class Values:
    """Collects the values that a text may give to its variables; ``variables`` is filled, and `Words` reads from it."""

    def __init__(self, words: Words, variables: dict[str, list[str]], work: Work) -> None:
        self.words, self.variables, self._work = words, variables, work
        self._given: dict[str, list[int]] = {}
        self._called: Counter[str] = Counter()

    def collect(self, root: Node) -> None:
        """Fills ``variables``: every value that stands in the text, and UNKNOWN where values come from one another."""
        before: dict[str, list[str]] = {}
        for node in nodes_of(root, "variable_assignment"):
            name_node = node.child_by_field_name("name")
            if name_node is not None:
                self._given.setdefault(self.words.text(name_node), []).append(node.start_byte)
        for _ in range(2):
            before = {name: list(values) for name, values in self.variables.items()}
            for node in every_node(root):
                if node.type == "variable_assignment":
                    name_node = node.child_by_field_name("name")
                    if name_node is not None:
                        self._may_be(re.split(r"[\[+]", self.words.text(name_node))[0], self.assigned(node))
                elif node.type == "for_statement":
                    self._loop_variable(node)
                elif node.type in ("command", "declaration_command", "unset_command"):
                    self._filled(node)
                elif node.type == "expansion" and (match := ASSIGNING.match(self.words.text(node))):
                    self._may_be(match[1], [UNKNOWN])
        for name, values in self.variables.items():
            if values != before.get(name, values):
                values[:] = [UNKNOWN]
        self.words.kept.clear()

    def assigned(self, node: Node) -> list[str]:
        """What an assignment may give to its variable."""
        value = node.child_by_field_name("value")
        if value is None:
            return [""]
        joined = re.match(r"[^=]*\+=", self.words.text(node)) is not None
        if joined or value.type == "array":
            inner = value.named_children if value.type == "array" else [value]
            fields = [field for child in inner for field in self.words.fields(child)]
            return [*fields, UNKNOWN] if joined else (fields or [""])
        if self.words.text(node).startswith("PATH="):  # what it is made of was judged when it was given
            standing = {**self.variables, "PATH": [INSTALLED]}
            return Words(self.words.source, standing, self.words.folder).values(value)
        return self.words.values(value)

    def folders(self, root: Node, start: Sequence[str]) -> list[str]:
        """Every folder the text may stand in: where it begins, and where each cd leads."""
        folders = list(start)
        moves = [node for node in nodes_of(root, "command") if self._name(node) in ("cd", "pushd", "popd")]
        steps = _and_list(root)
        if all(node in steps and self._name(node) == "cd" for node in moves):
            return self._one_after_another(moves, folders)
        for node in moves:
            targets = self._targets(node) if self._name(node) != "popd" else []
            self._work.spend(len(folders) * len(targets))
            looping = any(up.type in _LOOPS or self._called_again(root, up) for up in nodes_above(node))
            for target in targets:
                if looping and ".." in target:
                    target = UNKNOWN
                for folder in tuple(folders):
                    reached = posixpath.normpath(posixpath.join(folder, target))
                    if reached not in folders:
                        folders.append(reached)
                    if len(folders) > MAX_FOLDERS:
                        return [folders[0], UNKNOWN]
        return folders

    def _called_again(self, root: Node, node: Node) -> bool:
        """Whether a node is a function that the text calls more than once."""
        if node.type != "function_definition":
            return False
        if not self._called:
            self._called.update(self.words.text(called) for called in nodes_of(root, "command_name"))
        return self._called[self.words.text(node.named_children[0])] > 1

    def _name(self, node: Node) -> str:
        name = node.child_by_field_name("name")
        return "" if name is None else self._plain(name)

    def _plain(self, node: Node) -> str:
        """A word as the shell takes it where quotes are all there is to it (``"cd"``); otherwise its source."""
        text = self.words.text(node)
        fields = self.words.fields(node) if re.search(r"[\"'\\]", text) and "$" not in text else [text]
        return fields[0] if len(fields) == 1 else text

    def _targets(self, node: Node) -> list[str]:
        """Where a cd may lead; nothing for one that goes back."""
        fields = [f for child in node.children_by_field_name("argument") for f in self.words.fields(child)]
        named = [field for field in fields if not is_option(field) and field != "-"]
        return named or ([] if "-" in fields else ["/~"])

    def _one_after_another(self, moves: Sequence[Node], folders: list[str]) -> list[str]:
        """The folders of a text in which each cd begins where the one before it led, because all must succeed."""
        here, before = list(folders), list(folders)
        for node in moves:
            targets = self._targets(node)
            self._work.spend(2 * len(here) * len(targets))
            there = [posixpath.normpath(posixpath.join(folder, target)) for folder in here for target in targets]
            here, before = (list(dict.fromkeys(there)) if targets else before), here
            folders.extend(folder for folder in here if folder not in folders)
            if len(folders) > MAX_FOLDERS:
                return [folders[0], UNKNOWN]
        return folders

    def _may_be(self, name: str, values: Sequence[str]) -> None:
        known = self.variables.setdefault(name, [])
        for value in values:
            if value not in known and len(known) <= MAX_READINGS:  # with more, a word with it may be anything
                known.append(value)
                self.words.kept.clear()

    def _loop_variable(self, node: Node) -> None:
        variable = node.child_by_field_name("variable")
        if variable is not None:
            items = [field for child in node.children_by_field_name("value") for field in self.words.fields(child)]
            self._may_be(self.words.text(variable), items or [UNKNOWN])

    def _filled(self, node: Node) -> None:
        """Variables that a command fills or empties: with what, nobody knows here."""
        parts = [child for child in node.named_children if child.type not in ("variable_assignment", *REDIRECTS)]
        texts = [self._plain(child) for child in parts]
        names = [text for text in texts if re.fullmatch(r"[A-Za-z_]\w*", text)]
        names += [glued[1] for text in texts if (glued := _GLUED.fullmatch(text)) is not None]
        emptied = self.words.text(node).startswith(_EMPTYING)
        for name in names if emptied or node.type == "unset_command" else ():
            if not (emptied and self._given_later(node, name)):
                self._may_be(name, [""])
        given = {*texts, *(text[:2] for text in texts if _GLUED.fullmatch(text))}
        if any(pair <= given for pair in _FILLING):
            for name in (*names, "REPLY"):
                self._may_be(name, [UNKNOWN])
        if {"eval", "trap"}.intersection(texts):
            for name in _NAMED.findall(self.words.text(node)):
                self._may_be(name, [UNKNOWN])
        self._handed_on(node, parts)

    def _given_later(self, node: Node, name: str) -> bool:
        """Whether the text gives the variable a value after ``node``, which declares it without one."""
        body = next((up for up in nodes_above(node) if up.type in ("function_definition", "program")), node)
        given = self._given.get(name, [])
        at = bisect(given, node.end_byte)
        return at < len(given) and given[at] < body.end_byte

    def _handed_on(self, node: Node, parts: Sequence[Node]) -> None:
        """Values in words such as ``env x=1 ...`` and ``export "x=1"``."""
        for child in parts:
            if "=" in self.words.text(child) and child.type in WORDS:
                for name, _, value in (field.partition("=") for field in self.words.fields(child)):
                    if name in self.variables or node.type == "declaration_command":
                        self._may_be(name, [value])


def _and_list(root: Node) -> list[Node]:
    """The commands of a text that is one list, joined by && throughout; none for another text."""
    parts = [child for child in root.named_children if child.type != "comment"]
    if len(parts) != 1:
        return []
    steps: list[Node] = []
    waiting = [parts[0]]
    while waiting:
        node = waiting.pop()
        if node.type != "list":
            steps.append(node)
        elif all(child.is_named or child.type == "&&" for child in node.children):
            waiting.extend(reversed(node.named_children))
        else:
            return []
    return steps
