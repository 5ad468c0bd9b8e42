"""A shell text, parsed and judged command by command."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from lgov_core.policies.options import names
from lgov_core.policies.shell_call import NO_INPUT, STREAM, Call, Input, Judge, is_option
from lgov_core.policies.shell_databases import DATABASE_JUDGES
from lgov_core.policies.shell_docker import DOCKER_JUDGES
from lgov_core.policies.shell_files import FILE_JUDGES
from lgov_core.policies.shell_git import GIT_JUDGES
from lgov_core.policies.shell_github import GITHUB_JUDGES
from lgov_core.policies.shell_network import NETWORK_JUDGES
from lgov_core.policies.shell_packages import PACKAGE_JUDGES
from lgov_core.policies.shell_places import Places, Refused, inside, shown
from lgov_core.policies.shell_runners import RUNNER_JUDGES, check_assignment
from lgov_core.policies.shell_services import SERVICE_JUDGES
from lgov_core.policies.shell_tools import TOOL_JUDGES
from lgov_core.policies.shell_words import ANY, PRIVATE, STAR, UNKNOWN, UnclearWord, Words

if TYPE_CHECKING:
    from tree_sitter import Node

MAX_DEPTH = 5
MAX_RUNS = 2000
#: Nodes that hold others and do nothing of their own.
_HOLDERS = frozenset(
    names(
        """
    program list subshell compound_statement negated_command if_statement elif_clause else_clause
    while_statement do_group case_item comment heredoc_body heredoc_content heredoc_end heredoc_start
    """
    )
)
_WORDS = frozenset(
    names(
        """
    word string raw_string ansi_c_string translated_string number concatenation simple_expansion expansion
    command_substitution process_substitution arithmetic_expansion brace_expression regex extglob_pattern
    array subscript variable_name test_operator special_variable_name binary_expression unary_expression
    ternary_expression postfix_expression parenthesized_expression string_content file_descriptor
    """
    )
)
_REDIRECTS = frozenset({"file_redirect", "herestring_redirect", "heredoc_redirect"})
_DYNAMIC = frozenset(
    {
        "simple_expansion",
        "expansion",
        "command_substitution",
        "process_substitution",
        "arithmetic_expansion",
        "subscript",
    }
)
_PROGRAM_FOLDERS = frozenset({"/bin", "/usr/bin", "/usr/local/bin", "/sbin", "/usr/sbin", "/opt/homebrew/bin"})
_VERSIONED = re.compile(r"(python|pip|pypy|node|ruby|perl|php|gcc|g\+\+|clang|clang\+\+|lua)-?\d+(?:\.\d+)*")
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f\u0085\u00a0\u00ad\u1680\u2000-\u200f\u2028-\u202f\u205f-\u2064\u2066-\u206f\u3000\ufeff]"
)
_LISTS = frozenset({"for_statement", "array", "declaration_command", "file_redirect", "case_statement"})
#: Builtins that take a word for the name of a variable, and run what stands in its brackets.
_EVALUATING = frozenset({"printf", "test", "[", "read", "let", "mapfile", "readarray", "wait", "getopts", "local"})
#: Commands with commands of their own, each of which explains itself when ``--help`` stands behind it.
_WITH_COMMANDS = frozenset(
    names(
        """
    docker podman git gh npm cargo go pip uv dotnet kubectl oc helm terraform tofu terragrunt aws gcloud az vault consul
    nomad packer brew apt apt-get dnf journalctl systemctl flux argocd istioctl kustomize skaffold minikube kind k3d pulumi
    eksctl stripe restic rclone borg doctl
    """
    )
)
_COMMAND_WORD = re.compile(r"(?!(?:exec|run|ssh|x|dlx|test|eval|start|foreach)$)[a-z][a-z0-9-]*")
#: Commands that take any word for something to do; a word such as --help is none to them.
_NO_HELP = frozenset(names("eval exec . source command builtin xargs trap kill echo printf"))
#: Commands that run the program files they are given.
_STARTING = frozenset(names("python node perl ruby php sh bash source . zsh dash"))
_KEYWORDS = frozenset({"!", "time", "coproc"})

JUDGES: dict[str, Judge] = {
    **FILE_JUDGES,
    **RUNNER_JUDGES,
    **GIT_JUDGES,
    **NETWORK_JUDGES,
    **SERVICE_JUDGES,
    **PACKAGE_JUDGES,
    **DOCKER_JUDGES,
    **DATABASE_JUDGES,
    **GITHUB_JUDGES,
    **TOOL_JUDGES,
}


@lru_cache(1)
def _language() -> Any:
    import tree_sitter
    import tree_sitter_bash

    return tree_sitter.Language(tree_sitter_bash.language())


def parse_shell(source: bytes) -> Node:
    """The syntax tree of ``source``, read as bash. A parser is not shared, so this may be called from several threads."""
    import tree_sitter

    return tree_sitter.Parser(_language()).parse(source).root_node


class Script:
    """One shell text on its way through the judges. Made for one judgement, by one thread."""

    def __init__(
        self, text: str, *, folder: str, writable: Sequence[str], commands: frozenset[str], outer: Script | None = None
    ) -> None:
        self.depth = outer.depth + 1 if outer is not None else 0
        self.commands = commands
        self._folder, self._writable = folder, writable
        self._budget = outer._budget if outer is not None else [MAX_RUNS]
        self.written: set[str] = outer.written if outer is not None else set()
        self.moved: set[str] = outer.moved if outer is not None else set()
        self.removed: set[str] = outer.removed if outer is not None else set()
        self.started: set[str] = outer.started if outer is not None else set()
        if self.depth > MAX_DEPTH:
            raise Refused("shell-too-deep", "Shells within shells are nested too deeply; write the commands out.")
        _check_letters(text)
        self.root = parse_shell(text.encode())
        if self.root.has_error:
            raise Refused("shell-unparsable", "The command is not complete or not understood; write it more simply.")
        _check_gaps(self.root, text.encode())
        self.variables: dict[str, list[str]] = {}
        self.words = Words(text.encode(), self.variables, folder)
        self.functions = {self.words.text(node.named_children[0]) for node in _all(self.root, "function_definition")}
        self._collect_variables(outer)
        self.places = Places(self._folders(outer), writable)

    def judge(self) -> None:
        """Raises `Refused` for the first thing in the text that may not be."""
        try:
            self._walk(self.root, NO_INPUT)
        except UnclearWord as unclear:
            raise Refused("shell-unclear", f"The word of kind {unclear} is not understood; write it plainly.") from None
        for path in self.started & self.written:
            raise Refused(
                "shell-program", f"{shown(path)} is written and run in one go; let it be looked at in between."
            )

        for path in self.moved:
            if any(inside(path, gone) for gone in self.removed):
                raise Refused("shell-delete", f"{shown(path)} is moved and removed in one go; look in between.")

    # ------------------------------------------------------------------ what the judges call

    def run(self, words: Sequence[str], given: Input) -> None:
        """Judges a command given as evaluated words."""
        self._budget[0] -= 1
        if self._budget[0] < 0:
            raise Refused("shell-too-deep", "The command holds too many commands; write fewer.")
        if not words:
            return
        first = words[0]
        if any(sign in first for sign in (UNKNOWN, STAR, ANY)) or not first:
            raise Refused("shell-unclear", "It is not clear which command is run; write its name out.")
        name = first
        if "/" in first:
            folder, _, name = first.rpartition("/")
            if folder not in _PROGRAM_FOLDERS:
                self.places.script(first)
                self.started.add(posixpath.normpath(posixpath.join(self._folder, first)))
                if not (folder.endswith("/bin") and _plain_name(name) in JUDGES):
                    self.places_read(words[1:])
                    return
        elif first in self.functions or first in self.commands:
            self.places_read(words[1:])
            return
        base = _plain_name(name)
        judge = JUDGES.get(base)
        if base in _STARTING:
            self._note_started(words[1:])
        if judge is None:
            why = (
                f"{name[:60]!r} is not a command that is known here; add it to commands of the policy if it should be."
            )
            raise Refused("shell-unknown-command", why)
        self._note_moved(base, words[1:])
        call = Call(base, tuple(words[1:]), given, self)
        if not _asks_for_help(call):
            _check_names(call)
            judge(call)

    def _note_started(self, words: Sequence[str]) -> None:
        for word in words:
            if not is_option(word) and not any(sign in word for sign in (UNKNOWN, STAR, ANY)):
                self.started.add(posixpath.normpath(posixpath.join(self._folder, word)))

    def _note_moved(self, name: str, words: Sequence[str]) -> None:
        """Remembers what is put under another name, and what is removed with all that lies in it."""
        if name == "git" and "mv" in words[:3]:
            name = "mv"
        if name not in ("mv", "ln", "rm", "find"):
            return
        if name == "find" and not any(word in ("-delete", "-exec", "-execdir") for word in words):
            return
        plain = [word for word in words if not is_option(word)]
        if name in ("mv", "ln"):
            noted, plain = self.moved, plain[-1:]
            for at, word in enumerate(words):
                if word.startswith(("-t", "--t")):
                    plain += [word[2:], word.partition("=")[2], *words[at + 1 : at + 2]]
        else:
            noted = self.removed
        for word in plain:
            start = re.split(f"[{STAR}{ANY}]", word)[0]
            noted.update(posixpath.normpath(posixpath.join(folder, start)) for folder in self.places.folders if word)

    def script(self, text: str) -> None:
        """Judges a text that another shell reads."""
        inner = Script(text, folder=self._folder, writable=self._writable, commands=self.commands, outer=self)
        inner.judge()

    def places_read(self, words: Sequence[str]) -> None:
        """Refuses words that name secrets."""
        for word in words:
            self.places.read(word)

    # ------------------------------------------------------------------ walking

    def _walk(self, node: Node, given: Input) -> None:
        kind = node.type
        if kind in ("for_statement", "c_style_for_statement", "case_statement", "test_command") or kind in _HOLDERS:
            self._check_head(node)
            for child in node.named_children:
                self._walk(child, given)
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
        elif kind in _REDIRECTS:
            self._redirect(node)
        elif kind in _WORDS:
            self._inner(node)
        else:
            raise Refused("shell-unclear", f"{kind.replace('_', ' ')} is not understood; write it more simply.")

    def _inner(self, node: Node) -> None:
        """Judges the commands in the substitutions of a word."""
        for child in node.named_children:
            if node.type in ("command_substitution", "process_substitution"):
                self._walk(child, NO_INPUT)
            elif child.type in _WORDS:
                self._inner(child)
            else:
                self._walk(child, NO_INPUT)
        if node.type == "expansion" and re.search(r"@[A-Za-z]\}$|^\$\{!", self.words.text(node)):
            raise Refused(
                "shell-unclear", "Indirect and transforming expansions are not followed; write the value out."
            )

    def _check_head(self, node: Node) -> None:
        if node.type == "while_statement" and any(
            child.type == "&" for part in node.children for child in part.children
        ):
            raise Refused("shell-dangerous", "A loop that starts processes in the background may start too many.")
        if node.type not in ("for_statement", "case_statement", "test_command"):
            return
        for child in node.named_children:
            if child.type in ("word", "string", "raw_string", "concatenation"):
                self.places_read(self.words.fields(child))

    def _pipeline(self, node: Node, given: Input) -> None:
        stages = node.named_children
        feeds = any("xargs" in self.words.text(stage)[:40] for stage in stages[1:])
        for at, stage in enumerate(stages):
            self._walk(stage, given if at == 0 else STREAM)
            if feeds and at < len(stages) - 1:
                for command in (stage, *_all(stage, "command")):
                    for child in command.named_children:
                        if child.type in ("word", "string", "raw_string", "concatenation"):
                            for field in self.words.fields(child):
                                self.places_read([field, *field.split()])

    def _redirected(self, node: Node, given: Input) -> None:
        body = node.child_by_field_name("body")
        extra: list[str] = []
        for child in node.named_children:
            if child.type not in _REDIRECTS:
                continue
            made, more = self._redirect(child)
            given = made or given
            extra.extend(more)
        if body is None:
            return
        if self.words.text(body).split()[:1] == ["yes"]:
            raise Refused("shell-dangerous", "yes fills whatever it is sent to.")
        if body.type == "command":
            self._command(body, given, extra)
        elif extra:
            raise Refused("shell-unclear", "Words after a redirection are not understood; put them before it.")
        else:
            self._walk(body, given)

    def _redirect(self, node: Node) -> tuple[Input | None, list[str]]:
        """Judges a redirection; what it gives the command to read, and words of the command that stand behind it."""
        if node.type == "herestring_redirect":
            self._inner(node)
            fields = [field for child in node.named_children for field in self.words.fields(child)]
            text = " ".join(fields)
            return (STREAM if UNKNOWN in text or not fields else Input("text", text)), []
        if node.type == "heredoc_redirect":
            return self._heredoc(node)
        operator = next((child.type for child in node.children if not child.is_named), "")
        targets = [child for child in node.named_children if child.type != "file_descriptor"]
        for target in targets[:1]:
            self._inner(target)
            if target.type == "process_substitution" or (
                operator in (">&", "<&") and re.fullmatch(r"\d+-?|-", self.words.text(target))
            ):
                continue
            for field in self.words.fields(target):
                if re.match(r"/dev/(?:tcp|udp)(?:/|$)", field):
                    raise Refused("shell-network", "A network connection through /dev/tcp is not allowed.")
                if operator in ("<",):
                    self.places.read(field)
                else:
                    self.places.write(field)
                    self.written.add(posixpath.normpath(posixpath.join(self._folder, field)))
        more: list[str] = []
        for child in targets[1:]:
            self._inner(child)
            more.extend(self.words.fields(child))
        return (STREAM if operator == "<" else None), more

    def _heredoc(self, node: Node) -> tuple[Input | None, list[str]]:
        body, more = "", list[str]()
        plain = True
        for child in node.named_children:
            if child.type == "heredoc_body":
                self._inner(child)
                plain = not any(inner.type in _DYNAMIC for inner in child.named_children)
                body = self.words.text(child)
            elif child.type in _REDIRECTS:
                _, words = self._redirect(child)
                more.extend(words)
            elif child.type in ("heredoc_start", "heredoc_end", "file_descriptor"):
                continue
            elif child.type in _WORDS:
                self._inner(child)
                more.extend(self.words.fields(child))
            else:
                self._walk(child, STREAM)
        return (Input("text", body) if plain else STREAM), more

    def _command(self, node: Node, given: Input, extra: Sequence[str]) -> None:
        words: list[str] = []
        before = node.start_byte
        for child in node.children:
            if child.start_byte == before and words and child.type not in _REDIRECTS:
                raise Refused("shell-unclear", "Two words stand together in a way that is not understood.")
            before = child.end_byte
            if child.type == "variable_assignment":
                self._assignment(child, prefix=True)
            elif child.type in _REDIRECTS:
                made, more = self._redirect(child)
                given = made or given
                words.extend(more)
            elif child.type == "command_name":
                words.extend(self._name(child))
            elif child.type in _WORDS:
                self._inner(child)
                words.extend(self.words.fields(child))
            elif not child.is_named:
                words.append(child.type)
            else:
                self._walk(child, NO_INPUT)
        words.extend(extra)
        while len(words) > 1 and words[0] in _KEYWORDS and words[0] != "time":
            words.pop(0)
        self._note_secrets(words)
        self.run(words, given)

    def _name(self, node: Node) -> list[str]:
        self._inner(node)
        dynamic = [child for child in _every(node) if child.type in _DYNAMIC]
        told = all(re.fullmatch(r"\$\(echo [\w./-]+\)|`echo [\w./-]+`", self.words.text(child)) for child in dynamic)
        if dynamic and not told:
            raise Refused(
                "shell-unclear", "A variable or substitution as the command is not followed; write its name out."
            )
        fields = self.words.fields(node)
        if len(fields) != 1:
            raise Refused("shell-unclear", "It is not clear which command is run; write its name out.")
        return fields

    def _note_secrets(self, words: Sequence[str]) -> None:
        """Remembers what the command writes, so that it is not run in the same text."""
        if words[:1] and words[0] in ("curl", "wget", "tee", "cp", "mv", "install", "ln"):
            for word in words[1:]:
                self.written.add(posixpath.normpath(posixpath.join(self._folder, word)))
                if "://" in word:
                    self.written.add(posixpath.join(self._folder, posixpath.basename(word.partition("?")[0])))

    def _function(self, node: Node) -> None:
        name = self.words.text(node.named_children[0])
        if re.fullmatch(r"[A-Za-z_][\w-]*", name) is None or name in JUDGES:
            raise Refused("shell-unclear", f"A function called {name[:40]!r} hides a command; choose another name.")
        for command in _all(node, "command_name"):
            if self.words.text(command) == name:
                raise Refused("shell-dangerous", "A function that calls itself may never end.")
        for child in node.named_children[1:]:
            self._walk(child, STREAM)

    # ------------------------------------------------------------------ variables and folders

    def _assignment(self, node: Node, *, prefix: bool = False) -> None:
        if node.type == "variable_assignments":
            for child in node.named_children:
                self._assignment(child)
            return
        self._inner(node)
        name_node = node.child_by_field_name("name")
        name = re.split(r"[\[+]", self.words.text(name_node))[0] if name_node is not None else ""
        values = self._assigned(node)
        if name == "IFS" and prefix:
            return
        why = check_assignment(name, values)
        if why is not None:
            raise Refused("shell-environment", f"{why}; leave it out.")
        self.places_read(values)
        if any("[$(" in value or "[`" in value for value in values):
            raise Refused("shell-unclear", "A command hidden in a value is not allowed.")

    def _declaration(self, node: Node) -> None:
        words: list[str] = []
        for child in node.named_children:
            if child.type == "variable_assignment":
                self._assignment(child)
            else:
                self._inner(child)
                words.extend(self.words.fields(child))
        for word in words:
            name, _, value = word.partition("=")
            why = None if is_option(word) else check_assignment(name, [value])
            if why is not None:
                raise Refused("shell-environment", f"{why}; leave it out.")
            if is_option(word) and "n" in word and self.words.text(node).startswith(("declare", "local", "typeset")):
                raise Refused("shell-unclear", "A name for another variable is not followed; write the variable out.")

    def _collect_variables(self, outer: Script | None) -> None:
        if outer is not None:
            self.variables.update(outer.variables)
        before: dict[str, list[str]] = {}
        for _ in range(2):
            before = {name: list(values) for name, values in self.variables.items()}
            for node in _every(self.root):
                if node.type == "variable_assignment":
                    name_node = node.child_by_field_name("name")
                    if name_node is not None:
                        self._may_be(re.split(r"[\[+]", self.words.text(name_node))[0], self._assigned(node))
                elif node.type == "for_statement":
                    self._loop_variable(node)
                elif node.type in ("command", "declaration_command"):
                    self._filled(node)
        for name, values in self.variables.items():
            if values != before.get(name, values):
                values[:] = [UNKNOWN]

    def _assigned(self, node: Node) -> list[str]:
        value = node.child_by_field_name("value")
        if value is None:
            return [""]
        joined = re.match(r"[^=]*\+=", self.words.text(node)) is not None
        if joined or value.type == "array":
            inner = value.named_children if value.type == "array" else [value]
            fields = [field for child in inner for field in self.words.fields(child)]
            return [*fields, UNKNOWN] if joined else (fields or [""])
        return self.words.values(value)

    def _may_be(self, name: str, values: Sequence[str]) -> None:
        known = self.variables.setdefault(name, [])
        known.extend(value for value in values if value not in known)

    def _loop_variable(self, node: Node) -> None:
        variable = node.child_by_field_name("variable")
        if variable is not None:
            items = [field for child in node.children_by_field_name("value") for field in self.words.fields(child)]
            self._may_be(self.words.text(variable), items or [UNKNOWN])

    def _filled(self, node: Node) -> None:
        """Variables that a command fills: with what, nobody knows here."""
        texts = [self.words.text(child) for child in node.named_children]
        if not texts:
            return
        first = texts[0]
        if first in ("read", "mapfile", "readarray", "getopts") or (first == "printf" and "-v" in texts[1:2]):
            for text in texts[1:]:
                if re.fullmatch(r"[A-Za-z_]\w*", text):
                    self._may_be(text, [UNKNOWN])
            if first == "read":
                self._may_be("REPLY", [UNKNOWN])

    def _folders(self, outer: Script | None) -> list[str]:
        """Every folder the text may stand in: where it begins, and where each cd leads."""
        folders = list(outer.places.folders) if outer is not None else [self._folder]
        for node in _all(self.root, "command"):
            name = node.child_by_field_name("name")
            if name is None or self.words.text(name).lstrip("\\") not in ("cd", "pushd"):
                continue
            fields = [f for child in node.children_by_field_name("argument") for f in self.words.fields(child)]
            targets = [field for field in fields if not is_option(field) and field != "-"] or (
                [] if "-" in fields else ["/~"]
            )
            looping = any(
                up.type in ("while_statement", "for_statement", "c_style_for_statement") for up in _above(node)
            )
            for target in targets:
                if looping and ".." in target:
                    target = UNKNOWN
                for folder in tuple(folders):
                    reached = posixpath.normpath(posixpath.join(folder, target))
                    if reached not in folders:
                        folders.append(reached)
            if len(folders) > 64:
                return [folders[0], UNKNOWN]
        return folders


def _check_letters(text: str) -> None:
    if PRIVATE.search(text) or _INVISIBLE.search(text.replace("\r\n", "\n")) or "\r" in text:
        raise Refused("shell-unclear", "The command holds invisible or control characters; leave them out.")
    # The parser takes a line continuation for a space; within a word the shell takes it for nothing.
    if re.search(r"(?:[^\s]|^)\\\n", text):
        raise Refused("shell-unclear", "Put a space before a backslash at the end of a line.")


def _check_gaps(root: Node, source: bytes) -> None:
    """Refuses an escaped space that the parser took for one between two words; the shell makes one word of it."""
    for node in _every(root):
        if node.type in ("string", "heredoc_body", "heredoc_redirect", "expansion", "regex"):
            continue
        before = node.start_byte
        for child in node.children:
            if b"\\" in source[before : child.start_byte].replace(b"\\\n", b""):
                raise Refused("shell-unclear", "Put words with spaces in quotes.")
            glued = child.start_byte == before and child.type in _WORDS and child.prev_sibling is not None
            if glued and node.type in _LISTS and child.prev_sibling.type in _WORDS - {"file_descriptor"}:  # type: ignore[union-attr]
                raise Refused("shell-unclear", "Two words stand together in a way that is not understood.")
            before = child.end_byte


def _check_names(call: Call) -> None:
    if call.name in _EVALUATING and any(re.search(r"\[[^]]*(?:\$\(|`)", word) for word in call.args):
        raise Refused("shell-unclear", "A command hidden in a name is not allowed.")


def _asks_for_help(call: Call) -> bool:
    """Whether a known command is only asked what it does: ``rm --help``, ``terraform destroy --help``."""
    *ahead, last = call.args or ("",)
    if last not in ("--help", "--version") or any(sign in word for word in ahead for sign in (UNKNOWN, STAR, ANY)):
        return False
    if not ahead:
        return call.name not in _NO_HELP
    return (
        last == "--help"
        and call.name in _WITH_COMMANDS
        and len(ahead) <= 3
        and all(_COMMAND_WORD.fullmatch(word) for word in ahead)
    )


def _plain_name(name: str) -> str:
    match = _VERSIONED.fullmatch(name)
    if match is not None:
        return match[1]
    if re.fullmatch(r"kafka-[a-z-]+\.sh", name):
        return name.removesuffix(".sh")
    return "mkfs" if name.startswith("mkfs.") else name


def _every(node: Node) -> Iterator[Node]:
    waiting = [node]
    while waiting:
        current = waiting.pop()
        yield current
        waiting.extend(reversed(current.named_children))


def _all(node: Node, kind: str) -> Iterator[Node]:
    return (inner for inner in _every(node) if inner.type == kind)


def _above(node: Node) -> Iterator[Node]:
    up = node.parent
    while up is not None:
        yield up
        up = up.parent
