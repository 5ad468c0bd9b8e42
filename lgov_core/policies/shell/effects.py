"""What a statement does besides running commands: assignments, declarations, tests, arithmetic and redirections."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from lgov_core.policies.shell.call import Input
from lgov_core.policies.shell.refusal import Refused, unclear
from lgov_core.policies.shell.syntax import WORDS, Node
from lgov_core.policies.shell.values import UNKNOWN
from lgov_core.policies.shell.words import Words
from lgov_core.policies.shell.workspace import Workspace

_STATEMENTS = frozenset({"pipeline", "command", "list", "redirected_statement"})


@dataclass
class Redirected:
    """The result of redirections: the input, further words of the command, and statements behind a here-document."""

    stdin: Input
    words: list[list[list[str]]] = field(default_factory=list[list[list[str]]])
    behind: list[Node] = field(default_factory=list[Node])


class Effects:
    """Judges assignments, tests and redirections of one text in its current state. Each method raises `Refused`.

    ``substitute`` judges the commands of a substitution and returns what they may print.
    """

    def __init__(self, workspace: Workspace, words: Words, substitute: Callable[[Node], list[str]]) -> None:
        self._workspace, self._state = workspace, workspace.state
        self._words, self._substitute = words, substitute

    def assign(self, node: Node, *, prefix: bool = False) -> tuple[str, list[str]]:
        """Judges an assignment, and gives the variable its values unless it is a ``prefix`` of a command."""
        name, value = node.children[0].text, node.first("value")
        if re.fullmatch(r"\w+", name) is None or (value is not None and value.type == "array"):
            raise unclear("Arrays are not followed; use a variable for each value.")
        values = [""] if value is None else self._words.values(value)
        if "+=" in node.text[: len(name) + 4]:
            values = [old + new for old in self._state.values(name) for new in values]
        if prefix and name == "IFS":
            return name, values
        self._workspace.budget.spend(sum(map(len, values)) // 8)
        (self._workspace.check_variable if prefix else self._workspace.assign)(name, *values)
        return name, values

    def declare(self, node: Node) -> None:
        """Judges ``export``, ``local``, ``declare`` and the like."""
        command, shows = node.children[0].text, True
        for child in node.named:
            if child.type == "variable_assignment":
                self.assign(child)
                shows = False
                continue
            for word in (word for reading in self._words.readings(child) for word in reading):
                if word.startswith("-"):
                    if not re.fullmatch(r"-[xrg]+", word):
                        raise unclear(f"{command} {word[:20]} is not followed; leave it out.")
                    continue
                shows = False
                name, equals, value = word.partition("=")
                if re.fullmatch(r"\w+", name) is None:
                    raise unclear("It is not clear which variable this is; write its name out.")
                if equals or command == "local":
                    self._workspace.assign(name, value)
        if shows:
            raise Refused("shell-secret", "All variables of the environment, secrets among them, are not shown.")

    def unset(self, node: Node) -> None:
        """Judges ``unset``: of variables only."""
        for child in node.named:
            if re.fullmatch(r"\w+|-v", child.text) is None:
                raise unclear("Only variables are unset, and by their plain names.")
            if child.text != "-v":
                self._workspace.check_variable(child.text, "", UNKNOWN)
                self._state.assign(child.text, [""])

    def arithmetic(self, node: Node) -> None:
        """Judges ``(( ... ))``. Variables that it may change hold numbers from then on."""
        self._words.arithmetic(node)
        for name in {inner.text for inner in node.walk() if inner.type in ("variable_name", "word")}:
            if re.match(r"[A-Za-z_]", name):
                self._workspace.check_variable(name, "1")

    def test(self, node: Node, above: frozenset[str] = frozenset()) -> None:
        """Judges ``[ ... ]`` and ``[[ ... ]]``; ``above`` are the operators that hold for the whole of ``node``."""
        operators = above | {child.text for child in node.children if child.type in ("test_operator", "[[")}
        compares = "[[" in operators and operators & {"-eq", "-ne", "-lt", "-le", "-gt", "-ge"}
        for child in node.named:
            if child.type == "test_operator":
                continue
            if child.type not in WORDS:
                self.test(child, operators)
                continue
            asked = re.fullmatch(r"[\"']?\$\{?(\w+)(?::?[-+]\w*)?\}?[\"']?", child.text)
            if asked is not None and asked[1] not in self._state.variables and operators & {"-n", "-z"}:
                continue  # only whether there is a value
            values = self._words.values(child)
            if operators & {"-v", "-R"} and not all(re.fullmatch(r"\w+", value) for value in values):
                raise unclear("The name of a variable is not certain; the shell may run its subscript.")
            if compares and not all(re.fullmatch(r"-?\d+", value) for value in values):
                raise unclear("It is not certain that this is a number; the shell may run what it holds.")

    def redirect(self, nodes: Sequence[Node], stdin: Input) -> Redirected:
        """Judges redirections in their order."""
        found = Redirected(stdin)
        for node in nodes:
            if node.type == "file_redirect":
                self._file(node, found)
            elif node.type == "herestring_redirect":
                found.stdin = Input("text", self._words.values(node.named[-1]))
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
        if not targets:
            return
        target = targets[0]
        if target.type == "process_substitution":
            printed = self._substitute(target)
            if operator == "<":
                found.stdin = Input("pipe", printed)
            return
        if operator in (">&", "<&", ">&-", "<&-") and re.fullmatch(r"\d+-?|-", target.text):
            return
        for path in (word for reading in self._words.readings(target) for word in reading):
            if path.startswith(("/dev/tcp", "/dev/udp")):
                raise Refused("shell-network", "A network connection through /dev/tcp is not allowed.")
            if operator in ("<", "<&"):
                self._workspace.read(path)
                found.stdin = Input("file")
            elif operator in (">", ">>", ">|", "&>", "&>>", ">&"):
                self._workspace.write(path, may_be_secret=operator == ">>")
            else:
                raise unclear(f"The redirection {operator} is not understood; use <, > or >>.")

    def _heredoc(self, node: Node, found: Redirected) -> None:
        start, body = node.first("heredoc_start"), node.first("heredoc_body")
        text = [""]
        if body is not None:
            quoted = start is not None and re.search(r"[\"'\\]", start.text)
            text = [body.text] if quoted else self._words.body(body)
        found.stdin = Input("text", text)
        parts = ("heredoc_start", "heredoc_body", "heredoc_end", "file_descriptor")
        inner = self.redirect([child for child in node.named if child.type not in parts], found.stdin)
        found.words.extend(inner.words)
        found.behind.extend(inner.behind)
