"""What the commands of one text leave behind for each other: what is written and then run, moved and then removed."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Sequence, Set
from typing import TYPE_CHECKING

from lgov_core.policies.shell_call import is_option, wild
from lgov_core.policies.shell_places import Refused, inside, shown
from lgov_core.policies.shell_words import ANY, STAR

if TYPE_CHECKING:
    from lgov_core.policies.shell_work import Work

#: Commands that run the program files they are given.
_STARTING = frozenset(
    {
        *("python", "node", "perl", "ruby", "php", "Rscript", "julia", "lua", "tsx", "ts-node", "deno", "bun"),
        *("go", "torchrun"),
        *("sh", "bash", "source", ".", "zsh", "dash"),
    }
)
#: Commands that run what stands in a file of a fixed name.
_BY_NAME = {
    **dict.fromkeys(("make", "gmake"), ("Makefile", "makefile", "GNUmakefile")),
    **dict.fromkeys(("npm", "yarn", "pnpm", "bun"), ("package.json",)),
    "just": ("justfile", "Justfile"),
    "task": ("Taskfile.yml", "Taskfile.yaml"),
    "rake": ("Rakefile",),
    "tox": ("tox.ini",),
    "nox": ("noxfile.py",),
}
#: What takes files out of an archive, and the options that say where to.
_EXTRACTS = re.compile(r"-?[a-zA-Z]*x|--(?:ex|get)")
_ARCHIVES = {
    "tar": ("-C", "--directory"),
    "unzip": ("-d",),
    **dict.fromkeys(("7z", "7za", "7zr", "7zz"), ("-o",)),
}
#: With this in it a program can do more than compute and print.
_REACHING = re.compile(
    r"##|\basm\b|__asm|%:|\b(?:system|popen|exec[lv]\w*|posix_\w+|v?fork|syscall|socket|connect|unlink\w*|remove\w*|rename"
    r"|rmdir|f?re?open|f?open|creat|dlopen|ptrace|truncate|chmod|chown|kill|getenv|environ|mmap|[io]?fstream|filesystem"
    r"|ProcessBuilder|Runtime|nio|Files?\w*Writer|FileOutputStream|Socket|Foundation|unsafe)\b"
    r"|std::(?:process|fs|net|env)|use\s+std|\bSystem\.(?:IO|Process|Directory)|\"(?:os|net|syscall|io/ioutil|plugin|C)[/\"]"
)
#: Commands that put whole trees somewhere.
_UNPACKING = frozenset({"tar", "unzip", "git", "cp", "mv", "rsync"})
#: Commands that fetch or make files.
_MAKING = frozenset({"curl", "wget", "tee", "cp", "mv", "install", "ln"})


class Trail:
    """The paths that commands of one text touched, whole and normalised. Shared with the texts within it, by one thread."""

    def __init__(self, home: str, work: Work) -> None:
        self._home, self._work = home, work
        self._texts: list[str] = []
        self._folders = {home}
        self._written: set[str] = set()
        self._started: set[str] = set()
        self._moved: set[str] = set()
        self._removed: set[str] = set()
        self._unpacked: set[str] = set()
        self._built: set[str] = set()
        self._sources: set[str] = set()
        self._fetched: set[str] = set()
        self._remotes: set[str] = set()
        self._pushed: set[str] = set()
        self._fetches = False
        self._opened: set[str] = set()

    def holds(self, text: str) -> None:
        """Takes note of a text that is read."""
        self._texts.append(text)

    def stands(self, folders: Iterable[str]) -> None:
        """Takes note of folders in which the text may stand: a word names a file in each of them."""
        self._folders.update(folders)

    def writes(self, word: str) -> None:
        """Takes note of a file that is written."""
        self._written |= self._paths(word)

    def builds(self, word: str, sources: Iterable[str]) -> None:
        """Takes note of a program that is built, and of what from."""
        self._built |= self._paths(word)
        for source in sources:
            self._sources |= self._paths(source)

    def built(self, word: str) -> bool:
        """Whether a program was built, and by nothing else written, earlier in the text."""
        return self._paths(word) <= self._built - self._written

    def starts(self, word: str) -> None:
        """Takes note of a program file that is run."""
        self._started |= self._paths(word)

    def passes(self, words: Sequence[str]) -> None:
        """Takes note of what a command as it stands in the text may write."""
        plain = [word for word in words[1:] if not is_option(word)]
        if words[:1] and words[0] in ("cp", "mv", "install", "ln") and len(plain) == len(words[1:]) > 1:
            for source in plain[:-1]:
                self.writes(posixpath.join(plain[-1], posixpath.basename(source)))
            self.writes(plain[-1])
        elif words[:1] and words[0] in _MAKING:
            for word in words[1:]:
                self.writes(word)
                if "://" in word:
                    self._fetches = True
                    self.writes(posixpath.basename(word.partition("?")[0]))
            if words[0] in ("curl", "wget"):
                self._fetched |= self._written

    def runs(self, name: str, words: Sequence[str], folders: Iterable[str]) -> None:
        """Takes note of what a command with a known name runs, moves and removes, from each of ``folders``."""
        if name in _STARTING and not (name == "go" and words[:1] == ["build"]):
            for word in words:
                if not is_option(word) and not wild(word):
                    self.starts(word)
        for fixed in _BY_NAME.get(name, ()) if "pkg" not in words[:1] else ():
            for below in _targets(words, ("-C", "--directory", "--prefix", "--cwd")) or [""]:
                self._started.update(posixpath.normpath(posixpath.join(folder, below, fixed)) for folder in folders)
        if name == "git" and "mv" in words[:3]:
            name = "mv"
        plain = [word for word in words if not is_option(word)]
        self._unpacks(name, words, plain, folders)
        if name == "git":
            self._reaches(plain)
        if name in ("mv", "ln"):
            plain = plain[-1:]
            for at, word in enumerate(words):
                if word.startswith(("-t", "--t")):
                    plain += [word[2:], word.partition("=")[2], *words[at + 1 : at + 2]]
            self._note(self._moved, plain, folders)
        elif name == "rm" or (name == "find" and {"-delete", "-exec", "-execdir", "-ok", "-okdir"} & set(words)):
            self._note(self._removed, plain, folders)

    def _unpacks(self, name: str, words: Sequence[str], plain: Sequence[str], folders: Iterable[str]) -> None:
        """Takes note of where whole trees are put, and of where an archive is opened."""
        if name in _UNPACKING:
            self._note(self._unpacked, plain, folders)
        if (
            name == "unzip"
            or name.startswith("7z")
            or (name in _ARCHIVES and any(_EXTRACTS.match(word) for word in words[:2]))
        ):
            self._note(self._opened, _targets(words, _ARCHIVES[name]) or ["."], folders)

    def _reaches(self, plain: Sequence[str]) -> None:
        """Takes note of the remotes that git is given, and of those it sends to."""
        if {"remote", "add"} <= set(plain):
            self._remotes.update(plain[plain.index("add") + 1 :][:1])
        elif "push" in plain:
            self._pushed.update(plain[plain.index("push") + 1 :][:1])

    def check(self) -> None:
        """Refuses a program that was written just before it is run, and removing what was moved just before."""
        for path in self._started & self._written:
            raise Refused(
                "shell-program",
                f"{shown(path)} is written and run in one go; run it in a command of its own, so that it is seen first.",
            )
        for path in self._sources & self._fetched:
            raise Refused("shell-program", f"{shown(path)} is fetched and built in one go; look at it in between.")
        for path in self._started:
            if not inside(path, self._home) and self._below(path, self._unpacked):
                raise Refused("shell-program", f"{shown(path)} is unpacked and run in one go; look in between.")
        for path in self._started if self._fetches else ():
            if self._below(path, self._opened):
                raise Refused(
                    "shell-program", f"{shown(path)} is fetched, unpacked and run in one go; look in between."
                )
        if self._sources & self._written and self._started & self._built and any(map(_REACHING.search, self._texts)):
            raise Refused(
                "shell-program",
                "A program that does more than compute and print is written, built and run in one go; look in between.",
            )
        for remote in self._remotes & self._pushed:
            raise Refused("shell-network", f"{shown(remote)} is added and pushed to in one go; look in between.")
        for path in self._moved:
            if self._below(path, self._removed):
                raise Refused("shell-delete", f"{shown(path)} is moved and removed in one go; look in between.")

    def _below(self, path: str, folders: Set[str]) -> bool:
        """Whether a path is one of ``folders`` or lies in one."""
        if not folders:
            return False
        self._work.spend(path.count("/"))
        if path.startswith("/") and "/" in folders:
            return True
        while path and path not in folders:
            path = path.rpartition("/")[0]
        return bool(path)

    def _paths(self, word: str) -> set[str]:
        self._work.spend(len(self._folders))
        return {posixpath.normpath(posixpath.join(folder, word)) for folder in self._folders}

    def _note(self, noted: set[str], words: Iterable[str], folders: Iterable[str]) -> None:
        for word in words:
            self._work.spend(len(self._folders))
            start = re.split(f"[{STAR}{ANY}]", word)[0]
            noted.update(posixpath.normpath(posixpath.join(folder, start)) for folder in folders if word)


def _targets(words: Sequence[str], options: Sequence[str]) -> list[str]:
    """What is given to ``options``, as a word of its own or behind them."""
    found: list[str] = []
    for at, word in enumerate(words):
        for option in options:
            if word == option:
                found += words[at + 1 : at + 2]
            elif word.startswith(option):
                found.append(word.removeprefix(option).lstrip("="))
    return found
