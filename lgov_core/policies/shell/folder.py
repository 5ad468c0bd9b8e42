"""Looks up the files that a text is about as they are at the time of a decision: links, trees, archives, a repository.

A look is bounded: by the entries of folders and archives, and by the bytes of each file that is read.
"""

from __future__ import annotations

import bz2
import glob
import gzip
import lzma
import os
import posixpath
import re
import stat
import tarfile
import zipfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.machinery import all_suffixes
from itertools import accumulate, chain, islice
from pathlib import Path
from typing import Any, Self

from lgov_core.places import NAMES, PROJECT_FILE, FileChange, GoverningPlaces, governs, is_harmless
from lgov_core.policies.shell.filenames import Effect, Search, is_secret, may_be, names_secret, runs_others
from lgov_core.policies.shell.syntax import ANY, BELOW, DIGITS, STAR, UNKNOWN, ShellRefusal, is_wild, shown, unclear
from lgov_core.policies.shell.workspace import SPLIT, Workspace

#: Keys of a repository's configuration that run and load nothing.
_PLAIN_KEYS = re.compile(
    r"core\.(?:repositoryformatversion|filemode|bare|logallrefupdates|ignorecase|precomposeunicode|symlinks|autocrlf|eol)"
    r"|remote\..+\.(?:url|pushurl|fetch|gh-resolved)|branch\..+\.(?:remote|merge|rebase|description|vscode-merge-base)"
    r"|submodule\..+\.(?:url|active)|(?:user|init|pull|push|color|advice)\.\w+"
)
_SECTION = re.compile(r'\s*\[([A-Za-z][\w-]*)(?: "([^"\\\n]*)")?\]\s*')
_SETTING = re.compile(r"\s*([A-Za-z][\w-]*)\s*(?:=[^\\]*)?")


def runs_nothing(folder: str) -> bool:
    """Returns whether ``folder`` holds a repository of its own whose configuration can run nothing.

    Such a configuration has only keys that are known to be harmless. Programs that an agent may start cannot write it. A
    submodule has a configuration of its own, which git follows.
    """
    inner = os.path.join(folder, ".git")
    try:
        if os.path.islink(inner) or os.path.exists(os.path.join(inner, "commondir")):
            return False
        with open(os.path.join(inner, "config"), encoding="utf-8") as file:
            lines = file.read(100_000).split("\n")
        if _holds_submodules(os.path.join(inner, "index")):
            return False
    except (OSError, ValueError):
        return False
    if os.path.lexists(os.path.join(inner, "hooks", "post-index-change")):  # which git status runs
        return False
    section = ""
    for line in lines:
        if not line.strip() or line.lstrip()[0] in "#;":
            continue
        if (header := _SECTION.fullmatch(line)) is not None:
            section = ".".join(filter(None, header.groups())).lower()
        elif (setting := _SETTING.fullmatch(line)) is None or not _PLAIN_KEYS.fullmatch(
            f"{section}.{setting[1].lower()}"
        ):
            return False
    return True


def _holds_submodules(index: str) -> bool:
    """Returns whether an index of git names a repository in the repository. Raises `ValueError` where it cannot be read."""
    if not os.path.exists(index):
        return False
    with open(index, "rb") as file:
        data = file.read(MAX_BYTES)
    if data[:4] != b"DIRC" or int.from_bytes(data[4:8]) not in (2, 3) or len(data) == MAX_BYTES:
        raise ValueError("This index cannot be read here.")
    at = 12
    for _ in range(int.from_bytes(data[8:12])):
        if data[at + 24 : at + 28] == _GITLINK:
            return True
        name = at + (64 if data[at + 60] & 0x40 else 62)  # an extended entry has further flags
        at += (data.index(b"\0", name) - at) // 8 * 8 + 8
    return False


#: The mode of an entry that is another repository.
_GITLINK = 0o160000.to_bytes(4)
#: Bytes of one file, decompressed, that are read; entries of folders that one decision looks at, and members of an archive.
MAX_BYTES, MAX_ENTRIES = 64_000_000, 20_000
#: Bytes of a ``pyproject.toml`` in an archive.
MAX_TEXT = 1_000_000
_COMPRESSED = {b"\x1f\x8b": gzip.open, b"BZ": bz2.open, b"\xfd7": lzma.open}


class _Bounded:
    """Reads at most `MAX_BYTES` of a file. Raises `ValueError` beyond."""

    def __init__(self, file: Any) -> None:
        self._file, self._left = file, MAX_BYTES

    def read(self, count: int) -> bytes:
        """The next ``count`` bytes."""
        self._left -= count
        if self._left < 0:
            raise ValueError("This archive is too large to be looked at.")
        return self._file.read(count)


