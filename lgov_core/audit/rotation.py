"""Archives an audit record and begins the next one, and deletes archives that have reached an age."""

from __future__ import annotations

import errno
import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from lgov_core._util.files import sync_folder
from lgov_core.audit.log import NEXT, AuditLog
from lgov_core.audit.signing import Signer, heads_path
from lgov_core.audit.verify import VerifyReport, in_words, verify, verify_archived
from lgov_core.errors import AuditError, AuditInUse, AuditKeyError

ROTATION: Final = "rotation"
RETIREMENT: Final = "retirement"


class _AcceptingLog(AuditLog):
    _accepts_loss = True


def rotate(
    path: Path,
    folder: Path,
    *,
    signer: Signer | None,
    heads: Path | None = None,
    following_signer: Signer | None = None,
    accept_loss: bool = False,
) -> Path | None:
    """Moves the record at ``path`` into ``folder`` and begins the next one at ``path``; returns where the old one is.

    With ``accept_loss`` an older copy may go on, and a new record begin where one is gone (None is returned then): an entry
    says which heads were kept, so which entries are lost, and who accepts it.

    The first entry of the new record states the id, the number of entries and their digest of the old one, so that
    `verify_archived` finds what is missing or was changed. ``signer`` signs the old record, and the new one unless
    ``following_signer`` does; ``heads`` as in `AuditLog`. The name of the archive has the day and the record's id. Raises
    `AuditError`, and leaves the record where it is: when it is broken or signed with another key, when another program has
    it open, or when ``folder`` is on another file system.
    """
    path = path.absolute()
    anchor = heads if heads is not None or signer is None else heads_path(path)
    if is_gone := accept_loss and not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
    else:
        _require_right(path, signer)
    with (_AcceptingLog if accept_loss else AuditLog)(path, signer=signer, heads=anchor) as log:
        if is_gone:
            return None
        log.append(ROTATION, {"reason": f"archived in {folder}"}, arguments=None, content={})
    report = _require_right(path, signer)
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{path.stem}-{time.strftime('%Y%m%d', time.gmtime())}-{str(report.record)[:8]}{path.suffix}"
    following = path.with_name(f".{path.name}{NEXT}")
    with closing(_alone(path, report)):
        for leftover in (following, target):  # of a rotation that was killed
            if leftover.exists() and (leftover == following or leftover.samefile(path)):
                leftover.unlink()
        previous = {
            "record": report.record,
            "entries": report.entries,
            "sha256": report.entries_sha256,
            "file": target.name,
        }
        previous["key"] = report.key
        previous["folder"] = os.path.relpath(folder.resolve(), path.resolve().parent)
        with AuditLog(following, signer=following_signer or signer, heads=anchor) as log:
            log.append(ROTATION, {"previous": previous}, arguments=None, content={})
        try:
            os.link(path, target)
        except OSError as error:
            following.unlink()
            hint = (
                "name a folder on the same one, and move the archive from there" if error.errno == errno.EXDEV else None
            )
            raise AuditError(f"{path} cannot be archived as {target}: {error.strerror}", hint=hint) from error
        os.replace(following, path)
        sync_folder(path.parent)
        sync_folder(folder)
    return target


def retire(path: Path, folder: Path, *, before: float, signer: Signer | None, heads: Path | None = None) -> list[Path]:
    """Deletes the archives in ``folder`` before the record at ``path`` whose last entry is older than ``before`` (Unix time).

    An entry of the record says so first. Returns what was deleted. Raises `AuditError` when one of the chain is broken: then
    nothing is deleted.
    """
    reports = verify_archived(path, folder)
    if (broken := next(((name, report) for name, report in reports if not report.ok), None)) is not None:
        raise AuditError(f"audit record {broken[0]} is broken: {broken[1].problem}", hint="nothing was deleted")
    old = [(Path(name), report) for name, report in reports[1:] if _last_written(Path(name)) < before]
    if old:
        anchor = heads if heads is not None or signer is None else heads_path(path)
        fields: dict[str, Any] = {
            str(report.record): {"entries": report.entries, "sha256": report.entries_sha256, "file": name.name}
            for name, report in old
        }
        with AuditLog(path, signer=signer, heads=anchor) as log:
            log.append(RETIREMENT, {"retired": fields}, arguments=None, content={})
        for name, _ in old:
            name.unlink()
            for end in ("-wal", "-shm"):
                name.with_name(name.name + end).unlink(missing_ok=True)
        sync_folder(folder)
    return [name for name, _ in old]


def _require_right(path: Path, signer: Signer | None) -> VerifyReport:
    report = verify(path)
    if not report.ok:
        raise AuditError(
            f"audit record {path} was not archived: {in_words(report)}",
            hint="keep it at another place, and begin the next with lgov audit rotate --accept-loss",
        )
    if report.key is not None and (signer is None or signer.public.hex() != report.key):
        raise AuditKeyError(
            f"the record is signed with the key {report.key}: only who has its key may archive it",
            hint="name its secret key: --set audit_key=FILE",
        )
    return report


def _alone(path: Path, report: VerifyReport) -> sqlite3.Connection:
    """A connection that keeps all others out until it is closed, to a file with no log beside it."""
    connection = sqlite3.connect(path, timeout=0, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode=DELETE")  # which only the one connection of a database may switch to
        connection.execute("BEGIN EXCLUSIVE")
        if connection.execute("SELECT count(*) FROM entries").fetchone()[0] != report.entries:
            raise sqlite3.OperationalError("it has just been written to")
    except sqlite3.Error as error:
        connection.close()
        raise AuditInUse(
            f"audit record {path} is in use: {error}", hint="archive it when no program has it open, between two runs"
        ) from error
    return connection


def _last_written(path: Path) -> float:
    with AuditLog(path, signer=None) as log:
        entries = log.entries()
    return entries[-1].time_ns / 1e9 if entries else 0.0
