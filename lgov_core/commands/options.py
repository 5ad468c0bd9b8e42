"""Options that several commands share, the decorator that makes a command, and the stores and records that commands read."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import click

from lgov_core._util.sqlite_file import application_id, is_blank
from lgov_core.commands.group import Exit, exit_status
from lgov_core.errors import AuditError, LgovError
from lgov_core.settings import load_settings

if TYPE_CHECKING:
    from lgov_core.audit import AuditLog, Signer
    from lgov_core.audit.reading import EntrySelection
    from lgov_core.authoring.replay import RecordedAction
    from lgov_core.store import RolloutQueue


_Function = TypeVar("_Function", bound=Callable[..., Any])

PATH: Final = click.Path(path_type=Path)
FILE: Final = click.Path(dir_okay=False, path_type=Path)
EXISTING_FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
FOLDER: Final = click.Path(file_okay=False, path_type=Path)


def command(
    *codes: Exit, more: str = "", cls: type[click.Command] = click.Command
) -> Callable[[Callable[..., Any]], click.Command]:
    """Makes a command with ``--json`` (``as_json``), whose help ends with its exit codes and ``more``."""

    def make(function: Callable[..., Any]) -> click.Command:
        click_command = click.command(cls=cls, epilog=exit_status(*codes, more=more))(function)
        text = "Write JSON to standard output instead of text."
        click_command.params.append(click.Option(["--json", "as_json"], is_flag=True, help=text))
        return click_command

    return make


def limit_option(rows: str) -> Callable[[_Function], _Function]:
    """``--limit``: how many ``rows`` to show, 50 unless it says otherwise; 0 is all of them."""
    text = f"{rows} to show; 0 shows all."
    return click.option("--limit", type=click.IntRange(min=0), default=50, show_default=True, help=text)


def option_group(
    name: str, kind: Callable[..., Any], *options: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """``options`` in the order of the help; the command gets their values as one ``name``, made by ``kind``."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def with_group(**values: Any) -> Any:
            group = kind(**{parameter: values.pop(parameter) for parameter in signature(kind).parameters})
            return function(**{name: group}, **values)

        decorated: Callable[..., Any] = with_group
        for option in reversed(options):
            decorated = option(decorated)
        return decorated

    return add


base_model_option = click.option("--model", help="Base model, if the checkpoint does not name it or it has moved.")
content_option = click.option(
    "--content/--no-content", default=True, show_default=True, help="Include what users, models and tools wrote."
)
resume_option = click.option("--resume", is_flag=True, help="Resume the interrupted run in --folder.")
yes_option = click.option("--yes", is_flag=True, help="Skip the confirmation.")

# ---------------------------------------------------------------------- moments

_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}


def moment_option(flag: str, what: str) -> Callable[[_Function], _Function]:
    """An option that takes an age or a date, and gives the command Unix seconds, or None."""
    text = f"{what} an age (30d, 12h) or a date in UTC (2026-01-31, 2026-01-31T09:30)."
    return click.option(flag, metavar="WHEN", callback=_moment, help=text)


