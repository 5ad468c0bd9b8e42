"""The layers of a box, which give up for good what its rules do not allow.

They are namespaces, a root, limits, capabilities, Landlock and seccomp. The root holds what the rules make visible, and nothing
else: what is not there cannot be read, and neither can its unix sockets be connected to. The box's own ``/tmp``
and home folder are in a private folder outside.

What each version of Landlock's interface adds (linux/landlock.h, kernel):

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

import ctypes
import fcntl
import os
import resource
import shutil
import signal
import socket
import stat
import struct
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, TypeVar

from lgov_core.confine import seccomp
from lgov_core.confine.plan import BoxPlan
from lgov_core.confine.seccomp import call
from lgov_core.errors import InstrumentationError
from lgov_core.places import MARK
from lgov_core.policies.confinement import ConfineRules

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
    folder = tempfile.mkdtemp(prefix=f"new-{_PREFIX}")
    lock = os.open(f"{folder}/{_LOCK}", os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    path = Path(folder).with_name(Path(folder).name.removeprefix("new-"))
    os.rename(folder, path)  # last, so that it is never seen without its lock
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


# linux/mount.h
_NOSUID, _NODEV, _NOEXEC, _RDONLY = 0x2, 0x4, 0x8, 0x1
_BIND, _REC, _PRIVATE = 0x1000, 0x4000, 0x40000
_ATTR_RDONLY, _ATTR_NOSUID, _ATTR_NODEV = 0x1, 0x2, 0x4
_AT_FDCWD, _AT_RECURSIVE, _MNT_DETACH = -100, 0x8000, 2

DEVICES: Final = ("null", "zero", "full", "random", "urandom", "tty")
_DEV_LINKS: Final = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2", "ptmx": "pts/ptmx"}
#: What is mounted fresh: type, flags, options.
_FRESH: Final = {
    "/dev/pts": ("devpts", _NOSUID | _NOEXEC, "newinstance,ptmxmode=0666,mode=0600"),
    "/dev/shm": ("tmpfs", _NOSUID | _NODEV, "mode=1777"),
    "/proc": ("proc", _NOSUID | _NODEV | _NOEXEC, None),
}
ROOT_FIX: Final = (
    "in a container, let it mount /proc (Docker: --security-opt systempaths=unconfined), or confine at best effort"
)


def enter_root(plan: BoxPlan) -> None:
    """Makes the root of ``plan`` and moves this process, the first of its namespaces, into it. Raises `OSError`."""
    new = f"{plan.private}/root"
    os.mkdir(new)
    _mount("none", "/", None, _REC | _PRIVATE)  # nothing that is mounted here shows outside
    _mount("tmpfs", new, "tmpfs", _NOSUID | _NODEV, "mode=0755,size=1m")
    hidden = {True: f"{new}{MARK}/folder", False: f"{new}{MARK}/file"}
    os.makedirs(hidden[True])
    os.close(os.open(hidden[False], os.O_CREAT, 0o000))
    os.makedirs(f"{new}/dev")
    for name in DEVICES:
        _bind(f"/dev/{name}", f"{new}/dev/{name}")
    for name, target in _DEV_LINKS.items():
        os.symlink(target, f"{new}/dev/{name}")
    for path, mount in plan.mounts.items():
        _bind(mount.source, new + path)
        device = stat.S_ISCHR(os.stat(mount.source).st_mode)
        flags = _ATTR_NOSUID | (0 if device else _ATTR_NODEV) | (0 if mount.writable else _ATTR_RDONLY)
        _attributes(new + path, flags, recursive=True)
    for path, target in plan.links.items():
        if not os.path.lexists(new + path):
            os.makedirs(os.path.dirname(new + path), exist_ok=True)
            os.symlink(target, new + path)
    for path in plan.hidden:
        _bind(hidden[os.path.isdir(path)], new + path)
        _attributes(new + path, _ATTR_RDONLY, recursive=False)
    os.chmod(hidden[True], 0o000)
    old_umask = os.umask(0o077)
    for path, (kind, flags, options) in _FRESH.items():
        os.makedirs(new + path, exist_ok=True)
        _mount(kind, new + path, kind, flags, options)
    os.umask(old_umask)
    # /proc too: its files for the whole machine are the owner's to write, and the owner may be in here.
    for path in ("", "/proc"):
        _attributes(new + path, _ATTR_RDONLY, recursive=False)
    os.chdir(new)
    call("pivot_root", b".", b".")
    call("umount2", b".", _MNT_DETACH)  # of the two on top of each other, the old one
    os.chdir(plan.folder)


def _bind(source: str, target: str) -> None:
    """Shows ``source``, and what is mounted below it, at ``target``, which is made where it is missing."""
    if not os.path.lexists(target):
        if os.path.isdir(source):
            os.makedirs(target)
        else:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.close(os.open(target, os.O_CREAT, 0o600))
    _mount(source, target, None, _BIND | _REC)


def _attributes(path: str, flags: int, *, recursive: bool) -> None:
    attributes = struct.pack("QQQQ", flags, 0, 0, 0)
    call("mount_setattr", _AT_FDCWD, path.encode(), _AT_RECURSIVE if recursive else 0, attributes, 32, about=path)


def _mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    texts = [None if text is None else os.fsencode(text) for text in (source, target, kind, options)]
    call("mount", texts[0], texts[1], texts[2], flags, texts[3], about=target)


# linux/sched.h
_NEWNS, _NEWUTS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET = (
    0x00020000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000,
)  # fmt: skip
_SIOCSIFFLAGS, _IFF_UP_AND_RUNNING = 0x8914, 0x1 | 0x40  # linux/sockios.h, linux/if.h
NAMESPACES_FIX: Final = (
    "allow unprivileged user namespaces: sysctl kernel.apparmor_restrict_unprivileged_userns=0 or"
    " kernel.unprivileged_userns_clone=1; in Docker run with --security-opt seccomp=unconfined --security-opt"
    " systempaths=unconfined"
)


def enter_namespaces() -> None:
    """Moves this process, which must have one thread, into new namespaces; its next child is their first process.

    The user keeps their number inside. The network is a loopback interface alone. Raises `OSError`.
    """
    uid, gid = os.geteuid(), os.getegid()
    call("unshare", _NEWUSER | _NEWNS | _NEWNET | _NEWIPC | _NEWPID | _NEWUTS)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        Path(f"/proc/self/{name}").write_text(text, encoding="ascii")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as anything:
        fcntl.ioctl(anything, _SIOCSIFFLAGS, struct.pack("16sH14s", b"lo", _IFF_UP_AND_RUNNING, b""))


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


def set_limits(rules: ConfineRules) -> None:
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


#: Landlock's rights: what every folder or file of a box gives, by kind (LANDLOCK_ACCESS_FS_*).
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

#: The lowest ABI of Landlock of a strict box, and that from which nothing is missing.
STRICT_ABI: Final = 4
FULL_ABI: Final = 6


def landlock_abi() -> int:
    """The version of the kernel's interface. Raises `OSError` where there is none, or it is switched off."""
    return call("landlock_create_ruleset", None, 0, _VERSION)


