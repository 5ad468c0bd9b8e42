"""Namespaces: a process tree with its own users, mounts, network, processes and IPC, made without privileges."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from pathlib import Path
from typing import Final

from lgov_core.confine.seccomp import call

# linux/sched.h
_NEWNS, _NEWUTS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET = (
    0x00020000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000,
)  # fmt: skip
_SIOCSIFFLAGS, _IFF_UP_AND_RUNNING = 0x8914, 0x1 | 0x40  # linux/sockios.h, linux/if.h
FIX: Final = (
    "allow unprivileged user namespaces: sysctl kernel.apparmor_restrict_unprivileged_userns=0 or"
    " kernel.unprivileged_userns_clone=1; in Docker run with --security-opt seccomp=unconfined --security-opt"
    " systempaths=unconfined"
)


def enter() -> None:
    """Moves this process, which must have one thread, into new namespaces; its next child is their first process.

    The user keeps their number inside. The network is a loopback interface alone. Raises `OSError`.
    """
    uid, gid = os.geteuid(), os.getegid()
    call("unshare", _NEWUSER | _NEWNS | _NEWNET | _NEWIPC | _NEWPID | _NEWUTS)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        Path(f"/proc/self/{name}").write_text(text, encoding="ascii")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as anything:
        fcntl.ioctl(anything, _SIOCSIFFLAGS, struct.pack("16sH14s", b"lo", _IFF_UP_AND_RUNNING, b""))
