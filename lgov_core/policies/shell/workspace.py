"""Which files a text may read, write, remove and run, and which variables it may set, in the folders it may be in."""

from __future__ import annotations

import os.path
import posixpath
import re
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import product
from typing import Any

from lgov_core.places import PROJECT_FILE, FileChange, GoverningPlaces, is_harmless
from lgov_core.policies.shell.filenames import (
    Effect,
    Search,
    is_regenerable,
    is_secret,
    may_be,
    may_be_protected,
    pattern_of,
    runs_others,
)
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
    shown,
    unclear,
)
from lgov_core.policies.shell.table import allowed_values, globs, names, regex
from lgov_core.policies.shell.words import State

_SCRATCH = ("/tmp", "/var/tmp")
#: A quoted wildcard that another program expands, in names with a leading dot too.
_WILDCARDS = str.maketrans({"*": f"{BELOW}{STAR}", "?": ANY, "[": ANY})
#: What ``xargs`` and the shell split names at.
SPLIT = re.compile(r"[\s'\"\\]")
_PLAIN_WORD = re.compile(r"\w+(?:[/.]\w+)*")
#: Where a path may begin in an argument; the colon of an address is none of them.
_PATHS_IN = re.compile(r"[@,=]|:(?!//\w)")
_PARTS, _OPTION = re.compile(r"[=:@,]"), re.compile(r"^-\w(?=[/~.])")
_CLIMBS, _PATHSPEC = re.compile(r"^(?:\.{1,2}/+)*\.\./+"), re.compile(r"^:\([a-z,]*\)|^:/")


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