def restrict_files(rights: Mapping[str, int], ports: Iterable[int] | None) -> int:
    """Leaves this process ``rights`` by path, and connecting to ``ports`` (None: to all). Returns the ABI used.

    Needs no_new_privs. A path that is not there is left out. Raises `OSError`.
    """
    version = landlock_abi()
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


T = TypeVar("T")
BEST_EFFORT = "or run with --confine=best-effort, which goes on without it"
_FIXES = {
    "namespaces": NAMESPACES_FIX,
    "root": ROOT_FIX,
    "landlock": "use Linux 6.7 or later with landlock among its security modules (boot parameter lsm=)",
    "capabilities": "use Linux 5.9 or later",
    "limits": "run lgov as an ordinary user, or leave the limit out",
    "seccomp": "use Linux 5.0 or later on x86-64 or aarch64",
}


@dataclass(slots=True)
class Layers:
    """Which layers are in force, each with its version where it has one, and why the others are not."""

    strict: bool
    held: dict[str, str] = field(default_factory=dict[str, str])
    missing: dict[str, str] = field(default_factory=dict[str, str])

    def put(self, name: str, apply: Callable[[], T]) -> T | None:
        """Applies a layer; returns what ``apply`` does. Raises `InstrumentationError` as `without` does."""
        try:
            result = apply()
        except OSError as error:
            self.without(name, str(error))
            return None
        self.held[name] = ""
        return result

    def without(self, name: str, why: str) -> None:
        """Goes on without a layer, or a part of one. Raises `InstrumentationError` when the box is strict."""
        if self.strict:
            raise InstrumentationError(
                f"confinement: {name} cannot be had: {why}", hint=f"{_FIXES[name.split()[0]]}; {BEST_EFFORT}"
            )
        self.missing[name] = why


def lock_down(plan: BoxPlan, layers: Layers, ports: list[int]) -> int | None:
    """Gives up for good what the rules do not allow; returns the descriptor of `lgov_core.confine.seccomp.install`."""
    layers.put("limits", lambda: set_limits(plan.rules))
    layers.put("capabilities", drop_capabilities)
    apart, rooted = "namespaces" in layers.held, "root" in layers.held
    # Without a root of the box's own, what would lie at a private folder's place there is the user's.
    mounts = {path: mount for path, mount in plan.mounts.items() if rooted or mount.source == path}
    rights = {path: WRITE if mount.writable else READ for path, mount in mounts.items()}
    rights |= {f"/dev/{name}": DEVICE for name in DEVICES} | {"/proc": READ}
    if rooted:
        rights |= {"/": READ_DIR, "/dev/pts": WRITE | IOCTL_DEV, "/dev/shm": WRITE}
    else:
        rights |= {f"{plan.private}/tmp": WRITE}
    layers.put("landlock", lambda: restrict_files(rights, None if apart else ports))
    if "landlock" in layers.held:
        version = landlock_abi()
        layers.held["landlock"] = f"ABI {version}"
        if version < STRICT_ABI:
            layers.without("landlock ABI", f"the kernel has ABI {version}, and {STRICT_ABI} is needed")
    if not rooted and "landlock" not in layers.held:
        raise InstrumentationError(
            "confinement: neither a root of its own nor landlock can be had, so no file would be out of reach",
            hint=f"{_FIXES['namespaces']}; or {_FIXES['landlock']}",
        )
    return layers.put("seccomp", lambda: seccomp.install(unix_sockets=rooted))
