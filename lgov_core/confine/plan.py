"""The plan of a box: the rules of a policy file as paths that are shown, hidden and writable, checked before anything runs.

A search of the folders that are shown finds names to hide, sockets, and files that programs outside take orders from.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, NamedTuple

from lgov_core.errors import InstrumentationError
from lgov_core.places import HARMLESS_PLACES, GoverningPlaces, usual_places
from lgov_core.policies.confinement import ConfinedPolicy, ConfineRules
from lgov_core.settings import is_placeholder
from lgov_core.trust import is_running

#: Folders in which no folder is searched: what they hold was not written by hand.
_NOT_SEARCHED: Final = frozenset({".git", ".hg", ".venv", "__pycache__", "node_modules", "site-packages"})
#: What every folder of git's own holds, whatever its name.
_OF_GIT: Final = frozenset({"HEAD", "objects", "refs"})


class Found(NamedTuple):
    """``hidden``: files that ``hide`` names by a glob, and unix sockets, which a program outside listens to.

    ``orders``: repositories and Python environments in writable folders. Programs outside run, or are configured by, what
    lies there, and that includes files that are not there yet.
    """

    hidden: list[str]
    orders: list[str]


def search(rules: ConfineRules) -> Found:
    """Searches the folders that ``rules`` show, without following symbolic links."""
    sensitive = Found([], [])
    globs = name_globs(rules)
    roots = {os.path.realpath(path): False for path in rules.read}
    roots |= {os.path.realpath(path): True for path in rules.write}
    waiting = list(roots.items())
    for folder, writable in waiting:
        entries: list[os.DirEntry[str]] = []
        with suppress(OSError), os.scandir(folder) as opened:  # a file, or a folder that cannot be read
            entries = list(opened)
        sensitive.hidden.extend(entry.path for entry in entries if matches(entry.path, globs) or _is_socket(entry))
        if writable:
            sensitive.orders.extend(_orders(folder, {entry.name for entry in entries}))
        if os.path.basename(folder) not in _NOT_SEARCHED:
            waiting += [(entry.path, writable) for entry in entries if entry.is_dir(follow_symlinks=False)]
    active = os.path.realpath(os.environ.get("VIRTUAL_ENV") or "/")
    if any(writable and active.startswith(f"{root}/") for root, writable in roots.items()):
        sensitive.orders.append(active)
    return sensitive


def name_globs(rules: ConfineRules) -> list[str]:
    """The names and globs in ``hide``, in lower case."""
    return [name.lower() for name in rules.hide if not os.path.isabs(name)]


def matches(path: str, globs: Iterable[str]) -> bool:
    """True if one of ``globs`` matches the name of ``path``, or, if it has a slash, that of its folder too."""
    *_, folder, name = f"/{path}".lower().split("/")
    return any(fnmatchcase(f"{folder}/{name}" if "/" in glob else name, glob) for glob in globs)


def _orders(folder: str, names: set[str]) -> list[str]:
    files = [f"{folder}/{name}" for name in (".git", ".gitmodules") if name in names]
    if os.path.basename(folder) == ".git" or names >= _OF_GIT:
        files += [folder, *(f"{folder}/{name}" for name in ("config", "hooks") if name in names)]
    return [*files, folder] if "pyvenv.cfg" in names else files


def _is_socket(entry: os.DirEntry[str]) -> bool:
    if entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False) or entry.is_symlink():
        return False
    try:
        return stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode)
    except OSError:
        return True  # it is gone, or cannot be looked at


#: What every program needs to start, read-only. Nothing in them is one user's.
SYSTEM: Final = (
    *(path for path in HARMLESS_PLACES if not path.startswith(("/dev/", "/proc/"))),
    *("/sys/fs/cgroup", "/etc/group", "/etc/passwd", "/etc/gitconfig"),
)
#: Kept free in a writable folder where it does not exist: programs outside obey what lies in it.
_GIT: Final = ".git"


class Mount(NamedTuple):
    """``source`` outside shows at a path of the box."""

    source: str
    writable: bool


@dataclass(frozen=True, slots=True)
class BoxPlan:
    """One box. All paths are real ones; ``links`` are symbolic links by which others may be named.

    ``mounts`` is in order: a folder before what is in it. ``hidden`` is made unreadable, and what is ``kept_out`` among it
    must be. ``private`` is a folder outside, of the box alone; ``forwards`` are ports of this machine's loopback that are
    reachable at the same port inside. ``places`` govern the program; ``placeholders`` are those of them, and folders, that do
    not exist and may not be made in the box (`make_placeholders`).
    """

    rules: ConfineRules
    folder: str
    private: str
    mounts: Mapping[str, Mount]
    links: Mapping[str, str]
    hidden: tuple[str, ...]
    kept_out: tuple[str, ...] = ()
    forwards: tuple[int, ...] = ()
    places: GoverningPlaces = field(default_factory=GoverningPlaces)
    placeholders: tuple[str, ...] = ()

    def access(self, path: str) -> tuple[str, str]:
        """The access that the box gives to ``path`` (write, read, hidden or not there), and the rule that decides it."""
        real = os.path.realpath(path)
        for hidden in self.hidden:
            if _within(real, hidden):
                return "hidden", f"{hidden} is hidden"
        holders = [mount_point for mount_point in self.mounts if _within(real, mount_point)]
        if not holders:
            return "not there", "no rule shows it"
        mount = self.mounts[holders[-1]]
        if mount.source != holders[-1]:
            return "not there", f"{holders[-1]} is a folder of the box's own, empty at first"
        return ("write", f"{holders[-1]} may be changed") if mount.writable else ("read", f"{holders[-1]} is read-only")


@dataclass(frozen=True, slots=True)
class Outside:
    """The surroundings of a box outside: the record at ``audit`` and the files ``apart`` (the record's key and heads), whose
    folders it must not show, its folder ``private``, ``forwards``, ports of this machine, ``places`` that govern it
    (None: those of a run that begins in the working folder), and the files of ``programs`` that it must show.
    """

    audit: Path
    private: str
    apart: tuple[str, ...] = ()
    forwards: tuple[int, ...] = ()
    places: GoverningPlaces | None = None
    programs: tuple[Path, ...] = ()


def make_plan(
    rules: ConfineRules,
    policy: ConfinedPolicy | None,
    outside: Outside,
    *,
    checked: bool = True,
    own: bool = False,
) -> BoxPlan:
    """The plan for a program in the working folder; ``policy`` None is for one that no policy file governs.

    Whatever the rules say, the program cannot change lgov's own files, nor see the folders of the record, of the
    approvals and of the files apart. What programs outside take orders from is writable only where ``write`` names it
    itself, unless what may be written is the program's ``own``, which no program outside uses.
    Raises `InstrumentationError` where a rule names what is not there or, with ``checked``, the program could not run.
    """
    sensitive = Found([], []) if own else search(rules)
    modes = {path: False for path in (*SYSTEM, *_interpreter(), *sensitive.orders) if os.path.exists(path)}
    modes.update(dict.fromkeys(filter(os.path.exists, rules.read), False))
    for path in rules.write:
        if not os.path.exists(path):
            raise InstrumentationError(f"confine: write holds {path}, which does not exist", hint="make it first")
        modes[path] = True
    places = outside.places or usual_places(Path.cwd())
    governing = [] if own else list(_governing(places, rules))
    protected = governing if policy is None else [*governing, os.path.abspath(policy.source.path)]
    kept_apart = (str(outside.audit), *outside.apart, *filter(None, policy.approval_stores() if policy else ()))
    modes.update(dict.fromkeys(protected, False))
    _refuse_links((*rules.read, *rules.write, *sensitive.orders, *protected), rules.write)
    links: dict[str, str] = {}
    real = {_real(path, links): writable for path, writable in modes.items()}
    kept_out = tuple(_kept_out(kept_apart, rules, real))
    hidden = tuple(sorted({*_hidden(rules, sensitive.hidden, real), *kept_out}))
    for path in (*(path for path, writable in real.items() if not writable), *hidden):
        real.update(dict.fromkeys(_between(path, real), True))
    mounts = {path: Mount(path, writable) for path, writable in real.items()}
    for mount_point, folder in (("/tmp", "tmp"), (os.path.realpath(os.path.expanduser("~")), "home")):
        if mount_point != "/" and not any(_within(mount_point, path) for path in real):
            mounts[mount_point] = Mount(f"{outside.private}/{folder}", True)
    folder = os.path.realpath(os.getcwd())
    plan = BoxPlan(
        rules,
        folder,
        outside.private,
        dict(sorted(mounts.items())),
        links,
        hidden,
        kept_out,
        outside.forwards,
        places,
        tuple(path for path in governing if not os.path.lexists(path) or is_placeholder(Path(path))),
    )
    for what, needed in (("the working folder", plan.folder), *(("the program", file) for file in outside.programs)):
        if checked and plan.access(str(needed))[0] not in ("read", "write"):
            raise InstrumentationError(
                f"{what} {needed} is not visible in the box", hint="name its folder in confine: read, or in write"
            )
    return plan


def _governing(places: GoverningPlaces, rules: ConfineRules) -> Iterator[str]:
    """Yields the places that govern in folders that may be written, existing or not, and the repositories in these."""
    folders = [path for path in rules.write if os.path.isdir(path)]
    repositories = [f"{folder}/{_GIT}" for folder in folders]
    free = [path for path in repositories if not os.path.lexists(path) or is_placeholder(Path(path))]
    for path in dict.fromkeys((*places.rules, *places.programs, *free)):
        parent = os.path.dirname(path)
        if os.access(parent, os.W_OK) and any(
            _within(os.path.realpath(parent), os.path.realpath(root)) for root in folders
        ):
            yield path


def make_placeholders(plan: BoxPlan) -> None:
    """Makes what may not be made in the box: an empty file or folder, which governs nothing. Raises `OSError`."""
    for path in plan.placeholders:
        if os.path.lexists(path):
            continue
        if os.path.basename(path) == _GIT:
            os.mkdir(path)
            os.chmod(path, 0o555)
        else:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o444))


def remove_placeholders(plan: BoxPlan, audit: Path) -> None:
    """Removes them again, also those of a run that was killed; not while another program runs, whose box may need them."""
    if is_running(audit):
        return
    for path in filter(is_placeholder, map(Path, plan.placeholders)):
        with suppress(OSError):  # it is gone, or holds something now
            if path.is_dir():
                path.rmdir()
            elif not path.stat().st_mode & 0o222:  # an empty file of the user's may be written
                path.unlink()


def _interpreter() -> Iterator[str]:
    """Where this Python, its packages and lgov are."""
    own = [sys.prefix, sys.exec_prefix, sys.base_prefix, os.path.dirname(os.path.realpath(sys.executable))]
    too_much = ("/", os.path.realpath(os.path.expanduser("~")))
    for path in (*own, *sys.path):
        if os.path.isabs(path) and os.path.realpath(path) not in too_much:
            yield os.path.normpath(path)


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")


def _real(path: str, links: dict[str, str]) -> str:
    """The real path of ``path``; the symbolic links on the way to it are added to ``links``."""
    for _ in range(40):
        parts = Path(path).parts
        above = (os.path.join(*parts[:length]) for length in range(2, len(parts) + 1))
        link = next((parent for parent in above if os.path.islink(parent)), None)
        if link is None:
            return path
        target = os.path.normpath(os.path.join(os.path.dirname(link), os.readlink(link)))
        links[link] = target
        path = target + path[len(link) :]
    raise InstrumentationError(f"{path} has too many symbolic links")


def _refuse_links(paths: Iterable[str], writable: Iterable[str]) -> None:
    """Raises for a path that leads out of the writable folders by a link inside of them: code in a box may have made it."""
    folders = [os.path.realpath(path) for path in writable]
    links: dict[str, dict[str, str]] = {path: {} for path in (*writable, *paths)}
    real = {path: _real(path, targets) for path, targets in links.items()}
    inside = {path: link for path in links for link in links[path] if any(_within(link, folder) for folder in folders)}
    trusted = [real[path] for path in writable if path not in inside]
    for path, link in inside.items():
        if not any(_within(real[path], folder) for folder in trusted):
            raise InstrumentationError(
                f"{link} is a symbolic link to {real[path]}, in a folder that may be written: code in a box may have made it",
                hint="remove the link, or name in confine: what it leads to",
            )


def _hidden(rules: ConfineRules, sensitive: Iterable[str], real: Mapping[str, bool]) -> Iterator[str]:
    """Real paths of what ``hide`` names, and of what is ``sensitive``, as far as the box would show them."""
    globs = name_globs(rules)
    paths = [*sensitive, *(path for path in rules.hide if os.path.isabs(path) and os.path.exists(path))]
    for folder in {path for path in sys.path if os.path.isdir(path) and not path.endswith("site-packages")}:
        with suppress(OSError):  # one that cannot be read shows nothing
            paths += [os.path.join(folder, name) for name in os.listdir(folder) if matches(f"{folder}/{name}", globs)]
    for path in map(os.path.realpath, paths):
        if path not in real and any(_within(path, shown_path) for shown_path in real):
            yield path


def _kept_out(files: Iterable[str], rules: ConfineRules, real: Mapping[str, bool]) -> Iterator[str]:
    """The folders of ``files`` that the box would show, to be hidden."""
    by_folder: dict[str, list[str]] = {}
    for file in files:
        by_folder.setdefault(os.path.dirname(os.path.realpath(file)), []).append(os.path.basename(file))
    for folder, names in by_folder.items():
        if any(_within(folder, shown_path) for shown_path in real):
            if any(_within(os.path.realpath(path), folder) for path in (*rules.read, *rules.write, os.getcwd())):
                raise InstrumentationError(
                    f"the box shows {folder}, and in it would be {', '.join(names)}: what is kept about a program must be"
                    " outside of its box",
                    hint="keep it in a folder of its own, such as .lgov/approvals.db",
                )
            yield folder


def _between(path: str, real: Mapping[str, bool]) -> Iterator[str]:
    """The folders between ``path`` and the writable one that holds it: mounts of their own, or they could be renamed."""
    holders = sorted(holder for holder in real if holder != path and _within(path, holder))
    if holders and real[holders[-1]]:
        folder = os.path.dirname(path)
        while folder != holders[-1]:
            yield folder
            folder = os.path.dirname(folder)
