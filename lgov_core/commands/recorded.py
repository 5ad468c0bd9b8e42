"""Opens existing stores and records for commands that only read; never creates one."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from lgov_core._util.sqlite_file import is_blank
from lgov_core.errors import AuditError, LgovError

if TYPE_CHECKING:
    from lgov_core.audit import AuditLog, Signer
    from lgov_core.store import RolloutQueue

#: Where SQLite keeps a file's application id, and what an audit record has there.
_APPLICATION_ID = slice(68, 72)
_AUDIT_RECORD = b"lgvA"


def opened_store(place: str) -> closing[RolloutQueue]:
    """The trace store at ``place``, which must exist: a path, an address or a run folder. Raises `StoreError`."""
    from lgov_core.store import open_store

    return closing(open_store(store_of(place), make=False))


def store_of(place: str) -> str:
    """``place``, or the store in it where it is a run folder."""
    file = Path(place) / "store.sqlite"
    return str(file) if file.is_file() else place


def is_audit_record(place: str) -> bool:
    """Whether the file at ``place`` is an audit record; False also when there is no such file."""
    try:
        with Path(place).open("rb") as file:
            return file.read(_APPLICATION_ID.stop)[_APPLICATION_ID] == _AUDIT_RECORD
    except (OSError, ValueError):
        return False


@contextmanager
def opened_record(path: Path, *, signer: Signer | None = None, heads: Path | None = None) -> Generator[AuditLog]:
    """The audit record at ``path``; ``signer`` signs new entries, with heads in ``heads``.

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
