"""Kinds of SQLite files: opens them, describes their errors, and says which file a path names.

Every file is private to its owner (mode 0600), in WAL mode with ``synchronous=NORMAL``: a commit survives the death of
the process, and of the machine up to the last checkpoint. Each kind of file carries its own ``application_id``, so that
another program's database is refused instead of being written to.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import quote

from lgov_core.errors import LgovError

_HEADER: Final = b"SQLite format 3\0"
#: The suffixes of the files that SQLite creates beside a database.
BESIDE: Final = ("-wal", "-shm", "-journal")


@dataclass(frozen=True, slots=True)
class FileKind:
    """One kind of file: its name for messages, its id, its schema, and the error class for it.

    ``migrations`` has, for each older version that can be opened, the statements that make a file of it one of the next
    version, and functions that do so. A file is brought up to date when it is opened, in one transaction.
    """

    what: str
    application_id: int
    version: int
    schema: tuple[str, ...]
    error: type[LgovError]
    migrations: Mapping[int, tuple[str | Callable[[sqlite3.Connection], None], ...]] = field(
        default_factory=dict[int, tuple[str | Callable[[sqlite3.Connection], None], ...]]
    )


def require_same_file(kind: FileKind, path: str | os.PathLike[str], expected: tuple[int, int]) -> None:
    """Raises ``kind.error`` unless ``path`` names the file it named before: rows written to a moved file are lost."""
    try:
        identity = file_identity(path)
    except OSError:
        identity = None
    if identity != expected:
        raise kind.error(
            f"{kind.what} {path} is {'gone' if identity is None else 'no longer the file that was opened'}",
            hint="it was moved, deleted or replaced; put it back, or start over with a new file",
        )


def file_identity(path: str | os.PathLike[str]) -> tuple[int, int]:
    """The identity of the file at ``path``: device and inode. Raises `OSError`."""
    status = os.stat(path)
    return status.st_dev, status.st_ino


def is_database(path: Path) -> bool:
    """True if ``path`` is a SQLite database or one of the files beside it, so that nothing must be written over it.

    One that is in use is recognised by the files beside it and not opened: closing any descriptor of a file drops the
    locks that this process holds on it.
    """
    if path.is_dir():
        return False
    if any(path.with_name(path.name + end).exists() for end in BESIDE):
        return True
    if path.name.endswith(BESIDE) and path.with_name(path.name.rpartition("-")[0]).exists():
        return True
    try:
        with path.open("rb") as file:
            return file.read(len(_HEADER)) == _HEADER
    except OSError:
        return False


def open_sqlite(
    kind: FileKind,
    path: Path,
    *,
    busy_timeout_s: float,
    expected: tuple[int, int] | None = None,
    only_look: bool = False,
) -> sqlite3.Connection:
    """A connection in autocommit mode to the file at ``path``, which is created when it does not exist.

    With ``expected`` (from `file_identity`) it must still be the same file. A file of an older version that
    ``kind`` knows how to migrate is migrated, whole or not at all. With ``only_look`` a file that may not be written is
    opened for reading: not one of an older version, nor one whose log is not finished. Another process that is busy with the
    file is waited for, ``busy_timeout_s`` seconds at most. The connection may be handed from thread to thread.
    Raises ``kind.error`` when the file cannot be opened, is something else, or was written by a newer lgov.
    """
    connection: sqlite3.Connection | None = None
    try:
        if expected is None:
            _make_private_file(kind, path)
        else:
            require_same_file(kind, path, expected)
        reads_only = only_look and not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK))
        connection = sqlite3.connect(
            f"file:{quote(str(path.absolute()))}?mode={'ro' if reads_only else 'rw'}{_immutable(path) if reads_only else ''}",
            uri=True,
            timeout=busy_timeout_s,
            isolation_level=None,
            check_same_thread=False,
        )
        if not reads_only:
            _prepare(kind, path, connection, busy_timeout_s)
        elif _version(kind, path, connection) < kind.version:
            raise kind.error(
                f"{kind.what} {path} is of an older format, and cannot be changed where it is",
                hint="copy it with the files beside it to a place where this user may write",
            )
    except (sqlite3.Error, OSError) as error:
        if connection is not None:
            connection.close()
        raise describe(kind, path, error) from error
    except BaseException:
        if connection is not None:
            connection.close()
        raise
    return connection


def _immutable(path: Path) -> str:
    """For a file whose log is finished: nothing is written beside it, not even to read it."""
    log = path.with_name(f"{path.name}-wal")
    return "" if log.exists() and log.stat().st_size else "&immutable=1"


def open_in_memory(kind: FileKind) -> sqlite3.Connection:
    """A connection in autocommit mode to a new database of ``kind`` in memory, which ends with the connection."""
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA foreign_keys=ON")
    for statement in kind.schema:
        connection.execute(statement)
    return connection


def is_blank(path: Path, *, busy_timeout_s: float = 5.0) -> bool:
    """True if nothing was ever committed to the file at ``path``: it is empty, or has lost the log that held everything.

    For those who only look: `open_sqlite` would make a new database of such a file. Reads only; False for what cannot
    be read.
    """
    try:
        address = f"file:{quote(str(path.absolute()))}?mode=ro"
        with contextlib.closing(sqlite3.connect(address, uri=True, timeout=busy_timeout_s)) as connection:
            return _contents(connection) == (0, 0, 0)
    except (sqlite3.Error, OSError):
        return False


def application_id(path: Path) -> bytes:
    """The application id of the database at ``path``; empty where it is none, or cannot be read.

    SQLite is asked: the id of a new database may be in its log only, and to open and close the file here would drop the locks
    that this process holds on it.
    """
    for mode in ("mode=ro", "mode=ro&immutable=1"):  # the second where nothing may be written beside it
        with contextlib.suppress(sqlite3.Error, OSError, ValueError):
            address = f"file:{quote(str(path.absolute()))}?{mode}"
            if path.stat().st_size:  # SQLite takes an empty file for a database
                with contextlib.closing(sqlite3.connect(address, uri=True, timeout=0.2)) as connection:
                    return int(connection.execute("PRAGMA application_id").fetchone()[0]).to_bytes(4, signed=True)
    return b""


def finish_log(path: Path) -> None:
    """Writes SQLite's log of a database back, so that the file alone holds everything, where nobody is in the way."""
    with contextlib.suppress(sqlite3.Error):
        address = f"file:{quote(str(path.absolute()))}?mode=rw"
        with contextlib.closing(sqlite3.connect(address, uri=True, timeout=0)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _make_private_file(kind: FileKind, path: Path) -> None:
    if path.is_dir():
        raise kind.error(f"{kind.what} {path} is a directory", hint="give the path of a file in it")
    if not path.parent.is_dir():
        raise kind.error(f"{kind.what} {path}: the folder {path.parent} does not exist", hint="create the folder first")
    # Only a new file may be opened and closed here: closing any descriptor of a file drops every lock that this process
    # holds on it, those of other connections among them.
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


def _prepare(kind: FileKind, path: Path, connection: sqlite3.Connection, busy_timeout_s: float) -> None:
    version = _version(kind, path, connection)
    deadline = time.monotonic() + busy_timeout_s
    while True:
        try:
            mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
            break
        except sqlite3.OperationalError as error:
            # SQLite does not use its own busy timeout when two processes switch the mode at once.
            if not is_busy(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
    if mode != "wal":
        raise kind.error(f"{kind.what} {path} cannot be put in WAL mode", hint="put it on a local file system")
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute("PRAGMA foreign_keys=ON")
    # A checkpoint waits for the disk: fewer of them, at the price of a log of 16 MB.
    connection.execute("PRAGMA wal_autocheckpoint=4000")
    if version < kind.version:
        _bring_up_to_date(kind, path, connection)


def _bring_up_to_date(kind: FileKind, path: Path, connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = _version(kind, path, connection)  # another process may have been first
        if version == 0:
            for statement in kind.schema:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id={kind.application_id}")
        else:
            for older in range(version, kind.version):
                for step in kind.migrations[older]:
                    if isinstance(step, str):
                        connection.execute(step)
                    else:
                        step(connection)
        if version < kind.version:
            connection.execute(f"PRAGMA user_version={kind.version}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _contents(connection: sqlite3.Connection) -> tuple[int, int, int]:
    """The file's application id, its version, and how many tables and the like it has."""
    return connection.execute(
        "SELECT (SELECT application_id FROM pragma_application_id), (SELECT user_version FROM pragma_user_version),"
        " (SELECT count(*) FROM sqlite_master)"
    ).fetchone()


def _version(kind: FileKind, path: Path, connection: sqlite3.Connection) -> int:
    """The file's version; 0 when it is empty. Raises ``kind.error`` for one of another kind or that cannot be migrated."""
    application_id, version, tables = _contents(connection)
    if (application_id, version, tables) == (0, 0, 0):
        return 0
    if application_id != kind.application_id:
        raise kind.error(
            f"{path} is a SQLite database, but not an lgov {kind.what}",
            hint="give the path of a new file, or of one that lgov made for this purpose",
        )
    if version > kind.version:
        raise kind.error(
            f"{kind.what} {path} has format {version}; this lgov knows formats up to {kind.version}",
            hint="upgrade lgov, or start a new file",
        )
    if any(older not in kind.migrations for older in range(version, kind.version)):
        raise kind.error(
            f"{kind.what} {path} has format {version}; this lgov writes format {kind.version}",
            hint="open it with the lgov that wrote it, or start a new file",
        )
    return version


#: Bytes that must be free for a row.
_ROOM: Final = 64 * 1024


def require_writable(kind: FileKind, path: Path | None, connection: sqlite3.Connection, *tables: str) -> None:
    """Raises where no row of ``tables`` could be written, as far as that shows without one and without waiting for others.

    That is ``kind.error``, `sqlite3.Error` or `OSError`.
    """
    for table in tables:
        connection.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone()
    if path is not None and (not os.access(path, os.W_OK) or shutil.disk_usage(path.parent).free < _ROOM):
        raise kind.error(f"{kind.what} {path}: the disk is full or read-only", hint="make room for entries")


def is_busy(error: BaseException) -> bool:
    """True if ``error`` says that the file is locked."""
    return _primary_code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _primary_code(error: BaseException) -> int | None:
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


_HELD = "another process holds the file: try again when it is done, or end it (fuser FILE names it)"
_HINTS = {
    sqlite3.SQLITE_FULL: "the disk is full: make space; nothing was half-written and writing can go on after that",
    sqlite3.SQLITE_IOERR: "look for a full disk, a file-size limit or a failing device; nothing was half-written",
    sqlite3.SQLITE_READONLY: "the file or its folder is read-only: SQLite must be able to write to both",
    sqlite3.SQLITE_CANTOPEN: "the file and its folder must be readable and writable for this user",
    sqlite3.SQLITE_PERM: "the file and its folder must be readable and writable for this user",
    sqlite3.SQLITE_NOTADB: "it is not a SQLite database; give the path of another file",
    sqlite3.SQLITE_CORRUPT: "the file is damaged; keep a copy, and start a new one",
    sqlite3.SQLITE_BUSY: _HELD,
    sqlite3.SQLITE_LOCKED: _HELD,
}


def describe(kind: FileKind, path: str | os.PathLike[str], error: BaseException) -> LgovError:
    """``error`` as ``kind.error``: which file, what went wrong, and what to do."""
    if isinstance(error, LgovError):
        return error
    hint = _HINTS.get(_primary_code(error) or -1)
    if isinstance(error, PermissionError):
        hint = _HINTS[sqlite3.SQLITE_CANTOPEN]
    return kind.error(f"{kind.what} {path}: {error if str(error) else type(error).__name__}", hint=hint)


class QuietAcrossFork(Protocol):
    """Something with SQLite connections, none of which may be open while the process forks.

    A forked child that inherits a connection believes that it holds the parent's file locks, which it does not.
    """

    def before_fork(self) -> None:
        """Stops work and closes the connections. Called in the forking thread."""
        ...

    def after_fork_in_parent(self) -> None:
        """Allows work again."""
        ...

    def after_fork_in_child(self) -> None:
        """Makes the child's copy usable, or has it refuse to work."""
        ...


def keep_quiet_across_fork(owner: QuietAcrossFork) -> None:
    """Calls ``owner`` around every fork of this process while it is alive."""
    if not hasattr(os, "register_at_fork"):  # no fork on this platform
        return

    def weak(method: Callable[[], None]) -> Callable[[], None]:
        reference = weakref.WeakMethod(method)
        return lambda: None if (alive := reference()) is None else alive()

    os.register_at_fork(
        before=weak(owner.before_fork),
        after_in_parent=weak(owner.after_fork_in_parent),
        after_in_child=weak(owner.after_fork_in_child),
    )
