"""Which files a text may read, write, remove and run, and which variables it may set, in the folders it may be in."""

from __future__ import annotations

import os.path
import posixpath
import re
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase, translate
from functools import lru_cache
from itertools import pairwise, product
from typing import Any, Literal

from lgov_core.places import PROJECT_FILE, FileChange, GoverningPlaces, is_harmless
from lgov_core.policies.content.secrets import CREDENTIAL_NAMES
from lgov_core.policies.shell.syntax import (
    ANY,
    BELOW,
    HOME,
    LISTED,
    PIPE,
    STAR,
    UNKNOWN,
    Budget,
    ShellRefusal,
    as_glob,
    code,
    is_wild,
    literal,
    shown,
    unclear,
)
from lgov_core.policies.shell.table import allowed_values, globs, names, regex
from lgov_core.policies.shell.words import State

_SCRATCH = ("/tmp", "/var/tmp")
#: Wildcards of one word beyond which it may be anything.
MAX_WILD = 24
#: A quoted wildcard that another program expands, in names with a leading dot too.
_WILDCARDS = str.maketrans({"*": f"{BELOW}{STAR}", "?": ANY, "[": ANY})
#: What ``xargs`` and the shell split names at.
SPLIT = re.compile(r"[\s'\"\\]")
#: A glob that every program reads alike.
_PLAIN_GLOB = re.compile(r"[\w.*?-]+")
_PLAIN_WORD = re.compile(r"\w+(?:[/.]\w+)*")
#: Where a path may begin in an argument; the colon of an address is none of them.
_PATHS_IN = re.compile(r"[@,=]|:(?!//\w)")
_PARTS, _OPTION = re.compile(r"[=:@,]"), re.compile(r"^-\w(?=[/~.])")
_CLIMBS, _PATHSPEC = re.compile(r"^(?:\.{1,2}/+)*\.\./+"), re.compile(r"^:\([a-z,]*\)|^:/")


#: ``follows``: reads what the links in a tree lead to. ``carries``: gives a tree with its links another name. ``brings``: gives
#: files their names in another folder, which are not written out. ``climbs``: goes to the folder above, which behind a link is
#: another than is written. ``expands``: a wildcard that another program takes for words, options among them.
Effect = Literal["reads", "writes", "moves", "follows", "carries", "brings", "climbs", "expands"]
#: Rules of what cannot be judged: in a box the kernel decides.
UNJUDGED = frozenset(
    {"shell-unknown", "shell-code", "shell-sends", "shell-unclear", "shell-unparsable", "shell-environment"}
)


@dataclass(frozen=True)
class Grants:
    """Permissions of the owner beyond the table, and the policies that judge addresses and SQL."""

    #: Programs that may run the folder's code.
    code: frozenset[str]
    #: Why an address may not be reached, and why a statement of a dialect may not run; None where it may.
    url: Callable[[str], str | None] | None
    sql: Callable[[str, str], str | None]
    #: The places that govern, which are closed.
    places: GoverningPlaces
    #: True where the configuration of the repository in the first folder runs nothing.
    history: bool


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


