"""What a path holds: runs and stores."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

from lgov_core.errors import StoreError
from lgov_core.settings import without_password

#: The application ids of lgov's files.
_STORE: Final = b"lgvS"
_AUDIT: Final = b"lgvA"
_APPROVALS: Final = b"lgvP"
_SUFFIXES: Final = (".sqlite", ".sqlite3", ".db")
#: How deep runs are looked for, and how many files of a folder are looked at.
_DEPTH: Final = 3
_NAME_ONE: Final = "name a store (lgov run --store traces.sqlite makes one) or the folder of a training"
_MOST_FILES: Final = 500


@dataclass(frozen=True, slots=True)
class Source:
    """A run's folder, or a store or an audit record alone. ``store`` is a path or an address; what there is not is None."""

    source_id: str
    folder: Path | None
    store: str | None
    audit: Path | None = None
    approvals: tuple[Path, ...] = ()

    @property
    def metrics(self) -> Path | None:
        """The ``metrics.jsonl`` of a run, if it has one."""
        path = None if self.folder is None else self.folder / "metrics.jsonl"
        return path if path is not None and path.is_file() else None

    @property
    def place(self) -> str:
        """The path or address, without a password."""
        if self.folder is None and self.store is not None:
            return without_password(self.store)
        return str(self.folder or self.audit)


def find_sources(place: str) -> list[Source]:
    """The sources at ``place``: a store (path or address), an audit record, the folder of a run, or a folder with such.

    Raises `StoreError` when there is none.
    """
    if "://" in place:
        return [Source(without_password(place).partition("?")[0].rpartition("/")[2] or "store", None, place)]
    path = Path(place).absolute()
    if path.is_file():
        return [_of_file(path)]
    if not path.is_dir():
        raise StoreError(f"there is no file or folder {place}", hint="name a store, or the folder of a run")
    found = sorted(_in_folder(path, path, _DEPTH), key=lambda one: one.source_id)
    if not found:
        raise StoreError(f"there is no store and no run in {place}", hint=_NAME_ONE)
    return found


def _of_file(path: Path) -> Source:
    if _kind(path) == _AUDIT:
        return Source(path.stem, None, None, path)
    if (path.parent / "metrics.jsonl").is_file():
        return _of_folder(path.parent, path.parent.name, path)
    return Source(path.stem if path.stem != "store" else path.parent.name, None, str(path))


def _in_folder(folder: Path, top: Path, depth: int) -> Iterator[Source]:
    """The sources in a folder; what is below a run belongs to it."""
    stores = [path for path in _databases(folder) if _kind(path) == _STORE]
    if stores or (folder / "metrics.jsonl").is_file():
        name = folder.relative_to(top).as_posix()
        yield _of_folder(folder, top.name if name == "." else name, stores[0] if stores else None)
        for path in stores[1:]:
            yield Source((path.relative_to(top).with_suffix("")).as_posix(), None, str(path))
        return
    if depth > 0:
        try:
            below = sorted(one for one in folder.iterdir() if one.is_dir() and not one.is_symlink())
        except OSError:
            return
        for one in below:
            yield from _in_folder(one, top, depth - 1)


def _of_folder(folder: Path, name: str, store: Path | None) -> Source:
    kinds = {path: _kind(path) for path in _databases(folder)}
    audit = next((path for path, kind in kinds.items() if kind == _AUDIT), None)
    approvals = tuple(path for path, kind in kinds.items() if kind == _APPROVALS)
    return Source(name, folder, None if store is None else str(store), audit, approvals)


def _databases(folder: Path) -> list[Path]:
    """The files that may be databases, ``store`` first."""
    try:
        files = [path for path in folder.iterdir() if path.suffix in _SUFFIXES and path.is_file()]
    except OSError:
        return []
    return sorted(files, key=lambda path: (path.stem != "store", path.name))[:_MOST_FILES]


def _kind(path: Path) -> bytes:
    """The application id of a database, empty where it cannot be read.

    SQLite is asked: the id of a new database may be in its log only, and to open and close the file here would drop the locks
    that this process holds on it.
    """
    for mode in ("mode=ro", "mode=ro&immutable=1"):  # the second where nothing may be written beside it
        try:
            with closing(sqlite3.connect(f"file:{quote(str(path))}?{mode}", uri=True, timeout=0.2)) as connection:
                (found,) = connection.execute("PRAGMA application_id").fetchone()
                return int(found).to_bytes(4, signed=True)
        except (sqlite3.Error, OverflowError):
            continue
    return b""
