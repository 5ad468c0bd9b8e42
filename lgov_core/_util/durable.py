"""Files that are there whole or not at all, also after the power has gone."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def write_whole(path: Path, data: bytes) -> None:
    """Puts ``data`` at ``path``; what was there before stays until then. Raises `OSError`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def append_line(path: Path, line: bytes) -> None:
    """Adds ``line`` and a line feed to the end of ``path`` in one write, and waits until the disk has it. Raises `OSError`."""
    with path.open("ab", buffering=0) as file:
        data = line + b"\n"
        while data:
            data = data[file.write(data) :]
        os.fsync(file.fileno())


def drop_torn_line(path: Path) -> None:
    """Cuts off what a killed run left half-written at the end of a file of lines. A file that is not there is left alone."""
    if path.exists():
        data = path.read_bytes()
        if not data.endswith(b"\n"):
            with path.open("r+b") as file:
                file.truncate(data.rfind(b"\n") + 1)


def sync_file(path: Path) -> None:
    """Waits until the disk has the file. Raises `OSError`."""
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """Waits until the disk has the folder's list of names, where the system can do that."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some file systems refuse; the name is then as durable as it gets
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
