"""The variables and functions at one place of a text, and the folders it may be in."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable

from lgov_core.policies.shell.refusal import Refused, unclear
from lgov_core.policies.shell.syntax import Node
from lgov_core.policies.shell.table import names, regex
from lgov_core.policies.shell.values import BREAK, HOME, INSTALLED, UNKNOWN

#: Values of one variable beyond which it may hold anything, and folders beyond which a text is refused.
MAX_VALUES, MAX_FOLDERS = 48, 48
#: Characters of all folders together.
MAX_PATHS = 8_000


class State:
    """Variables, functions and folders. Copied where the text branches, and merged where the branches meet."""

    def __init__(self, folder: str) -> None:
        #: Values by name; other variables have the value of the environment, which is not known.
        self.variables: dict[str, list[str]] = {}
        self.folders: tuple[str, ...] = (folder,)
        #: Folders it is still in where a ``cd`` has failed.
        self.failed: tuple[str, ...] = ()
        #: Functions that are made for certain.
        self.functions: dict[str, Node] = {}
        #: Whether variables have been read from a file of secrets.
        self.sourced = False
        #: The arguments of the current function or script: ``$1``, ``$2``, ... None where they are not known.
        self.positional: list[str] | None = None

    def copy(self) -> State:
        """An independent state with the same values."""
        made = State("")
        made.replace(self)
        return made

    def replace(self, other: State) -> None:
        """Takes over the values of ``other``."""
        self.variables, self.functions = dict(other.variables), dict(other.functions)
        self.folders, self.failed, self.positional = other.folders, other.failed, other.positional
        self.sourced = other.sourced

    def merge(self, other: State) -> bool:
        """Adds the values of ``other`` to the possible ones; whether that changed anything."""
        before = (self.variables, self.folders, self.functions)
        self.variables, self.sourced = dict(self.variables), self.sourced or other.sourced
        self.functions = {name: body for name, body in self.functions.items() if other.functions.get(name) is body}
        for name in {*self.variables, *other.variables}:
            self.assign(name, [*self.variables.get(name, [UNKNOWN]), *other.variables.get(name, [UNKNOWN])])
        self.folders = _distinct(self.folders, other.folders)
        if len(self.folders) > MAX_FOLDERS:
            raise Refused("shell-too-deep", "The command may be in too many folders; write it more simply.")
        self.failed = _distinct(self.failed, other.failed)
        return (self.variables, self.folders, self.functions) != before

    def assign(self, name: str, values: Iterable[str]) -> None:
        """Gives a variable one of ``values``."""
        found = list(dict.fromkeys(values))
        self.variables[name] = found if len(found) <= MAX_VALUES else [UNKNOWN]

    def add(self, name: str, values: Iterable[str]) -> None:
        """Adds ``values`` to what a variable may hold."""
        self.assign(name, [*self.variables.get(name, [UNKNOWN]), *values])

    def values(self, name: str) -> list[str]:
        """What ``$name`` may be. Refuses secrets of the environment."""
        if name in self.variables:
            return self.variables[name]
        if regex("variables", "secret").fullmatch(name):
            raise Refused("shell-secret", f"${name} of the environment is a secret, which is not shown or sent.")
        if name in names("variables", "numbers"):
            return ["1"]
        given = self.positional
        if given is not None and re.fullmatch(r"[1-9]\d*|[@*]", name):
            if name in "@*":
                return [(BREAK if name == "@" else " ").join(given)]
            return [given[int(name) - 1] if int(name) <= len(given) else ""]
        fixed = {"!": "$!", "HOME": HOME, "TMPDIR": "/tmp", "IFS": " ", "PATH": INSTALLED}
        if self.sourced and name not in (*fixed, "PWD", "USER", "?", "#", "0", "@", "*"):
            raise Refused(
                "shell-secret", f"${name} may come from the secrets that were read, which are not shown or sent."
            )
        return list(self.folders) if name == "PWD" else [fixed.get(name, UNKNOWN)]

    def go(self, target: str) -> None:
        """Changes the folder, as ``cd`` does; it may fail."""
        if UNKNOWN in target or target == "-":
            raise unclear("It is not clear which folder this goes to; write its name out.")
        there = [posixpath.normpath(posixpath.join(folder, target)) for folder in self.folders]
        self.failed = _distinct(self.failed, self.folders)
        self.folders = _distinct(there)
        if len(self.failed) > MAX_FOLDERS or sum(map(len, there)) > MAX_PATHS:
            raise Refused("shell-too-deep", "The command goes to too many folders; write it more simply.")

    def settle(self) -> None:
        """Marks the end of a statement that does not stop the text where it fails: a failed ``cd`` changed nothing."""
        self.folders, self.failed = _distinct(self.folders, self.failed), ()


def _distinct(*folders: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(folder for some in folders for folder in some))
