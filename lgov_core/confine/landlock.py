"""Landlock: which files a process and its children may touch, which TCP ports, and whom they may signal.

What each version of the interface adds (linux/landlock.h, kernel):

| ABI | kernel | adds |
|---|---|---|
| 1 | 5.13 | reading, writing, executing, making and removing files |
| 2 | 5.19 | moving and linking between folders (before, always refused) |
| 3 | 6.2 | truncating |
| 4 | 6.7 | binding and connecting TCP ports |
| 5 | 6.10 | ioctl on devices |
| 6 | 6.12 | signals and abstract unix sockets stay inside |
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterable, Mapping
from typing import Final

from lgov_core.confine.seccomp import call

#: What every folder or file of a box gives, by kind (LANDLOCK_ACCESS_FS_*).
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
MAKE_CHAR, MAKE_BLOCK, REFER, TRUNCATE, IOCTL_DEV = 1 << 6, 1 << 11, 1 << 13, 1 << 14, 1 << 15
READ: Final = EXECUTE | READ_FILE | READ_DIR
WRITE: Final = (1 << 15) - 1 & ~MAKE_CHAR & ~MAKE_BLOCK
DEVICE: Final = READ_FILE | WRITE_FILE | TRUNCATE | IOCTL_DEV
_ON_FILES: Final = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
#: Rights on files that each ABI knows.
_KNOWN: Final[Mapping[int, int]] = {1: REFER - 1, 2: (REFER << 1) - 1, 3: (TRUNCATE << 1) - 1, 5: (IOCTL_DEV << 1) - 1}
_BIND_TCP, _CONNECT_TCP = 1, 2  # LANDLOCK_ACCESS_NET_*
_SCOPES: Final = 1 | 2  # LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET, LANDLOCK_SCOPE_SIGNAL
_PATH_BENEATH, _NET_PORT, _VERSION = 1, 2, 1

#: The lowest ABI of a strict box, and that from which nothing is missing.
STRICT_ABI: Final = 4
FULL_ABI: Final = 6


def abi() -> int:
    """The version of the kernel's interface. Raises `OSError` where there is none, or it is switched off."""
    return call("landlock_create_ruleset", None, 0, _VERSION)


def restrict(rights: Mapping[str, int], ports: Iterable[int] | None) -> int:
    """Leaves this process ``rights`` by path, and connecting to ``ports`` (None: to all). Returns the ABI used.

    Needs no_new_privs. A path that is not there is left out. Raises `OSError`.
    """
    version = abi()
    handled = next(mask for least, mask in reversed(_KNOWN.items()) if version >= least)
    net = 0 if ports is None or version < 4 else _BIND_TCP | _CONNECT_TCP
    scopes = _SCOPES if version >= 6 else 0
    attribute = struct.pack("QQQ", handled, net, scopes)[: 24 if version >= 6 else 16 if version >= 4 else 8]
    ruleset = call("landlock_create_ruleset", attribute, len(attribute), 0)
    try:
        for path, granted in rights.items():
            _add_path(ruleset, path, granted & handled)
        for port in ports or () if net else ():
            call("landlock_add_rule", ruleset, _NET_PORT, struct.pack("QQ", _CONNECT_TCP, port), 0)
        call("landlock_restrict_self", ruleset, 0)
    finally:
        os.close(ruleset)
    return version


def _add_path(ruleset: int, path: str, granted: int) -> None:
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        granted &= -1 if stat.S_ISDIR(os.fstat(handle).st_mode) else _ON_FILES
        call("landlock_add_rule", ruleset, _PATH_BENEATH, struct.pack("=Qi", granted, handle), 0, about=path)
    finally:
        os.close(handle)
