"""What a run of the training server began with, kept in its folder's ``server.json``."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lgov_core._util.atomic_file import atomic_write
from lgov_core.errors import TrainError
from lgov_core.types import new_id


@dataclass(frozen=True, slots=True)
class RunStart:
    """``id`` names the run's rollouts in the store, so that a later process finds them. The others are None until `begin`.

    ``model`` is the model's name (``NAME@VERSION`` for a promoted one), ``dtype`` what it is computed in,
    ``weights_sha256`` the `weights_digest` of its weights.
    """

    id: str
    model: str | None = None
    dtype: str | None = None
    weights_sha256: str | None = None


def read_start(folder: Path) -> RunStart:
    """What ``server.json`` says, or a new id. Raises `TrainError` for a file that cannot be read."""
    path = _file(folder)
    if not path.exists():
        return RunStart(new_id("train"))
    try:
        said: Any = json.loads(path.read_text("utf-8"))
        return RunStart(**said)
    except (OSError, ValueError, TypeError) as error:
        raise TrainError(f"{path} cannot be read: {error}", hint="restore it, or begin in another folder") from error


def begin(folder: Path, start: RunStart, *, model: str, dtype: str, weights_sha256: str, resume: bool) -> None:
    """Writes ``server.json``. Raises `TrainError` when a run is resumed with other weights than it began with."""
    if resume and start.weights_sha256 not in (None, weights_sha256):
        raise TrainError(
            f"the run in {folder} began with {start.model} in {start.dtype}, and {model} in {dtype} has other weights",
            hint=f"continue with --model {start.model} --dtype {start.dtype}",
        )
    now = replace(start, model=model, dtype=dtype, weights_sha256=weights_sha256)
    atomic_write(_file(folder), json.dumps(asdict(now)).encode())


def _file(folder: Path) -> Path:
    return folder / "server.json"
