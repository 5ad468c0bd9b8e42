"""Settings from files, the environment and flags; each value knows where it came from.

Later sources win over earlier ones::

    default  <  lgov.toml, or [tool.lgov] in pyproject.toml  <  LGOV_* variables  <  explicit flags

The file is the nearest one from the working directory upwards, not beyond the folder that holds ``.git``; in one
folder ``lgov.toml`` wins over ``pyproject.toml``. Paths in a file are relative to the file's folder. A name that is not
a setting is an error everywhere, so that a misspelt one cannot be taken for an absent one.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin, get_type_hints
from urllib.parse import urlsplit

import msgspec
from msgspec import UNSET, Meta, UnsetType

from lgov_core._util.schema import Mistake, checked
from lgov_core.errors import SettingsError, suggest_name

DEFAULT = "default"
#: Settings and policy files are not longer than this (bytes).
MAX_WRITTEN: Final = 8 << 20

#: ``LGOV_`` variables that are not settings: those that lgov hands to the processes it starts, and those of one module.
OTHER_VARIABLES = frozenset(
    {
        "LGOV_ROLLOUT_ID",
        "LGOV_ATTEMPT",
        "LGOV_CHILD",
        "LGOV_STARTER",
        "LGOV_OPENAI_TRACES",
        "LGOV_FLEX_ATTENTION",
        "LGOV_MCP_HEADERS",
    }
)

#: What Kubernetes writes into pods for each service of their namespace, and Docker for a linked container: of one named
#: ``lgov`` or ``lgov-...`` such variables are not settings, nor mistyped ones.
_LINK: Final = re.compile(
    r"""LGOV_(\w+_)?(
        SERVICE_HOST=[\da-fA-F.:]+ | SERVICE_PORT(_\w+)?=\d+ | PORT(_\d+_(TCP|UDP|SCTP))?=(tcp|udp|sctp)://\S+
        | PORT_\d+_(TCP|UDP|SCTP)_(PROTO=(tcp|udp|sctp) | PORT=\d+ | ADDR=[\da-fA-F.:]+) | NAME=/\S+/\S+ | ENV_\w+=.*
    )""",
    re.VERBOSE | re.DOTALL,
)

Text = Annotated[str, Meta(pattern=r"\S", description="text that is not empty")]
FilePath = Annotated[Path, Meta(description="the path of a file")]
Names = Annotated[tuple[Annotated[str, Meta(pattern=r"\S")], ...], Meta(min_length=1, description="a list of names")]
#: A path, or an address such as ``sqlite:///traces.sqlite``.
Place = Annotated[str, Meta(pattern=r"\A[^\0]*[^\s\0][^\0]*\Z", description="a path or an address")]
Url = Annotated[str, Meta(description="a URL such as http://127.0.0.1:8321")]
Port = Annotated[int, Meta(ge=0, le=65535, description="a whole number from 0 to 65535")]
Seconds = Annotated[float, Meta(gt=0, le=sys.float_info.max, description="a number of seconds above 0")]
Count = Annotated[int, Meta(ge=1, description="a whole number of 1 or more")]
WholeSeconds = Annotated[int, Meta(ge=0, description="a whole number of 0 or more")]
Truth = Annotated[bool, Meta(description="true or false")]
#: What the openai client waits too: one that gives up earlier sends the call again, and pays for both.
UPSTREAM_TIMEOUT_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one process. Load them with `load_settings`; they may be shared between threads.

    None leaves the choice to the command. ``origins`` says for each setting that is not a default where it came from.
    """

    policy: FilePath | None = None
    """Policy file. Default: ``policy.yaml`` beside the program."""
    audit: FilePath | None = None
    """File of the audit record. Default: ``.lgov/audit.db``."""
    audit_key: FilePath | None = None
    """Secret key that signs the audit record. Default: the key of ``lgov audit keygen``, if any."""
    heads: FilePath | None = None
    """File for the signed heads of the audit record. Default: a file beside the record."""
    redact: Names = ()
    """Arguments whose values the audit record leaves out. The variable separates them by commas; the flag is repeated."""
    air: FilePath | None = None
    """File of rules for intermediate rewards. Default: the built-in rewards."""
    store: Place | None = field(default=None, repr=False)  # it may hold a password; see `without_password`
    """Trace store: a path, ``sqlite:///path`` or ``postgresql://user@host/database``."""
    content: Truth = True
    """False keeps prompts, arguments and results off spans."""
    endpoint: Url | None = None
    """Base URL of an endpoint of ``lgov serve``, to which the model calls of the program go."""
    timeout_s: Seconds = 2.0
    """Seconds that one rule may take to decide; built-in rules that are always fast have no limit."""
    cache: FilePath | None = None
    """Folder for the models of ``lgov models pull``. Default: the user's cache folder."""
    models: FilePath | None = None
    """Folder to which ``lgov models promote`` writes models. Default: ``models``."""
    host: Text = "127.0.0.1"
    """Address on which ``lgov serve`` listens."""
    port: Port = 8321
    """Port on which ``lgov serve`` listens; 0 takes any free one."""
    allowed_hosts: Names = ()
    """Further names under which ``lgov serve`` and ``lgov train --serve`` are asked, such as that of a proxy in front;
    separated by commas."""
    model: Text | None = None
    """Model that ``lgov serve`` loads and serves: ``tiny``, ``smollm2``, a folder or a hub name."""
    upstream: Url | None = None
    """Base URL of the model server to which ``lgov serve`` forwards calls; several are separated by commas."""
    upstream_key_env: Text = "OPENAI_API_KEY"
    """Variable with the key of the upstream of ``lgov serve``."""
    upstream_speaks: Names = ("chat", "completions", "embeddings")
    """APIs in which ``lgov serve`` asks its upstream (``responses`` and ``messages`` are the others), separated by commas; what
    it does not speak is translated to chat."""
    upstream_timeout_s: Seconds = UPSTREAM_TIMEOUT_S
    """Seconds for a whole reply of the upstream, or between streamed pieces."""
    max_running: Count = 512
    """Calls that ``lgov serve`` answers at the same time."""
    max_waiting: Count = 2048
    """Calls that wait for ``lgov serve`` at the same time."""
    max_texts: Count = 8192
    """Texts of one request that policies of ``lgov serve`` read: messages, arguments of calls, descriptions of tools."""
    max_characters: Count = 4_000_000
    """Characters of these texts together."""
    judging_s: Seconds = 20.0
    """Seconds that ``lgov serve`` may take to evaluate a request, without the wait for people."""
    strict_fields: Truth = False
    """True refuses a call that asks for what ``lgov serve`` cannot offer its model; else that is left out, and named."""
    drain_s: WholeSeconds = 30
    """Seconds that ``lgov serve`` gives running calls to end after SIGTERM."""
    log_level: Annotated[
        str, Meta(pattern=r"\A(debug|info|warning|error)\Z", description="debug, info, warning or error")
    ] = "warning"
    """What servers (``lgov serve``, ``train``, ``view``) log: with ``warning`` errors, denials, and upstreams and stores that
    are down; with ``info`` requests."""
    log_file: FilePath | None = None
    """File that the log is appended to. Default: standard error."""
    log_json: Truth = False
    """True logs each line as a JSON object."""
    log_content: Truth = False
    """True logs also reasons, messages of smaller errors, and what an upstream sent instead of a reply."""
    key_secret_file: FilePath | None = None
    """File of secrets for keys of ``lgov serve``, one a line, each 16 bytes or more: the first makes keys, all open."""
    admin_keys_file: FilePath | None = None
    """File with the admin keys of ``lgov serve``, one a line; re-read when it changes."""
    revoked_keys: FilePath | None = None
    """File of revoked keys of ``lgov serve``, one a line: a key, or its SHA-256 in hex; read again when it changes."""
    tls_cert: FilePath | None = None
    """Certificate, with its chain, by which ``lgov serve`` speaks HTTPS; with ``tls_key``."""
    tls_key: FilePath | None = None
    """Private key of the certificate."""
    otlp: Url | None = None
    """Collector to which ``lgov serve`` sends each call that it recorded, such as ``http://127.0.0.1:4318/v1/traces``."""
    metrics_by: Names = ()
    """By what ``lgov serve`` counts calls and tokens besides: ``agent``, ``key`` (the rollout of the key); separated by
    commas."""
    origins: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False, compare=False)

    def origin(self, name: str) -> str:
        """Where a value came from: ``default``, ``lgov.toml:3``, ``LGOV_POLICY`` or ``--policy``.

        Raises `SettingsError` for a name that is not a setting.
        """
        if name not in _KINDS:
            raise _unknown(name, "asked for", _KINDS)
        return self.origins.get(name, DEFAULT)


