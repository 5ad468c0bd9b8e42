"""ShellPolicy: judges shell commands by their syntax tree."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Sequence
from functools import lru_cache

from lgov_core.errors import PolicyError
from lgov_core.policies.base import BoundedPolicy
from lgov_core.policies.options import argument_names, string_tuple
from lgov_core.policies.shell_places import Refused
from lgov_core.policies.shell_words import HOME
from lgov_core.types import Action, Decision, Point, Severity

MAX_CHARACTERS = 20_000
CACHED_TEXTS = 512
_SEVERITY = {
    "shell-dangerous": Severity.CRITICAL,
    "shell-delete": Severity.CRITICAL,
    "shell-secret": Severity.CRITICAL,
    "shell-network": Severity.HIGH,
    "shell-write": Severity.HIGH,
    "shell-environment": Severity.HIGH,
    "shell-program": Severity.HIGH,
    "shell-code": Severity.HIGH,
}


class ShellPolicy(BoundedPolicy):
    """Lets a tool run everyday commands of development, and nothing that destroys, escapes, spies or sends away.

    The text is parsed as bash, and every command in it is judged: in pipelines, lists, loops, functions, substitutions and
    here-documents, and those that another command runs (``env``, ``xargs``, ``find -exec``, ``bash -c``, ``eval``, ...).
    A command must be known. Several hundred are, each with what it may be given; ``commands`` adds names that may be
    run with any arguments that name no secret, in place of the judgement there is.

    ``argument`` names the argument that holds the command, as text or as a list of words; of several names each that is
    present is judged and at least one must be. ``cwd`` is the folder the tool starts in (the working directory of this
    process unless given). ``writable`` are the folders in which files may be made, changed and removed (``cwd`` and
    ``/tmp`` unless given). Reading is allowed everywhere but for keys, credentials and private history, which are known
    by name; programs are run from the system's folders and from ``cwd``, beside them the tools of a virtual environment
    that is writable, and what the text itself compiles. Whole trees are removed only where a build makes
    them again (``build``, ``node_modules`` and what lies in them, what lies below ``/tmp``). With ``sudo`` a command may
    only look; a dry run passes where the tool is known to have one, and so does asking a known command for ``--help``.
    The network may be read from (GET) and not written to.

    What it cannot see: what the programs and scripts of ``cwd`` do (``make``, ``python script.py``, a test), aliases and
    variables of the shell the text is run in, and symbolic links. It judges text and never asks the file system: run the
    tool in a sandbox all the same. Only bash is understood; a tool that hands the text to another shell needs another
    policy.

    Judges ``pre_tool_call``; hand-offs and agents are none of its business. May be called from several threads at once;
    recent verdicts are kept. Whatever is unclear, too long (20,000 characters) or too deep is denied: fails closed.
    Raises `PolicyError` when made with a setting that has no meaning.
    """

    def __init__(
        self,
        *,
        argument: str | Sequence[str] = ("command", "cmd"),
        cwd: str | None = None,
        writable: Sequence[str] | None = None,
        commands: Sequence[str] = (),
        name: str = "shell",
    ) -> None:
        self.name = name
        self.arguments = argument_names(name, argument, "the command")
        self.cwd = _folder(name, "cwd", os.getcwd() if cwd is None else cwd)
        given = (self.cwd, "/tmp") if writable is None else string_tuple(name, "writable", writable)
        self.writable = tuple(_folder(name, "writable", folder, self.cwd) for folder in given)
        self.commands = frozenset(string_tuple(name, "commands", commands))
        if any("/" in command or " " in command for command in self.commands):
            raise PolicyError(f"{name}: commands holds a path or a whole command", hint="write names such as mytool")
        self._judge_cached = lru_cache(CACHED_TEXTS)(self._judge_text)

    def judge(self, action: Action) -> Decision | None:
        """The verdict on a tool call that carries a command; None at other points."""
        if action.point is not Point.PRE_TOOL_CALL or action.kind in ("handoff", "agent"):
            return None
        values = [action.arguments[name] for name in self.arguments if name in action.arguments]
        texts = [_text(value) for value in values]
        if not texts or any(text is None for text in texts):
            wanted = " or ".join(self.arguments)
            return self.deny("shell-missing", f"Give the command as text in the argument {wanted}.", Severity.MEDIUM)
        verdicts = [self.judge_command(text) for text in texts if text is not None]
        return max(verdicts, key=lambda verdict: verdict.effect)

    def judge_command(self, text: str) -> Decision:
        """The verdict on one shell text. Recent verdicts are kept."""
        if len(text) > MAX_CHARACTERS:
            return self.deny(
                "shell-too-long", f"The command is longer than {MAX_CHARACTERS} characters.", Severity.MEDIUM
            )
        try:
            return self._judge_cached(text)
        except RecursionError:  # depends on the caller's stack as well, so it is not kept
            return self.deny(
                "shell-too-deep", "The command is nested too deeply; write it more simply.", Severity.MEDIUM
            )

    def _judge_text(self, text: str) -> Decision:
        from lgov_core.policies.shell_script import Script

        try:
            text.encode()
        except UnicodeEncodeError:
            return self.deny("shell-unclear", "The command holds characters that are no text.", Severity.MEDIUM)
        try:
            Script(text, folder=self.cwd, writable=self.writable, commands=self.commands).judge()
        except Refused as refused:
            return self.deny(refused.rule, refused.reason, _SEVERITY.get(refused.rule, Severity.MEDIUM))
        return self.allow()


def _text(value: object) -> str | None:
    """A command as text; a list of words is quoted so that each stays one word."""
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple) and value and all(isinstance(word, str) for word in value):
        import shlex

        return shlex.join(value)
    return None


def _folder(owner: str, option: str, value: object, base: str = "/") -> str:
    if not isinstance(value, str) or not value or "\0" in value or "$" in value:
        raise PolicyError(f"{owner}: {option} holds {value!r}, which is no folder", hint="write an absolute path")
    if value == "~" or value.startswith("~/"):
        return posixpath.normpath(HOME + value[1:])
    if option == "cwd" and not value.startswith("/"):
        value = os.path.abspath(value)
    return posixpath.normpath(posixpath.join(base, value))
