"""Walks through a syntax tree in the order in which the shell runs it, with the state that holds at each command.

The effects of a command on that state (``cd``, assignments, options, functions) are here too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from lgov_core.places import FileChange
from lgov_core.policies.shell.calls import NO_INPUT, Input
from lgov_core.policies.shell.syntax import (
    HOME,
    NUMBER,
    REDIRECTS,
    UNKNOWN,
    WORDS,
    ShellRefusal,
    SyntaxNode,
    is_wild,
    parse,
    unclear,
)
from lgov_core.policies.shell.words import State, Words
from lgov_core.policies.shell.workspace import Workspace

_STATEMENTS = frozenset({"pipeline", "command", "list", "redirected_statement"})


@dataclass
class Redirected:
    """The result of redirections: the input, further words of the command, and statements behind a here-document."""

    stdin: Input
    words: list[list[list[str]]] = field(default_factory=list[list[list[str]]])
    behind: list[SyntaxNode] = field(default_factory=list[SyntaxNode])
    #: Files that get the output, and whether it follows what they say.
    written: list[tuple[str, bool]] = field(default_factory=list[tuple[str, bool]])


class Effects:
    """Judges assignments, tests and redirections of one text in its current state. Each method raises `ShellRefusal`.

    ``substitute`` judges the commands of a substitution and returns what they may print.
    """

    def __init__(self, workspace: Workspace, words: Words, substitute: Callable[[SyntaxNode], list[str]]) -> None:
        self._workspace, self._state = workspace, workspace.state
        self._words, self._substitute = words, substitute

    def assign(self, node: SyntaxNode, *, prefix: bool = False, exported: bool = False) -> tuple[str, list[str]]:
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
        self._workspace.check_variable(name, *values, handed=prefix or exported)
        if not prefix:
            self._state.assign(name, values)
        return name, values

    def export(self, node: SyntaxNode) -> None:
        """Judges ``export NAME=value``."""
        assignments = [child for child in node.named if child.type == "variable_assignment"]
        if node.children[0].text != "export" or not assignments or assignments != node.named:
            raise unclear("Of declarations only export NAME=value is followed.")
        for child in assignments:
            self.assign(child, exported=True)

    def test(self, node: SyntaxNode, above: frozenset[str] = frozenset()) -> None:
        """Judges ``[ ... ]`` and ``[[ ... ]]``; ``above`` are the operators that hold for the whole of ``node``."""
        operators = above | {child.text for child in node.children if child.type in ("test_operator", "[[")}
        compares = "[[" in operators and operators & {"-eq", "-ne", "-lt", "-le", "-gt", "-ge"}
        for child in node.named:
            if child.type == "test_operator":
                continue
            if child.type not in WORDS:
                self.test(child, operators)
                continue
            variable = re.fullmatch(r"[\"']?\$\{?(\w+)(?::?[-+]\w*)?\}?[\"']?", child.text)
            if variable is not None and variable[1] not in self._state.variables and operators & {"-n", "-z"}:
                continue  # only whether there is a value
            values = self._words.values(child)
            if operators & {"-v", "-R"} and not all(re.fullmatch(r"\w+", value) for value in values):
                raise unclear("The name of a variable is not certain; the shell may run its subscript.")
            if compares and not all(NUMBER.fullmatch(value) for value in values):
                raise unclear("It is not certain that this is a number; the shell may run what it holds.")

    def redirect(self, nodes: Sequence[SyntaxNode], stdin: Input) -> Redirected:
        """Judges redirections in their order."""
        redirected = Redirected(stdin)
        for node in nodes:
            if node.type == "file_redirect":
                self._file(node, redirected)
            elif node.type == "herestring_redirect":
                redirected.stdin = Input("text", self._words.values(node.named[-1]))
            elif node.type == "heredoc_redirect":
                self._heredoc(node, redirected)
            elif node.type in WORDS:
                redirected.words.append(self._words.readings(node))
            elif node.type in _STATEMENTS:
                redirected.behind.append(node)
            elif node.is_named and node.type != "comment":
                raise unclear(f"{node.type.replace('_', ' ')} behind a redirection is not understood.")
        return redirected

    def _file(self, node: SyntaxNode, redirected: Redirected) -> None:
        operator = next((child.type for child in node.children if not child.is_named), "")
        targets = [child for child in node.named if child.type != "file_descriptor"]
        redirected.words.extend(self._words.readings(child) for child in targets[1:])
        if not targets:
            return
        target = targets[0]
        if target.type == "process_substitution":
            printed = self._substitute(target)
            if operator == "<":
                redirected.stdin = Input("pipe", printed)
            return
        if operator in (">&", "<&", ">&-", "<&-") and re.fullmatch(r"\d+-?|-", target.text):
            return
        for path in (word for reading in self._words.readings(target) for word in reading):
            if path.startswith(("/dev/tcp", "/dev/udp")):
                raise ShellRefusal("shell-network", "A network connection through /dev/tcp is not allowed.")
            if operator in ("<", "<&"):
                self._workspace.read(path)
                redirected.stdin = Input("file")
            elif operator in (">", ">>", ">|", "&>", "&>>", ">&"):
                written = self._workspace.write(path, may_be_secret=operator == ">>")
                if operator in (">", ">>", ">|") and not node.every("file_descriptor"):
                    redirected.written += [(file, operator == ">>") for file in written]
            else:
                raise unclear(f"The redirection {operator} is not understood; use <, > or >>.")

    def _heredoc(self, node: SyntaxNode, redirected: Redirected) -> None:
        start, body = node.first("heredoc_start"), node.first("heredoc_body")
        text = [""]
        if body is not None:
            quoted = start is not None and re.search(r"[\"'\\]", start.text)
            text = [body.text] if quoted else self._words.body(body)
        redirected.stdin = Input("text", text)
        parts = ("heredoc_start", "heredoc_body", "heredoc_end", "file_descriptor")
        inner = self.redirect([child for child in node.named if child.type not in parts], redirected.stdin)
        redirected.words.extend(inner.words)
        redirected.written.extend(inner.written)
        redirected.behind.extend(inner.behind)


Run = Callable[[Sequence[str], Input], list[str]]
NOTHING = [""]
#: Statements that `Effects` judges, and by which method.
_EFFECTS = {
    "variable_assignment": "assign",
    "declaration_command": "export",
    "test_command": "test",
}
_SEQUENCES = frozenset({"program", "do_group", "compound_statement", "heredoc_redirect", "negated_command"})


class Walk:
    """Judges every statement of one text. Each method that takes a statement returns what a line it prints may be.

    ``run`` judges a command by its words.
    """

    def __init__(self, workspace: Workspace, run: Run) -> None:
        self._budget, self._state, self._check_variable = workspace.budget, workspace.state, workspace.check_variable
        self._workspace, self._run = workspace, run
        self._words = Words(workspace.state, self._substitution, workspace.budget.spend)
        self._effects = Effects(workspace, self._words, self._substitution)

    def text(self, text: str, stdin: Input) -> None:
        """Judges a text that another shell runs, whose variables come from the environment."""
        if is_wild(text):
            raise unclear("The text of a shell within the shell is not certain; write it out.")
        before = self._state.copy()
        self._state.variables = {}
        self._budget.spend(3 * len(text))
        with self._budget.nested(), self._workspace.repeated():
            self.statement(parse(text), stdin)
        self._state.replace(before)

    def statement(self, node: SyntaxNode, stdin: Input) -> list[str]:
        """Judges one statement. Raises `ShellRefusal`."""
        kind = node.type
        self._budget.spend(3)
        if kind == "compound_statement" and node.text.startswith("(("):
            raise unclear("Arithmetic commands are not followed; use [ ... ] and $((...)).")
        if kind in _EFFECTS:
            getattr(self._effects, _EFFECTS[kind])(node)
        elif kind in REDIRECTS and kind not in _SEQUENCES:
            self._effects.redirect([node], stdin)
        elif kind == "subshell":
            return self._apart(node.children, stdin)
        elif kind in _SEQUENCES:
            return self._sequence(node.children, stdin)
        elif hasattr(self, f"_on_{kind}"):
            return getattr(self, f"_on_{kind}")(node, stdin)
        else:
            raise unclear(f"{kind.replace('_', ' ')} is not understood; write it more simply.")
        return NOTHING

    def _sequence(self, children: Sequence[SyntaxNode], stdin: Input) -> list[str]:
        printed = NOTHING
        for child, behind in zip_longest(children, children[1:]):
            if child.is_named and child.type not in ("comment", "heredoc_body", "heredoc_end"):
                if behind is not None and behind.type == "&":
                    printed = _both(printed, self._apart([child], stdin))
                    continue
                printed = _both(printed, self.statement(child, stdin))
                self._state.settle()
        return printed

    def _apart(self, children: Sequence[SyntaxNode], stdin: Input) -> list[str]:
        """Judges statements that run in a process of their own: they change nothing here."""
        before = self._state.copy()
        printed = self._sequence(children, stdin)
        self._state.replace(before)
        return printed

    def _branch(self, children: Sequence[SyntaxNode], stdin: Input) -> list[str]:
        """Judges statements that may be skipped."""
        before = self._state.copy()
        printed = self._sequence(children, stdin)
        self._state.merge(before)
        return printed

    def _loop(self, run: Callable[[], list[str]]) -> list[str]:
        """Repeats what may run several times until its effects are stable; what still changes may hold anything."""
        printed = NOTHING
        for turn in range(4):
            before = self._state.copy()
            with self._workspace.repeated():
                printed = run()
            self._state.settle()
            after = self._state.copy()
            self._state.replace(before)
            if not self._state.merge(after):
                break
            if turn > 0:
                if set(self._state.folders) != set(before.folders):
                    raise unclear("A loop that goes on from folder to folder is not followed; write the folders out.")
                for name, values in self._state.variables.items():
                    if values != before.variables.get(name):
                        self._state.assign(name, [UNKNOWN])
        return printed

    def _on_list(self, node: SyntaxNode, stdin: Input) -> list[str]:
        printed, operator = NOTHING, ""
        skipped: State | None = None  # the state where a right side has not run
        for child in node.children:
            if not child.is_named:
                operator = child.type
                continue
            if child.type == "comment":
                continue
            if operator == "||":
                if skipped is not None:
                    self._state.merge(skipped)
                self._state.settle()
            if operator:
                before = self._state.copy()
                if skipped is not None:
                    before.merge(skipped)
                skipped, self._state.failed = before, ()
            printed = _both(printed, self.statement(child, stdin))
        if skipped is not None:
            self._state.merge(skipped)
        return printed

    def _on_pipeline(self, node: SyntaxNode, stdin: Input) -> list[str]:
        printed = NOTHING
        for stage in node.named:
            if stage.type != "comment":
                printed = self._apart([stage], stdin)
                stdin = Input("pipe", printed)
        return printed

    def _on_if_statement(self, node: SyntaxNode, stdin: Input) -> list[str]:
        conditions = node.every("condition")
        printed = self._sequence(conditions, stdin)
        clauses = node.every("elif_clause") + node.every("else_clause")
        then = [child for child in node.named if child not in conditions and child not in clauses]
        for body in (then, *(clause.children for clause in clauses)):
            printed = _both(printed, self._branch(body, stdin))
        return printed

    def _on_while_statement(self, node: SyntaxNode, stdin: Input) -> list[str]:
        if any(child.type == "&" for clause in node.children for child in clause.children):
            raise ShellRefusal("shell-dangerous", "A loop that starts processes in the background may start too many.")
        return self._loop(lambda: self._sequence(node.children, stdin))

    def _on_for_statement(self, node: SyntaxNode, stdin: Input) -> list[str]:
        name = node.every("variable")[0].text
        values = [
            field for value in node.every("value") for reading in self._words.readings(value) for field in reading
        ]
        self._check_variable(name, *values)
        body = node.every("body")

        def run() -> list[str]:
            self._state.assign(name, values or [UNKNOWN])
            return self._sequence(body, stdin)

        return self._loop(run)

    def _on_redirected_statement(self, node: SyntaxNode, stdin: Input) -> list[str]:
        body = node.first("body")
        redirected = self._effects.redirect([child for child in node.named if child is not body], stdin)
        if body is None:
            return NOTHING
        rest = node.text.encode()[body.end - node.start :].lstrip()
        if rest.startswith(b"- <<"):  # the parser leaves this word out
            redirected.words.insert(0, [["-"]])
        if body.type == "command":
            printed = self._on_command(body, redirected.stdin, redirected.words)
            self._explain(body, redirected, printed)
        elif redirected.words:
            raise unclear("Words after a redirection are not understood; put them before it.")
        else:
            printed = self.statement(body, redirected.stdin)
        for child in redirected.behind:  # what follows a here-document on its first line
            printed = self._apart([child], Input("pipe", printed))
        return printed

    def _explain(self, command: SyntaxNode, redirected: Redirected, printed: Sequence[str]) -> None:
        """Notes how the files change that get the output of a command, where that is one text and printed as it is given."""
        exact = re.match(r"(?:cat|echo)\b", command.text) and len(printed) == 1
        if exact and HOME not in printed[0] and re.search("[\ue000-\uf8ff]", printed[0]) is None:
            for path, appended in redirected.written:
                self._workspace.changes[path] = FileChange(printed[0], appended=appended)

    def _on_command(self, node: SyntaxNode, stdin: Input, extra: Sequence[list[list[str]]] = ()) -> list[str]:
        words: list[list[list[str]]] = []
        redirects: list[SyntaxNode] = []
        prefixes: dict[str, list[str]] = {}
        for child in node.children:
            if child.type == "variable_assignment":
                prefixes.update([self._effects.assign(child, prefix=True)])
            elif child.type in REDIRECTS:
                redirects.append(child)
            elif child.type == "command_name":
                words.append(self._words.readings(child.named[0] if child.named else child))
            elif child.type in WORDS:
                words.append(self._words.readings(child))
            elif not child.is_named:
                words.append([[child.text]])
            else:
                raise unclear(f"{child.type.replace('_', ' ')} in a command is not understood.")
        redirected = self._effects.redirect(redirects, stdin)
        if prefixes.pop("IFS", [""]) != [""]:
            if words[0] != [["read"]]:
                raise unclear("IFS changes how words are split; set it for read only.")
            redirected.stdin = Input("pipe")
        for name, values in prefixes.items():  # what the command runs may use it
            self._state.add(name, values)
        return self._alternatives(self._words.commands([*words, *redirected.words, *extra]), redirected.stdin)

    def _alternatives(self, commands: Sequence[list[str]], stdin: Input) -> list[str]:
        """Judges a command for each list of words that it may have."""
        before, merged = self._state.copy(), None
        printed: list[str] = []
        for words in commands:
            self._state.replace(before)
            printed.extend(self._run(words, stdin))
            if merged is not None:
                self._state.merge(merged)
            merged = self._state.copy()
        return list(dict.fromkeys(printed))

    def _substitution(self, node: SyntaxNode) -> list[str]:
        """Judges the commands of ``$(...)`` or ``<(...)``; what a line that they print may be."""
        stdin = Input("pipe") if node.text.startswith(">(") else NO_INPUT
        if any(child.type in REDIRECTS for child in node.named):
            self._effects.redirect(node.named, stdin)
            return [UNKNOWN]
        return [value.rstrip("\n") for value in self._apart(node.children, stdin)]


def _both(first: list[str], other: list[str]) -> list[str]:
    """Returns what two statements print, one after the other."""
    if first == NOTHING:
        return other
    return first if other == NOTHING else [UNKNOWN]
