"""Judges the commands of one text against the table. `Session` connects the walk through the text and the checks."""

from __future__ import annotations

import re
from collections.abc import Sequence

from lgov_core.policies.shell.call import NO_INPUT, Call, Input, files_of, printed_by, read_call
from lgov_core.policies.shell.checks import check_word
from lgov_core.policies.shell.refusal import Refused, unclear, unknown
from lgov_core.policies.shell.syntax import parse
from lgov_core.policies.shell.table import Entry, Table, names, regex
from lgov_core.policies.shell.values import BELOW, HOME, UNKNOWN, is_wild, shown
from lgov_core.policies.shell.walk import Walk
from lgov_core.policies.shell.workspace import Workspace


class Session:
    """One judgement of one text. Used by one thread."""

    def __init__(self, table: Table, folder: str, writable: Sequence[str], *, lenient: bool) -> None:
        self._table, self._lenient = table, lenient
        self._workspace = Workspace(folder, writable)
        self._walk = Walk(self._workspace, self._run, table.known)
        #: What the table does not know, where that is not denied at once (``lenient``).
        self.unknown: list[str] = []

    def judge(self, text: str) -> None:
        """Judges the text. Raises `Refused`."""
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
            known = self._table.known(name)
            if known is None:
                raise unknown(f"{name[:60]!r} is not a known command; add it to commands of the policy.")
            entry = self._table.entry(known)
            return [UNKNOWN] if self._asks_for_help(entry, args) else self._judge(entry, args, stdin)
        except Refused as refused:
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
        """Whether a command or one of its sub-commands is only asked what it does."""
        known = len(args) == 2 and entry.sub and re.fullmatch(r"[a-z][a-z-]*", args[0]) is not None
        return args == ["--version"] or (args[-1:] == ["--help"] and (len(args) == 1 or bool(known)))

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
            raise Refused("shell-program", f"{call.entry.name} would run what it reads; give it no input.")
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
                raise Refused("shell-program", f"{call.entry.name} would run what comes from elsewhere; {instead}.")
            for text in stdin.values:
                self._check(call, use, text)

    def _check_applied(self, call: Call) -> None:
        """Judges a patch that is read from the input."""
        if call.input.source == "pipe" and call.operands[:1] in ([], ["-"]):
            raise Refused("shell-program", f"{call.entry.name} would apply what comes from elsewhere; name a file.")
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
            raise Refused("shell-network", f"{shown(words[0])} is not the name of a known tool.")
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
        for given in [[line] for line in lines] if marks else [lines]:
            filled = _filled_in(words, marks[0], given) if marks else [*words, *given]
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