class Workspace:
    """The effects that one text has, and may have, on files and variables; used by one thread.

    Each check raises `ShellRefusal`.

    ``writable`` are folders in which files may be changed, ``home`` is the folder in which the text starts.
    """

    def __init__(self, home: str, writable: Sequence[str], grants: Grants, *, lenient: bool = False) -> None:
        self.home, self.writable, self.grants = home, tuple(writable), grants
        self.state, self.budget = State(home), Budget()
        #: Files and folders that it has moved: a build does not make them again.
        self.moved: set[str] = set()
        #: Links that it makes, and names of trees that it copies or moves: links may be in them.
        self.links: set[str] = set()
        self.carried: set[str] = set()
        #: Files that it reads, writes, or moves and removes: what is found there is looked up at each decision.
        #: With how often it does so.
        self.effects: dict[tuple[Effect, str], int] = {}
        #: How it changes the files that it writes, where that is known.
        self.changes: dict[str, FileChange] = {}
        #: Whether what is judged may be done several times.
        self.repeats = False
        #: Archives whose members get names in a folder, without so many leading names.
        self.unpacked: dict[tuple[str, str, int], None] = {}
        #: Trees that it searches.
        self.searches: dict[Search, None] = {}
        #: Whether it gives files names that programs may split.
        self.makes_spaces = False
        #: Whether names of files that a search finds are passed on unchanged, not split at spaces.
        self.exact = False
        #: What cannot be judged, where that is not denied at once (``lenient``).
        self.unjudged: list[str] = []
        self._lenient = lenient

    def leave(self, refused: ShellRefusal) -> None:
        """Notes what cannot be judged. Raises ``refused`` unless ``lenient``, and where it is about anything else."""
        if refused.rule not in UNJUDGED or not self._lenient:
            raise refused
        self.unjudged.append(refused.reason)

    @contextmanager
    def repeated(self) -> Generator[None]:
        """All that is judged inside the block may be done several times."""
        before, self.repeats = self.repeats, True
        yield
        self.repeats = before

    def read(self, word: str) -> None:
        """Refuses a file whose contents are secret, or may be because its name is not certain."""
        if word in ("-", PIPE):
            return
        paths = self._paths(word)
        self.mention(word)
        for path in paths:
            self.budget.spend(20 + len(path) // 8)
            if not self._is_ours(path) and not is_harmless(path):
                raise ShellRefusal(
                    "shell-secret", f"{shown(word)} lies outside of {self.home}; what is there is not shown."
                )
            if self._is_ours(path) and is_secret(self._relative(path)):
                raise _secret(word)
            if (
                is_wild(path)
                and BELOW not in path
                and any(map(_pattern(path).fullmatch, map(str.lower, self.grants.places.kept)))
            ):
                raise ShellRefusal("shell-governs", f"{shown(word)} may be what lgov keeps about this program.")
            self._touch("reads", path)

    def pass_on(self, effect: Effect, word: str) -> None:
        """Notes that a tree is followed or carried elsewhere, for which its links are looked up.

        A link that this text makes must not be carried: it may lead elsewhere from another place.
        """
        for path in self._paths(word):
            if effect == "carries" and any(_inside(link, path) or may_be(path, link) for link in self.links):
                raise ShellRefusal(
                    "shell-write", f"{shown(word)} is or holds a link that this text makes; leave it there."
                )
            self._touch(effect, path)

    def search(self, word: str, **selection: Any) -> None:
        """Notes a tree whose files are read, for which secrets in it are looked up; ``selection`` as of `Search`."""
        self.searches.update(dict.fromkeys(Search(path, **selection) for path in self._paths(word)))

    def mention(self, word: str) -> None:
        """Refuses a word that names a secret anywhere in it: a program with arguments of its own may read it."""
        self.budget.spend(20 + len(word) // 8)
        if _PLAIN_WORD.fullmatch(word):
            pieces = {word}
        else:
            pieces = {word, *_PARTS.split(word.removeprefix("file://")), _OPTION.sub("", word)}
        for piece in pieces:
            # Programs expand wildcards of their own: ``git log -- '*.env'``.
            readings = {piece, _CLIMBS.sub("/", piece), _PATHSPEC.sub("", piece).translate(_WILDCARDS)}
            if piece and any(map(is_secret, readings)):
                raise _secret(word)

    def argument(self, word: str) -> None:
        """Refuses an argument of a program that is not in the table which names a secret or a place outside of the project."""
        if word == UNKNOWN:
            return
        self.mention(word)
        for piece in {word, *_PATHS_IN.split(word), re.sub(r"^-\w", "", word)} - {PIPE, ""}:
            leads = piece.startswith(("/", HOME)) or ".." in piece.split("/")
            if leads and not globs("system").match(os.path.normpath(piece)):
                self.inside(piece)
            if UNKNOWN not in piece and "\n" not in piece and posixpath.basename(piece) != PROJECT_FILE:
                self._leave_alone(piece)

    def _leave_alone(self, word: str) -> None:
        """Refuses a word by which a program may get at what governs, or at what other programs run."""
        for path in self._paths(word):
            if (not is_wild(path) and self.grants.places.writes(path)) or (is_wild(path) and self._may_govern(path)):
                raise ShellRefusal(
                    "shell-governs", f"{shown(word)} is or may be what decides how this program is governed."
                )
            if self._is_ours(path) and runs_others(self._relative(path).split("/")):
                raise ShellRefusal(
                    "shell-write", f"{shown(word)} is or may be a file that makes other programs run it."
                )

    def inside(self, word: str) -> None:
        """Refuses what may lie outside of the project and the writable folders."""
        if not all(map(self._is_ours, self._paths(word))):
            raise ShellRefusal(
                "shell-write", f"{shown(word)} lies outside of {', '.join((self.home, *self.writable))}."
            )

    def write(
        self, word: str, *, may_be_secret: bool = False, removed: bool = False, change: FileChange | None = None
    ) -> list[str]:
        """Refuses what may lie outside of the writable folders, or makes other programs run code; the paths otherwise."""
        if word in names("files", "sinks"):
            return []
        if word.startswith(("|", "!")):
            raise unclear(f"{shown(word)} is not a plain file.")
        paths = self._paths(word)
        self.makes_spaces |= SPLIT.search(word) is not None
        for path in paths:
            self.budget.spend(20 + len(path) // 8)
            if posixpath.basename(path).startswith("-") and not removed:
                raise unclear(f"Programs would take a file {shown(word)} for an option; name it otherwise.")
            if not any(_inside(path, root) for root in self.writable):
                raise ShellRefusal("shell-write", f"{shown(word)} lies outside of {', '.join(self.writable)}.")
            below = self._relative(path).split("/")
            protected = runs_others(below)
            rooted = posixpath.dirname(path) in {self.home, *self.state.folders, *self.writable}.difference(_SCRATCH)
            if protected or (rooted and _may_be_protected(below[-1])):
                raise ShellRefusal(
                    "shell-write", f"{shown(word)} is or may be a file that makes other programs run it."
                )
            if is_wild(path) and (self._may_govern(path) or (rooted and self._may_govern(below[-1]))):
                raise ShellRefusal("shell-governs", f"{shown(word)} may be what decides how this program is governed.")
            self._touch("moves" if removed else "writes", path)
            if change is not None:
                self.changes[path] = change
            if not may_be_secret and is_secret("/".join(below)):
                raise _secret(word)
            if BELOW in path and not removed and not self._found_are_plain(path):
                raise ShellRefusal(
                    "shell-write",
                    f"{shown(word)} may be any file; name the files, or the folder.",
                )
        return paths

    def _touch(self, effect: Effect, path: str) -> None:
        """Notes an effect, for which links and what governs are looked up."""
        path = path.removesuffix(BELOW) if self.exact else path
        if BELOW in path.removesuffix(BELOW):
            search = Search(path, split=not self.exact, hidden=LISTED not in path, effect=effect)
            self.searches[search] = None
        key = effect, path.replace(HOME, os.path.expanduser("~"), 1) if path.startswith(HOME) else path
        self.effects[key] = self.effects.get(key, 0) + 1 + self.repeats

    def _may_govern(self, path: str) -> bool:
        return self.grants.places.matching(_pattern(path))

    def _found_are_plain(self, path: str) -> bool:
        """Returns whether files that a search finds may be written: none is in ``.git``."""
        folder, _, name = path.partition(BELOW)
        ended = re.fullmatch(rf"{STAR}\.\w+", name) is not None and not _may_be_protected(name)  # in .git none is
        return not is_wild(folder) and (ended or folder.rstrip("/") not in self._roots())

    def unpack(self, archive: str, folder: str, strip: int) -> None:
        """Refuses a folder into which an archive is unpacked where one of its members may govern.

        The members are looked up at each decision, ``strip`` leading names of each left out.
        """
        self.inside(folder)
        try:
            self.write(f"{folder}/{STAR}", may_be_secret=True)
        except ShellRefusal:
            hint = "unpack into a folder of its own, with -C or -d"
            raise unclear(f"It is not clear which files an archive writes into {shown(folder)}; {hint}.") from None
        for path, into in product(self._paths(archive), self._paths(folder)):
            if is_wild(path) or archive == "-":
                hint = "name an archive that is there before this text runs"
                raise unclear(f"It is not clear what {shown(archive)} holds; {hint}.")
            self.unpacked[path, into, strip] = None

    def into(self, word: str, sources: Sequence[str], *, moved: bool) -> None:
        """Refuses a file, or a folder in which the ``sources`` get names, that may not be written."""
        if any(name in names("files", "fetched") for path in self._paths(word) for name in path.split("/")):
            raise ShellRefusal("shell-write", f"What is in {shown(word)} is installed; nothing is moved into it.")
        copied = [path for source in sources for path in self._paths(source)]
        change = FileChange(source=copied[0]) if len(copied) == 1 and not is_wild(copied[0]) else None
        self.write(word, may_be_secret=True, change=change)
        if moved:
            self.moved.update(self._paths(word))
        self.carried.update({*self._paths(word)}.difference(self._roots()))
        for source in sources:
            if is_wild(source):
                self.pass_on("brings", source)
            name = source.rpartition("/")[2]
            into = f"{word}/{STAR if name in ('', '.', '..') else name.replace(BELOW, '')}"
            self.carried.update(path for path in self._paths(into) if not is_wild(path))
            self.write(into, may_be_secret=True, change=change)

    def link(self, word: str, link: str | None) -> None:
        """Refuses to give a file or folder another name unless both are harmless under each of them."""
        self.inside(word)
        self.read(word)
        self.write(word)
        if ".." in word.split("/") and "/" in (link or ""):
            raise unclear(f"It is not clear where a link to {shown(word)} leads; write its target from the root.")
        name = word.rstrip("/").rpartition("/")[2]
        for created in [name] if link is None else [link, f"{link}/{name}"]:
            self.links.update(self._paths(created))
        if any(_inside(root, path) for path in self._paths(word) for root in self._roots()):
            raise ShellRefusal(
                "shell-write", f"A link to {shown(word)} would give the files of this folder other names."
            )
        if link is None:
            self.write(word.rstrip("/").rpartition("/")[2])

    def move(self, word: str) -> None:
        """Refuses what may not be written, and the folders that the text works in."""
        self.write(word, removed=True)
        self.pass_on("carries", word)
        self.moved.update(self._paths(word))
        self._keep_roots(word)

    def delete(self, word: str, *, recursive: bool = False) -> None:
        """Refuses what is not one file (or, when ``recursive``, a tree that a build makes again) in a writable folder."""
        try:
            self.write(word, removed=True)
        except ShellRefusal as refused:
            rule = "shell-delete" if refused.rule == "shell-write" else refused.rule
            raise ShellRefusal(rule, refused.reason) from None
        self._keep_roots(word)
        for path in self._paths(word):
            if (recursive or is_wild(path)) and any(
                _inside(moved, path) or _inside(path, moved) for moved in self.moved
            ):
                raise ShellRefusal("shell-delete", f"{shown(word)} is or holds what this text moves.")
            if BELOW in path and not self.exact:
                raise ShellRefusal(
                    "shell-delete", "A name with a space would be several; use find -delete or xargs -0."
                )
            if self._is_scratch(path) or any(map(_is_regenerable, self._relative(path).split("/"))):
                continue
            folder, _, name = path.rpartition("/")
            deep = STAR in folder or BELOW in path
            left_over = as_glob(name.replace(BELOW, "")) in names("files", "left_overs")
            if is_wild(path) and not left_over and (deep or name[:1] in (STAR, ANY, UNKNOWN)):
                raise ShellRefusal("shell-delete", f"{shown(word)} may be anything; name the files.")
            if recursive and regex("paths", "one_file").fullmatch(name) is None:
                raise ShellRefusal(
                    "shell-delete", f"Removing the tree {shown(word)} cannot be undone; remove single files."
                )

    def _keep_roots(self, word: str) -> None:
        """Refuses devices, and folders that the text works in."""
        holds = any(_inside(root, path) for path in self._paths(word) for root in self._roots())
        if holds or word in names("files", "sinks"):
            raise ShellRefusal("shell-delete", f"{shown(word)} is a device or the working folder, or holds it.")

    def _is_scratch(self, path: str) -> bool:
        """Returns whether a path surely lies in ``/tmp``, and is not where the text works."""
        if not any(_inside(path, root) and path != root for root in _SCRATCH) or _inside(path, self.home):
            return False
        if posixpath.dirname(path) in _SCRATCH and path.endswith(f"/{STAR}"):  # which may be empty
            return False
        glob, depth = as_glob(path), path.count("/")
        roots = [root.split("/") for root in self._roots() if root not in _SCRATCH]
        return not any(len(root) > depth and fnmatchcase("/".join(root[: depth + 1]), glob) for root in roots)

    def may_run_code(self, name: str) -> bool:
        """Returns whether the owner lets a program of the project, or an installed one, run the folder's code."""
        if "/" not in name:
            return name in self.grants.code
        if is_wild(name) or not all(map(self._is_ours, self._paths(name))):
            return False
        return listed_as(name) in self.grants.code

    def reads_history(self) -> None:
        """Refuses git in a folder whose configuration may run programs."""
        if not self.grants.history or self.state.folders != (self.home,):
            raise code("git", "which loads the configuration of the folder; it reads history only in a repository")

    def check_variable(self, name: str, *values: str, handed: bool = False) -> None:
        """Refuses to set a variable that makes programs run something else, or send things elsewhere.

        ``handed``: programs are given it, so that only what is known to be harmless is set.
        """
        if any("$(" in value or "`" in value for value in values):
            raise unclear(f"{name[:40]} would hold a command that programs may run; leave it out.")
        if reason := self.grants.places.variable(name):
            raise ShellRefusal("shell-governs", reason)
        closed = handed or regex("variables", "closed").fullmatch(name) is not None
        allowed = allowed_values().get(name, "(?!)" if closed else "")
        folders = {folder for value in values for folder in value.split(":")} if name == "PATH" else set[str]()
        ours = any(folder.startswith("/") and self._is_ours(os.path.normpath(folder)) for folder in folders)
        if ours or (closed and not all(re.fullmatch(allowed, value) for value in values)):
            hint = "; use it in this text only, without export" if handed else ""
            reason = f"Setting {name[:40]} may change what other programs run; leave it out{hint}."
            self.leave(ShellRefusal("shell-environment", reason))

    def assign(self, name: str, *values: str) -> None:
        """Gives a variable one of ``values``. Refuses what `check_variable` refuses."""
        self.check_variable(name, *values)
        self.state.assign(name, values)

    def _paths(self, word: str) -> list[str]:
        """Where a word may lead, from every folder that the text may be in."""
        folders = self.state.folders
        self.budget.spend((4 + len(word) // 16) * len(folders))
        if UNKNOWN in word or "\n" in word or not word:
            raise unclear("It is not clear which file this is; write its name out.")
        if ".." in re.split(f"[{STAR}{BELOW}]", word, maxsplit=1)[-1] and is_wild(word):
            raise unclear("A wildcard followed by .. may lead anywhere; write the name out.")
        whole = [os.path.join(folder, word).replace("//", "/") for folder in folders]
        if ".." in word.split("/"):
            for path in whole:
                self._climb(path)
        return list({os.path.normpath(path) for path in whole})

    def _climb(self, path: str) -> None:
        """Notes the folders behind which a path goes up: behind a link it would get elsewhere than is written."""
        names_of_path = path.split("/")
        for at, name in enumerate(names_of_path):
            below = os.path.normpath("/".join(names_of_path[:at]) or "/")
            if name != ".." or below == "/":
                continue
            links = (*self.links, *self.carried, *(folder for _, folder, _ in self.unpacked))
            if any(_inside(below, link) for link in links):
                raise unclear(
                    f"Behind what this text makes or unpacks, {shown(path)} may lead elsewhere; write it without .."
                )
            self._touch("climbs", below)

    def _roots(self) -> tuple[str, ...]:
        return (*self.writable, self.home, *self.state.folders)

    def _is_ours(self, path: str) -> bool:
        return any(_inside(path, root) for root in (self.home, *self.writable))

    def _relative(self, path: str) -> str:
        """A path relative to the deepest of our folders that holds it."""
        root = max((root for root in (self.home, *self.writable) if _inside(path, root)), key=len)
        return posixpath.relpath(path, root)


def listed_as(program: str) -> str:
    """The form in which a program is compared with those that an owner lists: ``./make`` is not ``make``."""
    path = posixpath.normpath(program)
    return path if "/" in path or "/" not in program else f"./{path}"


def _secret(word: str) -> ShellRefusal:
    return ShellRefusal("shell-secret", f"{shown(word)} holds keys, credentials or private history.")


def _is_regenerable(name: str) -> bool:
    if is_wild(name.replace(BELOW, "")):
        return as_glob(name) in names("files", "regenerable")
    return globs("regenerable").match(name.replace(BELOW, "")) is not None


def _inside(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")


def runs_others(names_of_path: Sequence[str]) -> bool:
    """Returns whether a path, as its names, is or lies in what other programs run."""
    return any(map(_is_protected, (*names_of_path, *("/".join(pair) for pair in pairwise(names_of_path)))))


def _may_be_protected(name: str) -> bool:
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
    return _pattern(wild).fullmatch(path.lower()) is not None


@lru_cache(1024)
def _pattern(path: str) -> re.Pattern[str]:
    """A path with wildcards as a regular expression, for paths in lower case."""
    steps = {UNKNOWN: ".*", STAR: "[^/]*", ANY: "[^/]", BELOW: ".*"}
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
    whole, last = _pattern(path), _pattern(name if len(literal(name).replace(".", "")) > 1 else "/")
    for example in names("files", "secret_examples"):
        base = example.rpartition("/")[2]
        dotted = base.startswith(".") and name[:1] in (STAR, ANY)
        matches = whole.fullmatch(example) or (_is_secret_name(base) and last.fullmatch(base))
        if (hidden or not dotted) and matches:
            return True
    return False
