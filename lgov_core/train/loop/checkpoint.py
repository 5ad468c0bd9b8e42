"""Checkpoints: everything a killed run needs to continue, written atomically."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError

from lgov_core._util.files import atomic_folder, atomic_write
from lgov_core.errors import TrainError
from lgov_core.train.loop.run_files import file_errors

WEIGHTS_FILE = "weights.safetensors"
STATE_FILE = "state.pt"
EXTRA_FILE = "extra.json"
_BEST_FILE = "best.json"
_NAME = re.compile(r"step-(\d{6,})")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """``step`` counts finished updates; ``weights`` are the trained parameters by name, ``state`` (tensors and plain
    values) is the learner's, ``extra`` is JSON.
    """

    step: int
    weights: Mapping[str, torch.Tensor]
    state: Mapping[str, Any]
    extra: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Best:
    """The best checkpoint so far: its step, the measure and its value."""

    step: int
    what: str
    score: float


#: Called with the folder of a checkpoint whose files are all there but which does not count yet, and with the checkpoint.
Seal = Callable[[Path, Checkpoint], None]


def save_checkpoint(folder: Path, checkpoint: Checkpoint, *, keep: int = 2, seal: Seal | None = None) -> Path:
    """Writes ``folder/step-NNNNNN`` atomically and removes all but the newest ``keep`` and the best (`mark_best`).

    It holds ``weights.safetensors``, ``state.pt``, ``extra.json``, and what ``seal`` adds. Raises `TrainError` when it
    cannot be written, and what ``seal`` raises; older checkpoints are then intact.
    """
    target = folder / f"step-{checkpoint.step:06d}"
    hint = "free some space; the older checkpoints are intact"
    with file_errors(f"checkpoint {target} could not be written", hint, SafetensorError):
        with atomic_folder(target) as partial:
            safetensors.torch.save_file(_on_cpu(checkpoint.weights), partial / WEIGHTS_FILE)
            torch.save(dict(checkpoint.state), partial / STATE_FILE)
            extra = {"step": checkpoint.step, **checkpoint.extra}
            (partial / EXTRA_FILE).write_text(json.dumps(extra), encoding="utf-8")
            if seal is not None:
                seal(partial, checkpoint)
        best = best_checkpoint(folder)
        for old in complete_checkpoints(folder)[:-keep]:
            if best is None or old.name != f"step-{best.step:06d}":
                shutil.rmtree(old, ignore_errors=True)
    return target


def latest_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest complete checkpoint in ``folder``, or None. Raises `TrainError` when it cannot be read."""
    complete = complete_checkpoints(folder)
    return read_checkpoint(complete[-1]) if complete else None


def read_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint in the folder ``path``, on the CPU. Raises `TrainError` when it cannot be read."""
    hint = "remove that folder to resume from the one before it"
    with file_errors(f"checkpoint {path} cannot be read", hint, SafetensorError):
        weights = safetensors.torch.load_file(path / WEIGHTS_FILE)
        state = torch.load(path / STATE_FILE, map_location="cpu", weights_only=True)
        extra = json.loads((path / EXTRA_FILE).read_text(encoding="utf-8"))
        return Checkpoint(int(extra.pop("step")), weights, state, extra)


def complete_checkpoints(folder: Path) -> list[Path]:
    """The folders of all complete checkpoints in ``folder``, oldest first."""
    if not folder.is_dir():
        return []
    numbered = [
        (int(match.group(1)), path)
        for path in folder.iterdir()
        if (match := _NAME.fullmatch(path.name)) and (path / EXTRA_FILE).is_file()
    ]
    return [path for _, path in sorted(numbered)]


def step_of(path: Path) -> int:
    """The step of a checkpoint's folder, by its name. Raises `TrainError` for another name."""
    match = _NAME.fullmatch(path.name)
    if match is None:
        raise TrainError(f"{path} is not the folder of a checkpoint", hint="such are named step-000010")
    return int(match.group(1))


def find_checkpoint(path: Path) -> Path:
    """The folder of the checkpoint that ``path`` names: that folder; the newest of a run's folder or its
    ``checkpoints``; ``best`` or ``last`` in either (``runs/a/best``). Raises `TrainError` when there is none.
    """
    if (path / EXTRA_FILE).is_file():
        return path
    which, base = ("last", path) if path.name not in ("best", "last") else (path.name, path.parent)
    folder = base / "checkpoints" if (base / "checkpoints").is_dir() else base
    complete = complete_checkpoints(folder)
    if not complete:
        raise TrainError(f"there is no checkpoint in {path}", hint="name a checkpoint's folder, or the run's")
    if which == "last":
        return complete[-1]
    best = best_checkpoint(folder)
    for checkpoint in complete:
        if best is not None and checkpoint.name == f"step-{best.step:06d}":
            return checkpoint
    raise TrainError(f"{folder} does not say which checkpoint is the best", hint=f"name {base / 'last'}, or a step")


def mark_best(folder: Path, step: int, what: str, score: float) -> Best:
    """Rates the checkpoint of ``step``, higher is better, and returns the best so far, which ``best.json`` names.

    Another measure replaces ``mean_return``; ``mean_return`` replaces no other. A score that is not finite is never the
    best. Raises `TrainError` when it cannot be written.
    """
    present = best_checkpoint(folder)
    if present is not None:
        other = what != present.what
        if (other and what == "mean_return") or (not other and not score > present.score):
            return present
    best = Best(step, what, score)
    if not math.isfinite(score):
        return present or best
    with file_errors(f"{folder / _BEST_FILE} could not be written", "free some space"):
        atomic_write(folder / _BEST_FILE, json.dumps(asdict(best)).encode())
    return best


def best_checkpoint(folder: Path) -> Best | None:
    """The note of `mark_best`; None when there is nothing. Raises `TrainError` when it cannot be read."""
    path = folder / _BEST_FILE
    if not path.exists():
        return None
    with file_errors(f"{path} cannot be read", "remove it"):
        return Best(**json.loads(path.read_text(encoding="utf-8")))


def _on_cpu(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value.detach().cpu().contiguous() for name, value in tensors.items()}


def save_weights(folder: Path, version: int, weights: Mapping[str, torch.Tensor]) -> Path:
    """Writes ``folder/version-NNNNNN.safetensors``: what was served as ``version``, by `PolicyModel.weights` names.

    The file is replaced atomically. Raises `TrainError` when it cannot be written; other versions stay as they were.
    """
    target = _weights_file(folder, version)
    hint = "free some space, or check the folder's permissions"
    with file_errors(f"weights {target} could not be written", hint, SafetensorError):
        atomic_write(target, safetensors.torch.save(_on_cpu(weights)))
    return target


def load_weights(folder: Path, version: int) -> dict[str, torch.Tensor] | None:
    """The weights of ``version`` that `save_weights` wrote, on the CPU; None without. Raises `TrainError` for an
    unreadable file.
    """
    path = _weights_file(folder, version)
    if not path.exists():
        return None
    with file_errors(f"weights {path} cannot be read", "the file is damaged", SafetensorError):
        return safetensors.torch.load_file(path)


def _weights_file(folder: Path, version: int) -> Path:
    return folder / f"version-{version:06d}.safetensors"
