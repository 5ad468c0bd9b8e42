"""Gives up for good, in a process: capabilities, gaining privileges by running a program, and resources."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import struct
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Final

from lgov_core.confine.seccomp import call
from lgov_core.policies.confinement import ConfineRules

_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38  # linux/prctl.h
_CAPABILITY_VERSION_3: Final = 0x20080522  # linux/capability.h
_CLOSE_ALL: Final = 0xFFFFFFFF


def die_with_parent() -> None:
    """Has the kernel kill this process when the process that started it ends."""
    call("prctl", _PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def drop_capabilities() -> None:
    """Sets no_new_privs (set-user-id programs run as anybody's) and gives up every capability."""
    call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    call("capset", struct.pack("Ii", _CAPABILITY_VERSION_3, 0), bytes(24))


def close_files(*keep: int) -> None:
    """Closes every file that was inherited, but for standard input, output and error, and ``keep``."""
    first = 3
    for handle in (*sorted(keep), _CLOSE_ALL):
        if handle > first:
            call("close_range", first, handle - 1 if handle != _CLOSE_ALL else _CLOSE_ALL, 0)
        first = handle + 1


def keep_environment(names: Iterable[str]) -> None:
    """Leaves this process the variables that one of the globs ``names`` matches, also in what /proc shows of it."""
    kept = {name: text for name, text in os.environ.items() if any(fnmatchcase(name, glob) for glob in names)}
    os.environ.clear()
    with open("/proc/self/stat", encoding="ascii") as file:
        start, end = map(int, file.read().rpartition(")")[2].split()[47:49])  # env_start and env_end of proc(5)
    ctypes.memset(start, 0, end - start)
    os.environ.update(kept)


def limit(rules: ConfineRules) -> None:
    """Sets the limits of ``rules``, hard. Raises `OSError` for one that the kernel would not hold, or that is above its own."""
    if rules.processes is not None and os.geteuid() == 0:
        raise OSError("the kernel does not limit the processes of user 0")  # copy_process() in kernel/fork.c
    limits = {
        resource.RLIMIT_NPROC: rules.processes,
        resource.RLIMIT_AS: rules.memory,
        resource.RLIMIT_CPU: rules.cpu,
        resource.RLIMIT_NOFILE: rules.files,
        resource.RLIMIT_FSIZE: rules.file_size,
        resource.RLIMIT_CORE: 0,
    }
    for kind, value in limits.items():
        if value is not None:
            try:
                resource.setrlimit(kind, (value, value))
            except ValueError as error:
                raise OSError(f"a limit of {value} is above the one in force: {error}") from error