def _moment(_context: click.Context, _parameter: click.Parameter, value: str | None) -> float | None:
    """Unix seconds of an age (``30d``, ``12h``), or of a date with or without a time (UTC by default)."""
    if value is None:
        return None
    if ago := re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", value):
        return time.time() - float(ago[1]) * _UNITS[ago[2]]
    try:
        when = datetime.fromisoformat(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is neither an age (30d, 12h) nor a date (2026-01-31)") from None
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


# ---------------------------------------------------------------------- NAME=VALUE

#: For each field the values that it may have; a row fits when it has one of them in every field.
Where: TypeAlias = Mapping[str, tuple[str, ...]]


def pair(text: str, form: str = "NAME=VALUE") -> tuple[str, str]:
    """The two sides of ``text``. Raises `click.BadParameter` where one is missing."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise click.BadParameter(f"takes {form}, not {text!r}")
    return name, value


def where_option(
    fields: Mapping[str, str], *, other: str | None = None, note: str = "repeatable"
) -> Callable[[_Function], _Function]:
    """``--where FIELD=VALUE`` (`Where`): only rows that fit.

    ``fields`` are the names of the fields with the form of their values. ``other`` says what any further name means; without
    it a further name is wrong usage.
    """
    forms = ", ".join(f"{name}={form}" for name, form in fields.items())

    def parse(_context: click.Context, _parameter: click.Parameter, texts: tuple[str, ...]) -> Where:
        where: dict[str, tuple[str, ...]] = {}
        for text in texts:
            name, value = pair(text, "FIELD=VALUE")
            if name not in fields and other is None:
                raise click.BadParameter(f"there is no field {name}; there are {', '.join(fields)}")
            if not value.strip():  # every row would fit
                raise click.BadParameter(f"{name} has no value: give FIELD=VALUE, or leave it out")
            where[name] = (*where.get(name, ()), value)
        return where

    more = "" if other is None else f", {other}"
    return click.option(
        "--where", metavar="FIELD=VALUE", multiple=True, callback=parse, help=f"Only what fits: {forms}{more}; {note}."
    )


def single(where: Where, field: str) -> str | None:
    """The value of a field that may be given once. Raises `click.UsageError` for several."""
    values = where.get(field, ())
    if len(values) > 1:
        raise click.UsageError(f"--where {field} can be given once")
    return values[0] if values else None


#: The fields of an audit record's entries that can be chosen by.
ENTRY_FIELDS: Final = {
    "entry": "ID", "rollout": "ID", "session": "ID", "tool": "GLOB", "agent": "GLOB", "text": "TEXT",
}  # fmt: skip


def selection_of(where: Where, since: float | None, before: float | None) -> EntrySelection:
    """The entries of an audit record that the options choose."""
    from lgov_core.audit.reading import EntrySelection

    values = {name: single(where, name) for name in ENTRY_FIELDS}
    return EntrySelection(
        entry_id=values["entry"],
        rollout_id=values["rollout"],
        session_id=values["session"],
        tool=values["tool"],
        agent=values["agent"],
        text=values["text"],
        since=since,
        before=before,
    )


#: Which entries of an audit record a command is about, as one ``selection``.
entries_option = option_group(
    "selection",
    selection_of,
    where_option(ENTRY_FIELDS, note="text is looked for in arguments, texts, names and reasons"),
    moment_option("--since", "Only entries written since"),
    moment_option("--before", "Only entries written before"),
)


def set_option(meaning: str) -> Callable[[_Function], _Function]:
    """``--set NAME=VALUE`` (``assignments``: NAME to VALUE): any setting, as text."""
    return click.option(
        "--set",
        "assignments",
        metavar="NAME=VALUE",
        multiple=True,
        callback=lambda _context, _parameter, texts: dict(map(pair, texts)),
        help=f"{meaning}; repeatable.",
    )


#: `set_option` of the commands that take settings of ``lgov.toml``.
settings_option = set_option("Any setting of lgov.toml, such as audit_key=FILE")

# ---------------------------------------------------------------------- what a governed program and a server share

policy_option = click.option("--policy", type=PATH, help="Policy file. [default: the setting, or policy.yaml]")
audit_option = click.option("--audit", type=PATH, help="File of the audit record. [default: .lgov/audit.db]")


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """The engine that generates replies: its name, and the address of one that runs already."""

    name: str | None = None
    url: str | None = None

    def as_flags(self) -> dict[tuple[str, str], Any]:
        """The choice as training settings by section and key."""
        return {("model", "engine"): self.name, ("model", "engine_url"): self.url}


def _engine(_context: click.Context, _parameter: click.Parameter, value: str | None) -> EngineChoice:
    if value is not None and value.startswith(("http://", "https://")):
        return EngineChoice("vllm", value)
    if value not in (None, "embedded", "vllm"):
        raise click.BadParameter(f"{value!r} is not one of embedded, vllm, or the address of a vLLM")
    return EngineChoice(value)


engine_option = click.option(
    "--engine",
    metavar="embedded|vllm|URL",
    callback=_engine,
    help="Engine that generates replies: embedded (default), vllm in a process of its own, or the vLLM at URL.",
)

key_secret_option = click.option(
    "--key-secret-file",
    type=PATH,
    help="File with the secret that keys are derived from (16 bytes or more). With it, calls without a key are refused.",
)
show_admin_key_option = click.option(
    "--show-admin-key", is_flag=True, help="Print the admin key, which may act for any rollout."
)


def opened_store(source: str) -> closing[RolloutQueue]:
    """Opens the trace store at ``source``, which must exist: a path, an address or a run folder. Raises `StoreError`."""
    from lgov_core.store import open_store

    return closing(open_store(source, make=False))


def store_or_setting(source: str | None) -> str:
    """``source``, or the store that the settings name. Raises `click.UsageError` where they name none."""
    if (source := source or load_settings().store) is None:
        raise click.UsageError("name a trace store, or set store in lgov.toml")
    return source


def record_or_setting(path: Path | None) -> Path:
    """``path``, or the audit record that the settings name, or that `lgov run` writes."""
    from lgov_core.governance import DEFAULT_AUDIT

    return path or load_settings().audit or DEFAULT_AUDIT


def is_audit_record(source: str) -> bool:
    """True for the file of an audit record; False also when there is no such file."""
    return _kind(source) == b"lgvA"


def is_store(source: str) -> bool:
    """True for the address of a store, an SQLite file, and a folder whose run has a store."""
    from lgov_core.store import store_of

    return "://" in (store := store_of(source)) or _kind(store) != b""


def _kind(source: str) -> bytes:
    """The application id of a database, also of one that SQLite cannot read any more; empty for another file."""
    if kind := application_id(Path(source)):
        return kind
    with suppress(OSError, ValueError), Path(source).open("rb") as file:
        header = file.read(72)
        return header[68:] if header.startswith(b"SQLite format 3\0") else b""
    return b""


@contextmanager
def opened_record(path: Path, *, signer: Signer | None = None, heads: Path | None = None) -> Generator[AuditLog]:
    """Opens the audit record at ``path``; ``signer`` signs new entries, with heads in ``heads``.

    Raises `LgovError` if there is none, or `AuditError`.
    """
    from lgov_core.audit import AuditLog

    if not path.is_file():
        raise LgovError(f"there is no audit record {path}", hint="name the record that was given to --audit")
    if is_blank(path):
        raise AuditError(
            f"there is nothing in {path}, not even an empty audit record",
            hint="look for the file that belongs beside it, ending in -wal, or for a copy of both",
        )
    with AuditLog(path, signer=signer, heads=heads) as record:
        yield record


@contextmanager
def recorded_actions(source: str) -> Generator[list[RecordedAction | None]]:
    """The tool calls, and in an audit record also the model calls and texts, that were judged in ``source``, in order.

    None stands for one that is not on record in full.
    """
    from lgov_core.authoring.replay import from_audit, from_store

    if is_audit_record(source):
        with opened_record(Path(source)) as log:
            yield list(from_audit(log.entries()))
    else:
        with opened_store(source) as store:
            yield list(from_store(store))
