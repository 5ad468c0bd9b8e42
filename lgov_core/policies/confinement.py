"""The key ``confine`` of a policy file: what a program under ``lgov run --confine`` may read, write, reach and use.

The rules are values; `lgov_core.confine` has the kernel hold them.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from os import PathLike
from pathlib import Path
from typing import Any, Final

from lgov_core._util.words import suggest_name
from lgov_core.errors import PolicyFileError
from lgov_core.policies.content.secrets import SECRET_NAMES
from lgov_core.policies.document import Place, read_yaml

#: Variables that go into a box whose rules have ``environment``: what a program needs to start and to reach its model.
ENVIRONMENT: Final = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "PWD", "LANG", "LANGUAGE", "LC_*", "TERM", "TZ"),
    *("VIRTUAL_ENV", "PYTHON*", "LGOV_*", "OPENAI_*", "ANTHROPIC_*", "SSL_CERT_FILE", "SSL_CERT_DIR"),
)
#: What each preset fills in. Lists of the file are added to these; ``model`` false keeps even the model endpoint away.
PRESETS: Final[Mapping[str, Mapping[str, Any]]] = {
    "workspace": {"write": (".",), "hide": SECRET_NAMES},
    "no-network": {"write": (".",), "hide": SECRET_NAMES, "model": False, "environment": ()},
    "offline-tests": {"read": (".",), "hide": SECRET_NAMES, "model": False, "environment": ()},
}
_SIZE: Final = re.compile(r"(\d+) ?(|KiB|MiB|GiB)")
_UNITS: Final = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_HOST: Final = re.compile(r"(\*\.)?[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?|\[[0-9a-f:.]+\]")


@dataclass(frozen=True, slots=True)
class ConfineRules:
    """The rules of a box, with absolute paths.

    ``read`` and ``write`` are files and folders; the longest path that holds a file decides. ``hide`` holds paths, and names
    or globs that hide every such file below a visible folder, letter case ignored (``folder/name`` in presets alone).
    ``connect`` holds ``host:port``, with ``*.`` in front for every host of a domain; the model endpoint is reachable
    besides, unless ``model`` is false.
    ``environment`` holds names and globs of the variables that go in, with those of `ENVIRONMENT`; None lets all in.
    ``processes`` counts at once; ``memory`` (bytes), ``cpu`` (seconds), ``files`` (open at once) and ``file_size`` (bytes)
    hold for each process. None is no limit.
    """

    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    hide: tuple[str, ...] = ()
    connect: tuple[str, ...] = ()
    model: bool = True
    environment: tuple[str, ...] | None = None
    processes: int | None = None
    memory: int | None = None
    cpu: int | None = None
    files: int | None = None
    file_size: int | None = None


#: A folder that only the root of a box has: `lgov_core.confine.layers` makes it, and nothing inside can change or remove it.
MARK: Final = "/.lgov-box"


def in_box() -> bool:
    """Returns whether this process is in a box that has its own root. Every process that is started in a box is."""
    return os.path.isdir(MARK)


KEYS: Final = (*(rule_field.name for rule_field in fields(ConfineRules)), "preset")


@dataclass(frozen=True, slots=True)
class ConfinedPolicy:
    """The confinement of a policy file: the value of its key ``confine``, None without, and the file's digest.

    ``rules`` are the file's policy rules as they are written.
    """

    value: Mapping[str, Any] | None
    rules: Any
    source: _Source
    digest: str

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
        """The files of the approvals that the rules want, as the loader names them; an empty text for those without one.

        Each with the options of its rules.
        """
        stores: dict[str, list[Mapping[str, Any]]] = {}
        for rule in self.rules or ():
            if isinstance(rule, dict) and rule.get("use") == "approval":
                options = rule.get("with") or {}
                store = str(self.source.folder / options["store"]) if options.get("store") else ""
                stores.setdefault(store, []).append(options)
        return stores


def read_confinement(path: str | PathLike[str]) -> ConfinedPolicy:
    """Reads what the policy file at ``path`` says about confinement, without making its policies. Raises `PolicyFileError`."""
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise PolicyFileError(f"the file cannot be read: {error}", path=str(path)) from error
    document, lines = read_yaml(text, str(path))
    if not isinstance(document, dict):
        raise PolicyFileError("the file must be a mapping", path=str(path), hint="begin with version: 1")
    source = _Source(str(path), lines, Path(path).absolute().parent)
    if "confine" in document:
        _rules(document["confine"], source)
    return ConfinedPolicy(document.get("confine"), document.get("rules"), source, document_digest(document))


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


def _rules(value: Any, source: _Source) -> ConfineRules:
    """The rules of the value of the key ``confine``. Relative paths count from the file's folder."""
    if not isinstance(value, dict):
        raise source.error("", f"{value!r} is not a mapping", "write confine: {preset: workspace}")
    for key in value:
        if key not in KEYS:
            raise source.error(key, f"there is no key {key!r} here", suggest_name(str(key).lower(), KEYS))
    name = value.get("preset")
    if name is not None and name not in PRESETS:
        raise source.error("preset", f"there is no preset {name!r}", suggest_name(str(name).lower(), PRESETS))
    values: dict[str, Any] = {}
    for layer in (PRESETS[name] if name else {}, value):
        for key, item in layer.items():
            if key != "preset":
                item_value = item if item is SECRET_NAMES else _value(key, item, source)
                values[key] = (
                    tuple(dict.fromkeys((*values.get(key, ()), *item_value)))
                    if isinstance(item_value, tuple)
                    else item_value
                )
    return ConfineRules(**values)


def _value(key: str, value: Any, source: _Source) -> Any:
    if key in ("read", "write", "hide", "connect"):
        if not isinstance(value, list | tuple):
            raise source.error(key, f"{key} must be a list", f"write {key}: [...]")
        return tuple(_path(key, item, source) if key != "connect" else _host(item, source) for item in value)
    if key == "environment":
        if not isinstance(value, list | tuple) or not all(isinstance(name, str) and name for name in value):
            raise source.error(
                key, f"environment is {value!r}, not a list of names", "write environment: [NAME, 'APP_*']"
            )
        return (*ENVIRONMENT, *value)
    if key == "model":
        if not isinstance(value, bool):
            raise source.error(key, f"model is {value!r}", "write true or false")
        return value
    if isinstance(value, str) and key in ("memory", "file_size") and (size := _SIZE.fullmatch(value)):
        value = int(size[1]) * _UNITS[size[2]]
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        example = "2GiB" if key in ("memory", "file_size") else "64"
        raise source.error(key, f"{key} is {value!r}", f"write a number above 0, as in {key}: {example}")
    return value


def _path(key: str, value: Any, source: _Source) -> str:
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise source.error(key, f"{key} holds {value!r}, which is not a path", "put it in quotes")
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


def _host(value: Any, source: _Source) -> str:
    host, _, port = value.lower().rpartition(":") if isinstance(value, str) else ("", "", "")
    if not _HOST.fullmatch(host) or not port.isdecimal() or not 0 < int(port) < 65536:
        raise source.error("connect", f"connect holds {value!r}", "write host:port, as in example.com:443")
    return f"{host}:{int(port)}"
