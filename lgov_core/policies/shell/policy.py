"""ShellPolicy: judges shell commands by their syntax tree, with what a session left behind: its folder and variables."""

from __future__ import annotations

import os
import posixpath
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, Literal, TypeVar

from msgspec import Meta

from lgov_core.errors import PolicyError
from lgov_core.governor.options import argument_names
from lgov_core.places import places_for
from lgov_core.policies.base import BoundedPolicy
from lgov_core.policies.confinement import in_box
from lgov_core.policies.network.egress import EgressPolicy
from lgov_core.policies.options import Names, PolicyOptions, Text, Texts, takes
from lgov_core.policies.shell.calls import NO_INPUT, Call, Input, files_of, printed_by, read_call
from lgov_core.policies.shell.folder import Look, LookUps, runs_nothing
from lgov_core.policies.shell.kinds import check_word, default_table
from lgov_core.policies.shell.syntax import (
    BELOW,
    HOME,
    UNKNOWN,
    ShellRefusal,
    code,
    is_wild,
    load_parser,
    parse,
    sends,
    unclear,
    unknown,
)
from lgov_core.policies.shell.table import FREE, Entry, Table, names, without_version
from lgov_core.policies.shell.walk import Walk
from lgov_core.policies.shell.workspace import UNJUDGED, Grants, Workspace, listed_as
from lgov_core.policies.sql.policy import FROM_TOOL, SQLPolicy
from lgov_core.types import Action, Decision, Effect, Point, Severity


class ShellRun:
    """One judgement of one text. Used by one thread."""

    def __init__(self, table: Table, workspace: Workspace) -> None:
        self._table, self._workspace = table, workspace
        self._walk = Walk(workspace, self._run)

    def judge(self, text: str) -> None:
        """Judges the text. Raises `ShellRefusal`."""
        self._walk.statement(parse(text), NO_INPUT)

    def _run(self, words: Sequence[str], stdin: Input) -> list[str]:
        """Judges a command, its name and arguments already evaluated; what a line that it prints may be."""
        self._workspace.budget.command(words)
        if not words:
            return [""]
        name, args = words[0], list(words[1:])
        if is_wild(name) or not name:
            raise unclear("It is not clear which command is run; write its name out.")
        state = self._workspace.state
        here = (state.folders, state.failed)
        try:
            return self._command(name, args, stdin)
        except ShellRefusal as refused:
            self._workspace.leave(refused)
            state.folders, state.failed = here
            for word in args:  # where they lie is not known
                self._workspace.mention(word)
            return [UNKNOWN]

    def _command(self, name: str, args: list[str], stdin: Input) -> list[str]:
        folder, _, base = name.rpartition("/")
        if folder in names("files", "programs"):
            name = base
        program = (
            args[1]
            if name.startswith("python") and without_version(name) == "python" and args[:1] == ["-m"] and len(args) > 1
            else name
        )
        if self._workspace.may_run_code(name) or self._workspace.may_run_code(program):
            return self._with_any_arguments(args)
        if "/" in name:
            raise code(name)
        if args in (["--version"], ["-V"]) and name in names("versions"):
            return [UNKNOWN]
        command = self._table.known(name)
        if command is None:
            raise self._unknown(name)
        entry = self._table.entry(command)
        if args in (["--help"], ["--version"]):
            return [UNKNOWN]
        if entry.history:
            return self._history(entry, args, stdin)
        if entry.sends and self._workspace.grants.url is None:
            raise sends(name)
        return self._judge(entry, args, stdin)

    def _unknown(self, name: str) -> ShellRefusal:
        plain = without_version(name)
        if plain in names("code"):
            return code(name)
        if plain in names("sends"):
            return sends(name)
        return unknown(f"{name[:60]!r} is not a known command; add it to commands of the policy.")

    def _with_any_arguments(self, args: list[str]) -> list[str]:
        for word in args:
            self._workspace.argument(word)
        return [UNKNOWN]

    def _history(self, entry: Entry, args: list[str], stdin: Input) -> list[str]:
        """Judges git, which reads history where the repository's configuration runs nothing."""
        self._workspace.reads_history()
        try:
            return self._judge(entry, args, stdin)
        except ShellRefusal as refused:
            if refused.rule != "shell-unknown":
                raise
            raise code(f"{entry.name} {args[0] if args else ''}".strip(), "or sends, beyond reading history") from None

    def _judge(self, entry: Entry, args: list[str], stdin: Input) -> list[str]:
        call, workspace = read_call(self._table, entry, args, stdin), self._workspace
        entry = call.entry
        for kind, word in call.checks:
            if word in kind.choices:
                continue
            if kind.name == "shell":  # its variables come from the environment, which is not followed
                self._walk.text(word, call.input)
            else:
                check_word(workspace, call, kind.name, word)
        for word in call.expands:
            workspace.pass_on("expands", word)
        searches = any(kind.name == "searched" for kind in entry.args) and not call.words_of("searched")
        if searches and (entry.name != "rg" or stdin.source == "file"):
            check_word(workspace, call, "searched", ".")
        for kind_name, words in call.commands:
            self._inner(call, kind_name, words)
        present = {*call.options, *(kind.name for kind, _ in call.checks), *(kind for kind, _ in call.commands)}
        if entry.needs and not present.intersection(entry.needs) and not ("any" in entry.needs and present):
            raise unknown(f"{entry.name} without further words does more than is known here; name what is meant.")
        if entry.name == "cd" and not call.operands:
            workspace.state.go(HOME)
        return printed_by(workspace, call)

    def _inner(self, call: Call, kind: str, words: list[str]) -> None:
        """Judges a command that ``call`` runs."""
        if kind == "environment":
            self._with_environment(call, words)
        elif kind == "exec":
            if call.entry.name != "find" and not any("{}" in word for word in words):
                words = [*words, "{}"]
            self._run_on_files(_filled_in(words, "{}", files_of(call)), exact=True)
        elif call.entry.stdin == "words":
            self._with_input_words(call, words)
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
        if len(marks) > 1 or (marks and {"-L", "-n", "--max-lines", "--max-args"} & call.options):
            raise unclear("It is not clear which words xargs puts where; give it -I alone, and once.")
        apart = {"-0", "--null", "-d", "--delimiter"} & call.options  # words with spaces, whose quotes are kept
        end = "\0" if {"-0", "--null"} & apart else "\n" if marks or apart else None
        lines = [line for value in call.input.values for line in value.split(end)]
        grouped = {"-n", "-L", "-s", "--max-args", "--max-lines"} & call.options and len(lines) > 1
        grouped = grouped and not all(BELOW in line for line in lines)
        if grouped or call.input.source == "file" or {*call.words_of("text")} - {"\\n", "\n"}:
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


