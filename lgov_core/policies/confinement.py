"""The key ``confine`` of a policy file: what a program under ``lgov run --confine`` may read, write, reach and use.

The rules are values; `lgov_core.confine` has the kernel hold them.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from lgov_core._util.schema import Mistake, Place, checked, read_yaml
from lgov_core.errors import PolicyFileError, suggest_name
from lgov_core.places import DEFAULT_APPROVALS, HARMLESS_VARIABLES, MARK
from lgov_core.policies.content.secrets import SECRET_NAMES
from lgov_core.settings import read_written

#: Variables that go into every box: those that hold nothing secret, and what reaches lgov and the model.
ENVIRONMENT: Final = (*HARMLESS_VARIABLES, "LGOV_*", "OPENAI_*", "ANTHROPIC_*")
#: What each preset fills in. Lists of the file are added to these; ``model`` false keeps even the model endpoint away.
PRESETS: Final[Mapping[str, Mapping[str, Any]]] = {
    "workspace": {"write": (".",), "hide": SECRET_NAMES},
    "no-network": {"write": (".",), "hide": SECRET_NAMES, "model": False},
    "offline-tests": {"read": (".",), "hide": SECRET_NAMES, "model": False},
}
_UNITS: Final = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_HOST: Final = re.compile(r"(\*\.)?[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?|\[[0-9a-f:.]+\]")

_Path = Annotated[str, Meta(pattern=r"^[^\0]*[^\s\0][^\0]*$", description="a path, in quotes")]
_Paths = Annotated[tuple[_Path, ...], Meta(description="a list of files and folders, relative to this file")]
_Hidden = Annotated[
    tuple[_Path, ...], Meta(description="a list of paths, or of globs for the names of files, that are not readable")
]
_Hosts = Annotated[
    tuple[Annotated[str, Meta(description="host:port, as in example.com:443")], ...],
    Meta(description="a list of host:port, or *.domain:port"),
]
_Names = Annotated[
    tuple[Annotated[str, Meta(min_length=1, description="a name or a glob, in quotes")], ...],
    Meta(description="a list of names and globs of variables, as in [NAME, 'APP_*']"),
]
_Limit = Annotated[int, Meta(ge=1, description="a number above 0, as in 64")]
_Bytes = Annotated[
    Annotated[int, Meta(ge=1)] | Annotated[str, Meta(pattern="^0*[1-9][0-9]* ?(KiB|MiB|GiB)?$")],
    Meta(description="a number above 0, as in 2GiB"),
]


class ConfineKeys(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The key ``confine`` as it is written. For what each key means see `ConfineRules`."""

    preset: Literal["workspace", "no-network", "offline-tests"] | None = None
    read: _Paths | msgspec.UnsetType = msgspec.UNSET
    write: _Paths | msgspec.UnsetType = msgspec.UNSET
    hide: _Hidden | msgspec.UnsetType = msgspec.UNSET
    connect: _Hosts | msgspec.UnsetType = msgspec.UNSET
    model: Annotated[bool, Meta(description="true or false")] | msgspec.UnsetType = msgspec.UNSET
    environment: _Names | msgspec.UnsetType = msgspec.UNSET
    processes: _Limit | msgspec.UnsetType = msgspec.UNSET
    memory: _Bytes | msgspec.UnsetType = msgspec.UNSET
    cpu: _Limit | msgspec.UnsetType = msgspec.UNSET
    files: _Limit | msgspec.UnsetType = msgspec.UNSET
    file_size: _Bytes | msgspec.UnsetType = msgspec.UNSET


