"""The walk through the syntax tree of a shell text: what each kind of node does, down to the single commands."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from lgov_core.policies.options import names
from lgov_core.policies.shell_call import NO_INPUT, STREAM, Input, is_option
from lgov_core.policies.shell_environment import check_assignment, is_secret_variable, shows_secret_variables
from lgov_core.policies.shell_handed_on import check_stages, check_substitution, files_of, files_of_substitution
from lgov_core.policies.shell_known import JUDGES, plain_name
from lgov_core.policies.shell_places import Refused
from lgov_core.policies.shell_processes import ends_by_port, is_process
from lgov_core.policies.shell_runners import REPLACING
from lgov_core.policies.shell_syntax import DYNAMIC, HOLDERS, REDIRECTS, WORDS, every_node, nodes_above, nodes_of
from lgov_core.policies.shell_unseen import check_seen
from lgov_core.policies.shell_values import ASSIGNING
from lgov_core.policies.shell_words import UNKNOWN

if TYPE_CHECKING:
    from lgov_core.policies.shell_script import Script
    from lgov_core.policies.shell_syntax import Node

#: Words that the parser takes for the name of a command; behind them stands the command.
_KEYWORDS = ("!", "coproc")


#: Commands that show or keep what stands in their words, or what they are given to read.
_SHOWING = frozenset(
    names(
        """
    echo printf cat tee base64 base32 xxd od hexdump rev tr cut sed awk gawk mawk jq yq basename dirname realpath expr seq
    touch mkdir ls stat file logger wall write fold column paste head tail sort uniq nl tac strings dig host nslookup ping
    """
    )
)


#: The stage of a pipeline that makes words of what it reads.
_TAKING = re.compile(r".{0,35}xargs|parallel ")
#: Files of settings, which a project begins with.
_SETTINGS = re.compile(r"(?:^|/)\.env(?:\.[a-z]+)?$")


class Walk:
    """Goes through the tree of one `Script`, and hands each command in it to the script."""

    def __init__(self, script: Script) -> None:
        self._script = script
        #: Commands of substitutions, the words of which were judged.
        self._told: set[Node] = set()

    def walk(self, node: Node, given: Input) -> None:
        """Judges what stands at and below ``node``, which reads ``given``. Raises `Refused`."""
        kind = node.type
        if kind in ("for_statement", "c_style_for_statement", "case_statement", "test_command") or kind in HOLDERS:
            self._check_head(node)
            for child in node.named_children:
                self.walk(child, given)
        elif kind == "pipeline":
            self._pipeline(node, given)
        elif kind == "redirected_statement":
            self._redirected(node, given)
        elif kind == "command":
            self._command(node, given, ())
        elif kind in ("declaration_command", "unset_command"):
            self._declaration(node)
        elif kind in ("variable_assignment", "variable_assignments"):
            self._assignment(node)
        elif kind == "function_definition":
            self._function(node)
        elif kind in REDIRECTS:
            self._redirect(node)
        elif kind in WORDS:
            self._inner(node)
        else:
            raise Refused("shell-unclear", f"{kind.replace('_', ' ')} is not understood; write it more simply.")

    def _inner(self, node: Node) -> None:
        """Judges the commands in the substitutions of a word."""
        for child in node.named_children:
            if node.type in ("command_substitution", "process_substitution"):
                self.walk(child, NO_INPUT)
                check_substitution(self._script, node)
                self._check_told(node)
            elif child.type in WORDS:
                self._inner(child)
            else:
                self.walk(child, NO_INPUT)
        if node.type == "expansion" and re.search(r"@[A-Za-z]\}$|^\$\{!", self._script.words.text(node)):
            raise Refused(
                "shell-unclear", "Indirect and transforming expansions are not followed; write the value out."
            )
        given = ASSIGNING.match(self._script.words.text(node)) if node.type == "expansion" else None
        if given is not None and self._holds_secret(node, given[1]):
            self._script.holding.add(given[1])

    def _check_told(self, node: Node) -> None:
        """Judges the words that a substitution puts into a command by way of ``echo`` or ``printf``."""
        for command in nodes_of(node, "command"):
            if command not in self._told and self._script.words.text(command).startswith(("echo", "printf")):
                self._told.add(command)
                for child in command.named_children[1:]:
                    if child.type in ("word", "string", "raw_string", "concatenation"):
                        for field in self._script.words.fields(child):
                            self._script.places_read([field, *field.split()])

    def _check_head(self, node: Node) -> None:
        if node.type == "while_statement" and any(
            child.type == "&" for part in node.children for child in part.children
        ):
            raise Refused("shell-dangerous", "A loop that starts processes in the background may start too many.")
        if node.type not in ("for_statement", "case_statement", "test_command"):
            return
        variable = node.child_by_field_name("variable")
        if variable is not None and any(self._holds_secret(child) for child in node.children_by_field_name("value")):
            self._script.holding.add(self._script.words.text(variable))
        if variable is not None:
            fields = [f for child in node.children_by_field_name("value") for f in self._script.words.fields(child)]
            why = check_assignment(self._script.words.text(variable), fields, self._script.places)
            if why is not None:
                raise Refused("shell-environment", f"{why}; choose another name for the variable.")
        for child in node.named_children:
            if child.type in ("word", "string", "raw_string", "concatenation"):
                self._script.places_read(self._script.words.fields(child))

    def _pipeline(self, node: Node, given: Input) -> None:
        stages = node.named_children
        texts = [self._script.words.text(stage) for stage in stages]
        feeds = any(map(_TAKING.match, texts[1:]))
        if shows_secret_variables(texts):
            raise Refused("shell-secret", "Variables of the environment that hold secrets are not shown.")
        if ends_by_port(texts):
            return
        hidden = given.hidden
        for at, stage in enumerate(stages):
            takes = feeds and at and _TAKING.match(texts[at]) is not None
            files = files_of(self._script, stages[:at]) if takes else ()
            hidden = hidden or self._script.unseen.makes(*stages[max(at - 1, 0) : at])
            self.walk(stage, given if at == 0 else Input("stream", listed=files, hidden=hidden))
            if feeds and at < len(stages) - 1:
                for command in (stage, *nodes_of(stage, "command")):
                    for child in command.named_children:
                        if child.type in ("word", "string", "raw_string", "concatenation"):
                            for field in self._script.words.fields(child):
                                self._script.places_read([field, *field.split()])
        check_stages(self._script, stages)

    def _redirected(self, node: Node, given: Input) -> None:
        body = node.child_by_field_name("body")
        extra: list[str] = []
        for child in node.named_children:
            if child.type not in REDIRECTS:
                continue
            made, more = self._redirect(child)
            given = made or given
            extra.extend(more)
        if body is None:
            return
        if self._script.words.text(body).split()[:1] == ["yes"]:
            raise Refused("shell-dangerous", "yes fills whatever it is sent to.")
        if body.type == "command":
            self._command(body, given, extra)
        elif extra:
            raise Refused("shell-unclear", "Words after a redirection are not understood; put them before it.")
        else:
            self.walk(body, given)

    def _redirect(self, node: Node) -> tuple[Input | None, list[str]]:
        """Judges a redirection; what it gives the command to read, and words of the command that stand behind it."""
        if node.type == "herestring_redirect":
            self._inner(node)
            self._check_shown(node)
            fields = [field for child in node.named_children for field in self._script.words.fields(child)]
            text = " ".join(fields)
            self._check_filling(text)
            if UNKNOWN in text or not fields:
                return Input("stream", hidden=self._script.unseen.makes(*node.named_children)), []
            return Input("text", text), []
        if node.type == "heredoc_redirect":
            return self._heredoc(node)
        operator = next((child.type for child in node.children if not child.is_named), "")
        targets = [child for child in node.named_children if child.type != "file_descriptor"]
        for target in targets[:1]:
            self._inner(target)
            if target.type == "process_substitution" or (
                operator in (">&", "<&") and re.fullmatch(r"\d+-?|-", self._script.words.text(target))
            ):
                continue
            for field in self._script.words.fields(target):
                if re.match(r"/dev/(?:tcp|udp)(?:/|$)", field):
                    raise Refused("shell-network", "A network connection through /dev/tcp is not allowed.")
                if operator == "<":
                    if self._script.hides:
                        check_seen(operator, [field])
                    self._script.places.read(field)
                else:
                    filled = operator == ">>" or (_SETTINGS.search(field) is not None and self._is_filled(node))
                    self._script.places.write(field, may_be_secret=filled)
                    self._script.trail.writes(field)
        more: list[str] = []
        for child in targets[1:]:
            self._inner(child)
            more.extend(self._script.words.fields(child))
        hidden = any(child.type == "process_substitution" and self._script.unseen.makes(child) for child in targets)
        return (Input("stream", hidden=hidden) if operator == "<" else None), more

    def _is_filled(self, redirect: Node) -> bool:
        """Whether a text of the script goes to where ``redirect`` leads."""
        above = next((up for up in nodes_above(redirect) if up.type == "redirected_statement"), None)
        body = above.child_by_field_name("body") if above is not None else None
        return body is not None and re.match(r"cat$|(?:echo|printf) .", self._script.words.text(body)) is not None

    def _check_filling(self, text: str) -> None:
        """Refuses secrets among the words that a text may put into variables, which name files later."""
        if self._fills:
            self._script.places_read(text.split())

    @cached_property
    def _fills(self) -> bool:
        """Whether a command of the text puts what it reads into variables, or makes words of it."""
        commands = nodes_of(self._script.root, "command_name")
        return any(self._script.words.text(name) in ("read", "mapfile", "readarray", "xargs") for name in commands)

    def _heredoc(self, node: Node) -> tuple[Input | None, list[str]]:
        body, more = "", list[str]()
        plain, quoted = True, False
        for child in node.named_children:
            if child.type == "heredoc_body":
                self._inner(child)
                plain = not any(inner.type in DYNAMIC for inner in child.named_children)
                body = self._script.words.text(child)
                if not quoted:  # the shell undoes these before anything reads the text
                    body = re.sub(r"\\([$`\\]|\n)", lambda match: match[1].strip("\n"), body)
                self._check_filling(body)
            elif child.type in REDIRECTS:
                _, words = self._redirect(child)
                more.extend(words)
            elif child.type == "heredoc_start":
                quoted = re.search(r"[\"'\\]", self._script.words.text(child)) is not None
            elif child.type in ("heredoc_end", "file_descriptor"):
                continue
            elif child.type in WORDS:
                self._inner(child)
                more.extend(self._script.words.fields(child))
            else:
                self.walk(child, STREAM)
        return (Input("text", body) if plain else STREAM), more

    def _command(self, node: Node, given: Input, extra: Sequence[str]) -> None:
        words: list[str] = []
        before = node.start_byte
        for child in node.children:
            if child.start_byte == before and words and child.type not in REDIRECTS:
                raise Refused("shell-unclear", "Two words stand together in a way that is not understood.")
            before = child.end_byte
            if child.type == "variable_assignment":
                self._assignment(child, prefix=True)
            elif child.type in REDIRECTS:
                made, more = self._redirect(child)
                given = made or given
                words.extend(more)
            elif child.type == "command_name":
                words.extend(self._name(child))
            elif child.type in WORDS:
                self._inner(child)
                process = words[:1] == ["kill"] and is_process(self._script, child)
                words.extend(["1234"] if process else self._script.words.fields(child))
            elif not child.is_named:
                words.append(child.type)
            else:
                self.walk(child, NO_INPUT)
        words.extend(extra)
        self._check_telling(node, words)
        while len(words) > 1 and words[0] in _KEYWORDS:
            words.pop(0)
        self._script.trail.passes(words)
        self._run(node, words, given)

    def _check_telling(self, node: Node, words: Sequence[str]) -> None:
        """Refuses a command that shows a secret of the environment."""
        if _SHOWING.intersection(words[:3]) or words[:2] in (["git", "commit"], ["git", "tag"], ["git", "notes"]):
            self._check_shown(
                node if node.parent is None or node.parent.type != "redirected_statement" else node.parent
            )
        elif words[:1] == ["printenv"]:
            for name in filter(is_secret_variable, words[1:]):
                raise Refused("shell-secret", f"{name} of the environment is a secret, which is not shown.")

    def _run(self, node: Node, words: Sequence[str], given: Input) -> None:
        """Judges a command; where only the files that a substitution names are unclear, it is judged with what it lists."""
        called = words[1:2] if words[:1] == ["trap"] else words[:1]
        if called and called[0] in self._script.functions and self._is_function(node, called[0]):
            self._script.work.run()
            if self._script.hides:
                check_seen(called[0], words[1:])
            return self._script.places_read(words[1:])
        try:
            self._script.run(words, given)
        except Refused as refused:
            found = [file for child in node.children for file in files_of_substitution(self._script, child)]
            split = REPLACING.intersection(words[:4])  # a space in a name makes two of it
            if refused.rule != "shell-unclear" or words.count(UNKNOWN) != 1 or not found or split:
                raise
            for name in found:
                self._script.run([name if word == UNKNOWN else word for word in words], given)

    def _is_function(self, node: Node, name: str) -> bool:
        """Whether a command calls a function of the text, which surely stands by then, and not a program of that name."""
        made, called = self._functions
        later = any(up.type == "function_definition" for up in nodes_above(node))  # it runs when that one is called
        return name in made and made[name] <= (called if later else node.start_byte)

    @cached_property
    def _functions(self) -> tuple[dict[str, int], int]:
        """Where the functions end that the text surely makes, and where it calls the first one."""
        made: dict[str, int] = {}
        called = self._script.root.end_byte
        for part in self._script.root.named_children:
            if part.type != "function_definition":
                names_called = nodes_of(part, "command_name")
                uses = (n.start_byte for n in names_called if self._script.words.text(n) in self._script.functions)
                called = min(called, next(uses, called))
            elif part.next_sibling is None or part.next_sibling.type != "&":
                made.setdefault(self._script.words.text(part.named_children[0]), part.end_byte)
        return made, called

    def _holds_secret(self, node: Node, itself: str = "") -> bool:
        """Whether a value is made of a variable with a secret that the environment, and not the script, has given."""
        variables = (re.match(r"\$\{?([A-Za-z_]\w*)", self._script.words.text(inner)) for inner in every_node(node))
        return any(
            match[1] in self._script.holding
            or (is_secret_variable(match[1]) and (match[1] == itself or match[1] not in self._script.variables))
            for match in variables
            if match is not None
        )

    def _check_shown(self, node: Node) -> None:
        """Refuses a text that holds what the environment, and not the script, has given to a variable with a secret."""
        for inner in (*nodes_of(node, "simple_expansion"), *nodes_of(node, "expansion")):
            match = re.fullmatch(r"\$\{?([A-Za-z_]\w*)(.*)", self._script.words.text(inner), re.DOTALL)
            if match is None:
                continue
            asked = match[2].startswith((":+", "+"))  # whether there is one, and no more
            secret = is_secret_variable(match[1]) and match[1] not in self._script.variables
            if (secret or match[1] in self._script.holding) and not asked:
                raise Refused("shell-secret", f"${match[1]} of the environment is a secret, which is not shown.")

    def _name(self, node: Node) -> list[str]:
        self._inner(node)
        dynamic = [child for child in every_node(node) if child.type in DYNAMIC]
        told = all(
            re.fullmatch(r"\$\(echo [\w./-]+\)|`echo [\w./-]+`", self._script.words.text(child)) for child in dynamic
        )
        if dynamic and not told:
            raise Refused(
                "shell-unclear", "A variable or substitution as the command is not followed; write its name out."
            )
        fields = self._script.words.fields(node)
        if len(fields) != 1:
            raise Refused("shell-unclear", "It is not clear which command is run; write its name out.")
        return fields

    def _function(self, node: Node) -> None:
        name = self._script.words.text(node.named_children[0])
        if re.fullmatch(r"[A-Za-z_][\w-]*", name) is None or plain_name(name) in JUDGES:
            raise Refused("shell-unclear", f"A function called {name[:40]!r} hides a command; choose another name.")
        for command in nodes_of(node, "command_name"):
            if self._script.words.text(command) == name:
                raise Refused("shell-dangerous", "A function that calls itself may never end.")
        for child in node.named_children[1:]:
            self.walk(child, STREAM)

    def _assignment(self, node: Node, *, prefix: bool = False) -> None:
        if node.type == "variable_assignments":
            for child in node.named_children:
                self._assignment(child)
            return
        self._inner(node)
        name_node = node.child_by_field_name("name")
        name = re.split(r"[\[+]", self._script.words.text(name_node))[0] if name_node is not None else ""
        values = self._script.values.assigned(node)
        if self._holds_secret(node, name):
            self._script.holding.add(name)
        if name == "IFS" and prefix:
            return
        why = check_assignment(name, values, self._script.places)
        if why is not None:
            raise Refused("shell-environment", f"{why}; leave it out.")
        self._script.places_read(values)
        if any("[$(" in value or "[`" in value for value in values):
            raise Refused("shell-unclear", "A command hidden in a value is not allowed.")

    def _declaration(self, node: Node) -> None:
        words: list[str] = []
        for child in node.named_children:
            if child.type == "variable_assignment":
                self._assignment(child)
            else:
                self._inner(child)
                words.extend(self._script.words.fields(child))
        told = any(is_option(word) and "p" in word for word in words)
        if node.type == "unset_command" and any(is_option(word) and "f" in word for word in words):
            raise Refused("shell-unclear", "Functions stay as they are; call another by another name.")
        for word in words:
            name, equals, value = word.partition("=")
            if UNKNOWN in name:
                raise Refused("shell-unclear", "It is not clear which variable this is; write its name out.")
            if told and is_secret_variable(word):
                raise Refused("shell-secret", f"{word} of the environment is a secret, which is not shown.")
            if not equals and node.type == "declaration_command" and name == "PATH":
                continue  # the one that is there, for others too
            why = None if is_option(word) else check_assignment(name, [value], self._script.places)
            if why is not None:
                raise Refused("shell-environment", f"{why}; leave it out.")
            if (
                is_option(word)
                and "n" in word
                and self._script.words.text(node).startswith(("declare", "local", "typeset"))
            ):
                raise Refused("shell-unclear", "A name for another variable is not followed; write the variable out.")
