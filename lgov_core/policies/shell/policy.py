"""ShellPolicy: judges shell commands by their syntax tree, with what a session left behind: its folder and variables."""

from __future__ import annotations

import os
import posixpath
import re
import shlex
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, Literal

from msgspec import Meta

from lgov_core.errors import PolicyError
from lgov_core.governor.options import argument_names
from lgov_core.policies.base import BoundedPolicy
from lgov_core.policies.options import Names, PolicyOptions, Text, Texts, takes
from lgov_core.policies.shell.calls import (
    NO_INPUT,
    Call,
    Input,
    check_word,
    default_table,
    files_of,
    printed_by,
    read_call,
)
from lgov_core.policies.shell.syntax import BELOW, HOME, UNKNOWN, ShellRefusal, is_wild, parse, shown, unclear, unknown
from lgov_core.policies.shell.table import FREE, Entry, Table, names, regex
from lgov_core.policies.shell.walk import Walk
from lgov_core.policies.shell.workspace import Workspace
from lgov_core.types import Action, Decision, Point, Severity


class ShellRun:
    """One judgement of one text. Used by one thread."""

    def __init__(self, table: Table, folder: str, writable: Sequence[str], *, lenient: bool) -> None:
        self._table, self._lenient = table, lenient
        self._workspace = Workspace(folder, writable)
        self._walk = Walk(self._workspace, self._run, table.known)
        #: What the table does not know, where that is not denied at once (``lenient``).
        self.unknown: list[str] = []

    def judge(self, text: str) -> None:
        """Judges the text. Raises `ShellRefusal`."""
        self._walk.statement(parse(text), NO_INPUT)

    def _run(self, words: Sequence[str], stdin: Input) -> list[str]:
        """Judges a command, its name and arguments already evaluated; what a line that it prints may be."""
        workspace = self._workspace
        workspace.budget.command(words)
        if not words:
            return [""]
        name, args = words[0], list(words[1:])
        if is_wild(name) or not name:
            raise unclear("It is not clear which command is run; write its name out.")
        folder, slash, base = name.rpartition("/")
        if slash and folder not in names("files", "programs"):
            if self._table.known(base) is None or not regex("paths", "tools").fullmatch(folder):
                workspace.program(name)
                return self._with_any_arguments(args)
            workspace.inside(name)
            workspace.unwritten(name)
        if not slash and "PATH" in workspace.state.variables:
            workspace.by_name(workspace.state.variables["PATH"])
        return self._known(base, args, stdin)

    def _known(self, name: str, args: list[str], stdin: Input) -> list[str]:
        state = self._workspace.state
        here = (state.folders, state.failed)
        try:
            command = self._table.known(name)
            if command is None:
                raise unknown(f"{name[:60]!r} is not a known command; add it to commands of the policy.")
            entry = self._table.entry(command)
            return [UNKNOWN] if self._asks_for_help(entry, args) else self._judge(entry, args, stdin)
        except ShellRefusal as refused:
            if refused.rule != "shell-unknown" or not self._lenient:
                raise
            self.unknown.append(refused.reason)
            state.folders, state.failed = here
            return self._with_any_arguments(args)

    def _with_any_arguments(self, args: list[str]) -> list[str]:
        for word in args:
            self._workspace.argument(word)
        return [UNKNOWN]

    def _asks_for_help(self, entry: Entry, args: list[str]) -> bool:
        """Returns whether a command or one of its sub-commands is only asked what it does."""
        sub_command = len(args) == 2 and entry.sub and re.fullmatch(r"[a-z][a-z-]*", args[0]) is not None
        return args == ["--version"] or (args[-1:] == ["--help"] and (len(args) == 1 or bool(sub_command)))

    def _judge(self, entry: Entry, args: list[str], stdin: Input) -> list[str]:
        call, workspace, state = read_call(self._table, entry, args, stdin), self._workspace, self._workspace.state
        entry = call.entry
        moves = any(kind.name == "chdir" for kind, _ in call.checks)
        here, changed = (state.folders, state.failed), workspace.changed
        for kind, word in sorted(call.checks, key=lambda check: check[0].name != "chdir"):
            if word not in kind.choices:
                self._check(call, kind.name, word)
        if entry.work:
            if entry.work == "ours":
                workspace.inside(".")
            else:
                workspace.at_home(".")
                workspace.unchanged(entry.name, changed)
        for name in entry.runs:
            workspace.unwritten(name)
        for kind_name, words in call.commands:
            self._inner(call, kind_name, words)
        if entry.needs and not call.commands and not call.operands and not (entry.needs == "any" and call.options):
            raise unknown(f"{entry.name} without further words does more than is known here; name what is meant.")
        if entry.name == "cd" and not call.operands:
            state.go(HOME)
        shows = {"-x", "-v"} & call.options or any(word in ("xtrace", "verbose") for _, word in call.checks)
        workspace.shows |= entry.name == "set" and bool(shows)
        if entry.name == "shift":
            state.positional = None
        if entry.name in ("eval", "watch"):
            self._walk.text(" ".join(call.operands), stdin, state.positional)
        self._check_input(call)
        printed = printed_by(workspace, call)
        if moves:
            state.folders, state.failed = here
        return printed

    def _check(self, call: Call, kind: str, word: str) -> None:
        if kind == "shell":  # its variables come from the environment, which is not followed
            self._walk.text(word, call.input, call.words_of("positional")[1:], new_shell=True)
        else:
            check_word(self._workspace, call, kind, word)

    def _check_input(self, call: Call) -> None:
        """Judges what a command does with its input: runs it as a program, or applies it."""
        use, stdin = call.entry.stdin, call.input
        named = bool(call.operands) and call.operands[0] != "-" and "-s" not in call.options
        if use == "sql":  # the first operand is the database; what -cmd runs comes before the input
            named = bool(call.words_of("sql")) and "-cmd" not in call.options
        if use == "always" and stdin != NO_INPUT:
            raise ShellRefusal("shell-program", f"{call.entry.name} would run what it reads; give it no input.")
        elif use == "applied":
            self._check_applied(call)
        elif use not in ("", "words", "always") and not named:
            if ({"-c"} if use == "shell" else {"-c", "-m", "-e", "-p"} if use != "sql" else set[str]()) & call.options:
                return
            waits = use != "sql" and not call.checks and not {"--version", "-V", "-v"} & call.options
            if stdin == NO_INPUT and not waits:
                return
            if stdin.source == "file" or UNKNOWN in "".join(stdin.values):
                instead = "write the statement out" if use == "sql" else "name a file"
                raise ShellRefusal(
                    "shell-program", f"{call.entry.name} would run what comes from elsewhere; {instead}."
                )
            for text in stdin.values:
                self._check(call, use, text)

    def _check_applied(self, call: Call) -> None:
        """Judges a patch that is read from the input."""
        if call.input.source == "pipe" and call.operands[:1] in ([], ["-"]):
            raise ShellRefusal(
                "shell-program", f"{call.entry.name} would apply what comes from elsewhere; name a file."
            )
        for text in call.input.values if call.input.source == "text" else ():
            for path in re.findall(r"^\+\+\+ (?:[ab]/)?([^\t\n]+)", text, re.MULTILINE) or [UNKNOWN]:
                self._workspace.write(path)
        self._workspace.changed = True

    def _inner(self, call: Call, kind: str, words: list[str]) -> None:
        """Judges a command that ``call`` runs."""
        if kind == "python":
            check_word(self._workspace, call, kind, words[0])
        elif kind == "environment":
            self._with_environment(call, words)
        elif kind == "module":
            self._workspace.modules([words[0].partition(".")[0]])
            self._known(f"python:{words[0]}", words[1:], call.input)
        elif kind == "exec":
            if call.entry.name != "find" and not any("{}" in word for word in words):
                words = [*words, "{}"]
            self._run_on_files(_filled_in(words, "{}", files_of(call)), exact=True)
        elif call.entry.stdin == "words":
            self._with_input_words(call, words)
        elif kind == "tool" and "/" in words[0]:
            raise ShellRefusal("shell-network", f"{shown(words[0])} is not the name of a known tool.")
        else:
            before = self._workspace.state.copy()
            self._run(words, call.input)
            self._workspace.state.merge(before)

    def _with_environment(self, call: Call, words: list[str]) -> None:
        """Judges ``env NAME=value command``."""
        at = next((at for at, word in enumerate(words) if "=" not in word), len(words))
        for word in words[:at]:
            check_word(self._workspace, call, "assign", word)
            name, _, value = word.partition("=")
            self._workspace.state.add(name, [value])
        if at == len(words):
            raise unknown("env without a command shows all variables, secrets among them; name the command.")
        self._run(words[at:], call.input)

    def _with_input_words(self, call: Call, words: list[str]) -> None:
        """Judges a command that is given the words of the input, as by ``xargs``."""
        marks = [mark or "{}" for mark in call.words_of("name")]
        apart = {"-0", "--null", "-d", "--delimiter"} & call.options  # words with spaces, whose quotes are kept
        end = "\0" if {"-0", "--null"} & apart else "\n" if marks or apart else None
        lines = [line for value in call.input.values for line in value.split(end)]
        grouped = {"-n", "-L", "-s", "--max-args", "--max-lines"} & call.options and len(lines) > 1
        grouped = grouped and not all(BELOW in line for line in lines)
        if grouped or call.input.source == "file" or call.words_of("read") or {*call.words_of("text")} - {"\\n", "\n"}:
            lines = [UNKNOWN]
        if not apart and any(re.search(r"[\"'\\]", line) for line in lines):
            lines = [UNKNOWN]
        for batch in [[line] for line in lines] if marks else [lines]:
            filled = _filled_in(words, marks[0], batch) if marks else [*words, *batch]
            self._run_on_files(filled, exact=bool(apart))

    def _run_on_files(self, words: list[str], *, exact: bool) -> None:
        """Judges a command that is given names of files: ``exact`` where they are not split at spaces."""
        before = self._workspace.exact
        self._workspace.exact = exact or before
        self._run(words, NO_INPUT)
        self._workspace.exact = before