def load_settings(
    flags: Mapping[str, object] | None = None,
    *,
    texts: Mapping[str, str] | None = None,
    folder: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """The settings of a process.

    ``flags`` are explicit values by setting name; None values count as not given. ``texts`` are explicit values as a variable
    of the environment holds them (``--set NAME=VALUE``). ``folder`` is where the search for a file begins (the working
    directory by default), ``environ`` the environment (that of the process by default). Raises
    `SettingsError` for a file that cannot be read or is not TOML, an unknown name, and a value of the wrong type; the
    message names the setting and where it was set.
    """
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for source in (
        _from_file(folder or Path.cwd()),
        _from_environment(os.environ if environ is None else environ),
        _from_flags(flags or {}),
        _from_texts(texts or {}, {name: f"--set {name}" for name in texts or {}}),
    ):
        for name, (value, origin) in source.items():
            values[name], origins[name] = value, origin
    return Settings(**values, origins=MappingProxyType(origins))


def without_password(address: str) -> str:
    """A store's place for printing: an address without its password, or only its scheme when it cannot be parsed."""
    scheme, separator, rest = address.partition("://")
    if not separator or scheme in ("sqlite", "memory"):
        return address
    host = r"(?:\[[^\]@/?]*\]|[^:@/?,\[\]]*)(?::\d*)?"
    plain = re.fullmatch(rf"(?:([^:@/?]*)(:[^@/?]*)?@)?({host}(?:,{host})*(?:/[^@?]*)?)(\?.*)?", rest)
    if plain is None:
        return f"{scheme}://..."
    user, password, where, options = plain.groups()
    name = "" if user is None else f"{user}:...@" if password else f"{user}@"
    return f"{scheme}://{name}{where}{'?...' if options else ''}"


#: The type that each setting is checked against, without the None of those that have no default.
_KINDS: Mapping[str, Any] = {
    name: get_args(hint)[0] if get_origin(hint) is UnionType or get_origin(hint) is Union else hint
    for name, hint in get_type_hints(Settings, include_extras=True).items()
    if name != "origins"
}
_SCHEMA: type[msgspec.Struct] = msgspec.defstruct(
    "SettingsFile",
    [(name, Union[kind, UnsetType], UNSET) for name, kind in _KINDS.items()],  # noqa: UP007 - made at run time
    forbid_unknown_fields=True,
)
#: Values with where each came from.
_Values = dict[str, tuple[Any, str]]


def _from_file(folder: Path) -> _Values:
    file = _settings_file(folder.absolute())
    if file is None:
        return {}
    path, table, text = file
    section = None if path.name == "lgov.toml" else "tool.lgov"
    lines = {name: _line_of(name, text, section) for name in table}
    where = {name: f":{line}" if line else "" for name, line in lines.items()}
    for name in table:
        if name not in _KINDS:
            raise _unknown(name, f"set in {path}{where[name]}", _KINDS)
    return _read(table, {name: f"{path.name}{where[name]}" for name in table}, base=path.parent)


def settings_places(folder: Path) -> Iterator[Path]:
    """Every place where a run that begins in ``folder`` looks for settings, the nearest first, existing or not."""
    for parent in (folder, *folder.parents):
        yield parent / "lgov.toml"
        yield parent / "pyproject.toml"
        if (parent / ".git").exists() and not is_placeholder(parent / ".git"):
            return


def read_written(path: str | os.PathLike[str], *, limit: int = MAX_WRITTEN) -> bytes:
    """The bytes of a file that a person wrote, such as settings. Never waits, as reading a pipe does.

    Raises `OSError` for what is no regular file, and for one of more than ``limit`` bytes.
    """
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", os.fspath(path))
        if status.st_size > limit:
            raise OSError(errno.EFBIG, f"it has {status.st_size} bytes, more than {limit}", os.fspath(path))
        with open(handle, "rb", closefd=False) as file:
            return file.read(limit)
    finally:
        os.close(handle)


def is_placeholder(path: Path) -> bool:
    """Returns whether a box keeps this place free by an empty file, or an empty folder that nobody may write to."""
    try:
        status = path.lstat()
        if stat.S_ISDIR(status.st_mode):
            return not status.st_mode & 0o222 and not os.listdir(path)
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size == 0


def _settings_file(folder: Path) -> tuple[Path, Mapping[str, Any], str] | None:
    """The nearest settings file from ``folder`` upwards: its path, its table and its text."""
    for path in settings_places(folder):
        if not path.exists() or is_placeholder(path):
            continue
        document, text = _parse(path)
        if path.name == "lgov.toml":
            return path, document, text
        tools = document.get("tool", {})
        table = tools.get("lgov") if isinstance(tools, dict) else None
        if isinstance(table, dict):
            return path, table, text
        if table is not None:
            raise SettingsError(f"{path}: tool.lgov is not a table", hint="write [tool.lgov]")
    return None


def _parse(path: Path) -> tuple[dict[str, Any], str]:
    try:
        text = read_written(path).decode()
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


def _from_environment(environ: Mapping[str, str]) -> _Values:
    names = {f"LGOV_{name.upper()}": name for name in _KINDS}
    texts: dict[str, str] = {}
    for variable, text in environ.items():
        if not variable.startswith("LGOV_") or variable in OTHER_VARIABLES or _LINK.fullmatch(f"{variable}={text}"):
            continue
        if variable not in names:
            raise _unknown(variable, "set in the environment", names)
        texts[names[variable]] = text
    return _from_texts(texts, {name: variable for variable, name in names.items()})


def _from_texts(texts: Mapping[str, str], origins: Mapping[str, str]) -> _Values:
    """Values that are text whatever their type; a list of names is separated by commas."""
    values: dict[str, object] = {}
    for name, text in texts.items():
        if name not in _KINDS:
            raise _unknown(name, f"given as {origins[name]}", _KINDS)
        values[name] = [part.strip() for part in text.split(",")] if _KINDS[name] is Names else text
    return _read(values, origins, strict=False)


def _from_flags(flags: Mapping[str, object]) -> _Values:
    for name in flags:
        if name not in _KINDS:
            raise _unknown(name, "given as a flag", _KINDS)
    values = {name: os.fspath(value) if isinstance(value, Path) else value for name, value in flags.items()}
    origins = {name: f"--{name.removesuffix('_s').replace('_', '-')}" for name in flags}
    return _read({name: value for name, value in values.items() if value is not None}, origins)


def _unknown(name: str, how: str, names: Mapping[str, object]) -> SettingsError:
    hint = suggest_name(name, names, f"the settings are {', '.join(sorted(names))}")
    return SettingsError(f"there is no setting {name} ({how})", hint=hint)


def _read(
    values: Mapping[str, object], origins: Mapping[str, str], *, strict: bool = True, base: Path | None = None
) -> _Values:
    """The values of one source by the schema, with their origins. Raises `SettingsError`."""
    try:
        settings = checked(values, _SCHEMA, strict=strict, base=base)
    except Mistake as mistake:
        name = str(mistake.path[0])
        expected = mistake.expected
    else:
        read = {name: getattr(settings, name) for name in values}
        wrong = [name for name in values if _KINDS[name] is Url and not _is_url(read[name])]
        if not wrong:
            return {name: (_resolved(name, value, base), origins[name]) for name, value in read.items()}
        name, expected = wrong[0], "a URL such as http://127.0.0.1:8321"
    raise SettingsError(f"{name} ({origins[name]}) must be {expected}, not {values[name]!r}") from None


def _resolved(name: str, value: Any, base: Path | None) -> Any:
    """``value``; of a store that is a path, that path, relative to ``base``."""
    if _KINDS[name] is not Place or "://" in value:
        return value
    return str((base or Path()) / Path(value).expanduser())


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        return False
