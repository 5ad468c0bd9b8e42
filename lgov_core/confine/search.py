"""What a search of the folders of a box finds: names to hide, sockets, and what programs outside take orders from."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from lgov_core.policies.confinement import ConfineRules

#: Folders in which no folder is searched: what they hold was not written by hand.
_NOT_SEARCHED: Final = frozenset({".git", ".hg", ".venv", "__pycache__", "node_modules", "site-packages"})
#: What every folder of git's own holds, whatever its name.
_OF_GIT: Final = frozenset({"HEAD", "objects", "refs"})


class Found(NamedTuple):
    """``hidden``: files that ``hide`` names by a glob, and unix sockets, which a program outside listens to.

    ``orders``: repositories and Python environments in writable folders. Programs outside run, or are configured by, what
    lies there, and that includes files that are not there yet.
    """

    hidden: list[str]
    orders: list[str]


def search(rules: ConfineRules) -> Found:
    """Searches the folders that ``rules`` show, without following symbolic links."""
    found = Found([], [])
    globs = name_globs(rules)
    roots = {os.path.realpath(path): False for path in rules.read}
    roots |= {os.path.realpath(path): True for path in rules.write}
    waiting = list(roots.items())
    for folder, writable in waiting:
        entries: list[os.DirEntry[str]] = []
        with suppress(OSError), os.scandir(folder) as opened:  # a file, or a folder that cannot be read
            entries = list(opened)
        found.hidden.extend(entry.path for entry in entries if matches(entry.path, globs) or _is_socket(entry))
        if writable:
            found.orders.extend(_orders(folder, {entry.name for entry in entries}))
        if os.path.basename(folder) not in _NOT_SEARCHED:
            waiting += [(entry.path, writable) for entry in entries if entry.is_dir(follow_symlinks=False)]
    active = os.path.realpath(os.environ.get("VIRTUAL_ENV") or "/")
    if any(writable and active.startswith(f"{root}/") for root, writable in roots.items()):
        found.orders.append(active)
    return found


def name_globs(rules: ConfineRules) -> list[str]:
    """What ``hide`` has of names and globs, in lower case."""
    return [one.lower() for one in rules.hide if not os.path.isabs(one)]


def matches(path: str, globs: Iterable[str]) -> bool:
    """Whether one of ``globs`` matches the name of ``path``, or, if it has a slash, that of its folder too."""
    *_, folder, name = f"/{path}".lower().split("/")
    return any(fnmatchcase(f"{folder}/{name}" if "/" in glob else name, glob) for glob in globs)


def _orders(folder: str, names: set[str]) -> list[str]:
    found = [f"{folder}/{name}" for name in (".git", ".gitmodules") if name in names]
    if os.path.basename(folder) == ".git" or names >= _OF_GIT:
        found += [folder, *(f"{folder}/{name}" for name in ("config", "hooks") if name in names)]
    return [*found, folder] if "pyvenv.cfg" in names else found


def _is_socket(entry: os.DirEntry[str]) -> bool:
    if entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False) or entry.is_symlink():
        return False
    try:
        return stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode)
    except OSError:
        return True  # it is gone, or cannot be looked at
