"""System calls that Python 3.11 has no function for, by name."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

#: Name of the machine, its AUDIT_ARCH (linux/audit.h), and the column of `NUMBERS`.
MACHINES: Final[Mapping[str, tuple[int, int]]] = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}

#: By name, the numbers on x86-64 (arch/x86/entry/syscalls/syscall_64.tbl) and aarch64 (asm-generic/unistd.h); -: not there.
_TABLE: Final = """
    acct 163 89, add_key 248 217, adjtimex 159 171, bpf 321 280, capset 126 91, chmod 90 -, chroot 161 51,
    clock_adjtime 305 266, clock_settime 227 112, clone 56 220, clone3 435 435, close_range 436 436, creat 85 -,
    delete_module 176 106, fanotify_init 300 262, fchmod 91 52, fchmodat 268 53, fchmodat2 452 452,
    finit_module 313 273, fsconfig 431 431, fsmount 432 432, fsopen 430 430, fspick 433 433, init_module 175 105,
    io_uring_enter 426 426, io_uring_register 427 427, io_uring_setup 425 425, ioctl 16 29, ioperm 173 -, iopl 172 -,
    kcmp 312 272, kexec_file_load 320 294, kexec_load 246 104, keyctl 250 219, landlock_add_rule 445 445,
    landlock_create_ruleset 444 444, landlock_restrict_self 446 446, migrate_pages 256 238, mknod 133 -,
    mknodat 259 33, modify_ldt 154 -, mount 165 40, mount_setattr 442 442, move_mount 429 429, move_pages 279 239,
    name_to_handle_at 303 264, open 2 -, open_by_handle_at 304 265, open_tree 428 428, open_tree_attr 467 467,
    openat 257 56, openat2 437 437, perf_event_open 298 241, personality 135 92, pidfd_getfd 438 438,
    pivot_root 155 41, prctl 157 167, process_madvise 440 440, process_vm_readv 310 270, process_vm_writev 311 271,
    ptrace 101 117, quotactl 179 60, quotactl_fd 443 443, reboot 169 142, request_key 249 218, seccomp 317 277,
    sendmmsg 307 269, sendmsg 46 211, sendto 44 206, setns 308 268, settimeofday 164 170, socket 41 198,
    swapoff 168 225, swapon 167 224, syslog 103 116, umount2 166 39, unshare 272 97, uselib 134 -,
    userfaultfd 323 282, vhangup 153 58
"""
NUMBERS: Final[Mapping[str, tuple[int | None, ...]]] = {
    name: tuple(None if number == "-" else int(number) for number in numbers)
    for name, *numbers in (row.split() for row in _TABLE.split(","))
}


@cache
def machine() -> tuple[int, int]:
    """AUDIT_ARCH and the column of `NUMBERS` for this machine. Raises `OSError` for one without a column."""
    name = platform.machine()
    if name not in MACHINES:
        raise OSError(f"lgov has no system call numbers for {name}")
    return MACHINES[name]


@cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    return libc


def call(name: str, *arguments: int | bytes | ctypes.Array[Any] | None, about: str = "") -> int:
    """Makes the system call ``name``. Raises `OSError` that names it, and ``about``."""
    number = NUMBERS[name][machine()[1]]
    values = [one if one is None or not isinstance(one, int) else ctypes.c_long(one) for one in arguments]
    result: int = _libc().syscall(ctypes.c_long(number or -1), *values)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}{f' {about}' if about else ''}: {os.strerror(code)}")
    return result
