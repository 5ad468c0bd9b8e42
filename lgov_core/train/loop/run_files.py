"""The files of a run that make each update happen once: the batch before it, and the line of ``metrics.jsonl`` after it.

A batch is on disk before its update is made: after a kill it is replayed, not collected again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from lgov_core._util.files import append_line, atomic_write, drop_torn_line, sync_file
from lgov_core._util.json_text import finite
from lgov_core.errors import TrainError
from lgov_core.transitions import Transition, read_parquet, write_parquet


@contextlib.contextmanager
def file_errors(message: str, hint: str, *more: type[Exception]) -> Generator[None]:
    """Turns what reading or writing a file raises within the block, and ``more``, into `TrainError`."""
    try:
        yield
    except (OSError, EOFError, RuntimeError, ValueError, LookupError, TypeError, UnpicklingError, *more) as error:
        raise TrainError(f"{message}: {error}", hint=hint) from error


class MetricsLog:
    """The lines of a run. ``phase`` says what a line is about (``train``, ``resume``, an evaluation); ``step`` counts updates.

    For one process at a time; not safe to call from several threads.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, phase: str, step: int, figures: Mapping[str, Any]) -> None:
        """Writes a line and waits until the disk has it. Numbers that are not finite are written as null.

        Raises `TrainError` when it cannot be written.
        """
        line = {"phase": phase, "step": step} | dict(figures) | {"phase": phase, "step": step}
        with file_errors(f"{self.path} could not be written", "free some space"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            append_line(self.path, json.dumps(finite(line), allow_nan=False).encode())

    def lines(self) -> list[dict[str, Any]]:
        """All whole lines, oldest first; a partial last line is ignored."""
        return read_metrics(self.path) if self.path.exists() else []

    def repair(self) -> None:
        """Removes a partial last line that a killed run left."""
        drop_torn_line(self.path)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The entries of a ``metrics.jsonl``; a partial last line is ignored.

    Raises `TrainError` when the file cannot be read, or another line is not a JSON object.
    """
    entries: list[dict[str, Any]] = []
    with file_errors(f"{path} cannot be read", "name the metrics.jsonl of a run"):
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        if not line.endswith("\n"):
            break
        try:
            entry = json.loads(line)
        except ValueError as error:
            raise TrainError(f"{path}:{number} is not JSON: {error}", hint="remove that line") from error
        if not isinstance(entry, dict):
            raise TrainError(f"{path}:{number} is not a JSON object", hint="remove that line")
        entries.append(entry)
    return entries


def train_lines(lines: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The lines about updates, in the order of their steps; of two about one step the later."""
    steps = {entry["step"]: entry for entry in lines if entry.get("phase") == "train" and "step" in entry}
    return [steps[step] for step in sorted(steps)]


def flat(line: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Every number of a line with its name; names of what is within one another are joined by ``/``."""
    for name, value in line.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{prefix}{name}", float(value)


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
    """The record on disk of the batch of update ``step``; None when there is none. Raises `TrainError`."""
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
