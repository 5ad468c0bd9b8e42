"""The places that govern, and those that are harmless: lists that tools, commands and boxes have in common.

What governs decides how this and the next run are judged. It is closed to what it governs, in the policies `path` and
`shell` and in the box alike: `GoverningPlaces` is that list, and `places_for` gives the one in force. Of what lies outside a
project, and of the environment, only what is known to be harmless is shown (`is_harmless`, `HARMLESS_VARIABLES`).
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
import unicodedata
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from importlib.machinery import PathFinder, all_suffixes
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol

from lgov_core.errors import SettingsError
from lgov_core.settings import is_placeholder, load_settings, read_written, settings_places

#: Names that govern wherever they lie, since a run may begin in any folder: settings, what lgov keeps, lgov itself.
NAMES: Final = ("lgov.toml", ".lgov", "lgov_core", "lgov_core.py")
#: Folders of installed packages, on which lgov itself depends.
_INSTALLED: Final = ("site-packages", "dist-packages")
_CLOSED_NAMES: Final = frozenset((*NAMES, *_INSTALLED))
#: Where a run without settings looks for its policy, in the folder of its program.
POLICY_NAMES: Final = ("policy.yaml", "policy.yml")
#: The record where none is named: in the working folder.
DEFAULT_AUDIT: Final = Path(".lgov") / "audit.db"
#: The file of approval requests where a policy file names none: in the policy file's folder.
DEFAULT_APPROVALS: Final = ".lgov/approvals.db"
#: A folder that only the root of a box has: `lgov_core.confine.layers` makes it, and nothing inside can change or remove it.
MARK: Final = "/.lgov-box"
_ETC = """
    alternatives ca-certificates debian_version fonts gai.conf host.conf hosts ld.so.cache ld.so.conf ld.so.conf.d
    locale.conf localtime lsb-release magic mime.types nsswitch.conf os-release pki/ca-trust pki/tls/cert.pem
    pki/tls/certs protocols resolv.conf services shells ssl/certs ssl/openssl.cnf timezone
"""
#: What may be read outside of a project: what every machine of its kind has, and nobody's own.
HARMLESS_PLACES: Final = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt", "/sys/devices/system/cpu"),
    *(f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom")),
    *(f"/proc/{name}" for name in ("cpuinfo", "meminfo", "loadavg", "version", "uptime", "filesystems")),
    *(f"/etc/{name}" for name in _ETC.split()),
)
_VARIABLES = """
    PATH HOME USER LOGNAME SHELL PWD OLDPWD LANG LANGUAGE LC_* TERM COLORTERM COLUMNS LINES TZ TMPDIR HOSTNAME SHLVL EDITOR
    VISUAL PAGER CI DEBUG VERBOSE NO_COLOR FORCE_COLOR VIRTUAL_ENV CONDA_PREFIX CONDA_DEFAULT_ENV PYTHON* NODE_ENV NODE_PATH
    NVM_DIR GOPATH GOROOT GOOS GOARCH CARGO_HOME RUSTUP_HOME JAVA_HOME MAKEFLAGS XDG_*_HOME XDG_*_DIR XDG_*_DIRS
    SSL_CERT_FILE SSL_CERT_DIR PYTEST_* OMP_* MKL_* CUDA_VISIBLE_DEVICES HF_HOME HF_HUB_OFFLINE