@dataclass(frozen=True, slots=True)
class ConfineRules:
    """The rules of a box, with absolute paths.

    ``read`` and ``write`` are files and folders; the longest path that holds a file decides. ``hide`` holds paths, and names
    or globs that hide every such file below a visible folder, letter case ignored (``folder/name`` in presets alone).
    ``connect`` holds ``host:port``, with ``*.`` in front for every host of a domain; the model endpoint is reachable
    besides, unless ``model`` is false.
    ``environment`` holds names and globs of the variables that go in, with those of `ENVIRONMENT`; ``*`` is all.
    ``processes`` counts at once; ``memory`` (bytes), ``cpu`` (seconds), ``files`` (open at once) and ``file_size`` (bytes)
    hold for each process. None is no limit.
    """

    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    hide: tuple[str, ...] = ()
    connect: tuple[str, ...] = ()
    model: bool = True
    environment: tuple[str, ...] = ENVIRONMENT
    processes: int | None = None
    memory: int | None = None
    cpu: int | None = None
    files: int | None = None
    file_size: int | None = None


_FOR_BOX: ContextVar[bool] = ContextVar("lgov_for_box", default=False)


@contextmanager
def made_for_box() -> Generator[None]:
    """Policies that are made inside the block are for calls in a box."""
    token = _FOR_BOX.set(True)
    try:
        yield
    finally:
        _FOR_BOX.reset(token)


def in_box() -> bool:
    """Returns whether this process is in a box that has its own root. Every process that is started in a box is.

    It is so as well inside `made_for_box`.
    """
    return _FOR_BOX.get() or os.path.isdir(MARK)


@dataclass(frozen=True, slots=True)
class ConfinedPolicy:
    """The confinement of a policy file: the value of its key ``confine``, None without, and the file's digest.

    ``rules`` and ``mode`` are the file's as they are written.
    """

    value: Mapping[str, Any] | None
    rules: Any
    source: _Source
    digest: str
    mode: str

    def with_preset(self, name: str | None) -> ConfineRules:
        """The rules, with preset ``name`` in place of the file's own. Raises `PolicyFileError` when there are none at all."""
        if name is not None:
            return _rules({**(self.value or {}), "preset": name}, self.source)
        if self.value is None:
            raise PolicyFileError(
                "the file says nothing about confinement",
                path=self.source.path,
                hint=f"write confine: {{preset: workspace}}, or give --preset {' or '.join(PRESETS)}",
            )
        return _rules(self.value, self.source)

    def approval_stores(self) -> dict[str, list[Mapping[str, Any]]]:
        """The files of the approvals that the rules want, as the loader names them, each with the options of its rules.

        Among the options is the ``name`` of the rule.
        """
        stores: dict[str, list[Mapping[str, Any]]] = {}
        for rule in self.rules or ():
            if isinstance(rule, dict) and (options := asking_options(rule)) is not None:
                store = str(self.source.folder / options["store"])
                stores.setdefault(store, []).append({"name": rule.get("name", rule["use"]), **options})
        return stores


def asking_options(rule: Mapping[str, Any]) -> dict[str, Any] | None:
    """The options of a rule in a policy file that asks people, with the ``store`` of the requests; None for another rule."""
    options = rule.get("with")
    options = options if isinstance(options, dict) else {}
    if rule.get("use") != "approval" and options.get("otherwise") != "approve":
        return None
    store = options.get("store")
    return {**options, "store": store if isinstance(store, str) else DEFAULT_APPROVALS}


def read_confinement(path: str | PathLike[str]) -> ConfinedPolicy:
    """Reads what the policy file at ``path`` says about confinement, without making its policies. Raises `PolicyFileError`."""
    try:
        text = read_written(path).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise PolicyFileError(f"the file cannot be read: {error}", path=str(path)) from error
    document, lines = read_yaml(text, str(path))
    if not isinstance(document, dict):
        raise PolicyFileError("the file must be a mapping", path=str(path), hint="begin with version: 1")
    source = _Source(str(path), lines, Path(path).absolute().parent)
    if "confine" in document:
        _rules(document["confine"], source)
    confine, rules, mode = (document.get(key) for key in ("confine", "rules", "mode"))
    return ConfinedPolicy(confine, rules, source, document_digest(document), str(mode or "enforce"))


def preset_rules(name: str, folder: Path) -> ConfineRules:
    """The rules of the preset ``name`` for ``folder``, without a policy file. Raises `PolicyFileError`."""
    return _rules({"preset": name}, _Source("preset", {}, folder))


