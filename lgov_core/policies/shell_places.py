"""Which files a command may read, write and delete."""

from __future__ import annotations

import os.path
import posixpath
import re
from collections.abc import Iterable
from fnmatch import fnmatchcase, translate
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

from lgov_core.policies.options import names
from lgov_core.policies.shell_secrets import HOLDING_SECRETS, is_secret
from lgov_core.policies.shell_words import ANY, HOME, STAR, UNKNOWN

if TYPE_CHECKING:
    from lgov_core.policies.shell_work import Work

#: Inside a writable folder all the same never written by a command: they make other programs run code.
_PROTECTED = names(
    """
    .git .ssh .gnupg .aws .kube .bashrc .bash_profile .bash_login .bash_logout .profile .zshrc .zshenv .zprofile .zlogin
    .netrc .npmrc .pypirc .envrc authorized_keys .inputrc .gitconfig .vimrc .pam_environment .config/autostart
    sitecustomize.py usercustomize.py *.pth .claude/settings.json .claude/settings.local.json .codex/config.toml
    .gemini/settings.json .cursor/hooks.json
    """
)
_PROTECTED_NAME = re.compile("|".join(map(translate, _PROTECTED)))
#: Folders that are made again by the tool that made them, so that removing the whole tree loses nothing.
_REGENERABLE = names(
    """
    build dist target out node_modules __pycache__ *.egg-info .eggs coverage htmlcov .pytest_cache .mypy_cache .ruff_cache
    .tox .nox .cache .venv venv .next .nuxt .turbo .parcel-cache .svelte-kit .gradle _build site .coverage .nyc_output tmp
    temp .terraform cmake-build-* logs .hypothesis .ipynb_checkpoints .angular .output storybook-static bazel-*
    """
)
_REGENERABLE_NAME = re.compile("|".join(map(translate, _REGENERABLE)))
#: Files that may be removed by pattern from a whole tree: what made them makes them again, or nobody wants them.
_LEFT_OVERS = names(
    """
    *.pyc *.pyo *.tmp *.bak *.orig *.rej *.swp *~ .DS_Store *.o *.class *.tsbuildinfo *.gcda *.gcno Thumbs.db
    """
)
_SINKS = ("/dev/null", "/dev/stdout", "/dev/stderr", "/dev/tty", "/dev/zero", "/dev/full", "-")
_SCRATCH = ("/tmp", "/var/tmp")
#: Endings of names that single files have: removing one with -r removes no more than removing it without.
_FILE_ENDING = re.compile(
    r".*\.(?:json|ya?ml|toml|lock|lockb|log|txt|md|csv|tmp|bak|orig|pyc|o|so|class|jar|whl|zip|tgz|gz|xz|bz2|tar|pid|tsbuildinfo)"
)
#: Files that a program leaves behind when it is stopped, in a folder that is closed otherwise.
_LEFT_BEHIND = re.compile(r".*/\.git/(?:index|HEAD|config|shallow)\.lock")


#: The tools of a virtual environment, each judged as the command it is.
_IN_ENVIRONMENT = re.compile(
    r".+/[\w.-]*env[\w.-]*/bin/(?:activate|python[\d.]*|pip[\d.]*|pytest|ruff|mypy|black|isort|coverage|pyright|tox)"
)


class Refused(Exception):
    """A reason to deny: ``rule`` is a slug, ``reason`` a sentence for the model."""

    def __init__(self, rule: str, reason: str) -> None:
        super().__init__(reason)
        self.rule, self.reason = rule, reason


