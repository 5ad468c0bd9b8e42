"""Settings from files, the environment and flags; each value knows where it came from.

Later sources win over earlier ones::

    default  <  lgov.toml, or [tool.lgov] in pyproject.toml  <  LGOV_* variables  <  explicit flags

The file is the nearest one from the working directory upwards, not beyond the folder that holds ``.git``; in one
folder ``lgov.toml`` wins over ``pyproject.toml``. Paths in a file are relative to the file's folder. A name that is not
a setting is an error everywhere, so that a misspelt one cannot be taken for an absent one.
"""

from __future__ import annotations

import math
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from lgov_core._util.suggestions import suggest_name
from lgov_core.errors import SettingsError

DEFAULT = "default"

#: ``LGOV_`` variables that are not settings: those that lgov hands to the processes it starts, and what an adapter asks.
OTHER_VARIABLES = frozenset({"LGOV_ROLLOUT_ID", "LGOV_ATTEMPT", "LGOV_CHILD", "LGOV_OPENAI_TRACES"})


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one process. Load them with `load_settings`; they may be shared between threads.

    None leaves the choice to the command. ``origins`` says for each setting that is not a default where it came from.
    """

    policy: Path | None = None
    """Policy file. Default: ``policy.yaml`` beside the program."""
    audit: Path | None = None
    """File of the audit record. Default: ``.lgov/audit.db``."""
    audit_key: Path | None = None
    """Secret key that signs the audit record. Default: the key of ``lgov audit keygen``, if any."""
    heads: Path | None = None
    """File for the signed heads of the audit record. Default: a file beside the record."""
    redact: tuple[str, ...] = ()
    """Arguments whose values the audit record leaves out. The variable separates them by commas; the flag is repeated."""
    air: Path | None = None
    """File of rules for intermediate rewards. Default: the built-in rewards."""
    store: str | None = field(default=None, repr=False)  # it may hold a password; see `without_password`
    """Trace store: a path, ``sqlite:///path`` or ``postgresql://user@host/database``."""
    content: bool = True
    """Whether prompts, arguments and results are kept on spans."""
    endpoint: str | None = None
    """Base URL of an endpoint of ``lgov serve``, to which the model calls of the program go."""
    timeout_s: float = 2.0
    """Seconds that one rule may take to decide; built-in rules that are always fast have no limit."""
    cache: Path | None = None
    """Folder for the models of ``lgov models pull``. Default: the user's cache folder."""
    models: Path | None = None
    """Folder to which ``lgov promote`` writes models. Default: ``models``."""
    host: str = "127.0.0.1"
    """Address on which ``lgov serve`` listens."""
    port: int = 8321
    """Port on which ``lgov serve`` listens; 0 takes any free one."""
    model: str | None = None
    """Model that ``lgov serve`` loads and serves: ``tiny``, ``smollm2``, a folder or a hub name."""
    upstream: str | None = None
    """Base URL of the model server to which ``lgov serve`` forwards calls; several are separated by commas."""
    key_secret_file: Path | None = None
    """File with the secret from which ``lgov serve`` makes its keys: 16 bytes or more."""
    origins: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False, compare=False)

    def origin(self, name: str) -> str:
        """Where a value came from: ``default``, ``lgov.toml:3``, ``LGOV_POLICY`` or ``--policy``.

        Raises `SettingsError` for a name that is not a setting.
        """
        if name not in _READ:
            raise _unknown(name, "asked for", _READ)
        return self.origins.get(name, DEFAULT)