@dataclass(frozen=True)
class LookUps:
    """The files that a text is about, which are looked up at each decision."""

    #: Files and what is done to them; of those that are written once, and known how, that too.
    files: tuple[tuple[Effect, str, FileChange | None], ...] = ()
    searches: tuple[Search, ...] = ()
    #: Archives, where they are unpacked, how many leading names of their members are left out (-1: all but the last), and what
    #: unpacks them.
    unpacked: tuple[tuple[str, str, int, str], ...] = ()
    #: Whether it may make names with spaces.
    brings_names: bool = False
    #: Whether it may make archives, or change them under another name.
    makes_archives: bool = False
    #: Whether it moves or copies what it has unpacked.
    takes_out: bool = False

    @classmethod
    def of(cls, workspace: Workspace) -> LookUps:
        """Returns what the text does that was judged in ``workspace``."""
        files: list[tuple[Effect, str, FileChange | None]] = [
            (effect, path, workspace.changes.get(path) if effect == "writes" and times == 1 else None)
            for (effect, path), times in workspace.effects.items()
        ]
        carries = any(effect == "carries" for effect, _ in workspace.effects)
        brings_names = bool(workspace.makes_spaces or workspace.unpacked or carries)
        return cls(
            tuple(files),
            tuple(workspace.searches),
            tuple(workspace.unpacked),
            brings_names,
            workspace.makes_archives,
            workspace.takes_out,
        )


_SPACES = "A name with a space or a quote would be several here; use find -exec ... {} +, or -print0 and xargs -0."