def document_digest(document: Mapping[str, Any]) -> str:
    """The SHA-256 (hex) of the canonical JSON of a policy document. Raises `TypeError` or `ValueError` for what is not JSON."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def check_confinement(value: Any, source: str, lines: Mapping[Place, int]) -> None:
    """Raises `PolicyFileError`, with its line, when ``value`` is not what the key ``confine`` may hold."""
    _rules(value, _Source(source, lines, Path(source).absolute().parent))


@dataclass(frozen=True, slots=True)
class _Source:
    path: str
    lines: Mapping[Place, int]
    folder: Path

    def error(self, key: str, message: str, hint: str) -> PolicyFileError:
        line = self.lines.get(("confine", key), self.lines.get(("confine",)))
        return PolicyFileError(f"confine: {message}", path=self.path, line=line, hint=hint)


def _written(value: dict[str, Any], source: _Source) -> ConfineKeys:
    """The key ``confine``, checked. Raises `PolicyFileError`."""
    try:
        return checked(value, ConfineKeys)
    except Mistake as mistake:
        if mistake.unknown is not None:
            hint = suggest_name(mistake.unknown.lower(), ConfineKeys.__struct_fields__)
            raise source.error(mistake.unknown, f"there is no key {mistake.unknown!r} here", hint) from mistake
        item: Any = value
        key = str(mistake.path[0])
        for step in mistake.path:
            item = item[step]
        hint = suggest_name(str(item).lower(), PRESETS) if key == "preset" else f"write {mistake.expected}"
        verb = "is" if len(mistake.path) == 1 else "holds"
        raise source.error(key, f"{key} {verb} {item!r}", hint) from mistake


def _rules(value: Any, source: _Source) -> ConfineRules:
    """The rules of the value of the key ``confine``. Relative paths count from the file's folder."""
    if not isinstance(value, dict):
        raise source.error("", f"{value!r} is not a mapping", "write confine: {preset: workspace}")
    written = _written(value, source)
    values: dict[str, Any] = dict(PRESETS[written.preset]) if written.preset else {}
    for key in ("read", "write"):
        values[key] = tuple(_path(key, path, source) for path in values.get(key, ()))
    for key, item in msgspec.structs.asdict(written).items():
        if item is msgspec.UNSET or key == "preset":
            continue
        if key in ("read", "write", "hide"):
            item = tuple(_path(key, path, source) for path in item)
        elif key == "connect":
            item = tuple(_host(host, source) for host in item)
        elif key == "environment":
            item = (*ENVIRONMENT, *item)
        elif isinstance(item, str):
            unit = item.strip().lstrip("0123456789 ")
            item = int(item.strip().removesuffix(unit)) * _UNITS[unit]
        values[key] = tuple(dict.fromkeys((*values.get(key, ()), *item))) if isinstance(item, tuple) else item
    return ConfineRules(**values)


def _path(key: str, value: str, source: _Source) -> str:
    if key == "hide" and "/" not in value:
        return value
    if any(letter in value for letter in "*?["):
        raise source.error(key, f"{key} holds {value!r}", "globs are for names in hide; name the file or folder")
    path = Path(value).expanduser()
    path = path if path.is_absolute() else source.folder / path
    absolute = Path(*[name for name in path.parts if name != "."])
    if ".." in absolute.parts:
        absolute = absolute.resolve()
    if key != "hide" and (absolute == Path("/") or absolute.resolve() in (Path("/"), Path.home().resolve())):
        which = "the root folder" if absolute.resolve() == Path("/") else "the whole home folder"
        raise source.error(key, f"{key} holds {value!r}, {which}", "name the folders in it that the program needs")
    return str(absolute)


def _host(value: str, source: _Source) -> str:
    host, _, port = value.lower().rpartition(":")
    if not _HOST.fullmatch(host) or not port.isdecimal() or not 0 < int(port) < 65536:
        raise source.error("connect", f"connect holds {value!r}", "write host:port, as in example.com:443")
    return f"{host}:{int(port)}"
