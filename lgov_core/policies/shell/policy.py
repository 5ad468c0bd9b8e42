"""ShellPolicy: judges shell commands by their syntax tree."""

from __future__ import annotations

import os
import posixpath
import shlex
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, cast, get_args

from lgov_core.errors import PolicyError
from lgov_core.governor.options import argument_names, string_tuple
from lgov_core.policies.base import BoundedPolicy
from lgov_core.policies.shell.checks import default_table
from lgov_core.policies.shell.refusal import Refused
from lgov_core.policies.shell.table import FREE
from lgov_core.policies.shell.values import HOME
from lgov_core.types import Action, Decision, Point, Severity

Unknown = Literal["deny", "escalate", "allow"]
MAX_CHARACTERS = 20_000
CACHED_TEXTS = 512
_SEVERITY = {
    **dict.fromkeys(("shell-dangerous", "shell-delete", "shell-secret"), Severity.CRITICAL),
    **dict.fromkeys(("shell-network", "shell-write", "shell-environment", "shell-program"), Severity.HIGH),
}


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

    def __init__(
        self,
        *,
        argument: str | Sequence[str] = ("command", "cmd"),
        cwd: str | None = None,
        writable: Sequence[str] | None = None,
        commands: Sequence[str] | Mapping[str, str | Mapping[str, Any]] = (),
        unknown: Unknown = "deny",
        name: str = "shell",
    ) -> None:
        self.name = name
        self.arguments = argument_names(name, argument, "the command")
        self.cwd = _folder(name, "cwd", os.getcwd() if cwd is None else cwd)
        given = (self.cwd, "/tmp") if writable is None else string_tuple(name, "writable", writable)
        self.writable = tuple(_folder(name, "writable", folder, self.cwd) for folder in given)
        if unknown not in get_args(Unknown):
            raise PolicyError(f"{name}: unknown is {unknown!r}", hint="write deny, escalate or allow")
        self.unknown = unknown
        self.box_only = unknown == "allow"  # only the kernel can hold an unknown program
        self.commands = _commands(name, commands)
        self._table = default_table().extended(self.commands) if self.commands else None
        self._judge_cached = lru_cache(CACHED_TEXTS)(self._judge_text)

    def judge(self, action: Action) -> Decision | None:
        """The decision on a tool call that carries a command; None at other points."""
        if action.point is not Point.PRE_TOOL_CALL or action.kind in ("handoff", "agent"):
            return None
        texts = [_text(action.arguments[name]) for name in self.arguments if name in action.arguments]
        if not texts or any(text is None for text in texts):
            wanted = " or ".join(self.arguments)
            return self.deny("shell-missing", f"Give the command as text in the argument {wanted}.", Severity.MEDIUM)
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
        from lgov_core.policies.shell.session import Session

        session = Session(self._table or default_table(), self.cwd, self.writable, lenient=self.unknown != "deny")
        try:
            session.judge(text)
        except Refused as refused:
            return self.deny(refused.rule, refused.reason, _SEVERITY.get(refused.rule, Severity.MEDIUM))
        if session.unknown and self.unknown == "escalate":
            return self.escalate("shell-unknown", session.unknown[0], Severity.MEDIUM)
        return self.allow()


def _commands(owner: str, commands: object) -> Mapping[str, Any]:
    """Entries by name. Raises `PolicyError` for names that are paths or whole commands."""
    if isinstance(commands, Mapping):
        found = dict(cast("Mapping[str, Any]", commands))
    else:
        found = dict.fromkeys(string_tuple(owner, "commands", commands), FREE)
    if any("/" in str(command) or " " in command or not command for command in found):
        raise PolicyError(f"{owner}: commands holds a path or a whole command", hint="write names such as mytool")
    return found


def _text(value: object) -> str | None:
    """A command as text; a list of words is quoted so that each stays one word."""
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple) and value and all(isinstance(word, str) for word in value):
        return shlex.join(value)
    return None


def _folder(owner: str, option: str, value: object, base: str = "/") -> str:
    if not isinstance(value, str) or not value or "\0" in value or "$" in value:
        raise PolicyError(f"{owner}: {option} holds {value!r}, which is not a folder", hint="write an absolute path")
    if value == "~" or value.startswith("~/"):
        return posixpath.normpath(HOME + value[1:])
    if option == "cwd" and not value.startswith("/"):
        value = os.path.abspath(value)
    return posixpath.normpath(posixpath.join(base, value))
