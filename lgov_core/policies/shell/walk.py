"""The walk through a syntax tree in the order in which the shell runs it, with the state that holds at each command."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import zip_longest

from lgov_core.policies.shell.call import NO_INPUT, Input
from lgov_core.policies.shell.effects import Effects
from lgov_core.policies.shell.refusal import Refused, unclear
from lgov_core.policies.shell.state import State
from lgov_core.policies.shell.syntax import REDIRECTS, WORDS, Node, parse
from lgov_core.policies.shell.values import BREAK, UNKNOWN, is_wild
from lgov_core.policies.shell.words import Words
from lgov_core.policies.shell.workspace import Workspace

Run = Callable[[Sequence[str], Input], list[str]]
NOTHING = [""]
#: Statements that `Effects` judges, and by which method.
_EFFECTS = {
    "variable_assignment": "assign",
    "declaration_command": "declare",
    "unset_command": "unset",
    "test_command": "test",
}
_SEQUENCES = frozenset({"program", "do_group", "compound_statement", "heredoc_redirect"})


class Walk:
    """Judges every statement of one text. Each method that takes a statement returns what a line it prints may be.

    ``run`` judges a command by its words; ``known`` is None for names that are not commands of the table.
    """

    def __init__(self, workspace: Workspace, run: Run, known: Callable[[str], str | None]) -> None:
        self._budget, self._state, self._check_variable = workspace.budget, workspace.state, workspace.check_variable
        self._run, self._known = run, known
        self._words = Words(workspace.state, self._substitution, workspace.budget.spend)
        self._effects = Effects(workspace, self._words, self._substitution)

    def text(self, text: str, stdin: Input, positional: list[str] | None, *, new_shell: bool = False) -> None:
        """Judges a text that another shell, or ``eval``, runs. Its functions, and all of a ``new_shell``, end with it."""
        if is_wild(text):
            raise unclear("The text of a shell within the shell is not certain; write it out.")
        before = self._state.copy()
        if new_shell:
            self._state.variables, self._state.functions = {}, {}
        self._state.positional = positional
        self._budget.spend(3 * len(text))
        with self._budget.nested():
            self.statement(parse(text), stdin)
        if new_shell:
            self._state.replace(before)
        self._state.positional, self._state.functions = before.positional, before.functions

    def _call_function(self, name: str, args: list[str], stdin: Input) -> list[str]:
        before = self._state.copy()
        self._state.positional = args
        self._budget.command(args)
        with self._budget.nested():
            self.statement(self._state.functions[name], stdin)
        self._state.merge(before)  # its local variables may be others
        self._state.positional = before.positional
        return [UNKNOWN]

    def statement(self, node: Node, stdin: Input) -> list[str]:
        """Judges one statement. Raises `Refused`."""
        kind = node.type
        self._budget.spend(3)
        if kind == "compound_statement" and node.text.startswith("(("):
            self._effects.arithmetic(node)
        elif kind in _EFFECTS:
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

    def _sequence(self, children: Sequence[Node], stdin: Input) -> list[str]:
        printed = NOTHING
        for child, behind in zip_longest(children, children[1:]):
            if child.is_named and child.type not in ("comment", "heredoc_body", "heredoc_end"):
                if behind is not None and behind.type == "&":
                    printed = _both(printed, self._apart([child], stdin))
                    continue
                printed = _both(printed, self.statement(child, stdin))
                self._state.settle()
        return printed

    def _apart(self, children: Sequence[Node], stdin: Input) -> list[str]:
        """Judges statements that run in a process of their own: they change nothing here."""
        before = self._state.copy()
        printed = self._sequence(children, stdin)
        self._state.replace(before)
        return printed

    def _branch(self, children: Sequence[Node], stdin: Input) -> list[str]:
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

    def _on_list(self, node: Node, stdin: Input) -> list[str]:
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

    def _on_pipeline(self, node: Node, stdin: Input) -> list[str]:
        printed = NOTHING
        for stage in node.named:
            if stage.type != "comment":
                printed = self._apart([stage], stdin)
                stdin = Input("pipe", printed)
        return printed

    def _on_if_statement(self, node: Node, stdin: Input) -> list[str]:
        conditions = node.every("condition")
        printed = self._sequence(conditions, stdin)
        clauses = node.every("elif_clause") + node.every("else_clause")
        then = [child for child in node.named if child not in conditions and child not in clauses]
        for body in (then, *(clause.children for clause in clauses)):
            printed = _both(printed, self._branch(body, stdin))
        return printed

    def _on_while_statement(self, node: Node, stdin: Input) -> list[str]:
        if any(child.type == "&" for part in node.children for child in part.children):
            raise Refused("shell-dangerous", "A loop that starts processes in the background may start too many.")
        return self._loop(lambda: self._sequence(node.children, stdin))

    def _on_for_statement(self, node: Node, stdin: Input) -> list[str]:
        name = node.every("variable")[0].text
        nodes = node.every("value")
        values = [field for value in nodes for reading in self._words.readings(value) for field in reading]
        if not nodes:
            values = [part for value in self._state.values("@") for part in value.split(BREAK)]
        self._check_variable(name, *values)
        body = node.every("body")

        def run() -> list[str]:
            self._state.assign(name, values or [""])
            return self._sequence(body, stdin)

        return self._loop(run)

    def _on_case_statement(self, node: Node, stdin: Input) -> list[str]:
        printed = NOTHING
        for value in node.every("value"):
            self._words.values(value)
        for item in node.every("case_item"):
            patterns = item.every("value")
            for pattern in patterns:
                self._words.values(pattern)
            body = [child for child in item.children if child not in patterns]
            printed = _both(printed, self._branch(body, stdin))
        return printed

    def _on_function_definition(self, node: Node, stdin: Input) -> list[str]:
        name = node.every("name")[0].text
        known = name in self._state.functions or self._known(name) is not None
        if known or re.fullmatch(r"[A-Za-z_][\w-]*", name) is None:
            raise unclear(f"A function called {name[:40]!r} hides a command; leave it out.")
        self._state.functions[name] = node.every("body")[0]
        return NOTHING

    def _on_redirected_statement(self, node: Node, stdin: Input) -> list[str]:
        body = node.first("body")
        found = self._effects.redirect([child for child in node.named if child is not body], stdin)
        if body is None:
            return NOTHING
        rest = node.text.encode()[body.end - node.start :].lstrip()
        if rest.startswith(b"- <<"):  # the parser leaves this word out
            found.words.insert(0, [["-"]])
        if body.type == "command":
            printed = self._on_command(body, found.stdin, found.words)
        elif found.words:
            raise unclear("Words after a redirection are not understood; put them before it.")
        else:
            printed = self.statement(body, found.stdin)
        for child in found.behind:  # what follows a here-document on its first line
            printed = self._apart([child], Input("pipe", printed))
        return printed

    def _on_command(self, node: Node, stdin: Input, extra: Sequence[list[list[str]]] = ()) -> list[str]:
        words: list[list[list[str]]] = []
        redirects: list[Node] = []
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
        found = self._effects.redirect(redirects, stdin)
        if prefixes.pop("IFS", None) is not None and words[0] != [["read"]]:
            raise unclear("IFS changes how words are split; set it for read only.")
        for name, values in prefixes.items():  # what the command runs may use it
            self._state.add(name, values)
        return self._alternatives(self._words.commands([*words, *found.words, *extra]), found.stdin)

    def _alternatives(self, commands: Sequence[list[str]], stdin: Input) -> list[str]:
        """Judges a command for each list of words that it may have."""
        before, merged = self._state.copy(), None
        printed: list[str] = []
        for words in commands:
            self._state.replace(before)
            if words and words[0] in self._state.functions:
                printed.extend(self._call_function(words[0], words[1:], stdin))
            else:
                printed.extend(self._run(words, stdin))
            if merged is not None:
                self._state.merge(merged)
            merged = self._state.copy()
        return list(dict.fromkeys(printed))

    def _substitution(self, node: Node) -> list[str]:
        """Judges the commands of ``$(...)`` or ``<(...)``; what a line that they print may be."""
        stdin = Input("pipe") if node.text.startswith(">(") else NO_INPUT
        if any(child.type in REDIRECTS for child in node.named):
            self._effects.redirect(node.named, stdin)
            return [UNKNOWN]
        return [value.rstrip("\n") for value in self._apart(node.children, stdin)]


def _both(one: list[str], other: list[str]) -> list[str]:
    """What two statements print, one after the other."""
    if one == NOTHING:
        return other
    return one if other == NOTHING else [UNKNOWN]