def _filled_in(words: list[str], mark: str, values: list[str]) -> list[str]:
    """Words with each one that holds ``mark`` repeated for every value."""
    return [word.replace(mark, value) for word in words for value in (values if mark in word else [""])]


Unknown = Literal["deny", "escalate", "allow"]
MAX_CHARACTERS = 20_000
CACHED_TEXTS = 512
_SEVERITY = {
    **dict.fromkeys(("shell-dangerous", "shell-delete", "shell-secret"), Severity.CRITICAL),
    **dict.fromkeys(("shell-network", "shell-write", "shell-environment", "shell-program"), Severity.HIGH),
}


class ShellOptions(PolicyOptions, frozen=True, kw_only=True):
    """The options of a `ShellPolicy`."""

    paths = ("cwd", "writable")

    argument: Names = ("command", "cmd")
    cwd: Text | None = None
    writable: Texts | None = None
    commands: Annotated[
        Sequence[Text] | Mapping[Text, str | Mapping[str, Any]],
        Meta(description="a list of names, or a mapping of names to entries of the table"),
    ] = ()
    unknown: Unknown = "deny"
    name: Text = "shell"


class ShellPolicy(BoundedPolicy):
    """Lets a tool run everyday commands of development, and nothing that destroys, escapes, spies or sends away.

    The text is parsed as bash, and every command in it is checked: in pipelines, lists, loops, functions, substitutions and
    here-documents, and behind ``env``, ``xargs``, ``find -exec``, ``bash -c`` or ``eval``. A command, its sub-command and its
    options must be in the table (``commands.yaml``), which says what each may be given. What the text does not say for
    certain is denied.

    ``argument`` names the arguments that may hold the command, as text or as a list of words: each that is present is
    checked, and a call without any is denied. ``cwd`` is the folder that the tool starts in (the working directory of this
    process unless given). ``writable`` are the folders in which files may be made, changed and removed (``cwd`` and
    ``/tmp`` unless given). ``commands`` adds commands: a mapping of names to entries of the table's form, or a list of
    names that may be run with any arguments that name no secret and nothing outside of these folders. ``unknown`` is the
    answer to a command, an option or a program text that is not in the table: ``deny``, ``escalate`` or ``allow``; its
    arguments are checked all the same. A policy file may say ``allow`` only under ``lgov run --confine``.

    It never asks the file system: what the programs of ``cwd`` do, aliases and variables of the shell that runs the text,
    and symbolic links are not examined. Run the tool in a box (``lgov run --confine``) as well. Only bash is understood.

    Judges ``pre_tool_call``, except hand-offs and agents. May be called from several threads at once; recent decisions are
    cached. Anything unclear, too long (20,000 characters) or too deep is denied: it fails closed. Raises `PolicyError`
    for an invalid setting.
    """

    permits = True

    @takes(ShellOptions)
    def __init__(self, options: ShellOptions) -> None:
        self.name = name = options.name
        self.arguments = argument_names(name, options.argument, "the command")
        self.cwd = _folder(name, "cwd", os.getcwd() if options.cwd is None else options.cwd)
        folders = (self.cwd, "/tmp") if options.writable is None else options.writable
        self.writable = tuple(_folder(name, "writable", folder, self.cwd) for folder in folders)
        self.unknown = options.unknown
        self.box_only = self.unknown == "allow"  # only the kernel can hold an unknown program
        commands = options.commands
        entries = dict(commands) if isinstance(commands, Mapping) else dict.fromkeys(commands, FREE)
        if any("/" in command or " " in command for command in entries):
            raise PolicyError(f"{name}: commands holds a path or a whole command", hint="write names such as mytool")
        self.commands: Mapping[str, Any] = entries
        self._table = default_table().extended(self.commands) if self.commands else None
        self._judge_cached = lru_cache(CACHED_TEXTS)(self._judge_text)

    def judge(self, action: Action) -> Decision | None:
        """The decision on a tool call that carries a command; None at other points."""
        if action.point is not Point.PRE_TOOL_CALL or action.kind in ("handoff", "agent"):
            return None
        texts = [_text(action.arguments[name]) for name in self.arguments if name in action.arguments]
        if not texts or any(text is None for text in texts):
            names = " or ".join(self.arguments)
            return self.deny("shell-missing", f"Give the command as text in the argument {names}.", Severity.MEDIUM)
        decisions = [self.judge_command(text) for text in texts if text is not None]
        return max(decisions, key=lambda decision: decision.effect)

    def judge_command(self, text: str) -> Decision:
        """The decision on one shell text. Recent decisions are cached."""
        if len(text) > MAX_CHARACTERS:
            reason = f"The command is longer than {MAX_CHARACTERS} characters."
            return self.deny("shell-too-long", reason, Severity.MEDIUM)
        try:
            return self._judge_cached(text)
        except RecursionError:  # depends on the caller's stack as well, so it is not cached
            reason = "The command is nested too deeply; write it more simply."
            return self.deny("shell-too-deep", reason, Severity.MEDIUM)

    def _judge_text(self, text: str) -> Decision:
        session = ShellRun(self._table or default_table(), self.cwd, self.writable, lenient=self.unknown != "deny")
        try:
            session.judge(text)
        except ShellRefusal as refused:
            return self.deny(refused.rule, refused.reason, _SEVERITY.get(refused.rule, Severity.MEDIUM))
        if session.unknown and self.unknown == "escalate":
            return self.escalate("shell-unknown", session.unknown[0], Severity.MEDIUM)
        return self.allow()


def _text(value: object) -> str | None:
    """A command as text; a list of words is quoted so that each stays one word."""
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple) and value and all(isinstance(word, str) for word in value):
        return shlex.join(value)
    return None


def _folder(owner: str, option: str, value: str, base: str = "/") -> str:
    if "\0" in value or "$" in value:
        raise PolicyError(f"{owner}: {option} holds {value!r}, which is not a folder", hint="write an absolute path")
    if value == "~" or value.startswith("~/"):
        return posixpath.normpath(HOME + value[1:])
    if option == "cwd" and not value.startswith("/"):
        value = os.path.abspath(value)
    return posixpath.normpath(posixpath.join(base, value))
