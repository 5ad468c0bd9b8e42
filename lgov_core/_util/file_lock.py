"""A file that one process at a time holds; the hold ends with the process, however that ends."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any


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