class Look:
    """One look at the files that a text is about, as they are now; at no more than `MAX_ENTRIES` entries. Used by one thread.

    ``roots`` are the folders that the text works in. ``lenient``: what is not clear, a kernel decides.
    """

    def __init__(self, roots: Sequence[str], places: GoverningPlaces, *, lenient: bool) -> None:
        self._roots, self._places, self._lenient = roots, places, lenient
        self._left = MAX_ENTRIES

    def check(self, lookups: LookUps) -> None:
        """Refuses files that are closed where links lead, and searches that read a secret. Raises `ShellRefusal`."""
        changes = [(path, change) for _, path, change in lookups.files if change is not None]
        once = sum(change.source is None and _is_project_file(path) for path, change in changes) < 2
        written = {os.path.realpath(path) for effect, path, _ in lookups.files if changes and effect == "writes"}
        moved = {path for effect, path, _ in lookups.files if effect == "moves"}
        others: dict[Effect, Callable[[str], None]] = {
            "climbs": self._climbs,
            "expands": self._expands,
            "becomes": self._becomes,
            "enters": lambda name: None if os.path.isdir(name) and name not in moved else self._becomes(name),
        }
        for effect, path, change in lookups.files:
            for name in self._named(path.removesuffix(BELOW)):
                if effect in ("follows", "carries", "brings", "fills"):
                    self._tree(effect, name)
                    continue
                if effect in others:
                    others[effect](name)
                    continue
                seen = change is not None and (once if change.source is None else not _changes(written, change.source))
                self._at_its_place(effect, name, change if seen else None)
                folder, last = os.path.split(name)
                if path.endswith(BELOW) and (lookups.brings_names or SPLIT.search(last)):
                    self._unclear(_SPACES)
                if effect == "reads" and not is_wild(name) and names_secret(os.path.basename(folder), last):
                    raise _shows(path, name)
        for search in lookups.searches:
            if search.split and lookups.brings_names:
                self._unclear(_SPACES)
            self._search(search)
        for archive in lookups.unpacked:
            self._unpacked(lookups, *archive)

    def _named(self, path: str) -> Iterator[str]:
        """The path, and with wildcards of the shell those that it names now."""
        yield path
        if is_wild(path) and not {BELOW, UNKNOWN} & {*path}:
            escaped = glob.escape(path).replace(STAR, "*").replace(ANY, "?").replace(DIGITS, "*[0-9]")
            folder, last = os.path.split(escaped)  # where a file is not there yet
            beside = (
                os.path.join(name, os.path.basename(path)) for name in glob.iglob(folder) if is_wild(path[: -len(last)])
            )
            for name in islice(chain(glob.iglob(escaped), beside), self._left):
                self._left -= 1
                yield name

    def _climbs(self, path: str) -> None:
        root = max((root for root in self._roots if _holds(root, path)), key=len, default="/")
        if os.path.realpath(path) != os.path.normpath(
            os.path.join(os.path.realpath(root), os.path.relpath(path, root))
        ):
            raise ShellRefusal(
                "shell-write", f"{path} is reached by a link, behind which .. leads elsewhere; leave .. out."
            )

    def _expands(self, path: str) -> None:
        if os.path.basename(path).startswith("-"):
            self._unclear(f"A program takes the file {shown(path)} for an option; write ./ before the wildcard.")

    def _becomes(self, path: str) -> None:
        """Refuses a name by which Python would find what gets it, where that is a folder, and unknown names beside such."""
        folder, suffix = os.path.dirname(path), os.path.splitext(path)[1]
        is_data = suffix and not is_wild(suffix) and suffix not in all_suffixes()
        into = folder if is_wild(path.removeprefix(folder)) and not is_data else path
        if (reason := self._places.receives(into)) is not None:
            raise ShellRefusal("shell-governs", reason)

    def _unclear(self, reason: str) -> None:
        if not self._lenient:
            raise unclear(reason)

    def _at_its_place(self, effect: Effect, path: str, change: FileChange | None = None) -> None:
        if effect == "writes":
            reason = self._places.writes(path, change)
        else:
            reason = self._places.reads(path) if effect == "reads" else self._places.moves(path)
        if reason is not None:
            raise ShellRefusal("shell-governs", reason)
        real = os.path.realpath(path)
        if real == path:
            return
        root = next((root for root in map(os.path.realpath, self._roots) if _holds(root, real)), None)
        below = "" if root is None else os.path.relpath(real, root)
        if effect == "reads" and root is None and not is_harmless(real):
            raise ShellRefusal("shell-secret", f"{path} leads outside of {self._roots[0]}; what is there is not shown.")
        if effect != "reads" and (root is None or runs_others(below.split("/"))):
            raise ShellRefusal("shell-write", f"{path} leads to {real}, where nothing may be written.")
        if is_secret(below):
            raise ShellRefusal("shell-secret", f"{path} leads to {real}, which holds keys or credentials.")

    def _entries(
        self, top: str, *, follow: bool = False, enters: Callable[[str], bool] = lambda name: True
    ) -> Iterator[os.DirEntry[str]]:
        """Yields what is below a folder: in the folders whose names it ``enters``, also where links lead with ``follow``.

        Raises `ValueError` for more entries than are looked at.
        """
        waiting, visited = [top], set[str]()
        while waiting:
            here = waiting.pop()
            real = os.path.realpath(here)
            if real in visited or not os.path.isdir(here):
                continue
            visited.add(real)
            with os.scandir(here) as opened:
                entries = list(islice(opened, self._left + 1))
            self._left -= len(entries)
            if self._left < 0:
                raise ValueError(f"{top} holds more than can be looked at")
            for entry in entries:
                yield entry
                if enters(entry.name) and entry.is_dir(follow_symlinks=follow):
                    waiting.append(entry.path)

    def _tree(self, effect: Effect, path: str) -> None:
        """Refuses a tree with links that lead elsewhere or, where it gets into another folder, with what governs."""
        top, below, _ = path.partition(BELOW)
        try:
            if effect != "brings" and os.path.islink(path):
                self._link(effect, path, path)
            if effect == "brings" and not below:
                self._stays(path)
            for entry in self._entries(top, follow=effect == "follows"):
                if effect != "brings" and entry.is_symlink():
                    self._link(effect, path, entry.path)
                folder = os.path.basename(os.path.dirname(entry.path))
                if effect == "carries" and names_secret(folder, entry.name) and not names_secret("", entry.name):
                    raise _shows(path, entry.path)  # elsewhere its place would not tell
                if effect not in ("follows", "fills") and (not below or may_be(path, entry.path)):
                    self._stays(entry.path)
        except (OSError, ValueError) as error:
            self._unclear(f"It is not clear what {top} holds: {error}; name a smaller folder.")

    def _stays(self, path: str) -> None:
        name = os.path.basename(path).lower()
        if name in NAMES or (name == PROJECT_FILE and governs(Path(path))):
            raise ShellRefusal("shell-governs", f"{path} decides how programs are governed, so it stays in its folder.")

    def _link(self, effect: Effect, top: str, link: str) -> None:
        if effect == "follows":
            try:
                self._at_its_place("reads", link)
            except ShellRefusal as refused:
                hint = "keep links as they are, as grep -r, cp -r and zip -y do"
                raise ShellRefusal("shell-secret", f"{str(refused).rstrip('.')}; {hint}.") from None
        elif link == top or not _holds(os.path.realpath(top), os.path.realpath(link)):
            raise ShellRefusal("shell-write", f"{link} is a link that may lead elsewhere from another place.")

    def _search(self, search: Search) -> None:
        """Refuses a search that reads a file which is secret by its name or place, or finds names that are split."""
        top, below, _ = search.path.partition(BELOW)
        closed: set[str] = set()
        try:
            for root in self._named(top.rstrip("/") or "/"):
                for entry in self._entries(root, enters=search.enters):
                    folder, name = os.path.split(entry.path)
                    if search.split and SPLIT.search(entry.path, len(root)) and may_be(search.path, entry.path):
                        self._unclear(_SPACES)
                    passes = "/" in search.path.rpartition(BELOW)[2] or may_be(search.path, entry.path)
                    if below and passes and entry.is_symlink() and search.effect != "moves":
                        self._at_its_place(search.effect, entry.path)
                    if folder not in closed and not names_secret(os.path.basename(folder), name):
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        closed.add(entry.path)
                    elif not self._lenient and search.reads(name) and (not below or may_be(search.path, entry.path)):
                        raise _shows(search.path, entry.path)
        except (OSError, ValueError) as error:
            hint = "name a smaller folder, or leave some out (--exclude-dir=node_modules)"
            self._unclear(f"It is not clear what this reads: {error}; {hint}.")

    def _unpacked(self, lookups: LookUps, archive: str, folder: str, strip: int, program: str) -> None:
        """Refuses an archive with a member that may not be written where it gets its name."""
        changed = {os.path.realpath(path) for effect, path, _ in lookups.files if effect in ("writes", "moves")}
        changed -= {os.path.realpath(posixpath.join(into, STAR)) for _, into, *_ in lookups.unpacked}  # seen below
        archives = {os.path.realpath(other) for other, *_ in lookups.unpacked}
        try:
            if lookups.makes_archives or _changes(changed, archive):
                raise ValueError("this text may make or change it")
            links: set[str] = set()
            for member in members(archive, program):
                what = f"{archive} holds {member.name[:80]!r}"
                names = [name for name in member.name.split("/") if name not in ("", ".")][strip:]
                path = posixpath.join(folder, *names)
                if os.path.realpath(path) in archives:
                    raise ValueError(f"{member.name[:80]!r} would replace an archive")
                change = None if member.text is None else FileChange(member.text)
                reason = self._places.writes(path, change)
                if reason := reason or (self._places.receives(path) if member.link is not None else None):
                    raise ShellRefusal("shell-governs", f"{what}. {reason}")
                if runs_others(names):
                    raise ShellRefusal("shell-write", f"{what}, which makes other programs run it; leave it out.")
                if any(name.startswith("-") for name in names):
                    raise ValueError(f"programs would take {member.name[:80]!r} for an option")
                if not _stays_in(folder, path) or not links.isdisjoint(accumulate(names[:-1], posixpath.join)):
                    raise ShellRefusal("shell-write", f"{what}, which a link leads elsewhere.")
                if member.link is not None:
                    if lookups.takes_out:
                        raise ValueError(f"{member.name[:80]!r} is a link, and this text moves what it unpacks")
                    links.add("/".join(names))
                    target = posixpath.join(folder if member.is_hard else posixpath.dirname(path), member.link)
                    below = os.path.relpath(target, folder)
                    climbs = ".." in re.sub(r"^(?:\.\./)+", "", member.link).split("/")
                    closed = self._places.writes(os.path.normpath(target)) is not None
                    if climbs or closed or not _stays_in(folder, target) or is_secret(below):
                        raise ShellRefusal("shell-write", f"{what}, a link that leads elsewhere or to what is closed.")
        except ValueError as error:
            self._unclear(
                f"It is not clear what {archive} holds ({error}); unpack what is there before, in a text of its own."
            )


