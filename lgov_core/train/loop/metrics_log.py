"""``metrics.jsonl``: one line for everything that happened in a run, each exactly once."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lgov_core._util.durable import append_line, drop_torn_line
from lgov_core.errors import TrainError
from lgov_core.train.file_errors import file_errors


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
    found: list[dict[str, Any]] = []
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
        found.append(entry)
    return found


def train_lines(lines: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The lines about updates, in the order of their steps; of two about one step the later."""
    steps = {entry["step"]: entry for entry in lines if entry.get("phase") == "train" and "step" in entry}
    return [steps[step] for step in sorted(steps)]


def finite(value: Any) -> Any:
    """``value`` with null in place of every number that JSON has no form for."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def flat(line: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Every number of a line with its name; names of what is within one another are joined by ``/``."""
    for name, value in line.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{prefix}{name}", float(value)
