"""The batch of an update, on disk before the update is made: after a kill it is replayed, not collected again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lgov_core._util.atomic_file import atomic_write
from lgov_core._util.durable import sync_file
from lgov_core.errors import TrainError
from lgov_core.train.file_errors import file_errors
from lgov_core.train.loop.metrics_log import finite
from lgov_core.transitions import Transition, read_parquet, write_parquet


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """One update's data. ``sha256`` (hex) is that of the Parquet file; ``figures`` is what was known before the update."""

    step: int
    sha256: str
    transitions: int
    figures: Mapping[str, Any] = field(default_factory=dict[str, Any])


def write_batch(folder: Path, step: int, transitions: Sequence[Transition], figures: Mapping[str, Any]) -> BatchRecord:
    """Writes ``folder/step-NNNNNN.parquet``, then ``step-NNNNNN.json``, which makes it count; both durably, replacing a
    batch of that number.

    Raises `TrainError` when it cannot be written, and `TransitionError` for values that no file can hold; there is then
    no batch of that number.
    """
    with file_errors(f"the batch of update {step} could not be written to {folder}", "free some space"):
        discard_batch(folder, step)
        path = write_parquet(transitions, data_file(folder, step))
        sync_file(path)
        record = BatchRecord(step, file_sha256(path), len(transitions), finite(dict(figures)))
        atomic_write(_record_file(folder, step), json.dumps(asdict(record), allow_nan=False).encode())
    return record


def read_record(folder: Path, step: int) -> BatchRecord | None:
    """What is on disk about the batch of update ``step``; None when there is none. Raises `TrainError`."""
    path = _record_file(folder, step)
    if not path.exists():
        return None
    with file_errors(f"{path} cannot be read", "remove it: that update is then collected anew"):
        return BatchRecord(**json.loads(path.read_text(encoding="utf-8")))


def read_batch(folder: Path, step: int) -> tuple[BatchRecord, list[Transition]] | None:
    """The batch of update ``step``; None without a record. Raises `TrainError` when the data is not what was recorded."""
    record = read_record(folder, step)
    if record is None:
        return None
    path = data_file(folder, step)
    with file_errors(f"{path} cannot be read", "put the file back"):
        digest = file_sha256(path)
    if digest != record.sha256:
        raise TrainError(
            f"{path} is not the data that update {step} was recorded with",
            hint="put the file back, or remove both files of that step: it is then collected anew",
        )
    return record, read_parquet(path)


def discard_batch(folder: Path, step: int) -> None:
    """Takes back the record, so that the batch no longer counts; the data stays to be looked at. Raises `OSError`."""
    _record_file(folder, step).unlink(missing_ok=True)


def data_file(folder: Path, step: int) -> Path:
    """Where the transitions of update ``step`` are."""
    return folder / f"step-{step:06d}.parquet"


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file, in hex. Raises `OSError`."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _record_file(folder: Path, step: int) -> Path:
    return folder / f"step-{step:06d}.json"