def _shows(path: str, name: str) -> ShellRefusal:
    hint = "name the files, the kinds of files (--include, -name) or folders, or leave it out (--exclude)"
    return ShellRefusal("shell-secret", f"{shown(path)} reads {name}, which holds keys or credentials; {hint}.")


def _changes(written: Collection[str], path: str) -> bool:
    """Returns whether one of the paths that are written, wildcards among them, may be a file or hold it."""
    real = os.path.realpath(path)
    return any(
        _holds(other, real) or (is_wild(other) and may_be(other, real)) or _is_same_file(other, real)
        for other in written
    )


def _is_same_file(path: str, other: str) -> bool:
    """Returns whether two names are of one file, as hard links are."""
    try:
        return os.path.samefile(path, other)
    except OSError:
        return False


def _stays_in(folder: str, path: str) -> bool:
    """Returns whether a path lies in ``folder`` as it is written, and as links lead now."""
    return _holds(folder, os.path.normpath(path)) and _holds(os.path.realpath(folder), os.path.realpath(path))


def _is_project_file(path: str) -> bool:
    return os.path.basename(os.path.realpath(path)).lower() == PROJECT_FILE


def _holds(folder: str, path: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


@dataclass(frozen=True, slots=True)
class Member:
    """A member of an archive: with the ``text`` of a ``pyproject.toml``, and what it is a ``link`` to, if it is one."""

    name: str
    text: str | None = None
    link: str | None = None
    #: Whether it is another name of a file of the archive, and the link counts from the archive's top.
    is_hard: bool = False


#: How files begin that a program unpacks.
_BEGINNINGS = {"gzip": b"\x1f\x8b", "bzip2": b"BZ", "xz": b"\xfd7", "unzip": b"PK"}


class _Header(tarfile.TarInfo):
    """A header of a tar archive, of the two formats in which every program reads the same names."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """See `tarfile.TarInfo.frombuf`. Raises `ValueError` for another format."""
        posix, gnu = buf[257:265] == b"ustar\x0000", buf[257:265] == b"ustar  \x00"
        is_folder = buf[:100].rstrip(b"\0").endswith(b"/") and buf[156:157] == b"0"  # to some programs
        if (
            len(buf) == 512
            and any(buf)
            and (is_folder or buf[156] == 0 or not (posix or (gnu and not any(buf[345:500]))))
        ):
            raise ValueError("this form of tar archive is not read by every program alike")
        return super().frombuf(buf, encoding, errors)


def members(archive: str, program: str) -> list[Member]:
    """The members of a tar or zip archive as ``program`` unpacks it; none where there is no archive.

    Raises `ValueError` for what cannot be read in bounded time, or is no archive.
    """
    if not os.path.lexists(archive):
        return []
    if not os.path.isfile(archive):
        raise ValueError("This is no file.")
    try:
        listed = list(islice(_members(archive, program), MAX_ENTRIES + 1))
    except (OSError, EOFError, tarfile.TarError, zipfile.BadZipFile, lzma.LZMAError, NotImplementedError) as error:
        raise ValueError(str(error)) from error
    if len(listed) > MAX_ENTRIES:
        raise ValueError("This archive has too many members to be looked at.")
    return listed


def _members(archive: str, program: str) -> Iterator[Member]:
    with open(archive, "rb") as file:
        start = file.read(2)
        if not start.startswith(_BEGINNINGS.get(program, b"")) or (program == "tar" and start == b"PK"):
            raise ValueError(f"{program} would read it otherwise than its name says")
        zipped = zipfile.is_zipfile(file)  # which may be at the end of a tar archive
        if zipped:
            packed = zipfile.ZipFile(file)
            for entry in packed.infolist():
                name, opened = entry.filename, partial(packed.open, entry)
                if b"up" in entry.extra:  # another name, in Unicode
                    raise ValueError("a member may have two names")
                if stat.S_ISLNK(entry.external_attr >> 16):
                    yield Member(name, link=opened().read(MAX_TEXT).decode(errors="replace"))
                else:
                    yield Member(name, _text(name, entry.file_size, opened))
        file.seek(0)
        if start == b"PK" and zipped and not tarfile.is_tarfile(file):
            return
        file.seek(0)
        compressed = start in _COMPRESSED
        stream: Any = _Bounded(_COMPRESSED[start](file)) if compressed else file
        with tarfile.open(fileobj=stream, mode="r|" if compressed else "r:", tarinfo=_Header) as tar:
            for member in tar:
                link = member.linkname if member.issym() or member.islnk() else None
                text = _text(member.name, member.size, partial(tar.extractfile, member)) if link is None else None
                yield Member(member.name, text, link, member.islnk())


def _text(name: str, size: int, opened: Callable[[], Any]) -> str | None:
    """The text of a member that is a ``pyproject.toml``, not too long and UTF-8."""
    if posixpath.basename(name).lower() != PROJECT_FILE or size > MAX_TEXT:
        return None
    with suppress(UnicodeDecodeError, KeyError, AttributeError):  # a link, a folder
        return opened().read(MAX_TEXT).decode()
    return None