def load_settings(
    flags: Mapping[str, object] | None = None, *, folder: Path | None = None, environ: Mapping[str, str] | None = None
) -> Settings:
    """The settings of a process.

    ``flags`` are explicit values by setting name; None values count as not given. ``folder`` is where the search for a
    file begins (the working directory by default), ``environ`` the environment (that of the process by default). Raises
    `SettingsError` for a file that cannot be read or is not TOML, an unknown name, and a value of the wrong type; the
    message names the setting and where it was set.
    """
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for source in (
        _from_file(folder or Path.cwd()),
        _from_environment(os.environ if environ is None else environ),
        _from_flags(flags or {}),
    ):
        for name, (value, origin) in source.items():
            values[name], origins[name] = value, origin
    return Settings(**values, origins=MappingProxyType(origins))


def without_password(place: str) -> str:
    """A store's place for printing: an address without its password, or only its scheme when it cannot be parsed."""
    scheme, separator, rest = place.partition("://")
    if not separator or scheme in ("sqlite", "memory"):
        return place
    host = r"(?:\[[^\]@/?]*\]|[^:@/?,\[\]]*)(?::\d*)?"
    plain = re.fullmatch(rf"(?:([^:@/?]*)(:[^@/?]*)?@)?({host}(?:,{host})*(?:/[^@?]*)?)(\?.*)?", rest)
    if plain is None:
        return f"{scheme}://..."
    user, password, where, options = plain.groups()
    name = "" if user is None else f"{user}:...@" if password else f"{user}@"
    return f"{scheme}://{name}{where}{'?...' if options else ''}"


_Found = dict[str, tuple[Any, str]]


def _from_file(folder: Path) -> _Found:
    file = _settings_file(folder.absolute())
    if file is None:
        return {}
    path, table, text = file
    found: _Found = {}
    section = None if path.name == "lgov.toml" else "tool.lgov"
    for name, raw in table.items():
        line = _line_of(name, text, section)
        where = f":{line}" if line else ""
        if name not in _READ:
            raise _unknown(name, f"set in {path}{where}", _READ)
        found[name] = (_read(name, raw, f"{path.name}{where}", base=path.parent), f"{path.name}{where}")
    return found


def _settings_file(folder: Path) -> tuple[Path, Mapping[str, Any], str] | None:
    """The nearest settings file from ``folder`` upwards: its path, its table and its text."""
    for place in (folder, *folder.parents):
        if (path := place / "lgov.toml").is_file():
            return path, *_parse(path)
        if (path := place / "pyproject.toml").is_file():
            document, text = _parse(path)
            tools = document.get("tool", {})
            table = tools.get("lgov") if isinstance(tools, dict) else None
            if isinstance(table, dict):
                return path, table, text
            if table is not None:
                raise SettingsError(f"{path}: tool.lgov is not a table", hint="write [tool.lgov]")
        if (place / ".git").exists():
            return None
    return None


def _parse(path: Path) -> tuple[dict[str, Any], str]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} cannot be read: {error}") from error
    try:
        return tomllib.loads(text), text
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"at line (\d+)", str(error))
        # A parser that stops at the end of the document names no line: then it is the last one.
        number = int(line[1]) if line else text.count("\n") + 1
        raise SettingsError(f"{path}:{number}: not valid TOML: {error}") from error


def _line_of(name: str, text: str, section: str | None) -> int | None:
    """The 1-based line on which a key is set; None when it is written in a way that this does not look for."""
    here: str | None = None
    key = re.compile(rf"""\s*["']?{re.escape(name)}["']?\s*=""")
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*\[+\s*([^\]]+?)\s*\]+", line):
            here = re.sub(r"""["'\s]""", "", header[1])
            if section is None and here == name:
                return number
        elif here == section and key.match(line):
            return number
    return None


def _from_environment(environ: Mapping[str, str]) -> _Found:
    found: _Found = {}
    parsers: Mapping[str, Callable[[str], object]] = {
        "port": int, "timeout_s": float, "redact": _comma_separated, "content": _truth_of,
    }  # fmt: skip
    names = {f"LGOV_{name.upper()}": name for name in _READ}
    for variable, raw in environ.items():
        if not variable.startswith("LGOV_") or variable in OTHER_VARIABLES:
            continue
        if variable not in names:
            raise _unknown(variable, "set in the environment", names)
        name = names[variable]
        value: object = raw
        with suppress(ValueError):  # `_read` reports text that is not a number
            value = parsers.get(name, str)(raw)
        found[name] = (_read(name, value, variable), variable)
    return found


