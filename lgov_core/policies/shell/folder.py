"""Reads what files of a folder say at the time of a decision: the configuration of a repository, the members of an archive."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import re
import tarfile
import zipfile
from collections.abc import Iterator
from itertools import islice
from typing import Any

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
#: Bytes of one file, decompressed, and members of one archive or entries of one tree that are looked at.
MAX_BYTES, MAX_MEMBERS = 64_000_000, 20_000
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


def links(path: str, *, follow: bool) -> Iterator[str]:
    """The symbolic links at and below ``path``; with ``follow`` those in the folders that they lead to as well.

    Raises `ValueError` for more entries than are looked at.
    """
    waiting, visited, count = [path], set[str](), 0
    while waiting:
        here = waiting.pop()
        if os.path.islink(here):
            yield here
            if not follow:
                continue
        real = os.path.realpath(here)
        if real in visited or not os.path.isdir(here):
            continue
        visited.add(real)
        with os.scandir(here) as entries:
            for entry in entries:
                count += 1
                if count > MAX_MEMBERS:
                    raise ValueError(f"{path} holds more than can be looked at.")
                if entry.is_symlink() or entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)


def members(archive: str) -> list[str]:
    """The names in a tar or zip archive; none where it is not there.

    Raises `ValueError` for what cannot be read in bounded time, or is no archive.
    """
    if not os.path.lexists(archive):
        return []
    if not os.path.isfile(archive):
        raise ValueError("This is no file.")
    try:
        listed = list(islice(_members(archive), MAX_MEMBERS + 1))
    except (OSError, EOFError, tarfile.TarError, zipfile.BadZipFile, lzma.LZMAError, NotImplementedError) as error:
        raise ValueError(str(error)) from error
    if len(listed) > MAX_MEMBERS:
        raise ValueError("This archive has too many members to be looked at.")
    return listed


def _members(archive: str) -> Iterator[str]:
    with open(archive, "rb") as file:
        start = file.read(2)
        zipped = zipfile.is_zipfile(file)  # which may be at the end of a tar archive
        if zipped:
            yield from zipfile.ZipFile(file).namelist()
        file.seek(0)
        if start == b"PK" and zipped and not tarfile.is_tarfile(file):
            return
        file.seek(0)
        if start in _COMPRESSED:
            opened: Any = _Bounded(_COMPRESSED[start](file))
            with tarfile.open(fileobj=opened, mode="r|") as tar:
                yield from (member.name for member in tar)
        else:
            with tarfile.open(fileobj=file, mode="r:") as tar:
                yield from (member.name for member in tar)
