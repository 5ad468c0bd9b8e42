"""Which files a command may read, write, remove and run, seen from the folders that the text may be in."""

from __future__ import annotations

import os.path
import posixpath
import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import pairwise

from lgov_core.policies.shell.refusal import Budget, Refused, unclear
from lgov_core.policies.shell.secrets import HOLDING_SECRETS, is_secret, listed, pattern_of
from lgov_core.policies.shell.state import State
from lgov_core.policies.shell.values import ANY, BELOW, HOME, PIPE, STAR, UNKNOWN, is_wild, shown

_SINKS = frozenset({"/dev/null", "/dev/stdout", "/dev/stderr", "/dev/tty", "/dev/fd/1", "/dev/fd/2", "-"})
_SCRATCH = ("/tmp", "/var/tmp")
#: A name with an ending: removing it with ``-r`` removes one file.
_FILE_ENDING = re.compile(
    r".*\.(?:json|ya?ml|toml|lock|lockb|log|txt|md|csv|tmp|bak|orig|pyc|o|so|class|jar|whl|zip|tgz|gz|xz|bz2|tar|pid)"
)
_SYSTEM = ("/usr", "/opt", "/bin", "/lib", "/dev/null")


class Places:
    """Checks paths of one text. ``writable`` are folders in which files may be changed, ``home`` the one it begins in."""

    def __init__(self, state: State, home: str, writable: Sequence[str], budget: Budget) -> None:
        self.state, self.home, self.writable, self.budget = state, home, tuple(writable), budget
        #: What the text has written, and whether it has fetched anything from another machine.
        self.written: set[str] = set()
        #: Programs that it has compiled from sources of the project.
        self.built: set[str] = set()
        self.fetched = False
        #: Files and folders that it has moved: they are no longer made again by a build.
        self.moved: set[str] = set()
        #: Whether names of files that a search finds are given as they are, not split at spaces.
        self.exact = False

    # ------------------------------------------------------------------ reading

    def read(self, field: str) -> None:
        """Refuses a file whose contents are secret, or may be because its name is not certain."""
        if field in ("-", PIPE):
            return
        if UNKNOWN in field:
            raise unclear(f"It is not clear which file {shown(field)} is; write its name out.")
        self.mention(field)
        for path in self._paths(field):
            self.budget.spend(20 + len(path) // 8)
            if is_secret(path if not self._is_ours(path) else posixpath.relpath(path, self._root(path))):
                raise Refused("shell-secret", f"{shown(field)} holds keys, credentials or private history.")
        if BELOW in field:
            self.tree(field.partition(BELOW)[0] or ".")

    def mention(self, field: str) -> None:
        """Refuses a word that names a secret anywhere in it, as a program with arguments of its own may read it."""
        self.budget.spend(20 + len(field) // 8)
        for part in {field, *re.split(r"[=:@,]", field.removeprefix("file://")), re.sub(r"^-\w(?=[/~.])", "", field)}:
            climbed = re.sub(r"^(?:\.{1,2}/+)*\.\./+", "/", part)
            if part and (is_secret(part) or (climbed != part and is_secret(climbed))):
                raise Refused("shell-secret", f"{shown(field)} holds keys, credentials or private history.")

    def tree(self, field: str) -> None:
        """Refuses a folder that is read as a whole when secrets are known to lie in it."""
        for path in self._paths(field):
            if HOLDING_SECRETS.fullmatch(path):
                raise Refused("shell-secret", f"{shown(field)} holds secrets somewhere below; name the files.")

    def argument(self, field: str) -> None:
        """Refuses an argument of a project's own program that names a secret or a place outside of the project."""
        if field == UNKNOWN:
            return
        self.mention(field)
        for part in {field, field.rpartition("=")[2], re.sub(r"^-\w", "", field)}:
            if part.startswith(("/", "../", HOME)) and not part.startswith(_SYSTEM) and part != PIPE:
                self.inside(part)

    def inside(self, field: str) -> None:
        """Refuses what does not surely lie in a folder of the project or a writable one."""
        for path in self._paths(field):
            if not self._is_ours(path):
                raise Refused(
                    "shell-write", f"{shown(field)} lies outside of {', '.join((self.home, *self.writable))}."
                )

    # ------------------------------------------------------------------ writing

    def write(self, field: str, *, may_be_secret: bool = False, notes: bool = True) -> None:
        """Refuses what may lie outside of the writable folders, or makes other programs run code."""
        if field in _SINKS:
            return
        if field.startswith(("|", "!")):
            raise unclear(f"{shown(field)} is not a plain file.")
        for path in self._paths(field):
            self.budget.spend(20 + len(path) // 8)
            if not any(_inside(path, root) for root in self.writable):
                raise Refused("shell-write", f"{shown(field)} lies outside of {', '.join(self.writable)}.")
            below = posixpath.relpath(path, self._root(path)).split("/")
            if any(_is_protected(name) for name in (*below, *("/".join(pair) for pair in pairwise(below)))):
                raise Refused("shell-write", f"{shown(field)} makes other programs run what is in it.")
            if not may_be_secret and is_secret("/".join(below)):
                raise Refused("shell-secret", f"{shown(field)} holds keys, credentials or private history.")
            if notes:
                if BELOW in path:
                    raise Refused("shell-write", f"{shown(field)} may be any file; name the files.")
                self.written.add(path)
                self.built.discard(path)

    def move(self, field: str) -> None:
        """Refuses what may not be written, and the folders that the text works in."""
        self.write(field)
        self.moved.update(self._paths(field))
        if field in _SINKS or any(_inside(root, path) for path in self._paths(field) for root in self._roots()):
            raise Refused("shell-delete", f"{shown(field)} is the working folder itself, or holds it.")

    def delete(self, field: str, *, recursive: bool = False) -> None:
        """Refuses what is not one file (or, when ``recursive``, a tree that is made again) in a writable folder."""
        try:
            self.write(field, notes=False)
        except Refused as refused:
            rule = "shell-delete" if refused.rule == "shell-write" else refused.rule
            raise Refused(rule, refused.reason) from None
        for path in self._paths(field):
            folder, _, name = path.rpartition("/")
            if any(_inside(root, path) for root in self._roots()):
                raise Refused("shell-delete", f"{shown(field)} is the working folder itself, or holds it.")
            if recursive and any(_inside(moved, path) or _inside(path, moved) for moved in self.moved):
                raise Refused("shell-delete", f"{shown(field)} is or holds what this text moves.")
            if BELOW in path and not self.exact:
                raise Refused("shell-delete", "A name with a space would be several; use find -delete or xargs -0.")
            if self._is_scratch(path):
                continue
            remade = any(_is_remade(part) for part in posixpath.relpath(path, self._root(path)).split("/"))
            literal = re.sub(f"[{STAR}{ANY}{BELOW}.]", "", name)
            deep = STAR in folder or BELOW in path
            left_over = any(
                fnmatchcase(name.replace(BELOW, ""), glob.replace("*", STAR)) for glob in listed("left_overs")
            )
            if is_wild(path) and (len(literal) < 2 or (deep and not left_over)) and not remade:
                raise Refused("shell-delete", f"{shown(field)} may be anything; name the files.")
            if recursive and not remade and _FILE_ENDING.fullmatch(name) is None:
                raise Refused(
                    "shell-delete", f"Removing the tree {shown(field)} cannot be undone; remove single files."
                )

    def _is_scratch(self, path: str) -> bool:
        """Whether a path surely lies in ``/tmp``, and is not where the text works."""
        if not any(_inside(path, root) and path != root for root in _SCRATCH) or _inside(path, self.home):
            return False
        if posixpath.dirname(path) in _SCRATCH and path.rpartition("/")[2] == STAR:  # which may be empty
            return False
        glob, depth = path.replace(BELOW, STAR).replace(STAR, "*").replace(ANY, "?"), path.count("/")
        roots = [root.split("/") for root in self._roots() if root not in _SCRATCH]
        return not any(len(root) > depth and fnmatchcase("/".join(root[: depth + 1]), glob) for root in roots)

    # ------------------------------------------------------------------ running

    def script(self, field: str) -> None:
        """Refuses a program file outside of the project, or one that the same text has written or fetched."""
        for path in self._paths(field):
            if is_wild(path) or not _inside(path, self.home) or ".git" in path.split("/"):
                raise Refused("shell-program", f"{shown(field)} is not a program of {self.home}.")
        self.unwritten(field)

    def tool(self, field: str) -> None:
        """Refuses a known tool by its path unless it lies in the project or a writable folder."""
        self.inside(field)
        self.unwritten(field)

    def unwritten(self, field: str) -> None:
        """Refuses a program that the same text has written, or may have fetched."""
        self.budget.spend(20)
        if self.fetched or not self.written.isdisjoint(self._paths(field)):
            raise Refused("shell-program", f"{shown(field)} may be what this text writes or fetches; look at it first.")

    def at_home(self, field: str) -> None:
        """Refuses what does not surely lie in the folder that the text begins in: programs and settings come from there."""
        if not all(_inside(path, self.home) for path in self._paths(field)):
            raise Refused(
                "shell-program", f"{shown(field)} lies outside of {self.home}, where programs and settings are."
            )

    # ------------------------------------------------------------------ paths

    def _paths(self, field: str) -> list[str]:
        """Where a word may lead, from every folder that the text may be in."""
        folders = self.state.folders
        self.budget.spend((4 + len(field) // 16) * len(folders))
        if UNKNOWN in field or not field:
            raise unclear("It is not clear which file this is; write its name out.")
        if ".." in re.split(f"[{STAR}{BELOW}]", field, maxsplit=1)[-1] and is_wild(field):
            raise unclear("A wildcard followed by .. may lead anywhere; write the name out.")
        return list({os.path.normpath(os.path.join(folder, field)).replace("//", "/") for folder in folders})

    def _roots(self) -> Iterable[str]:
        return (*self.writable, self.home, *self.state.folders)

    def _is_ours(self, path: str) -> bool:
        return any(_inside(path, root) for root in (self.home, *self.writable))

    def _root(self, path: str) -> str:
        """The deepest of our folders that holds ``path``."""
        return max((root for root in (self.home, *self.writable) if _inside(path, root)), key=len)


def _is_remade(name: str) -> bool:
    if STAR in name or ANY in name:
        return name.replace(STAR, "*").replace(ANY, "?") in listed("regenerable")
    return pattern_of("regenerable").match(name.replace(BELOW, "")) is not None


def _inside(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")


@lru_cache(4096)
def _is_protected(name: str) -> bool:
    name = name.lower().replace(BELOW, "")
    if pattern_of("protected").match(name) is not None:
        return True
    if name[:1] != "." or not is_wild(name):
        return False
    glob = name.replace(STAR, "*").replace(ANY, "?")
    return any(fnmatchcase(protected, glob) for protected in listed("protected"))
