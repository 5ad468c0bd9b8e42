"""The folder outside of a box that holds the box's own ``/tmp`` and home folder, with the sockets that programs make there."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_PREFIX: Final = "lgov-box-"
_LOCK: Final = "held"


@dataclass(frozen=True, slots=True)
class PrivateFolder:
    """``lock`` is a descriptor that this process alone has: the lock ends with it, however it ends."""

    path: Path
    lock: int

    def remove(self) -> None:
        """Removes the folder with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self.lock)


def make_private_folder() -> PrivateFolder:
    """A new folder for one box. Removes those that processes of this user left behind when they were killed."""
    _remove_left_behind()
    made = tempfile.mkdtemp(prefix=f"new-{_PREFIX}")
    lock = os.open(f"{made}/{_LOCK}", os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    path = Path(made).with_name(Path(made).name.removeprefix("new-"))
    os.rename(made, path)  # last, so that it is never seen without its lock
    return PrivateFolder(path, lock)


def _remove_left_behind() -> None:
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):  # it has no lock, is held, or was removed by another
            if path.is_symlink() or path.stat().st_uid != os.geteuid():
                continue
            lock = os.open(path / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)
