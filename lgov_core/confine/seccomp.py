"""The filter on system calls: what no program in a box may ask the kernel for."""

from __future__ import annotations

import ctypes
import errno
import socket
import struct
from typing import Final

from lgov_core.confine.syscalls import NUMBERS, call, machine
from lgov_core.governor.options import names

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

    Returns a descriptor on which the refused calls arrive (`lgov_core.confine.denials`); None where an outer sandbox has
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
