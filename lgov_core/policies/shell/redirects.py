"""Redirections: which files they read and write, and what they give a command to read."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from lgov_core.policies.shell.call import Input
from lgov_core.policies.shell.refusal import Refused, unclear
from lgov_core.policies.shell.session import Session
from lgov_core.policies.shell.syntax import WORDS, Node
from lgov_core.policies.shell.words import Words

_STATEMENTS = frozenset({"pipeline", "command", "list", "redirected_statement"})


@dataclass
class Redirected:
    """What redirections lead to: the input, further words of the command, and statements behind a here-document."""

    given: Input
    words: list[list[list[str]]] = field(default_factory=list[list[list[str]]])
    behind: list[Node] = field(default_factory=list[Node])


class Redirects:
    """Judges the redirections of one text."""

    def __init__(self, session: Session, words: Words, substitute: Callable[[Node], list[str]]) -> None:
        self._session, self._words, self._substitute = session, words, substitute

    def read(self, nodes: Sequence[Node], given: Input) -> Redirected:
        """Judges redirections in their order. Raises `Refused`."""
        found = Redirected(given)
        for node in nodes:
            if node.type == "file_redirect":
                self._file(node, found)
            elif node.type == "herestring_redirect":
                for child in node.named:
                    if child.type != "file_descriptor":
                        found.given = Input("text", self._words.values(child))
            elif node.type == "heredoc_redirect":
                self._heredoc(node, found)
            elif node.type in WORDS:
                found.words.append(self._words.readings(node))
            elif node.type in _STATEMENTS:
                found.behind.append(node)
            elif node.is_named and node.type != "comment":
                raise unclear(f"{node.type.replace('_', ' ')} behind a redirection is not understood.")
        return found

    def _file(self, node: Node, found: Redirected) -> None:
        operator = next((child.type for child in node.children if not child.is_named), "")
        targets = [child for child in node.named if child.type != "file_descriptor"]
        found.words.extend(self._words.readings(child) for child in targets[1:])
        for target in targets[:1]:
            if target.type == "process_substitution":
                printed = self._substitute(target)
                if operator == "<":
                    found.given = Input("pipe", printed)
                continue
            if operator in (">&", "<&", ">&-", "<&-") and re.fullmatch(r"\d+-?|-", target.text):
                continue
            for path in (word for reading in self._words.readings(target) for word in reading):
                if path.startswith(("/dev/tcp", "/dev/udp")):
                    raise Refused("shell-network", "A network connection through /dev/tcp is not allowed.")
                if operator in ("<", "<&"):
                    self._session.places.read(path)
                    found.given = Input("file")
                elif operator in (">", ">>", ">|", "&>", "&>>", ">&"):
                    self._session.places.write(path, may_be_secret=operator == ">>")
                else:
                    raise unclear(f"The redirection {operator} is not understood; use <, > or >>.")

    def _heredoc(self, node: Node, found: Redirected) -> None:
        quoted, text = False, [""]
        others: list[Node] = []
        for child in node.named:
            if child.type == "heredoc_start":
                quoted = re.search(r"[\"'\\]", child.text) is not None
            elif child.type == "heredoc_body":
                text = [child.text] if quoted else self._words.body(child)
            elif child.type not in ("heredoc_end", "file_descriptor"):
                others.append(child)
        found.given = Input("text", text)
        inner = self.read(others, found.given)
        found.words.extend(inner.words)
        found.behind.extend(inner.behind)
