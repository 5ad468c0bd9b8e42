"""The walk through a syntax tree in the order in which the shell runs it, with the state that holds at each command."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import zip_longest

from lgov_core.policies.shell.call import Input
from lgov_core.policies.shell.redirects import Redirects
from lgov_core.policies.shell.refusal import Refused, unclear
from lgov_core.policies.shell.session import Session
from lgov_core.policies.shell.state import State
from lgov_core.policies.shell.syntax import REDIRECTS, WORDS, Node, parse
from lgov_core.policies.shell.values import BREAK, UNKNOWN
from lgov_core.policies.shell.variables import Variables
from lgov_core.policies.shell.words import MAX_ALTERNATIVES, Words, product_of

NOTHING = [""]
#: What `Variables` judges, and by which method.
_OF_VARIABLES = {
    "variable_assignment": "assign",
    "declaration_command": "declare",
    "unset_command": "unset",
    "test_command": "test",
}
_SEQUENCES = frozenset(
    [
        "program",
        "do_group",
        "compound_statement",
        "else_clause",
        "elif_clause",
        "case_item",
        "then_clause",
        "heredoc_redirect",
    ]
)


class Walk:
    """Judges every statement of one text. Each method that takes a statement returns what a line it prints may be."""

    def __init__(self, session: Session) -> None:
        self._session, self._state = session, session.state
        self._words = Words(session.state, self._substitution, session.budget.spend)
        self._variables = Variables(session, self._words)
        self._redirects = Redirects(session, self._words, self._substitution)
        #: Blocks around the current statement in which it may not run at all.
        self._nesting = 0
        session.walk_text, session.walk_function = self.text, self._function_body

    def text(self, text: str, given: Input) -> None:
        """Judges a text as its own script, with functions of its own."""
        outer, nesting = dict(self._session.functions), self._nesting
        self._nesting = 0
        self.statement(parse(text), given)
        self._session.functions, self._nesting = outer, nesting

    def _function_body(self, body: Node, given: Input) -> None:
        with_local = self._state.copy()
        self._nesting += 1
        self.statement(body, given)
        self._nesting -= 1
        self._state.merge(with_local)

    # ------------------------------------------------------------------ statements

    def statement(self, node: Node, given: Input) -> list[str]:
        """Judges one statement. Raises `Refused`."""
        kind = node.type
        self._session.budget.spend(3)
        if kind == "compound_statement" and node.text.startswith("(("):
            self._variables.arithmetic(node)
            return NOTHING
        if kind in _SEQUENCES:
            return self._sequence(node.children, given)
        if kind in _OF_VARIABLES:
            getattr(self._variables, _OF_VARIABLES[kind])(node)
            return NOTHING
        method = getattr(self, f"_on_{kind}", None)
        if method is not None:
            return method(node, given)
        if kind in REDIRECTS:
            self._redirects.read([node], given)
            return NOTHING
        raise unclear(f"{kind.replace('_', ' ')} is not understood; write it more simply.")

    def _sequence(self, children: Sequence[Node], given: Input) -> list[str]:
        printed = NOTHING
        for child, behind in zip_longest(children, children[1:]):
            if child.is_named and child.type not in ("comment", "heredoc_body", "heredoc_end"):
                if behind is not None and behind.type == "&":
                    self._apart(lambda child=child: self.statement(child, given))
                    continue
                printed = _both(printed, self.statement(child, given))
                self._state.settle()
        return printed

    def _apart(self, run: Callable[[], list[str]]) -> list[str]:
        """What runs in a process of its own: it changes nothing here."""
        before = self._state.copy()
        self._nesting += 1
        printed = run()
        self._nesting -= 1
        self._state.replace(before)
        return printed

    def _branch(self, run: Callable[[], list[str]]) -> list[str]:
        """What may not run at all."""
        before = self._state.copy()
        self._nesting += 1
        printed = run()
        self._nesting -= 1
        self._state.settle()
        self._state.merge(before)
        return printed

    def _loop(self, run: Callable[[], list[str]]) -> list[str]:
        """What may run several times: until another time changes nothing, or what it changes may be anything."""
        printed = NOTHING
        self._nesting += 1
        for turn in range(4):
            before = self._state.copy()
            printed = run()
            self._state.settle()
            after = self._state.copy()
            merged = before.copy()
            changed = merged.merge(after)
            self._state.replace(merged)
            if not changed:
                break
            if turn > 0:
                if merged.folders != before.folders:
                    raise unclear("A loop that goes on from folder to folder is not followed; write the folders out.")
                names = {name for name, values in merged.variables.items() if values != before.variables.get(name)}
                self._state.forget(names)
        self._nesting -= 1
        return printed

    def _on_subshell(self, node: Node, given: Input) -> list[str]:
        return self._apart(lambda: self._sequence(node.children, given))

    def _on_list(self, node: Node, given: Input) -> list[str]:
        printed, operator = NOTHING, ""
        skipped: State | None = None  # where a right side has not run
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
            self._nesting += bool(operator)
            printed = _both(printed, self.statement(child, given))
            self._nesting -= bool(operator)
        if skipped is not None:
            self._state.merge(skipped)
        return printed

    def _on_pipeline(self, node: Node, given: Input) -> list[str]:
        return self._stages(node.named, given)

    def _stages(self, stages: Sequence[Node], given: Input) -> list[str]:
        printed = NOTHING
        for stage in stages:
            if stage.type == "comment":
                continue
            printed = self._apart(lambda stage=stage, given=given: self.statement(stage, given))
            given = Input("pipe", printed)
        return printed

    def _on_if_statement(self, node: Node, given: Input) -> list[str]:
        parts = [child for child in node.named if child.type != "comment"]
        conditions = node.every("condition")
        printed = self._sequence(conditions, given)
        rest = [part for part in parts if part not in conditions]
        then = [part for part in rest if part.type not in ("elif_clause", "else_clause")]
        printed = _both(printed, self._branch(lambda: self._sequence(then, given)))
        for part in rest:
            if part.type in ("elif_clause", "else_clause"):
                printed = _both(printed, self._branch(lambda part=part: self._sequence(part.children, given)))
        return printed

    def _on_while_statement(self, node: Node, given: Input) -> list[str]:
        if any(child.type == "&" for part in node.children for child in part.children):
            raise Refused("shell-dangerous", "A loop that starts processes in the background may start too many.")
        return self._loop(lambda: self._sequence(node.children, given))

    def _on_for_statement(self, node: Node, given: Input) -> list[str]:
        name = node.every("variable")[0].text
        nodes = node.every("value")
        values = [field for value in nodes for reading in self._words.readings(value) for field in reading]
        if not nodes:
            values = [part for value in self._state.values("@") for part in value.split(BREAK)]
        self._session.check_variable(name, values)
        body = [child for child in node.children if child.type in ("do_group", "compound_statement")]

        def run() -> list[str]:
            self._state.assign(name, values or [""])
            return self._sequence(body, given)

        return self._loop(run)

    def _on_case_statement(self, node: Node, given: Input) -> list[str]:
        printed = NOTHING
        for value in node.every("value"):
            self._words.values(value)
        for item in (child for child in node.named if child.type == "case_item"):
            patterns = item.every("value")
            for pattern in patterns:
                self._words.values(pattern)
            rest = [child for child in item.children if child not in patterns]
            printed = _both(printed, self._branch(lambda rest=rest: self._sequence(rest, given)))
        return printed

    def _on_function_definition(self, node: Node, given: Input) -> list[str]:
        name = node.every("name")[0].text
        known = self._session.table.known(name) is not None
        known = known or name in self._session.functions
        if self._nesting or known or re.fullmatch(r"[A-Za-z_][\w-]*", name) is None:
            raise unclear(f"A function called {name[:40]!r} hides a command, or is not made for certain; leave it out.")
        self._session.functions[name] = node.every("body")[0]
        return NOTHING

    # ------------------------------------------------------------------ commands

    def _on_redirected_statement(self, node: Node, given: Input) -> list[str]:
        body = node.first("body")
        found = self._redirects.read([child for child in node.named if child is not body], given)
        if body is None:
            return NOTHING
        rest = node.text.encode()[body.end - node.start :].lstrip()
        if rest.startswith(b"- <<"):  # the parser leaves this word out
            found.words.insert(0, [["-"]])
        if body.type == "command":
            printed = self._command(body, found.given, found.words)
        elif found.words:
            raise unclear("Words after a redirection are not understood; put them before it.")
        else:
            printed = self.statement(body, found.given)
        for child in found.behind:  # what stands behind a here-document on its first line
            stages = child.named if child.type == "pipeline" else [child]
            printed = self._stages(stages, Input("pipe", printed))
        return printed

    def _on_command(self, node: Node, given: Input) -> list[str]:
        return self._command(node, given, [])

    def _command(self, node: Node, given: Input, extra: Sequence[list[list[str]]]) -> list[str]:
        words: list[list[list[str]]] = []
        redirects: list[Node] = []
        prefixes: dict[str, list[str]] = {}
        for child in node.children:
            if child.type == "variable_assignment":
                prefixes.update([self._variables.assign(child, prefix=True)])
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
        found = self._redirects.read(redirects, given)
        if "IFS" in prefixes and words[0] != [["read"]]:
            raise unclear("IFS changes how words are split; set it for read only.")
        for name, values in prefixes.items():  # what the command runs may see it
            if name != "IFS":
                self._state.assign(name, [*self._state.variables.get(name, [UNKNOWN]), *values])
        return self._run([*words, *found.words, *extra], found.given)

    def _run(self, words: Sequence[list[list[str]]], given: Input) -> list[str]:
        alternatives = list(product_of(words, MAX_ALTERNATIVES))
        if len(alternatives) == 1:
            return self._session.run(alternatives[0], given, direct=True)
        before, merged = self._state.copy(), None
        printed: list[str] = []
        for alternative in alternatives:
            self._state.replace(before)
            printed.extend(self._session.run(alternative, given, direct=True))
            if merged is not None:
                self._state.merge(merged)
            merged = self._state.copy()
        return list(dict.fromkeys(printed))

    def _substitution(self, node: Node) -> list[str]:
        """Judges the commands of ``$(...)`` or ``<(...)``; what a line that they print may be."""
        given = Input("pipe") if node.text.startswith(">(") else Input("file", [""])
        if any(child.type in REDIRECTS for child in node.named):
            self._redirects.read(node.named, given)
            return [UNKNOWN]
        printed = self._apart(lambda: self._sequence(node.children, given))
        return [value.rstrip("\n") for value in printed]


def _both(one: list[str], other: list[str]) -> list[str]:
    """What two statements print, one after the other."""
    if one == NOTHING:
        return other
    return one if other == NOTHING else [UNKNOWN]
