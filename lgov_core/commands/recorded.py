"""Opens existing stores and records for commands that only read; never creates one."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from lgov_core._util.sqlite_file import is_blank
from lgov_core.errors import AuditError, LgovError
from lgov_core.settings import load_settings

if TYPE_CHECKING:
    from lgov_core.audit import AuditLog, Signer
    from lgov_core.authoring.replay import RecordedAction
    from lgov_core.store import RolloutQueue

#: Where SQLite keeps a file's application id, and what an audit record has there.
_APPLICATION_ID: Final = slice(68, 72)
_AUDIT_RECORD: Final = b"lgvA"
_SQLITE: Final = b"SQLite format 3\0"


def opened_store(source: str) -> closing[RolloutQueue]:
    """Opens the trace store at ``source``, which must exist: a path, an address or a run folder. Raises `StoreError`."""
    from lgov_core.store import open_store

    return closing(open_store(store_of(source), make=False))


def store_of(source: str) -> str:
    """``source``, or the store in it where it is a run folder."""
    file = Path(source) / "store.sqlite"
    return str(file) if file.is_file() else source


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
    return _begins(source, _APPLICATION_ID.stop)[_APPLICATION_ID] == _AUDIT_RECORD


def is_store(source: str) -> bool:
    """True for the address of a store, an SQLite file, and a run folder with a store in it."""
    return "://" in source or _begins(store_of(source), len(_SQLITE)) == _SQLITE


def _begins(source: str, length: int) -> bytes:
    with suppress(OSError, ValueError), Path(source).open("rb") as file:
        return file.read(length)
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
