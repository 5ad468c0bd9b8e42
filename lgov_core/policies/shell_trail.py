"""What the commands of one text leave behind for each other: what is written and then run, moved and then removed."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Sequence

from lgov_core.policies.shell_call import is_option, wild
from lgov_core.policies.shell_places import Refused, inside, shown
from lgov_core.policies.shell_words import ANY, STAR

#: Commands that run the program files they are given.
_STARTING = frozenset({"python", "node", "perl", "ruby", "php", "sh", "bash", "source", ".", "zsh", "dash"})
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
#: Commands that fetch or make files.
_MAKING = frozenset({"curl", "wget", "tee", "cp", "mv", "install", "ln"})


class Trail:
    """The paths that commands of one text touched, whole and normalised. Shared with the texts within it, by one thread."""

    def __init__(self, home: str) -> None:
        self._home = home
        self._written: set[str] = set()
        self._started: set[str] = set()
        self._moved: set[str] = set()
        self._removed: set[str] = set()
        self._remotes: set[str] = set()
        self._pushed: set[str] = set()

    def writes(self, word: str) -> None:
        """Takes note of a file that is written."""
        self._written.add(self._path(word))

    def starts(self, word: str) -> None:
        """Takes note of a program file that is run."""
        self._started.add(self._path(word))

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
                    self._written.add(posixpath.join(self._home, posixpath.basename(word.partition("?")[0])))

    def runs(self, name: str, words: Sequence[str], folders: Iterable[str]) -> None:
        """Takes note of what a command with a known name runs, moves and removes, from each of ``folders``."""
        if name in _STARTING:
            for word in words:
                if not is_option(word) and not wild(word):
                    self.starts(word)
        for fixed in _BY_NAME.get(name, ()):
            self._started.update(posixpath.join(folder, fixed) for folder in folders)
        if name == "git" and "mv" in words[:3]:
            name = "mv"
        plain = [word for word in words if not is_option(word)]
        if name == "git" and {"remote", "add"} <= set(plain):
            self._remotes.update(plain[plain.index("add") + 1 :][:1])
        elif name == "git" and "push" in plain:
            self._pushed.update(plain[plain.index("push") + 1 :][:1])
        if name in ("mv", "ln"):
            plain = plain[-1:]
            for at, word in enumerate(words):
                if word.startswith(("-t", "--t")):
                    plain += [word[2:], word.partition("=")[2], *words[at + 1 : at + 2]]
            self._note(self._moved, plain, folders)
        elif name == "rm" or (name == "find" and {"-delete", "-exec", "-execdir", "-ok", "-okdir"} & set(words)):
            self._note(self._removed, plain, folders)

    def check(self) -> None:
        """Refuses a program that was written just before, and removing what was moved there just before."""
        for path in self._started & self._written:
            raise Refused(
                "shell-program", f"{shown(path)} is written and run in one go; let it be looked at in between."
            )
        for remote in self._remotes & self._pushed:
            raise Refused("shell-network", f"{shown(remote)} is added and pushed to in one go; look in between.")
        for path in self._moved:
            if any(inside(path, gone) for gone in self._removed):
                raise Refused("shell-delete", f"{shown(path)} is moved and removed in one go; look in between.")

    def _path(self, word: str) -> str:
        return posixpath.normpath(posixpath.join(self._home, word))

    def _note(self, noted: set[str], words: Iterable[str], folders: Iterable[str]) -> None:
        for word in words:
            start = re.split(f"[{STAR}{ANY}]", word)[0]
            noted.update(posixpath.normpath(posixpath.join(folder, start)) for folder in folders if word)
