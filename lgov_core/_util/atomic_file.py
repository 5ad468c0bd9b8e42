"""Atomic writes of files and folders: temporary file, fsync, rename, fsync of the folder; mode 0600."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path

from lgov_core._util.durable import sync_file, sync_folder
from lgov_core._util.sqlite_file import is_database
from lgov_core.errors import LgovError


def atomic_write(path: Path, data: bytes) -> None:
    """Writes ``data`` to ``path`` atomically and durably; the folder is created. Raises `OSError`, leaving the old file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _replacement(path) as temporary:
        temporary.write_bytes(data)


@contextmanager
def atomic_folder(path: Path) -> Generator[Path]:
    """Yields an empty folder beside ``path``, which replaces it durably when the block ends; removed when the block raises.

    Raises `OSError`. A process that is killed leaves ``path`` as it was, or whole.
    """
    partial, replaced = path.with_name(f".{path.name}.partial"), path.with_name(f".{path.name}.replaced")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        yield partial
        for file in partial.rglob("*"):
            if file.is_file():
                sync_file(file)
        sync_folder(partial)
        if path.exists():
            shutil.rmtree(replaced, ignore_errors=True)
            os.replace(path, replaced)
        os.replace(partial, path)
        sync_folder(path.parent)
        shutil.rmtree(replaced, ignore_errors=True)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def atomic_file(path: Path, error: type[LgovError]) -> Generator[Path]:
    """Yields a temporary file that replaces ``path`` when the block ends, and is removed when the block raises.

    Raises ``error``, leaving ``path`` alone, when ``path`` is a symbolic link, not a regular file, or a database (a record
    or store is easily named by mistake), or when it cannot be written.
    """
    try:
        if os.path.lexists(path) and not stat.S_ISREG(mode := os.lstat(path).st_mode):
            what = "a symbolic link" if stat.S_ISLNK(mode) else "not a regular file"
            raise error(f"{path} is {what}", hint="name a new file or a regular one")
        if is_database(path):
            raise error(f"{path} is a database and is not overwritten", hint="name another file")
        with _replacement(path) as temporary:
            yield temporary
    except OSError as failed:
        raise error(f"{path} cannot be written: {failed.strerror or failed}", hint="name another path") from failed


def write_lines(path: Path, lines: Iterable[str], error: type[LgovError]) -> int:
    """Writes ASCII lines to an `atomic_file`; returns how many. Raises ``error``."""
    count = 0
    with atomic_file(path, error) as temporary, temporary.open("w", encoding="ascii") as file:
        for line in lines:
            file.write(line + "\n")
            count += 1
    return count


@contextmanager
def _replacement(path: Path) -> Generator[Path]:
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".new", dir=path.parent)
    temporary = Path(name)
    try:
        try:
            yield temporary
            os.fsync(handle)
        finally:
            os.close(handle)
        os.replace(temporary, path)  # replaces a symbolic link created meanwhile instead of following it
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)
