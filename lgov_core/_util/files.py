"""Files that survive a crash: atomic writes (temporary file, fsync, rename, fsync of the folder; mode 0600), durable appends,
files that one process at a time holds, secrets that other users cannot read, and the name of this user.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import stat
import tempfile
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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


def append_line(path: Path, line: bytes) -> None:
    """Appends ``line`` and a line feed in one write, then fsyncs the file. Raises `OSError`."""
    with path.open("ab", buffering=0) as file:
        data = line + b"\n"
        while data:
            data = data[file.write(data) :]
        os.fsync(file.fileno())


def drop_torn_line(path: Path) -> None:
    """Truncates an incomplete last line, left by a killed process. Does nothing when the file does not exist."""
    if path.exists():
        data = path.read_bytes()
        if not data.endswith(b"\n"):
            with path.open("r+b") as file:
                file.truncate(data.rfind(b"\n") + 1)


def sync_file(path: Path) -> None:
    """Fsyncs the file. Raises `OSError`."""
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """Fsyncs the folder's directory entry, where the system supports it."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some file systems refuse
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


class HeldByAnother(Exception):
    """Another process holds the file. ``holder`` is its number as text, or empty where it is not known."""

    def __init__(self, holder: str) -> None:
        super().__init__(holder)
        self.holder = holder


@contextlib.contextmanager
def hold(path: Path) -> Generator[None]:
    """Holds ``path`` within the block; the file is created if needed, and contains the process id of the holder.

    Raises `HeldByAnother`, and `OSError` when the file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        try:
            _lock(file)
        except OSError as error:
            file.seek(0)
            raise HeldByAnother(file.read().strip()) from error
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def _lock(file: Any) -> None:
    try:
        import fcntl
    except ImportError:  # Windows
        import msvcrt

        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        return
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def open_to_others(path: str | os.PathLike[str]) -> bool:
    """True if users besides the one who runs this process may use the file. Raises `OSError`; on Windows it is never true.

    The group of a file that belongs to another user may read it: so a process without root reads a secret that Kubernetes
    or Docker mounts for it.
    """
    if os.name != "posix":
        return False
    status = Path(path).stat()
    group = stat.S_IRWXG if status.st_uid == os.geteuid() else stat.S_IWGRP | stat.S_IXGRP
    return bool(status.st_mode & (group | stat.S_IRWXO))


def os_user() -> str:
    """The name of the user whose process this is, as the system knows it; its number, or nothing, where it has no name."""
    with contextlib.suppress(ImportError, KeyError, AttributeError):
        import pwd

        return pwd.getpwuid(os.getuid()).pw_name
    with contextlib.suppress(OSError, KeyError, ImportError):
        return getpass.getuser()
    return str(os.getuid()) if hasattr(os, "getuid") else ""
