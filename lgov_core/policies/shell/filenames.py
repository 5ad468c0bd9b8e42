"""Names of files: which are secret, which make other programs run them, what a wildcard may be and what a search reads."""

from __future__ import annotations

import os.path
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase, translate
from functools import lru_cache
from itertools import pairwise
from typing import Literal

from lgov_core.policies.content.secrets import CREDENTIAL_NAMES
from lgov_core.policies.shell.syntax import ANY, BELOW, DIGITS, PIPE, STAR, UNKNOWN, as_glob, is_wild, literal
from lgov_core.policies.shell.table import globs, names

#: Wildcards of one word beyond which it may be anything.
MAX_WILD = 24
#: A glob that every program reads alike.
_PLAIN_GLOB = re.compile(r"[\w.*?-]+")
#: ``follows``: reads what the links in a tree lead to. ``carries``: gives a tree with its links another name. ``brings``: gives
#: files their names in another folder, which are not written out. ``climbs``: goes to the folder above, which behind a link is
#: another than is written. ``fills``: writes files into a tree that may be there. ``expands``: a wildcard that another program
#: takes for words, options among them.
Effect = Literal[
    "reads", "writes", "moves", "follows", "carries", "brings", "climbs", "expands", "fills", "becomes", "enters"
]


@dataclass(frozen=True)
class Search:
    """A tree whose files are read: those that ``globs`` select (True) and do not leave out, of which the last match decides.

    ``split``: the names are split at spaces, so that they may be others.
    """

    path: str
    split: bool = False
    globs: tuple[tuple[bool, str], ...] = ()
    #: Names of folders that it does not enter, as globs.
    folders: tuple[str, ...] = ()
    #: Whether files are read that no glob matches; of these and of folders, whether hidden ones.
    others: bool = True
    hidden: bool = True
    #: What is done to the files, or, for moves, to their names.
    effect: Effect = "reads"

    def enters(self, name: str) -> bool:
        """Returns whether it looks for files in folders of this name."""
        if name in names("files", "fetched") or any(fnmatchcase(name, glob) for glob in self.folders):
            return False
        return self.hidden or name[:1] != "." or self._selected(name) is True

    def reads(self, name: str) -> bool:
        """Returns whether it reads files of this name."""
        if self.effect != "reads":
            return False
        selected = self._selected(name)
        return self.others and (self.hidden or name[:1] != ".") if selected is None else selected

    def _selected(self, name: str) -> bool | None:
        for selects, glob in reversed(self.globs):
            plain = _PLAIN_GLOB.fullmatch(glob) is not None
            if (not plain or fnmatchcase(name.lower(), glob.lower())) if selects else plain and fnmatchcase(name, glob):
                return selects
        return None


def is_regenerable(name: str) -> bool:
    """Returns whether a folder of this name is one that a tool makes again."""
    if is_wild(name.replace(BELOW, "")):
        return as_glob(name) in names("files", "regenerable")
    return globs("regenerable").match(name.replace(BELOW, "")) is not None


def runs_others(names_of_path: Sequence[str]) -> bool:
    """Returns whether a path, as its names, is or lies in what other programs run."""
    return any(map(_is_protected, (*names_of_path, *("/".join(pair) for pair in pairwise(names_of_path)))))


def may_be_protected(name: str) -> bool:
    """Returns whether a name with wildcards may be one that is never written."""
    glob = as_glob(name.lower())
    return is_wild(name) and any(fnmatchcase(protected, glob) for protected in names("files", "protected"))


@lru_cache(4096)
def _is_protected(name: str) -> bool:
    name = name.lower().replace(BELOW, "")
    if globs("protected").match(name) is not None:
        return True
    hidden = name[:1] == "." and is_wild(name)
    return hidden and any(fnmatchcase(protected, as_glob(name)) for protected in names("files", "protected"))


