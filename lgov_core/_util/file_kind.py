"""Kinds of SQLite files, and which file a path names: one that was replaced under an open connection is another."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from lgov_core.errors import LgovError


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
            f"{kind.what} {path} is no longer the file that was opened",
            hint="it was moved, deleted or replaced; put it back, or start over with a new file",
        )


def file_identity(path: str | os.PathLike[str]) -> tuple[int, int]:
    """The identity of the file at ``path``: device and inode. Raises `OSError`."""
    status = os.stat(path)
    return status.st_dev, status.st_ino