class Places:
    """The folders of one text: where it may stand (``folders``) and where it may write."""

    def __init__(self, folders: Iterable[str], writable: Iterable[str], work: Work) -> None:
        self.folders = tuple(folders)
        self.work = work
        self._read: set[str] = set()
        self._written: set[tuple[str, bool]] = set()
        self.writable = tuple(writable)

    def read(self, field: str) -> None:
        """Refuses a word that names a secret, or may name one through a hole or a wildcard."""
        if field in self._read:
            return
        for part in {field, field.partition("=")[2], field.removeprefix("@"), field.partition(":")[2], _value(field)}:
            self.work.spend(_steps(part) * len(self.folders))
            if part and is_secret(part):
                raise Refused("shell-secret", f"{shown(field)} holds keys, credentials or private history.")
            if part and not part.startswith(("/", "-")) and self._leads_to_secret(part):
                raise Refused("shell-secret", f"{shown(field)} holds keys, credentials or private history.")
        self._read.add(field)

    def _leads_to_secret(self, part: str) -> bool:
        """Whether a relative word names a secret from a folder the text may stand in, or from the root after enough ``..``."""
        climbed = re.match(r"(?:\.{1,2}/+)*\.\./+", part)
        if climbed is not None and is_secret("/" + part[climbed.end() :]):
            return True
        for folder in self.folders:
            path = posixpath.normpath(posixpath.join(folder, part))
            plain = re.search(f"[{UNKNOWN}{STAR}{ANY}]", part) is None
            if UNKNOWN in folder and plain and (is_secret("/" + part) or is_secret("/etc/" + part)):
                return True
            if not any(inside(path, root) for root in (self.folders[0], *self.writable)) and is_secret(path):
                return True
        return False

    def read_tree(self, field: str) -> None:
        """Refuses a folder that is read as a whole when secrets are known to lie in it."""
        self.work.spend((4 + len(field) // 50) * len(self.folders))
        for folder in self.folders:
            path = posixpath.normpath(posixpath.join(folder, field))
            if path in ("/", "//", HOME) or HOLDING_SECRETS.fullmatch(path):
                raise Refused("shell-secret", f"{shown(field)} holds secrets somewhere below; name the files.")

    def write(self, field: str, *, may_be_secret: bool = False) -> None:
        """Refuses a word that may name a file outside of what is writable, or one that makes programs run code."""
        if field in _SINKS or re.fullmatch(r"/dev/fd/[0-2]", field) or (field, may_be_secret) in self._written:
            return
        for path in self._paths(field):
            if not any(inside(path, root) for root in self.writable):
                raise Refused("shell-write", f"{shown(field)} lies outside of {', '.join(self.writable)}.")
            below = _names(path, self.writable)
            if any(_is_protected(name) for name in (*below, *("/".join(pair) for pair in pairwise(below)))):
                raise Refused("shell-write", f"{shown(field)} makes other programs run what is in it.")
            if not may_be_secret and is_secret("/".join(below)):
                raise Refused("shell-secret", f"{shown(field)} holds keys, credentials or private history.")
        self._written.add((field, may_be_secret))

    def move(self, field: str) -> None:
        """Refuses what may not be written, and the folder the text stands in."""
        self.write(field)
        for path in self._paths(field):
            if any(inside(root, path) for root in (*self.writable, *self.folders)):
                raise Refused("shell-delete", f"{shown(field)} is the working folder itself, or holds it.")

    def delete(self, field: str, *, recursive: bool = False) -> None:
        """Refuses what is not one file (or, when ``recursive``, a tree that is made again) in a writable place."""
        paths = self._paths(field)
        if not recursive and all(
            _LEFT_BEHIND.fullmatch(path) and any(inside(path, root) for root in self.writable) for path in paths
        ):
            return
        self.write(field)
        for path in paths:
            folder, _, name = path.rpartition("/")
            if any(inside(root, path) for root in (*self.writable, self.folders[0])):
                raise Refused("shell-delete", f"{shown(field)} is the working folder itself, or holds it.")
            if self._scratch(path):
                continue
            remade = any(_remade(part) for part in _names(path, self.writable))
            literal = re.sub(f"[{STAR}{ANY}.]", "", name)
            vague = len(literal) < 2 or (STAR in folder and not any(fnmatchcase(name, glob) for glob in _LEFT_OVERS))
            if (STAR in field or ANY in field) and vague and not remade:
                raise Refused("shell-delete", f"{shown(field)} may be anything; name the files.")
            if recursive and not remade and _FILE_ENDING.fullmatch(name) is None:
                raise Refused(
                    "shell-delete", f"Removing the whole tree {shown(field)} cannot be undone; remove single files."
                )

    def _scratch(self, path: str) -> bool:
        """Whether all that a path names is scratch: below ``/tmp``, and not where the text works or what holds that."""
        if not any(inside(path, root) and path != root for root in _SCRATCH):
            return False
        home = self.folders[0]
        if any(inside(home, root) for root in _SCRATCH) and inside(path, home):
            return False
        glob, depth = path.replace(STAR, "*").replace(ANY, "?"), path.count("/")
        places = [folder.split("/") for folder in (*self.folders, *self.writable)]
        return not any(len(parts) > depth and fnmatchcase("/".join(parts[: depth + 1]), glob) for parts in places)

    def script(self, field: str) -> None:
        """Refuses a program file outside of the folders the text began in, and what stands for the input."""
        if field == "-":
            raise Refused("shell-program", "What would be run comes from elsewhere; name a program file.")
        for path in self._paths(field):
            if self._of_environment(path):
                continue
            if STAR in path or ANY in path or not inside(path, self.folders[0]):
                hint = (
                    f"what is run must lie in {self.folders[0]}" if any(inside(path, r) for r in self.writable) else ""
                )
                raise Refused("shell-program", f"{shown(field)} is no program of this folder{hint and '; ' + hint}.")
            if any(_matches(name, ".git") for name in _names(path, self.folders)):
                raise Refused("shell-program", f"{shown(field)} is no program of this folder.")

    def _of_environment(self, path: str) -> bool:
        """Whether a path is a tool of a virtual environment that lies where the text may write."""
        return _IN_ENVIRONMENT.fullmatch(path) is not None and any(inside(path, root) for root in self.writable)

    def stands_below(self) -> bool:
        """Whether the text goes to folders below the one it begins in, and to no others."""
        home, *others = self.folders
        return bool(others) and all(inside(path, home) and path != home and UNKNOWN not in path for path in others)

    def work_in(self, field: str = ".") -> None:
        """Refuses to work in a folder, as tools do that run and write what lies where they stand, unless it is one of ours."""
        self.work.spend((4 + len(field) // 50) * len(self.folders))
        for folder in self.folders:
            path = posixpath.normpath(posixpath.join(folder, field))
            if UNKNOWN in path or not any(inside(path, root) for root in (self.folders[0], *self.writable)):
                raise Refused(
                    "shell-write", f"{shown(path)} lies outside of {', '.join(self.writable)}; work is not done there."
                )

    def holds(self, field: str) -> bool:
        """Whether a word names nothing outside of the folder the text begins in."""
        return UNKNOWN not in field and all(inside(path, self.folders[0]) for path in self._paths(field))

    def _paths(self, field: str) -> list[str]:
        """Where a word may lead, from every folder the text may stand in."""
        self.work.spend((_steps(field) + 4 * field.count("/")) * len(self.folders))
        if UNKNOWN in field or not field:
            raise Refused("shell-unclear", "It is not clear which file is written; write its name out.")
        if STAR in field and ".." in field.partition(STAR)[2]:
            raise Refused("shell-unclear", "A wildcard followed by .. may lead anywhere; write the name out.")
        if not field.startswith("/") and any(UNKNOWN in folder for folder in self.folders):
            raise Refused("shell-unclear", "It is not clear in which folder this runs; use a whole path.")
        return list({os.path.normpath(os.path.join(folder, field)) for folder in self.folders})


def shown(field: str) -> str:
    """A word as it can be shown: stand-ins as the signs they stand for."""
    plain = field.replace(UNKNOWN, "$…").replace(STAR, "*").replace(ANY, "?").replace(HOME, "~")
    return repr(plain[:80])


def _steps(word: str) -> int:
    """What it takes to judge a word: one with a wildcard is compared with what it may name."""
    return 10 + len(word) // 8 + (50 if re.search(f"[{UNKNOWN}{STAR}{ANY}]", word) else 0)


def _value(field: str) -> str:
    """The path glued to a short option (``-f/etc/shadow``)."""
    match = re.match(r"-[A-Za-z](?=[/~.])", field)
    return field[match.end() :] if match else ""


def _remade(name: str) -> bool:
    """Whether a name, written out but for the folders of one kind (``*.egg-info``), is of a tree that is made again."""
    if STAR in name or ANY in name:
        return name.replace(STAR, "*").replace(ANY, "?") in _REGENERABLE
    return _REGENERABLE_NAME.match(name) is not None


def made_again(pattern: str) -> bool:
    """Whether all that a pattern of names can name is made again by a program, or left over from one."""
    if pattern in _REGENERABLE:
        return True
    return any(fnmatchcase(pattern, glob) for glob in _LEFT_OVERS)


def inside(path: str, root: str) -> bool:
    """Whether a path is ``root`` or lies below it."""
    return path == root or path.startswith(root.rstrip("/") + "/")


def _names(path: str, roots: Iterable[str]) -> list[str]:
    holding = [root for root in roots if inside(path, root)]
    return os.path.relpath(path, max(holding, key=len)).split("/") if holding else path.split("/")


@lru_cache(4096)
def _is_protected(name: str) -> bool:
    if _PROTECTED_NAME.match(name.lower()) is not None:
        return True
    return _may_be_hidden(name) and any(_matches(name, glob) for glob in _PROTECTED)


def _may_be_hidden(name: str) -> bool:
    """Whether a name holds wildcards and begins as those of hidden files do."""
    return name.startswith(".") and (STAR in name or ANY in name)


def _matches(name: str, glob: str) -> bool:
    """Whether a name, which may hold wildcards itself, may be one that ``glob`` names."""
    if fnmatchcase(name.lower(), glob):
        return True
    if not _may_be_hidden(name):
        return False
    return fnmatchcase(glob, name.replace(STAR, "*").replace(ANY, "?")) and len(name) > 1
