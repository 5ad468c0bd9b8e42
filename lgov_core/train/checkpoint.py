"""Checkpoints: everything a killed run needs to go on, written whole or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lgov_core.errors import TrainError

_NAME = re.compile(r"step-(\d{6})")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """``step`` counts finished updates; ``weights`` holds the trained parameters by name; ``optimizer`` its state."""

    step: int
    weights: Mapping[str, torch.Tensor]
    optimizer: Mapping[str, Any]
    extra: Mapping[str, Any]


def save_checkpoint(folder: Path, checkpoint: Checkpoint, *, keep: int = 2) -> Path:
    """Writes ``folder/step-NNNNNN`` and removes all but the newest ``keep``.

    The folder appears under its name only when it is complete. Raises `TrainError` when it cannot be written; older
    checkpoints are then still there.
    """
    target = folder / f"step-{checkpoint.step:06d}"
    partial = folder / f".{target.name}.partial"
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        torch.save({"weights": dict(checkpoint.weights), "optimizer": dict(checkpoint.optimizer)}, partial / "state.pt")
        (partial / "extra.json").write_text(json.dumps({"step": checkpoint.step, **checkpoint.extra}))
        shutil.rmtree(target, ignore_errors=True)
        os.replace(partial, target)
        for old in _complete(folder)[:-keep]:
            shutil.rmtree(old, ignore_errors=True)
    except (OSError, RuntimeError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise TrainError(
            f"checkpoint {target} could not be written: {error}",
            hint="free some space; the older checkpoints are intact",
        ) from error
    return target


def latest_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest complete checkpoint in ``folder``, or None. Raises `TrainError` when it cannot be read."""
    complete = _complete(folder)
    if not complete:
        return None
    path = complete[-1]
    try:
        state = torch.load(path / "state.pt", map_location="cpu", weights_only=True)
        extra = json.loads((path / "extra.json").read_text())
        return Checkpoint(int(extra.pop("step")), state["weights"], state["optimizer"], extra)
    except (OSError, EOFError, RuntimeError, ValueError, LookupError, pickle.UnpicklingError) as error:
        raise TrainError(
            f"checkpoint {path} cannot be read: {type(error).__name__}: {error}",
            hint="remove that folder to go on from the one before it",
        ) from error


def save_weights(folder: Path, version: int, weights: Mapping[str, torch.Tensor]) -> Path:
    """Writes ``folder/version-NNNNNN.safetensors``: what was served as ``version``, by `PolicyModel.weights` names.

    The file appears under its name only when it is complete; one that is there already is replaced. Raises `TrainError`
    when it cannot be written; the files of other versions are then as they were.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    target = _weights_file(folder, version)
    partial = target.with_name(f".{target.name}.partial")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_file({name: value.detach().cpu().contiguous() for name, value in weights.items()}, partial)
        os.replace(partial, target)
    except (OSError, RuntimeError, ValueError, SafetensorError) as error:
        # A full disk or a folder without write permission: what was begun goes, if it can.
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise TrainError(
            f"weights {target} could not be written: {error}", hint="free some space, or check the folder's permissions"
        ) from error
    return target


def load_weights(folder: Path, version: int) -> dict[str, torch.Tensor] | None:
    """The weights that `save_weights` wrote for ``version``, on the CPU; None when it wrote none.

    Raises `TrainError` when the file cannot be read.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = _weights_file(folder, version)
    if not path.exists():
        return None
    try:
        return load_file(path)
    except (OSError, RuntimeError, ValueError, SafetensorError) as error:
        raise TrainError(f"weights {path} cannot be read: {error}", hint="the file is damaged") from error


def _weights_file(folder: Path, version: int) -> Path:
    return folder / f"version-{version:06d}.safetensors"


def _complete(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if _NAME.fullmatch(path.name) and (path / "extra.json").is_file())
