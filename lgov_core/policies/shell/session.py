"""Judges the commands of one text against the table."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from lgov_core.policies.shell.call import Call, Input, read_call
from lgov_core.policies.shell.kinds import check_word
from lgov_core.policies.shell.output import files_of, printed_by
from lgov_core.policies.shell.places import Places
from lgov_core.policies.shell.refusal import Budget, Refused, unclear, unknown
from lgov_core.policies.shell.state import State
from lgov_core.policies.shell.table import Entry, Table
from lgov_core.policies.shell.values import HOME, INSTALLED, UNKNOWN, is_wild, shown

if TYPE_CHECKING:
    from lgov_core.policies.shell.syntax import Node

PROGRAM_FOLDERS = frozenset({"/bin", "/usr/bin", "/usr/local/bin", "/sbin", "/usr/sbin", "/opt/homebrew/bin"})
#: Tools of a project: ``.venv/bin/pytest``, ``node_modules/.bin/tsc``.
_TOOL_FOLDER = re.compile(r"(?:.*/)?(?:[\w.-]*env[\w.-]*/bin|node_modules/\.bin|vendor/bin)")
_NO_FILE = Input("file", [""])


class Session:
    """One judgement: the state of the text, its budget, and what it has done so far. Used by one thread."""

    def __init__(self, table: Table, folder: str, writable: Sequence[str], *, lenient: bool) -> None:
        self.table = table
        self.budget = Budget()
        self.state = State(folder)
        self.places = Places(self.state, folder, writable, self.budget)
        self.functions: dict[str, Node] = {}
        #: What the table does not know, where the policy does not deny that at once.
        self.unknown: list[str] = []
        self._lenient = lenient
        #: Walks a text, and the body of a function; set by the walk, which needs the session itself.
        self.walk_text: Callable[[str, Input], None]
        self.walk_function: Callable[[Node, Input], None]

    # ------------------------------------------------------------------ one command

    def run(self, words: Sequence[str], given: Input, *, direct: bool = False) -> list[str]:
        """Judges a command given as evaluated words; what a line that it prints may be. Raises `Refused`.

        With ``direct`` the shell runs it, so that it may be one of its functions.
        """
        self.budget.command()
        self.budget.spend(sum(map(len, words)) // 8)
        if not words:
            return [""]
        name, args = words[0], list(words[1:])
        if is_wild(name) or not name:
            raise unclear("It is not clear which command is run; write its name out.")
        if direct and name in self.functions:
            return self._call_function(name, args, given)
        folder, slash, base = name.rpartition("/")
        if (
            slash
            and folder not in PROGRAM_FOLDERS
            and (self.table.known(base) is None or not _TOOL_FOLDER.fullmatch(folder))
        ):
            self.program(name)
            for word in args:
                self.places.argument(word)
            return [UNKNOWN]
        if slash and folder not in PROGRAM_FOLDERS:
            self.places.tool(name)
        return self._known(base, args, given)

    def _known(self, name: str, args: list[str], given: Input) -> list[str]:
        known = self.table.known(name)
        try:
            if known is None:
                hint = "add it to commands of the policy if it should be"
                raise unknown(f"{name[:60]!r} is not a command that is known here; {hint}.")
            entry = self.table.entry(known)
            if self._asks_for_help(entry, args):
                return [UNKNOWN]
            return self._judge(read_call(self.table, entry, args, given))
        except Refused as refused:
            if refused.rule != "shell-unknown" or not self._lenient:
                raise
            self.unknown.append(refused.reason)
            for word in args:
                self.places.argument(word)
            return [UNKNOWN]

    def _asks_for_help(self, entry: Entry, args: list[str]) -> bool:
        """Whether a command or one of its sub-commands is only asked what it does."""
        if args[-1:] == ["--version"]:
            return len(args) == 1
        known = len(args) == 2 and self.table.sub(entry, args[0]) is not None
        return args[-1:] == ["--help"] and (len(args) == 1 or known)

    def _judge(self, call: Call) -> list[str]:
        entry = call.entry
        here = self.state.copy() if any(kind.name == "chdir" for kind, _ in call.checks) else None
        for kind, word in sorted(call.checks, key=lambda check: check[0].name != "chdir"):
            if not kind.choices or word not in kind.choices:
                check_word(self, call, kind.name, word)
        if entry.work:
            (self.places.inside if entry.work == "ours" else self.places.at_home)(".")
        for name in entry.runs:
            self.places.unwritten(name)
        for kind_name, words in call.commands:
            self._inner(call, kind_name, words)
        if entry.needs and not call.commands and not call.operands and not (entry.needs == "any" and call.options):
            raise unknown(f"{entry.name} without further words does more than is known here; name what is meant.")
        if entry.name == "cd" and not call.operands:
            self.state.go(HOME)
        if entry.name == "shift":
            self.state.positional = None
        if entry.name in ("eval", "watch"):
            self.script(" ".join(call.operands), call.given, self.state.positional)
        self._check_input(call)
        printed = printed_by(self, call)
        if here is not None:
            self.state.folders, self.state.failed = here.folders, here.failed
        return printed

    def _inner(self, call: Call, kind: str, words: list[str]) -> None:
        """Judges a command that ``call`` runs."""
        if kind == "python":
            check_word(self, call, kind, words[0])
            return
        if kind == "environment":
            self._with_environment(call, words)
            return
        if kind == "module":
            name = f"python:{words[0]}"
            if self.table.known(name) is None:
                raise unknown(
                    f"python -m {words[0][:60]} is not known here; add {name[:60]} to commands of the policy."
                )
            self._known(name, words[1:], call.given)
            return
        if kind == "tool" and "/" in words[0]:
            raise Refused("shell-network", f"{shown(words[0])} is not the name of a known tool.")
        if kind == "exec":
            words = words if call.entry.name == "find" or any("{}" in word for word in words) else [*words, "{}"]
            words = [
                word.replace("{}", found) for word in words for found in (files_of(call) if "{}" in word else [""])
            ]
            self._run_exactly(words)
            return
        if call.entry.stdin == "words":
            known = call.given.source != "file" and not call.of("read")
            quotes = not {"-0", "--null", "-d", "--delimiter"} & call.options  # which xargs would undo
            lines = [line for value in call.given.values for line in value.split("\n" if call.of("name") else None)]
            if not known or (quotes and any(re.search(r"[\"'\\]", line) for line in lines)):
                lines = [UNKNOWN]
            marks = [mark or "{}" for mark in call.of("name")]
            if marks:
                words = [
                    word.replace(marks[0], line) for word in words for line in (lines if marks[0] in word else [""])
                ]
            else:
                words = [*words, *lines]
            if quotes:
                self.run(words, _NO_FILE)
            else:
                self._run_exactly(words)
            return
        before = self.state.copy()
        self.run(words, call.given)
        self.state.merge(before)

    def _run_exactly(self, words: list[str]) -> None:
        """Judges a command that gets names of files as they are, not split at spaces."""
        self.places.exact, before = True, self.places.exact
        self.run(words, _NO_FILE)
        self.places.exact = before

    def _with_environment(self, call: Call, words: list[str]) -> None:
        """Judges ``env NAME=value command``."""
        at = next((at for at, word in enumerate(words) if "=" not in word), len(words))
        for word in words[:at]:
            check_word(self, call, "assign", word)
            name, _, value = word.partition("=")
            self.state.assign(name, [*self.state.variables.get(name, [UNKNOWN]), value])
        if at == len(words):
            raise unknown("env without a command shows all variables, secrets among them; name the command.")
        self.run(words[at:], call.given)

    def _check_input(self, call: Call) -> None:
        """Judges what a command does with what it reads: runs it as a program, or applies it."""
        use, given = call.entry.stdin, call.given
        if use == "always":
            if given.source != "file" or given.values != [""]:
                raise Refused("shell-program", f"{call.entry.name} would run what it reads; give it no input.")
            return
        named = call.operands and call.operands[0] != "-" and "-s" not in call.options
        if use in ("", "words") or (use != "applied" and named):
            return
        if ({"-c"} if use == "shell" else {"-c", "-m", "-e", "-p"}) & call.options and use != "applied":
            return
        if use == "applied":
            if given.source == "pipe" and not (call.operands and call.operands[0] != "-"):
                raise Refused("shell-program", f"{call.entry.name} would apply what comes from elsewhere; name a file.")
            for text in given.values if given.source == "text" else ():
                for path in re.findall(r"^\+\+\+ (?:[ab]/)?([^\t\n]+)", text, re.MULTILINE) or [UNKNOWN]:
                    self.places.write(path, notes=False)
            return
        alone = use in ("shell", "python", "node") and not call.checks and not {"--version", "-V", "-v"} & call.options
        if given.source == "file" and given.values == [""] and not alone:
            return
        if UNKNOWN in "".join(given.values) or given.source == "file":
            raise Refused("shell-program", f"{call.entry.name} would run what comes from elsewhere; name a file.")
        for text in given.values:
            check_word(self, call, use, text)

    def _call_function(self, name: str, args: list[str], given: Input) -> list[str]:
        self.budget.enter()
        before, self.state.positional = self.state.positional, args
        self.walk_function(self.functions[name], given)
        self.state.positional = before
        self.budget.leave()
        return [UNKNOWN]

    # ------------------------------------------------------------------ what the kinds ask for

    def script(self, text: str, given: Input, positional: list[str] | None) -> None:
        """Judges a text that another shell, or ``eval``, reads."""
        if is_wild(text):
            raise unclear("The text of a shell within the shell is not certain; write it out.")
        self.budget.enter()
        self.budget.spend(3 * len(text))
        before, self.state.positional = self.state.positional, positional
        self.walk_text(text, given)
        self.state.positional = before
        self.budget.leave()

    def program(self, path: str) -> None:
        """Refuses a program that is neither the project's nor built by this text."""
        if "://" in path:
            raise Refused("shell-program", f"{shown(path)} is not a program of this folder.")
        if path.endswith("/activate") and _TOOL_FOLDER.fullmatch(posixpath.dirname(path)):
            return self.places.tool(path)
        if all(posixpath.normpath(posixpath.join(folder, path)) in self.places.built for folder in self.state.folders):
            return None
        return self.places.script(path)

    def build(self, path: str) -> None:
        """A program that a compiler writes; the text may run it unless it has written or fetched sources."""
        trusted = not self.places.written and not self.places.fetched
        self.places.write(path)
        if trusted:
            paths = {posixpath.normpath(posixpath.join(folder, path)) for folder in self.state.folders}
            self.places.written -= paths
            self.places.built.update(paths)

    def check_variable(self, name: str, values: Sequence[str]) -> None:
        """Refuses to set a variable that makes programs run something else, or send things elsewhere."""
        if any("$(" in value or "`" in value for value in values):
            raise unclear(f"{name[:40]} would hold a command that programs may run; leave it out.")
        allowed = self.table.allowed_values.get(name)
        if name == "PATH":
            entries = [entry for value in values for entry in value.split(":")]
            if all(entry == INSTALLED or self._is_program_folder(entry) for entry in entries):
                return
        elif name == "PYTHONPATH":
            for entry in (entry for value in values for entry in value.split(":") if entry):
                self.places.script(entry)
            return
        elif self.table.closed_variables.fullmatch(name) is None or (
            allowed is not None and all(re.fullmatch(allowed, value) for value in values)
        ):
            return
        raise Refused("shell-environment", f"Setting {name[:40]} changes what other programs run; leave it out.")

    def _is_program_folder(self, entry: str) -> bool:
        shared = ("/tmp", "/var/tmp", "/dev", "/proc", "/run")
        return entry.startswith("/") and not is_wild(entry) and ".." not in entry and not entry.startswith(shared)