@lru_cache(4096)
def is_secret(word: str) -> bool:
    """Returns whether a path names a secret by its name or place, or may do so through a wildcard."""
    if word == PIPE:  # its commands are judged by themselves
        return False
    path = re.sub(f"{STAR}{{2,}}", STAR, re.sub(r"/{2,}", "/", word.replace(BELOW, "")))
    if len(path) - len(literal(path)) > MAX_WILD:
        return True
    if "/./" in path or "/../" in path or path.startswith("./"):
        path = os.path.normpath(path)
    path = re.sub(r"^(?:/proc/(?:self|thread-self|\d+)/(?:root|cwd)|file:/+)(?=/)", "", path)
    parts = path.split("/")
    called = [*parts, *("/".join(pair) for pair in pairwise(parts))]
    if globs("templates").match(parts[-1]):
        called = [name for name in called if name not in (parts[-1], ".ssh") and not name.startswith(".ssh/")]
    if any(_is_secret_name(name) for name in called if name):
        return True
    # ``.*`` and ``.e*``: of a hidden file too little is said to know that it is not one of these.
    if any(name[:1] == "." and is_wild(name) and len(literal(name)) < 3 for name in parts):
        return True
    return is_wild(path) and _may_be_secret(path, hidden=BELOW in word)


def names_secret(folder: str, name: str) -> bool:
    """Returns whether a file in a folder of this name is secret by its name or place."""
    secret = _is_secret_name(name) or _is_secret_name(f"{folder}/{name}")
    return secret and globs("templates").match(name) is None


def _is_secret_name(name: str) -> bool:
    exact, starts, ends, tails, rest = _secret_names()
    name = name.lower()
    if name in exact or name.startswith(starts) or name.endswith(ends):
        return True
    return name.endswith(tails) and rest.match(name) is not None


@lru_cache(1)
def _secret_names() -> tuple[frozenset[str], tuple[str, ...], tuple[str, ...], tuple[str, ...], re.Pattern[str]]:
    """The globs of secret names: names, beginnings, ends, and the rest by their tails and as one pattern; trees are large."""
    every = (*CREDENTIAL_NAMES, *names("files", "secret_names"))
    wild = [glob for glob in every if re.search(r"[*?[]", glob)]
    starts = tuple(glob[:-1] for glob in wild if re.fullmatch(r"[^*?[]+\*", glob))
    ends = tuple(glob[1:] for glob in wild if re.fullmatch(r"\*[^*?[]+", glob))
    rest = [glob for glob in wild if glob[:-1] not in starts and glob[1:] not in ends]
    tails = tuple(re.split(r"[*?\]]", glob)[-1] for glob in rest)
    return frozenset(every).difference(wild), starts, ends, tails, re.compile("|".join(map(translate, rest)) or "(?!)")


def may_be(wild: str, path: str) -> bool:
    """Returns whether a path with wildcards may be ``path``."""
    return pattern_of(wild).fullmatch(path.lower()) is not None


@lru_cache(1024)
def pattern_of(path: str) -> re.Pattern[str]:
    """A path with wildcards as a regular expression, for paths in lower case."""
    steps = {UNKNOWN: ".*", STAR: "[^/]*", ANY: "[^/]", BELOW: ".*", DIGITS: "-?[0-9]+"}
    return re.compile("".join(steps.get(letter) or re.escape(letter) for letter in path.lower()), re.DOTALL)


def _may_be_secret(path: str, *, hidden: bool) -> bool:
    """Returns whether a path with wildcards may be one of the examples.

    ``hidden``: a search matches a leading dot with a wildcard.
    """
    name = path.rpartition("/")[2]
    if len(literal(path).replace("/", "")) < 2:
        return path.startswith("/")
    if not path.startswith(("/", ".")) and len(literal(name).replace(".", "")) < 2:
        return False
    whole, last = pattern_of(path), pattern_of(name if len(literal(name).replace(".", "")) > 1 else "/")
    for example in names("files", "secret_examples"):
        base = example.rpartition("/")[2]
        dotted = base.startswith(".") and name[:1] in (STAR, ANY)
        matches = whole.fullmatch(example) or (_is_secret_name(base) and last.fullmatch(base))
        if (hidden or not dotted) and matches:
            return True
    return False
