"""The filter on system calls: what no program in a box may ask the kernel for, and the record of what it was refused.

Refused calls are answered outside, counted, and the first of each kind is on record. What Landlock and the file system
refuse, the kernel does not report to a process without privileges.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import select
import socket
import struct
import threading
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from lgov_core.audit.entry import EntryWriter
from lgov_core.confine.proxy import POLICY
from lgov_core.errors import AuditError
from lgov_core.governor.options import names
from lgov_core.types import Action, Decision, Effect, Point, Severity

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
    values = [
        argument if argument is None or not isinstance(argument, int) else ctypes.c_long(argument)
        for argument in arguments
    ]
    result: int = _libc().syscall(ctypes.c_long(number or -1), *values)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}{f' {about}' if about else ''}: {os.strerror(code)}")
    return result


#: Answered with EPERM: other processes' memory, mounts and namespaces, the kernel itself, keys, and interfaces that have
#: been ways out of sandboxes (io_uring, bpf, userfaultfd, ...).
DENIED: Final = names(
    """
    acct add_key adjtimex bpf chroot clock_adjtime clock_settime delete_module fanotify_init finit_module fsconfig fsmount
    fsopen fspick init_module io_uring_enter io_uring_register io_uring_setup ioperm iopl kcmp kexec_file_load kexec_load
    keyctl migrate_pages modify_ldt mount mount_setattr move_mount move_pages name_to_handle_at open_by_handle_at
    open_tree open_tree_attr perf_event_open personality pidfd_getfd pivot_root process_madvise process_vm_readv
    process_vm_writev ptrace quotactl quotactl_fd reboot request_key setns settimeofday swapoff swapon syslog umount2
    unshare uselib userfaultfd vhangup
    """
)

# linux/seccomp.h, linux/filter.h, linux/bpf_common.h
_KILL, _ERRNO, _ASK, _ALLOW = 0x80000000, 0x00050000, 0x7FC00000, 0x7FFF0000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data
_SET_MODE_FILTER, _NEW_LISTENER = 1, 1 << 3
_EPERM, _ENOSYS = 1, 38
_X32_BIT: Final = 0x40000000
_NEW_NAMESPACES: Final = 0x7E020080  # CLONE_NEW* of linux/sched.h
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C  # asm-generic/ioctls.h: both type into the terminal
_MSG_FASTOPEN: Final = 0x20000000  # connects without connect()
_NO_FAMILY: Final = 0xFFFF  # matches no socket
_TYPE_MASK: Final = 0xF  # of a socket; the rest is SOCK_CLOEXEC and SOCK_NONBLOCK
#: Where sending calls have their flags.
_FLAGS_OF: Final = {"sendto": 3, "sendmsg": 2, "sendmmsg": 3}
_SET_ID: Final = 0o6000  # S_ISUID and S_ISGID, which make a file run as its owner or group
_CREATES: Final = 0o100 | 0o20000000  # O_CREAT and __O_TMPFILE of asm-generic/fcntl.h: without them a mode is not read
#: Where calls have the mode of a file, and where the flags that say whether it is read.
_MODE_OF: Final = {"chmod": 1, "fchmod": 1, "fchmodat": 2, "fchmodat2": 2, "creat": 1, "mknod": 1, "mknodat": 2}
_OPENING: Final = {"open": (1, 2), "openat": (2, 3)}
#: Answered with ENOSYS, on which programs use the older call: what they are asked is in memory, which a filter cannot read.
_IN_MEMORY: Final = ("clone3", "openat2")

_Instruction = tuple[int, int, int, int]  # code, value, steps to skip if true, if false


class _Program:
    """A filter in the kernel's classic BPF. Every rule begins and ends with the call's number loaded."""

    def __init__(self) -> None:
        self.code: list[_Instruction] = []
        audit_arch, self.column = machine()
        self.code += [(_LOAD, _ARCH, 0, 0), (_EQUAL, audit_arch, 1, 0), (_RETURN, _KILL, 0, 0), (_LOAD, _NUMBER, 0, 0)]
        if self.column == 0:
            self.code += [(_AT_LEAST, _X32_BIT, 0, 1), (_RETURN, _KILL, 0, 0)]

    def on(self, name: str, *body: _Instruction) -> None:
        """Runs ``body`` for the call ``name``; what falls out of its end goes on with the next rule."""
        number = NUMBERS[name][self.column]
        if number is not None:
            self.code += [(_EQUAL, number, 0, len(body) + 1), *body, (_LOAD, _NUMBER, 0, 0)]


def _argument(index: int) -> _Instruction:
    """Loads the lower half of an argument, of which these calls read no more."""
    return _LOAD, _ARGUMENTS + 8 * index, 0, 0


def build(*, unix_sockets: bool, observed: bool) -> bytes:
    """The filter's instructions. Without ``unix_sockets`` no socket can be made that may reach another program's.

    What is refused gets EPERM: from the kernel, or, when ``observed``, from the process that has the listener of `install`.

    Sockets are TCP over IPv4 and IPv6 only: no UDP (a tunnel through DNS), no MPTCP (which Landlock does not check), no
    raw, netlink or vsock ones.
    """
    program = _Program()
    refuse = (_RETURN, _ASK if observed else _ERRNO | _EPERM, 0, 0)
    for name in DENIED:
        program.on(name, refuse)
    for name in _IN_MEMORY:
        program.on(name, (_RETURN, _ERRNO | _ENOSYS, 0, 0))
    for name, mode in _MODE_OF.items():
        program.on(name, _argument(mode), (_ANY_BIT, _SET_ID, 0, 1), refuse)
    for name, (flags, mode) in _OPENING.items():
        program.on(
            name, _argument(flags), (_ANY_BIT, _CREATES, 0, 3), _argument(mode), (_ANY_BIT, _SET_ID, 0, 1), refuse
        )
    program.on("clone", _argument(0), (_ANY_BIT, _NEW_NAMESPACES, 0, 1), refuse)
    program.on("ioctl", _argument(1), (_EQUAL, _TIOCSTI, 1, 0), (_EQUAL, _TIOCLINUX, 0, 1), refuse)
    for name, index in _FLAGS_OF.items():
        program.on(name, _argument(index), (_ANY_BIT, _MSG_FASTOPEN, 0, 1), refuse)
    program.on(
        "socket",
        _argument(0),
        (_EQUAL, socket.AF_UNIX if unix_sockets else _NO_FAMILY, 8, 0),
        (_EQUAL, socket.AF_INET, 1, 0),
        (_EQUAL, socket.AF_INET6, 0, 5),
        _argument(1),
        (_AND, _TYPE_MASK, 0, 0),
        (_EQUAL, socket.SOCK_STREAM, 0, 2),
        _argument(2),
        (_ANY_BIT, ~socket.IPPROTO_TCP & 0xFFFFFFFF, 0, 1),
        refuse,
    )
    program.code.append((_RETURN, _ALLOW, 0, 0))
    return b"".join(struct.pack("HBBI", code, true, false, value) for code, value, true, false in program.code)


def install(*, unix_sockets: bool) -> int | None:
    """Puts this process and all that it starts under the filter. Needs no_new_privs. Raises `OSError`.

    Returns a descriptor on which the refused calls arrive (`lgov_core.confine.seccomp`); None where an outer sandbox has
    one already, and the kernel refuses them itself.
    """
    try:
        return _install(build(unix_sockets=unix_sockets, observed=True), _NEW_LISTENER)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
    _install(build(unix_sockets=unix_sockets, observed=False), 0)
    return None


def _install(instructions: bytes, flags: int) -> int:
    code = ctypes.create_string_buffer(instructions, len(instructions))
    program = struct.pack("HxxxxxxQ", len(instructions) // 8, ctypes.addressof(code))
    return call("seccomp", _SET_MODE_FILTER, flags, ctypes.create_string_buffer(program, len(program)))


# linux/seccomp.h
_RECEIVE, _SEND = 0xC0502100, 0xC0182101
_NOTIFICATION: Final = struct.Struct("QIIiIQ6Q")  # id, pid, flags, number, architecture, address, arguments
_ANSWER: Final = struct.Struct("QqiI")  # id, value, error, flags


@dataclass(slots=True)
class RefusedCalls:
    """Answers the refused calls of one box with EPERM. ``counts`` are by name."""

    log: EntryWriter
    rollout_id: str | None
    counts: Counter[str] = field(default_factory=Counter)

    def serve(self, listener: int) -> None:
        """Answers what arrives on the descriptor of `lgov_core.confine.seccomp.install`, in a thread, until the box ends."""
        threading.Thread(target=self._run, args=(listener,), daemon=True).start()

    def _run(self, listener: int) -> None:
        names = {numbers[machine()[1]]: name for name, numbers in NUMBERS.items()}
        poll = select.poll()
        poll.register(listener, select.POLLIN)
        while not poll.poll()[0][1] & select.POLLHUP:
            call = bytearray(_NOTIFICATION.size)
            with suppress(OSError):  # the process that asked may be gone
                fcntl.ioctl(listener, _RECEIVE, call)
                number, _, _, call_number, *_ = _NOTIFICATION.unpack(call)
                fcntl.ioctl(listener, _SEND, bytearray(_ANSWER.pack(number, 0, -errno.EPERM, 0)))
                self._count(names.get(call_number, str(call_number)))
        os.close(listener)

    def _count(self, name: str) -> None:
        self.counts[name] += 1
        if self.counts[name] == 1:
            action = Action(Point.PRE_TOOL_CALL, name, framework=POLICY, rollout_id=self.rollout_id)
            reason = f"the box does not let a program call {name}"
            with suppress(AuditError):  # it is refused all the same
                self.log.commit(action, Decision(Effect.DENY, POLICY, "system-call", reason, Severity.HIGH))