"""
#: Variables of the environment that hold nothing secret, as globs.
HARMLESS_VARIABLES: Final = tuple(_VARIABLES.split())
#: The table of a ``pyproject.toml`` that holds settings.
_TABLE: Final = "lgov"
#: Modules that Python imports at each start, wherever they are found.
_STARTED_WITH: Final = ("sitecustomize", "usercustomize")
_PACKAGES: Final = ("lgov_core", "lgov_openai", "lgov_openai_agents", "lgov_langchain", "lgov_autogen")
PROJECT_FILE: Final = "pyproject.toml"


def policy_beside(folder: Path) -> Path | None:
    """The policy file of a run without settings whose program lies in ``folder``."""
    paths = (folder / name for name in POLICY_NAMES)
    return next((path for path in paths if path.exists() and not is_placeholder(path)), None)


class Governed(Protocol):
    """The part of `Settings`, and of `Governance`, that names files."""

    @property
    def policy(self) -> Path | None:
        """The policy file."""

    @property
    def audit(self) -> Path | None:
        """The record."""

    @property
    def audit_key(self) -> Path | None:
        """The key that signs it."""

    @property
    def heads(self) -> Path | None:
        """The file of its heads."""

    @property
    def air(self) -> Path | None:
        """The file of reward rules."""

    @property
    def store(self) -> str | None:
        """The trace store."""


@dataclass(frozen=True, slots=True)
class FileChange:
    """How a call changes a file, where the call says so.

    ``text``, or what the file ``source`` says, takes the place of what it says, or follows it where it is ``appended``; or
    ``pieces`` are put into it at places that are not known, each whole.
    """

    text: str | None = None
    source: str | None = None
    appended: bool = False
    pieces: tuple[str, ...] = ()

    @property
    def is_none(self) -> bool:
        """True where the file keeps what it says."""
        return self.source is None and not any((self.text, *self.pieces)) and (self.appended or self.text is None)


@dataclass(frozen=True, slots=True)
class GoverningPlaces:
    """The places that govern, as absolute paths, whether they exist or not. A value; may be used from several threads.

    ``rules`` are obeyed: policy files, settings, reward rules, lgov's own code. They may be read, but not changed; nor may the
    files of ``programs`` and what else `is_started_with` this process.
    ``kept`` are what lgov writes itself: the record with its parts and heads, keys, approvals, pins, ledgers and traces. They
    may not be read either; a file stands for all in its folder whose names begin with its own, as the parts of a database do.
    """

    rules: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    #: Where the places lie as well once links are followed, the folders above them, and which files they are under any name.
    _rules: frozenset[str] = field(repr=False, compare=False, default=frozenset())
    _kept: tuple[str, ...] = field(repr=False, compare=False, default=())
    _programs: frozenset[str] = field(repr=False, compare=False, default=frozenset())
    _holders: frozenset[str] = field(repr=False, compare=False, default=frozenset())
    _files: frozenset[tuple[int, int]] = field(repr=False, compare=False, default=frozenset())

    @classmethod
    def at(
        cls, rules: Iterable[str | Path], kept: Iterable[str | Path], programs: Iterable[str | Path] = ()
    ) -> GoverningPlaces:
        """The places at these paths, as links lead now."""
        obeyed, kept, programs = (
            tuple(dict.fromkeys(os.path.normpath(path) for path in paths)) for paths in (rules, kept, programs)
        )
        holders = frozenset(above for path in _both((*obeyed, *kept, *programs)) for above in _above(path))
        files = frozenset(filter(None, map(_inode, (*obeyed, *kept))))
        forms = frozenset(_both(obeyed)), tuple(_both(kept)), frozenset(_both(programs))
        return cls(obeyed, kept, programs, *forms, holders, files)

    @classmethod
    def of(cls, options: Governed, folder: str | Path, *, programs: Iterable[Path] = ()) -> GoverningPlaces:
        """The places of a run that begins in ``folder``; ``programs`` are files of programs: a policy may lie beside them."""
        folder = Path(folder).absolute()
        named = [options.policy, options.air]
        rules = [folder / path for path in named if path is not None]
        rules += [start / name for start in (folder, *(file.parent for file in programs)) for name in POLICY_NAMES]
        rules += [path for path in settings_places(folder) if path.name != PROJECT_FILE or governs(path)]
        own = (options.audit or DEFAULT_AUDIT, options.audit_key, options.heads, _file_of(options.store))
        kept = [folder / path for path in own if path is not None]
        return cls.at((*rules, *_own_code()), (*kept, *_own_folders()), [folder / file for file in programs])

    def and_of(self, other: GoverningPlaces) -> GoverningPlaces:
        """These and those of ``other``."""
        rules, kept = (*self.rules, *other.rules), (*self.kept, *other.kept)
        return GoverningPlaces.at(rules, kept, (*self.programs, *other.programs))

    def writes(self, path: str, change: FileChange | None = None) -> str | None:
        """Returns why ``path`` may not be written, made or linked to, in a sentence; None where nothing here is against it.

        ``path`` is absolute. It counts as written and with its links followed. A ``pyproject.toml`` without settings may be
        changed where the ``change`` is known and leaves it without, and the program's code may be read. Asks the file system.
        """
        texts = _real(path)
        if PROJECT_FILE in map(os.path.basename, texts) and not (change and _without_settings(path, change)):
            return (
                f"{_shown(path)} may hold settings that decide how this program is governed, and what this writes into it is"
                " not clear; write the text of the file out (cat > pyproject.toml <<'EOF'), without a table for lgov."
            )
        return self._closed(path, texts, change)

    def reads(self, path: str) -> str | None:
        """Returns why ``path`` may not be read: it is a record, a key, an approval. As `writes` otherwise."""
        texts = _real(path)
        if any(map(self._is_kept, texts)) or (_inode(path) in self._files and not any(map(self._is_rule, texts))):
            return f"{_shown(path)} is kept by lgov about what it governs, which may not read it."
        return None

    def moves(self, path: str) -> str | None:
        """Returns why ``path`` may not be removed, moved or renamed: it governs, or holds what does. As `writes` otherwise."""
        texts = _real(path)
        if any(text in self._holders for text in texts) or _holds_modules(path):
            return f"{_shown(path)} holds what decides how this program is governed, so it stays where it is."
        return self._closed(path, texts)

    @staticmethod
    def receives(path: str) -> str | None:
        """Returns why a folder, or a link to one, may not get the name ``path``: Python would import what is in it."""
        return _is_run(path) if is_started_with(path, as_folder=True) else None

    def matching(self, pattern: re.Pattern[str]) -> bool:
        """Returns whether a name or a whole path that is closed matches ``pattern``, which is for lower case."""
        return any(
            pattern.fullmatch(text) for text in (*NAMES, PROJECT_FILE, *self._rules, *self._kept, *self._programs)
        )

    @staticmethod
    def variable(name: str) -> str | None:
        """Returns why a variable of the environment may not be set: those of lgov govern."""
        if not name.upper().startswith("LGOV_"):
            return None
        return f"{name[:60]} decides how programs are governed; leave it out."

    # ------------------------------------------------------------------ one path

    def _closed(self, path: str, texts: Iterable[str], change: FileChange | None = None) -> str | None:
        closed = any(self._is_rule(text) or self._is_kept(text) for text in texts) or _inode(path) in self._files
        is_code = not closed and (not self._programs.isdisjoint(texts) or is_started_with(path))
        if not closed and (not is_code or (change is not None and change.is_none and os.path.lexists(path))):
            return None
        if is_code:
            return _is_run(path)
        return f"{_shown(path)} decides how this program is governed, so the program cannot change it; a person can."

    def _is_rule(self, text: str) -> bool:
        if not _CLOSED_NAMES.isdisjoint(text.split("/")):
            return True
        return text in self._rules or any(text.startswith(rule) and text[len(rule)] == "/" for rule in self._rules)

    def _is_kept(self, text: str) -> bool:
        return ".lgov" in text.split("/") or any(_begins(text, kept) for kept in self._kept)


def is_harmless(path: str) -> bool:
    """Returns whether an absolute path, also with its links followed, lies in one of `HARMLESS_PLACES` or in this Python."""
    try:
        texts = (os.path.normpath(path), os.path.realpath(path))
    except (OSError, ValueError):
        return False
    open_places = (*HARMLESS_PLACES, sys.prefix, sys.base_prefix)
    return all(any(text == opened or text.startswith(f"{opened}/") for opened in open_places) for text in texts)


def is_harmless_variable(name: str) -> bool:
    """Returns whether a variable of the environment holds nothing secret. Names are compared with their letter case."""
    return any(fnmatchcase(name, glob) for glob in HARMLESS_VARIABLES)


class MissedModules:
    """A finder of modules, for the end of ``sys.meta_path``, that keeps the names which no other finds; the first 10,000."""

    names: ClassVar[set[str]] = set()

    @classmethod
    def find_spec(cls, name: str, path: object = None, target: object = None) -> None:
        """Keeps the name, and finds nothing."""
        if len(cls.names) < 10_000:
            cls.names.add(name)


def is_started_with(path: str, *, as_folder: bool = False) -> bool:
    """Returns whether Python would run the file at ``path``, an absolute path, now or if this process were started again.

    It is the program, of the package of ``-m``, or has, where Python looks for modules, the name of a module that is loaded,
    that Python has elsewhere, or that was looked for in vain (`MissedModules`). With ``as_folder`` there is a folder of
    unknown content at ``path``: a package, compiled modules, or a place for modules.
    """
    return any(map(_is_package if as_folder else _is_loaded, {os.path.normpath(path), os.path.realpath(path)}))


def _is_package(path: str) -> bool:
    folder, name = os.path.split(path)
    searched = set(map(os.path.realpath, sys.path))
    if name == "__pycache__":
        return folder in searched or _is_loaded(f"{folder}/__init__.py")
    return _is_loaded(f"{path}/__init__.py") or any(f"{start}/".startswith(f"{path}/") for start in searched)


def _is_run(path: str) -> str:
    runs = "is run when this program starts or imports a module of its name"
    return f"{_shown(path)} {runs}, so the program cannot change it; a person can."


def _is_loaded(path: str) -> bool:
    main = sys.modules.get("__main__")
    if os.path.realpath(getattr(main, "__file__", None) or "/") == path:
        return True
    folder, name = os.path.split(path)
    module, _, suffix = name.partition(".")
    if os.path.basename(folder) == "__pycache__":
        folder, suffix = os.path.dirname(folder), suffix.rpartition(".")[2]
    if f".{suffix}" not in all_suffixes():
        return False
    spec = getattr(main, "__spec__", None)
    package = f"{spec.parent}." if spec is not None and spec.name.endswith(".__main__") else "."
    searched, dotted = set(map(os.path.realpath, sys.path)), "" if module == "__init__" else module
    while folder != os.path.dirname(folder):
        imported = dotted in sys.modules or dotted in _STARTED_WITH or dotted.startswith(package)
        if folder in searched and (imported or dotted in MissedModules.names or _is_elsewhere(dotted, folder)):
            return True
        folder, last = os.path.split(folder)
        dotted = f"{last}.{dotted}".rstrip(".")
    return False


def _is_elsewhere(name: str, folder: str) -> bool:
    """Returns whether Python finds a module of that name in another folder than ``folder``, the real path of one of them."""
    if "." in name or name in sys.stdlib_module_names:
        return "." not in name
    # Of the folder of Python's own, only the package of its tests, which any program may name a file after, is left.
    passed = (folder, os.path.dirname(os.path.realpath(os.__file__)))
    return (
        PathFinder.find_spec(name, [start for start in sys.path if os.path.realpath(start) not in passed]) is not None
    )


def _holds_modules(path: str) -> bool:
    """Returns whether ``path`` is a folder with the file of a loaded module."""
    if not os.path.isdir(path):
        return False
    folders = (f"{os.path.normpath(path)}/", f"{os.path.realpath(path)}/")
    spaces = [
        getattr(module, "__dict__", {}) for module in list(sys.modules.values())
    ]  # a program may put anything there
    return any(str(names.get("__file__")).startswith(folders) for names in spaces)


_IN_FORCE: ContextVar[GoverningPlaces | None] = ContextVar("lgov_governing_places", default=None)


@contextmanager
def in_force(places: GoverningPlaces) -> Generator[None]:
    """Policies that are made inside the block close ``places``."""
    token = _IN_FORCE.set(places)
    try:
        yield
    finally:
        _IN_FORCE.reset(token)


def places_for(folder: str | Path) -> GoverningPlaces:
    """The places in force for a tool that works in ``folder``: what governs this process, and a run that begins there."""
    governing = _IN_FORCE.get() or usual_places(Path.cwd())
    return governing.and_of(usual_places(Path(folder)))


def usual_places(folder: Path) -> GoverningPlaces:
    """The places of a run that begins in ``folder`` without further options. Settings that cannot be read name none."""
    try:
        return GoverningPlaces.of(load_settings(folder=folder), folder)
    except SettingsError:
        return GoverningPlaces.of(load_settings(folder=Path("/"), environ={}), folder)


def governs(path: Path) -> bool:
    """Returns whether a ``pyproject.toml`` holds settings of lgov, or may, because it cannot be read."""
    try:
        raw = read_written(path)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return project_settings(raw) is not None


def project_settings(raw: bytes) -> Any:
    """The table ``tool.lgov`` of a ``pyproject.toml``, the whole text where it is not TOML, None where there is no table."""
    import tomllib

    try:
        document = tomllib.loads(raw.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError):
        return raw.decode(errors="replace") if _TABLE.encode() in raw else None
    tools = document.get("tool", {})
    return tools.get(_TABLE) if isinstance(tools, dict) else None


def _without_settings(path: str, change: FileChange) -> bool:
    """Returns whether a ``pyproject.toml`` has no settings of lgov, and surely gets none by a change."""
    try:
        before = "" if not os.path.lexists(path) else read_written(path).decode()
        text = change.text if change.source is None else read_written(change.source).decode()
    except (OSError, UnicodeDecodeError):
        return False
    pieces = [piece for piece in change.pieces if piece]
    results = [before, before + (text or "") if change.appended or text is None else text]
    if len(pieces) < len(change.pieces):  # something may be taken out: what stood around it then stands together
        results += [before.replace(piece, "", count) for piece in pieces for count in (1, -1)]
    if any(project_settings(result.encode(errors="replace")) is not None for result in results):
        return False
    return text is not None or not pieces or not _may_name_it(before, pieces)


def _may_name_it(text: str, pieces: Sequence[str]) -> bool:
    """Returns whether ``text`` may name lgov's table once the pieces are put into it, in letters or in TOML's escapes."""
    if any(_TABLE in words or re.search(r"\\[uUx]", words) for words in (text, *pieces)):
        return True
    if any(piece.endswith("\\") or ("\\" in text and piece[0] in "uUx") for piece in pieces):
        return True

    def may_follow(at: int, in_text: bool) -> bool:
        """Returns whether the letters from ``at`` on may follow; ``in_text``: those before are of ``text``."""
        for end in range(at + 1, len(_TABLE) + 1):
            run, first, last = _TABLE[at:end], at == 0, end == len(_TABLE)
            put_in = any(
                piece.endswith(run) if first else piece.startswith(run) if last else piece == run for piece in pieces
            )
            if (put_in and (last or may_follow(end, False))) or (
                not in_text and run in text and (last or may_follow(end, True))
            ):
                return True
        return False

    return may_follow(0, False)


def _own_code() -> Iterator[str]:
    """Lgov's packages, the modules of its plugins, and its command beside this Python and on the path."""
    for name in _PACKAGES:
        with suppress(ImportError, ValueError):
            spec = find_spec(name)
            yield from () if spec is None else spec.submodule_search_locations or ()
    yield from _plugin_files()
    yield from filter(None, (shutil.which("lgov"), os.path.join(os.path.dirname(sys.executable), "lgov")))


