"""Durable appends to files of lines, and fsync of files and folders."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


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