def _truth_of(raw: str) -> object:
    return {"true": True, "1": True, "false": False, "0": False}.get(raw.strip().lower(), raw)


def _comma_separated(raw: str) -> list[str]:
    return [part.strip() for part in raw.split(",")]


def _from_flags(flags: Mapping[str, object]) -> _Found:
    found: _Found = {}
    for name, raw in flags.items():
        if name not in _READ:
            raise _unknown(name, "given as a flag", _READ)
        if raw is not None:
            origin = f"--{name.removesuffix('_s').replace('_', '-')}"
            found[name] = (_read(name, os.fspath(raw) if isinstance(raw, Path) else raw, origin), origin)
    return found


def _unknown(name: str, how: str, known: Mapping[str, object]) -> SettingsError:
    hint = suggest_name(name, known, f"the settings are {', '.join(sorted(known))}")
    return SettingsError(f"there is no setting {name} ({how})", hint=hint)


# ---------------------------------------------------------------------- one reader a kind of value


def _read(name: str, raw: object, origin: str, *, base: Path | None = None) -> Any:
    try:
        return _READ[name](raw, base)
    except ValueError as error:
        raise SettingsError(f"{name} ({origin}) must be {error}, not {raw!r}") from None


def _text(raw: object, base: Path | None) -> str:
    if not isinstance(raw, str) or not raw.strip():
        raise ValueError("text that is not empty")
    return raw


def _path(raw: object, base: Path | None) -> Path:
    if not isinstance(raw, str) or not raw.strip() or "\0" in raw:
        raise ValueError("the path of a file")
    return (base or Path()) / Path(raw).expanduser()


def _names(raw: object, base: Path | None) -> tuple[str, ...]:
    names = tuple(raw) if isinstance(raw, list | tuple) else ()  # pyright: ignore[reportUnknownArgumentType]
    if not names or not all(isinstance(name, str) and name.strip() for name in names):
        raise ValueError("a list of names")
    return names


def _place(raw: object, base: Path | None) -> str:
    """A path or an address such as ``sqlite:///traces.sqlite``; an address is taken as it is."""
    if isinstance(raw, str) and "://" in raw:
        return raw
    try:
        return str(_path(raw, base))
    except ValueError:
        raise ValueError("a path or an address") from None


def _url(raw: object, base: Path | None) -> str:
    try:
        parts = urlsplit(raw) if isinstance(raw, str) else None
    except ValueError:
        parts = None
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("a URL such as http://127.0.0.1:8321")
    return str(raw)


def _port(raw: object, base: Path | None) -> int:
    if isinstance(raw, bool) or not isinstance(raw, int) or not 0 <= raw <= 65535:
        raise ValueError("a whole number from 0 to 65535")
    return raw


def _seconds(raw: object, base: Path | None) -> float:
    if isinstance(raw, bool) or not isinstance(raw, int | float) or not math.isfinite(raw) or raw <= 0:
        raise ValueError("a number of seconds above 0")
    return float(raw)


def _truth(raw: object, base: Path | None) -> bool:
    if not isinstance(raw, bool):
        raise ValueError("true or false")
    return raw


_READ: Mapping[str, Callable[[object, Path | None], Any]] = {
    "policy": _path,
    "audit": _path,
    "audit_key": _path,
    "heads": _path,
    "redact": _names,
    "air": _path,
    "store": _place,
    "content": _truth,
    "endpoint": _url,
    "timeout_s": _seconds,
    "cache": _path,
    "models": _path,
    "host": _text,
    "port": _port,
    "model": _text,
    "upstream": _url,
    "key_secret_file": _path,
}
