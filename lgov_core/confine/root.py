"""The file system of a box: a new root that holds what the rules make visible, and nothing else.

What is not there cannot be read, and neither can its unix sockets be connected to. The box's own ``/tmp`` and home folder
are in a private folder outside.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import struct
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lgov_core.confine.plan import BoxPlan
from lgov_core.confine.seccomp import call
from lgov_core.policies.confinement import MARK

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
FIX: Final = (
    "in a container, let it mount /proc (Docker: --security-opt systempaths=unconfined), or confine at best effort"
)


def enter(plan: BoxPlan) -> None:
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
