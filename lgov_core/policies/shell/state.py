"""What holds at one place of a text: the values of its variables, and the folders it may be in."""

from __future__ import annotations

import posixpath
import re

from lgov_core.policies.shell.refusal import Refused, unclear
from lgov_core.policies.shell.values import BREAK, HOME, INSTALLED, UNKNOWN

#: Values of one variable, and folders, beyond which nothing is known.
MAX_VALUES, MAX_FOLDERS = 48, 48
#: Characters of all folders together.
MAX_PATHS = 8_000
#: Variables that hold a number, or nothing.
_NUMBERS = frozenset(
    ["?", "#", "$", "RANDOM", "SECONDS", "LINENO", "UID", "EUID", "PPID", "BASHPID", "OPTIND", "EPOCHSECONDS"]
)
_SECRET = re.compile(
    r"[A-Z0-9_]*(?:PASSWORD|PASSWD|PASSPHRASE|SECRET|TOKEN|CREDENTIALS?|APIKEY|(?:API|ACCESS|PRIVATE|SIGNING|ENCRYPTION"
    r"|MASTER|AUTH|SECRET|DEPLOY)_KEY|SECRET_KEY_BASE|GITHUB_PAT)(?:_\d+)?|MYSQL_PWD"
)


def is_secret_variable(name: str) -> bool:
    """Whether a variable of the environment holds a secret by the way it is called (``GITHUB_TOKEN``)."""
    return _SECRET.fullmatch(name) is not None


class State:
    """Variables and folders. Copied where the text branches, and merged where the branches meet."""

    def __init__(self, folder: str) -> None:
        #: Values by name; a name that is not in it has the value of the environment, which is not known.
        self.variables: dict[str, list[str]] = {}
        self.folders: tuple[str, ...] = (folder,)
        #: Folders it is still in where a ``cd`` has failed.
        self.failed: tuple[str, ...] = ()
        self.positional: list[str] | None = None
        self._home = folder

    def copy(self) -> State:
        """A state that changes by itself."""
        made = State(self._home)
        made.replace(self)
        return made

    def replace(self, other: State) -> None:
        """Takes over what holds in ``other``."""
        self.variables = dict(other.variables)
        self.folders, self.failed, self.positional = other.folders, other.failed, other.positional

    def merge(self, other: State) -> bool:
        """Adds what may hold in ``other``; whether that changed anything."""
        before = (self.variables, self.folders)
        merged: dict[str, list[str]] = {}
        for name in {*self.variables, *other.variables}:
            found = dict.fromkeys([*self.variables.get(name, [UNKNOWN]), *other.variables.get(name, [UNKNOWN])])
            merged[name] = list(found) if len(found) <= MAX_VALUES else [UNKNOWN]
        folders = tuple(dict.fromkeys([*self.folders, *other.folders]))
        if len(folders) > MAX_FOLDERS:
            raise Refused("shell-too-deep", "The command may be in too many folders; write it more simply.")
        self.variables, self.folders = merged, folders
        self.failed = tuple(dict.fromkeys([*self.failed, *other.failed]))
        return (merged, folders) != before

    def forget(self, names: set[str]) -> None:
        """Any value may be in these variables."""
        for name in names:
            self.variables[name] = [UNKNOWN]

    def assign(self, name: str, values: list[str]) -> None:
        """Gives a variable one of ``values``."""
        found = list(dict.fromkeys(values))
        self.variables[name] = found if len(found) <= MAX_VALUES else [UNKNOWN]

    def values(self, name: str) -> list[str]:
        """What ``$name`` may be. Refuses secrets of the environment."""
        if name in self.variables:
            return self.variables[name]
        if is_secret_variable(name):
            raise Refused("shell-secret", f"${name} of the environment is a secret, which is not shown or sent.")
        if re.fullmatch(r"[0-9]+|[@*]", name):
            return self._argument(name)
        if name in _NUMBERS:
            return ["1"]
        known = {
            "!": ["$!"],
            "HOME": [HOME],
            "PWD": list(self.folders),
            "TMPDIR": ["/tmp"],
            "IFS": [" "],
            "PATH": [INSTALLED],
        }
        return known.get(name, [UNKNOWN])

    def _argument(self, name: str) -> list[str]:
        given = self.positional
        if given is None or name == "0":
            return [UNKNOWN]
        if name in ("@", "*"):
            return [(BREAK if name == "@" else " ").join(given)]
        return [given[int(name) - 1] if int(name) <= len(given) else ""]

    def go(self, target: str) -> None:
        """Changes the folder, as ``cd`` does; it may fail."""
        if UNKNOWN in target or target == "-":
            raise unclear("It is not clear which folder this goes to; write its name out.")
        there = [posixpath.normpath(posixpath.join(folder, target)) for folder in self.folders]
        self.failed = tuple(dict.fromkeys([*self.failed, *self.folders]))
        self.folders = tuple(dict.fromkeys(there))
        if len(self.failed) > MAX_FOLDERS or sum(map(len, there)) > MAX_PATHS:
            raise Refused("shell-too-deep", "The command goes to too many folders; write it more simply.")

    def settle(self) -> None:
        """After a statement whose failing stops nothing: it may also be where it was before."""
        if self.failed:
            self.folders, self.failed = tuple(dict.fromkeys([*self.folders, *self.failed])), ()