#: How often a path may go to the folder above.
MAX_CLIMBS = 32


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
        #: Links that it makes, with what they may lead to; and names of trees that it copies or moves: links may be in them.
        self.links: dict[str, set[str]] = {}
        self.carried: dict[str, set[str]] = {}
        #: Whether it may make archives, or change them under another name.
        self.makes_archives = False
        #: Whether it moves or copies what it has unpacked.
        self.takes_out = False
        #: Files that it reads, writes, or moves and removes: what is found there is looked up at each decision.
        #: With how often it does so.
        self.effects: dict[tuple[Effect, str], int] = {}
        #: How it changes the files that it writes, where that is known.
        self.changes: dict[str, FileChange] = {}
        #: Whether what is judged may be done several times.
        self.repeats = False
        #: Archives whose members get names in a folder, without so many leading names.
        self.unpacked: dict[tuple[str, str, int, str], None] = {}
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
        paths = self._paths(word, contents=True)
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
                and any(map(pattern_of(path).fullmatch, map(str.lower, self.grants.places.kept)))
            ):
                raise ShellRefusal("shell-governs", f"{shown(word)} may be what lgov keeps about this program.")
            self._touch("reads", path)

    def pass_on(self, effect: Effect, word: str) -> None:
        """Notes that a tree is followed or carried elsewhere, for which its links are looked up.

        A link that this text makes must not be carried: it may lead elsewhere from another place.
        """
        for path in self._paths(word, contents=True):
            inside = any(_inside(path, folder) and path != folder for _, folder, *_ in self.unpacked)
            self.takes_out |= effect == "carries" and inside
            if effect == "carries" and any(_inside(link, path) or may_be(path, link) for link in self.links):
                raise ShellRefusal(
                    "shell-write", f"{shown(word)} is or holds a link that this text makes; leave it there."
                )
            self._touch(effect, path)

    def search(self, word: str, **selection: Any) -> None:
        """Notes a tree whose files are read, for which secrets in it are looked up; ``selection`` as of `Search`."""
        for path in self._paths(word, contents=True):
            for searched in [path, f"{path}/{BELOW}{STAR}"] if BELOW in path else [path]:
                self.searches[Search(searched, **selection)] = None

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
                    "shell-governs",
                    f"{shown(word)} is or may be what decides how this program is governed, or its own code.",
                )
            if self._is_ours(path) and runs_others(self._relative(path).split("/")):
                raise ShellRefusal(
                    "shell-write", f"{shown(word)} is or may be a file that makes other programs run it."
                )
            if self._is_ours(path):
                if is_secret(self._relative(path)):
                    raise _secret(word)
                self._touch("reads", path)

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
            if protected or (rooted and may_be_protected(below[-1])):
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
        return self.grants.places.matching(pattern_of(path))

    def _found_are_plain(self, path: str) -> bool:
        """Returns whether files that a search finds may be written: none is in ``.git``."""
        folder, _, name = path.partition(BELOW)
        ended = re.fullmatch(rf"{STAR}\.\w+", name) is not None and not may_be_protected(name)  # in .git none is
        return not is_wild(folder) and (ended or folder.rstrip("/") not in self._roots())

    def unpack(self, archive: str, folder: str, strip: int, program: str) -> None:
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
            self.unpacked[path, into, strip, program] = None

    def into(self, word: str, sources: Sequence[str], *, moved: bool, folders: Effect | None) -> None:
        """Refuses a file, or a folder in which the ``sources`` get names, that may not be written.

        Where they may be ``folders``, one ``becomes`` what ``word`` names or, where a folder is there, it ``enters`` that.
        """
        if any(name in names("files", "fetched") for path in self._paths(word) for name in path.split("/")):
            raise ShellRefusal("shell-write", f"What is in {shown(word)} is installed; nothing is moved into it.")
        copied = [path for source in sources for path in self._paths(source)]
        change = FileChange(source=copied[0]) if len(copied) == 1 and not is_wild(copied[0]) else None
        self.write(word, may_be_secret=True, change=change)
        if folders is not None:
            self.pass_on(folders, word)
        if moved:
            self.moved.update(self._paths(word))
        inside: list[tuple[list[str], Iterable[str]]] = [([*sources], {*self._paths(word)}.difference(self._roots()))]
        for source in sources:
            if is_wild(source):
                self.pass_on("brings", source)
            name = source.rpartition("/")[2]
            into = f"{word}/{STAR if name in ('', '.', '..') else name.replace(BELOW, '')}"
            inside.append(([source], [path for path in self._paths(into) if not is_wild(path)] or self._paths(word)))
            self.write(into, may_be_secret=True, change=change)
            if folders is not None or is_wild(into):
                self.pass_on("becomes", into)
        for carried, names_there in inside:
            self.carry(carried, names_there)

    def carry(self, sources: Sequence[str], names_of_them: Iterable[str]) -> None:
        """Notes that what the ``sources`` hold may be found under other names."""
        paths = {path for source in sources for path in self._paths(source)}
        for name in names_of_them:
            self.carried.setdefault(name, set()).update(path for path in paths if not _inside(path, name))

    def link(self, word: str, link: str | None, *, symbolic: bool) -> None:
        """Refuses to give a file or folder another name unless both are harmless under each of them.

        A ``symbolic`` link counts from the folder in which it lies.
        """
        name = word.rstrip("/").rpartition("/")[2]
        if is_wild(link or name) or ".." in _CLIMBS.sub("", word).split("/"):
            raise unclear(f"It is not clear where a link to {shown(word)} leads; write both names out, without ..")
        links = [name] if link is None else [link, f"{link}/{name}"]
        beside = [posixpath.join(posixpath.dirname(path), word) for path in links]
        targets = beside if symbolic and link is not None else [word]
        for target in targets:
            self.inside(target)
            self.read(target)
            self.write(target)
            if any(_inside(root, path) for path in self._paths(target) for root in self._roots()):
                raise ShellRefusal(
                    "shell-write", f"A link to {shown(word)} would give the files of this folder other names."
                )
        led = {path for target in targets for path in self._paths(target)}
        for path in [path for text in links for path in self._paths(text)]:
            self.links.setdefault(path, set()).update(target for target in led if not _inside(target, path))
        if link is None:
            self.write(name)
            self.pass_on("becomes", name)

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
            if self._is_scratch(path) or any(map(is_regenerable, self._relative(path).split("/"))):
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

    def _paths(self, word: str, *, contents: bool = False) -> list[str]:
        """Where a word may lead, from every folder that the text may be in; and, for its ``contents``, where they came from."""
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
        paths = {os.path.normpath(path) for path in whole}
        return list(self._behind_links(paths, contents=contents) if self.links or self.carried else paths)

    def _behind_links(self, paths: set[str], *, contents: bool) -> set[str]:
        """``paths``, and where links that this text makes lead them, or what it copies and moves came from."""
        names_of_others = [*self.links.items(), *(self.carried.items() if contents else ())]
        waiting = list(paths)
        while waiting:
            path = waiting.pop()
            for link, targets in names_of_others:
                self.budget.spend(4 + len(path) // 16)
                if _inside(path, link):
                    led = {target + path[len(link) :] for target in targets} - paths
                    paths |= led
                    waiting += led
        return paths

    def _climb(self, path: str) -> None:
        """Notes the folders behind which a path goes up: behind a link it would get elsewhere than is written."""
        new_paths = (*self.links, *self.carried, *(folder for _, folder, *_ in self.unpacked))
        above: list[str] = []
        if path.count("..") > MAX_CLIMBS:
            raise unclear(f"{shown(path)} goes up and down too often; write the name out.")
        for name in path.split("/"):
            if name != "..":
                above += [name] if name not in ("", ".") else []
                continue
            below = "/" + "/".join(above)
            if below == HOME:
                raise unclear(f"It is not known where {shown(path)} leads; write it without ..")
            if any(_inside(below, link) for link in new_paths):
                reason = (
                    f"Behind what this text makes or unpacks, {shown(path)} may lead elsewhere; write it without .."
                )
                raise unclear(reason)
            if above:
                self._touch("climbs", below)
                above.pop()

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


def _inside(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")
