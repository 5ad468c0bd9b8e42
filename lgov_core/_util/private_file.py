"""Checks that a file with a secret is kept from other users."""

from __future__ import annotations

import os
import stat
from pathlib import Path


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