@cache
def _plugin_files() -> tuple[str, ...]:
    """Files of the modules that plugins of lgov are in, found without importing them."""
    from importlib.metadata import entry_points

    files: list[str] = []
    for point in entry_points(group="lgov"):
        top, *below = point.module.split(".")
        with suppress(ImportError, ValueError):
            spec = find_spec(top)
            folders = () if spec is None else spec.submodule_search_locations or ()
            paths = [os.path.join(folder, *below) for folder in folders]
            files += [file for path in paths for file in (f"{path}.py", os.path.join(path, "__init__.py"))]
            files += [] if spec is None or spec.origin is None or below else [spec.origin]
    return tuple(files)


def _own_folders() -> Iterator[Path]:
    """The user's folders of lgov: keys, and records of programs that name none."""
    for variable, usual in (("XDG_CONFIG_HOME", ".config"), ("XDG_STATE_HOME", ".local/state")):
        yield Path(os.environ.get(variable) or Path(os.path.expanduser("~")) / usual) / "lgov"


def _file_of(store: str | None) -> str | None:
    if store is None or "://" not in store:
        return store
    return store.removeprefix("sqlite:///").partition("?")[0] if store.startswith("sqlite:///") else None


def _folded(path: str) -> str:
    return unicodedata.normalize("NFKC", path).casefold()


def _real(path: str) -> tuple[str, ...]:
    """``path`` as it is written and as links lead, in the form in which paths are compared."""
    written = _folded(os.path.normpath(path))
    try:
        real = _folded(os.path.realpath(path))
    except (OSError, ValueError):
        return (written,)
    return (written,) if real == written else (written, real)


def _both(paths: Iterable[str]) -> Iterator[str]:
    for path in paths:
        yield from _real(path)


def _above(path: str) -> Iterator[str]:
    folder = os.path.dirname(path)
    while folder not in ("/", ""):
        yield folder
        folder = os.path.dirname(folder)


def _begins(path: str, kept: str) -> bool:
    return path.startswith(kept) and path[len(kept) :][:1] in ("", "/", "-", ".")


def _inode(path: str) -> tuple[int, int] | None:
    """The file at ``path``; None for a folder and for what is not there."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return None if stat.S_ISDIR(status.st_mode) else (status.st_dev, status.st_ino)


def _shown(path: str) -> str:
    return os.path.basename(path)[:60] or "/"
