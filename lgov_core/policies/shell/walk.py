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
from lgov_core.policies.shell.words import Words, product_of

#: Different commands that one may become through values of its variables.
MAX_ALTERNATIVES = 64
_COMPARISONS = re.compile(r"-(?:eq|ne|lt|le|gt|ge)")
NOTHING = [""]
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
            self._arithmetic(node)
            return NOTHING
        if kind in _SEQUENCES:
            return self._sequence(node.children, given)
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

    def _on_negated_command(self, node: Node, given: Input) -> list[str]:
        return self._sequence(node.children, given)

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

    def _on_c_style_for_statement(self, node: Node, given: Input) -> list[str]:
        heads = [child for child in node.named if child.field is not None and child.field != "body"]
        for head in heads:
            self._count(head)
        body = [child for child in node.children if child.type in ("do_group", "compound_statement")]
        return self._loop(lambda: self._sequence(body, given))

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
                prefixes.update([self._assign(child, prefix=True)])
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

    # ------------------------------------------------------------------ variables

    def _on_variable_assignments(self, node: Node, given: Input) -> list[str]:
        return self._sequence(node.children, given)

    def _on_variable_assignment(self, node: Node, given: Input) -> list[str]:
        self._assign(node)
        return NOTHING

    def _assign(self, node: Node, *, prefix: bool = False) -> tuple[str, list[str]]:
        """Judges an assignment, and gives the variable its values unless it is one for a single command."""
        name, value = node.children[0].text, node.first("value")
        match = re.fullmatch(r"(\w+)(?:\[(\d+)\])?", name)
        if match is None:
            raise unclear(f"{name[:40]!r} is not a plain name of a variable.")
        name, adds = match[1], "+=" in node.text[: len(name) + 4]
        if value is not None and value.type == "array":
            words = [self._words.readings(child) for child in value.named if child.type != "comment"]
            values = [BREAK.join(fields) for fields in product_of(words, MAX_ALTERNATIVES)]
            if adds:
                values = [f"{old}{BREAK}{new}" for old in self._state.values(f"{name}[@]") for new in values]
            self._state.assign(f"{name}[@]", values)
            values = [one.split(BREAK)[0] for one in values]
        else:
            values = [""] if value is None else self._words.values(value)
            if adds:
                values = [old + new for old in self._state.values(name) for new in values]
            if match[2] is not None:
                self._state.assign(f"{name}[@]", [UNKNOWN])
                values = [*values, UNKNOWN]
        if prefix and name == "IFS":
            return name, values
        self._session.budget.spend(sum(map(len, values)) // 8)
        self._session.check_variable(name, values)
        if not prefix:
            self._state.assign(name, values)
        return name, values

    def _on_declaration_command(self, node: Node, given: Input) -> list[str]:
        words = [child for child in node.named if child.type != "variable_assignment"]
        if len(node.children) == 1:
            raise Refused("shell-secret", "All variables of the environment, secrets among them, are not shown.")
        for child in node.named:
            if child.type == "variable_assignment":
                self._assign(child)
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
        return NOTHING

    def _on_unset_command(self, node: Node, given: Input) -> list[str]:
        for child in node.named:
            if re.fullmatch(r"\w+|-v", child.text) is None:
                raise unclear("Only variables are unset, and by their plain names.")
            if child.text != "-v":
                self._session.check_variable(child.text, ["", UNKNOWN])
                self._state.assign(child.text, [""])
        return NOTHING

    # ------------------------------------------------------------------ tests and arithmetic

    def _arithmetic(self, node: Node) -> None:
        self._words.arithmetic(node)
        self._note_counted(node)

    def _count(self, node: Node) -> None:
        """An arithmetic expression, which may give its variables numbers."""
        if node.type == "variable_assignment":
            self._assign(node)
        else:
            self._words.operand(node)
            self._note_counted(node)

    def _note_counted(self, node: Node) -> None:
        """Variables that an arithmetic expression may change hold numbers from then on."""
        for name in {inner.text for inner in node.walk() if inner.type in ("variable_name", "word")}:
            if re.match(r"[A-Za-z_]", name):
                self._session.check_variable(name, ["1"])

    def _on_test_command(self, node: Node, given: Input) -> list[str]:
        self._test(node, double=node.text.startswith("[["))
        return NOTHING

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


def _both(one: list[str], other: list[str]) -> list[str]:
    """What two statements print, one after the other."""
    if one == NOTHING:
        return other
    return one if other == NOTHING else [UNKNOWN]
