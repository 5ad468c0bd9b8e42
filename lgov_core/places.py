"""The places that govern, and those that are harmless: lists that tools, commands and boxes have in common.

What governs decides how this and the next run are judged. It is closed to what it governs, in the policies `path` and
`shell` and in the box alike: `GoverningPlaces` is that list, and `places_for` gives the one in force. Of what lies outside a
project, and of the environment, only what is known to be harmless is shown (`is_harmless`, `HARMLESS_VARIABLES`).
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import unicodedata
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Protocol

from lgov_core.errors import SettingsError
from lgov_core.settings import load_settings, read_written, settings_places

#: Names that govern wherever they lie, since a run may begin in any folder: settings, what lgov keeps, lgov itself.
NAMES: Final = ("lgov.toml", ".lgov", "lgov_core", "lgov_core.py")
#: Where a run without settings looks for its policy, in the folder of its program.
POLICY_NAMES: Final = ("policy.yaml", "policy.yml")
#: The record where none is named: in the working folder.
DEFAULT_AUDIT: Final = Path(".lgov") / "audit.db"
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
_PACKAGES: Final = ("lgov_core", "lgov_openai", "lgov_openai_agents", "lgov_langchain", "lgov_autogen")
PROJECT_FILE: Final = "pyproject.toml"


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
class GoverningPlaces:
    """The places that govern, as absolute paths, whether they exist or not. A value; may be used from several threads.

    ``rules`` are obeyed: policy files, settings, reward rules, lgov's own code. They may be read, but not changed.
    ``kept`` are what lgov writes itself: the record with its parts and heads, keys, approvals, pins, ledgers and traces. They
    may not be read either; a file stands for all in its folder whose names begin with its own, as the parts of a database do.
    """

    rules: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    _rules: frozenset[str] = field(init=False, repr=False, compare=False)
    _kept: tuple[str, ...] = field(init=False, repr=False, compare=False)
    _files: frozenset[tuple[int, int]] = field(init=False, repr=False, compare=False)
    _holders: frozenset[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Notes where the places lie once links are followed, and which files they are under any name."""
        places = (*self.rules, *self.kept)
        object.__setattr__(self, "_rules", frozenset(_both(self.rules)))
        object.__setattr__(self, "_kept", tuple(_both(self.kept)))
        object.__setattr__(self, "_files", frozenset(filter(None, map(_inode, places))))
        object.__setattr__(self, "_holders", frozenset(above for path in _both(places) for above in _above(path)))

    @classmethod
    def of(cls, options: Governed, folder: str | Path, *, programs: Iterable[Path] = ()) -> GoverningPlaces:
        """The places of a run that begins in ``folder``; ``programs`` are folders of programs, which may hold a policy."""
        folder = Path(folder).absolute()
        named = [options.policy, options.air]
        rules = [folder / path for path in named if path is not None]
        rules += [start / name for start in (folder, *programs) for name in POLICY_NAMES]
        rules += [path for path in settings_places(folder) if path.name != PROJECT_FILE or governs(path)]
        own = (options.audit or DEFAULT_AUDIT, options.audit_key, options.heads, _file_of(options.store))
        kept = [folder / path for path in own if path is not None]
        return cls(_texts((*rules, *_own_code())), _texts((*kept, *_own_folders())))

    def and_of(self, other: GoverningPlaces) -> GoverningPlaces:
        """These and those of ``other``."""
        return GoverningPlaces(_texts((*self.rules, *other.rules)), _texts((*self.kept, *other.kept)))

    def writes(self, path: str, text: str = "") -> str | None:
        """Returns why ``path`` may not be written, made or linked to, in a sentence; None where nothing here is against it.

        ``path`` is absolute. It counts as written and with its links followed. ``text`` is what the call says in all: a
        ``pyproject.toml`` without settings may be edited, but not so that it gets some. Asks the file system.
        """
        if os.path.basename(path).casefold() == PROJECT_FILE and "lgov" in text.casefold():
            return _closed(path)
        texts = _real(path)
        closed = any(self._is_rule(text) or self._is_kept(text) for text in texts)
        return _closed(path) if closed or _inode(path) in self._files else None

    def reads(self, path: str) -> str | None:
        """Returns why ``path`` may not be read: it is a record, a key, an approval. As `writes` otherwise."""
        texts = _real(path)
        if any(map(self._is_kept, texts)) or (_inode(path) in self._files and not any(map(self._is_rule, texts))):
            return f"{_shown(path)} is kept by lgov about what it governs, which may not read it."
        return None

    def moves(self, path: str) -> str | None:
        """Returns why ``path`` may not be removed, moved or renamed: it governs, or holds what does. As `writes` otherwise."""
        if any(text in self._holders for text in _real(path)):
            return f"{_shown(path)} holds what decides how this program is governed, so it stays where it is."
        return self.writes(path)

    def matching(self, pattern: re.Pattern[str]) -> bool:
        """Returns whether a name or a whole path that is closed matches ``pattern``, which is for lower case."""
        return any(pattern.fullmatch(text) for text in (*NAMES, *self._rules, *self._kept))

    @staticmethod
    def variable(name: str) -> str | None:
        """Returns why a variable of the environment may not be set: those of lgov govern."""
        if not name.upper().startswith("LGOV_"):
            return None
        return f"{name[:60]} decides how programs are governed; leave it out."

    # ------------------------------------------------------------------ one path

    def _is_rule(self, text: str) -> bool:
        return any(above in self._rules or os.path.basename(above) in NAMES for above in (text, *_above(text)))

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
    return b"lgov" in raw and project_settings(raw) is not None


def project_settings(raw: bytes) -> Any:
    """The table ``tool.lgov`` of a ``pyproject.toml``, the whole text where it is not TOML, None where there is no table."""
    import tomllib

    try:
        document = tomllib.loads(raw.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError):
        return raw.decode(errors="replace") if b"lgov" in raw else None
    tools = document.get("tool", {})
    return tools.get("lgov") if isinstance(tools, dict) else None


def _own_code() -> Iterator[str]:
    """Lgov's packages, and its command beside this Python and on the path."""
    for name in _PACKAGES:
        with suppress(ImportError, ValueError):
            spec = find_spec(name)
            yield from () if spec is None else spec.submodule_search_locations or ()
    yield from filter(None, (shutil.which("lgov"), os.path.join(os.path.dirname(sys.executable), "lgov")))


def _own_folders() -> Iterator[Path]:
    """The user's folders of lgov: keys, and records of programs that name none."""
    for variable, usual in (("XDG_CONFIG_HOME", ".config"), ("XDG_STATE_HOME", ".local/state")):
        yield Path(os.environ.get(variable) or Path(os.path.expanduser("~")) / usual) / "lgov"


def _file_of(store: str | None) -> str | None:
    if store is None or "://" not in store:
        return store
    return store.removeprefix("sqlite:///").partition("?")[0] if store.startswith("sqlite:///") else None


def _texts(paths: Iterable[str | Path]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(os.path.normpath(path) for path in paths))


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
    return None if os.path.isdir(path) else (status.st_dev, status.st_ino)


def _shown(path: str) -> str:
    return os.path.basename(path)[:60] or "/"


def _closed(path: str) -> str:
    return f"{_shown(path)} decides how this program is governed, so the program cannot change it; a person can."