_Nested = TypeVar("_Nested")
Unknown = Literal["deny", "escalate", "allow"]
MAX_CHARACTERS = 20_000
CACHED_TEXTS = 512
_NOTHING = LookUps()
_SEVERITY = {
    **dict.fromkeys(("shell-dangerous", "shell-delete", "shell-secret", "shell-governs"), Severity.CRITICAL),
    **dict.fromkeys(
        ("shell-network", "shell-write", "shell-environment", "shell-code", "shell-sends", "shell-sql"), Severity.HIGH
    ),
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
    code: Mapping[Literal["allow"], Texts] | None = None
    egress: Mapping[str, Any] | None = None
    sql: Mapping[str, Any] | None = None
    unknown: Unknown | None = None
    name: Text = "shell"


class ShellPolicy(BoundedPolicy):
    """Lets a tool look, search, edit and print in a folder; what runs code or sends data needs a box, or the owner's word.

    The text is parsed as bash, and every command in it is checked: in pipelines, lists, loops and substitutions, and behind
    ``env``, ``xargs``, ``find -exec`` or ``bash -c``. The table (``commands.yaml``) has three classes of commands. Most
    read and write files, and their entry says which words name files. Some send (`curl`): ``egress`` decides about them.
    The rest is code: programs that interpret a language, or that load code, plugins or configuration from the folder. A
    program in sed, awk, jq or one SQL statement counts as reading if it only selects and prints. What the text does not say
    for certain is denied.

    ``argument`` names the arguments that may hold the command, as text or as a list of words: each that is present is
    checked, and a call without any is denied. ``cwd`` is the folder that the tool starts in (the working directory of this
    process unless given). ``writable`` are the folders in which files may be made, changed and removed (``cwd`` and
    ``/tmp`` unless given). ``commands`` adds commands: a mapping of names to entries of the table's form, or a list of
    names that may be run with any arguments that name no secret and nothing outside of these folders. ``code`` names in
    ``allow`` the programs that may run the folder's code, by name or path. ``egress`` are options of `EgressPolicy` for
    what ``curl`` and ``wget`` reach; without it nothing is sent. ``sql`` are options of `SQLPolicy` for statements (``mode:
    read_only`` unless given). ``unknown`` is the answer to unknown commands and options, to code and to sending without
    ``egress``: ``deny``, ``escalate`` or ``allow``. Unless given it is ``allow`` in a box, where the kernel decides, and
    ``deny`` elsewhere. A policy file may say ``allow`` only under ``lgov run --confine``.

    Files that govern this or the next run are closed (`lgov_core.places`). Outside of these folders only what is known to
    be harmless is read. Paths count where links lead at the time of the decision. A search (``grep -r``, ``find -exec``,
    ``tar -c``) reads a folder with a secret in it only if it leaves the secret out. ``git`` reads history in ``cwd`` if no
    setting of the repository there runs anything.

    Evaluates ``pre_tool_call``, except hand-offs and agents. Anything unclear, too long (20,000 characters), too large (20,000
    entries of folders) or too deep is denied. Recent decisions are cached, except for the state of files. ``bounded``
    unless ``egress`` resolves hosts. May be called from several threads at once. Fails closed. Raises `PolicyError` for an
    option without a meaning.
    """

    permits = True

    @takes(ShellOptions)
    def __init__(self, options: ShellOptions) -> None:
        self.name = name = options.name
        self.arguments = argument_names(name, options.argument, "the command")
        self.cwd = _folder(name, "cwd", os.getcwd() if options.cwd is None else options.cwd)
        folders = (self.cwd, "/tmp") if options.writable is None else options.writable
        self.writable = tuple(_folder(name, "writable", folder, self.cwd) for folder in folders)
        self.unknown: Unknown = options.unknown or ("allow" if in_box() else "deny")
        self.box_only = options.unknown == "allow"  # only the kernel can hold an unknown program
        commands = options.commands
        entries = dict(commands) if isinstance(commands, Mapping) else dict.fromkeys(commands, FREE)
        if any("/" in command or " " in command for command in entries):
            raise PolicyError(f"{name}: commands holds a path or a whole command", hint="write names such as mytool")
        self.commands: Mapping[str, Any] = entries
        #: Programs that run the folder's code because the owner trusts them.
        self.runs_code = tuple(listed_as(program) for program in (options.code or {}).get("allow", ()))
        self.egress = None if options.egress is None else _nested(name, "egress", EgressPolicy, options.egress)
        self.bounded = self.egress is None or self.egress.bounded
        statements: dict[str, Any] = {"mode": "read_only", **(options.sql or {}), "dialect": FROM_TOOL}
        self._sql = _nested(name, "sql", SQLPolicy, statements)
        self.places = places_for(self.cwd)
        load_parser()
        self._table = default_table().extended(self.commands) if self.commands else None
        self._judge_cached = lru_cache(CACHED_TEXTS)(self._judge_text) if self.bounded else self._judge_text

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
            decision, lookups = self._judge_cached(text, "git" in text and runs_nothing(self.cwd))
        except RecursionError:  # depends on the caller's stack as well, so it is not cached
            reason = "The command is nested too deeply; write it more simply."
            return self.deny("shell-too-deep", reason, Severity.MEDIUM)
        if decision.effect is not Effect.DENY and lookups is not _NOTHING:
            try:
                Look((self.cwd, *self.writable), self.places, lenient=self.unknown == "allow").check(lookups)
            except ShellRefusal as refused:
                return self._denied(refused)
        return decision

    def _judge_text(self, text: str, history: bool) -> tuple[Decision, LookUps]:
        """The decision on what is written, and the files that it is about."""
        grants = Grants(
            frozenset(self.runs_code),
            self.egress and self._address_refused,
            self._statement_refused,
            self.places,
            history,
        )
        workspace = Workspace(self.cwd, self.writable, grants, lenient=self.unknown != "deny")
        run = ShellRun(self._table or default_table(), workspace)
        try:
            run.judge(text)
        except ShellRefusal as refused:
            if refused.rule not in UNJUDGED or self.unknown == "deny":
                return self._denied(refused), _NOTHING
            workspace.unjudged.append(refused.reason)
        lookups = LookUps.of(workspace)
        lookups = _NOTHING if lookups == _NOTHING else lookups
        if workspace.unjudged and self.unknown == "escalate":
            return self.escalate("shell-unknown", workspace.unjudged[0], Severity.MEDIUM), lookups
        return self.allow(), lookups

    def _denied(self, refused: ShellRefusal) -> Decision:
        return self.deny(refused.rule, refused.reason, _SEVERITY.get(refused.rule, Severity.MEDIUM))

    def _address_refused(self, url: str) -> str | None:
        assert self.egress is not None
        decision = self.egress.judge_url(url)
        return decision.reason if decision.blocks else None

    def _statement_refused(self, text: str, dialect: str) -> str | None:
        decision = self._sql.judge_sql(text, dialect=dialect)
        return None if decision.effect is Effect.ALLOW else decision.reason


def _nested(owner: str, option: str, kind: Callable[..., _Nested], options: Mapping[str, Any]) -> _Nested:
    """The policy that judges a part of a text. Raises `PolicyError` for options that it does not have."""
    try:
        return kind(**{"name": f"{owner} {option}", **options})
    except TypeError as error:
        raise PolicyError(f"{owner}: {option}: {error}", hint=f"write the options of the policy {option}") from error


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
