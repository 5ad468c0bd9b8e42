"""Models under names of their own: what `lgov models promote` leaves, and `lgov serve --model NAME` serves.

``models/NAME/3/`` holds the third promoted version (``model/``, a transformers folder, and ``promotion.json``), and
``models/NAME/current.json`` says which version is served, and which ones were before. The folder ``models`` is a setting.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

from lgov_core.errors import ModelError
from lgov_core.models.smollm2 import SMOLLM2
from lgov_core.models.tiny import TINY
from lgov_core.settings import load_settings

CURRENT_FILE: Final = "current.json"
MODEL_FOLDER: Final = "model"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)


def promoted_root(folder: Path | None = None) -> Path:
    """The folder of promoted models: ``folder``, the setting ``models``, or ``models`` in the working folder."""
    return load_settings({"models": folder}).models or Path("models")


def check_name(name: str) -> None:
    """Raises `ModelError` unless ``name`` can name a promoted model: a single folder's name, and not a built-in model's."""
    if name in (TINY, SMOLLM2):
        raise ModelError(f"{name} is the name of a built-in model", hint="choose another name")
    if not _NAME.fullmatch(name):
        raise ModelError(
            f"{name!r} cannot name a model", hint="letters, digits, dots, dashes and underscores, 64 at most"
        )


def promoted_state(root: Path, name: str) -> dict[str, Any] | None:
    """Reads ``current.json`` of a name: ``version``, and ``history`` (oldest first); None without one.

    Raises `ModelError` for a file that cannot be read.
    """
    path = root / name / CURRENT_FILE
    try:
        state: Any = json.loads(path.read_text("utf-8"))
        return {"version": int(state["version"]), "history": list(state["history"])}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ModelError(f"{path} cannot be read: {error}", hint="restore it, or choose another name") from error


def promoted_versions(root: Path) -> dict[str, int | None]:
    """The promoted names below ``root`` with their current versions, None where that cannot be read."""
    versions: dict[str, int | None] = {}
    for name in sorted({path.parent.name for path in root.glob(f"*/{CURRENT_FILE}")} - {TINY, SMOLLM2}):
        try:
            versions[name] = (promoted_state(root, name) or {})["version"]
        except (ModelError, LookupError):
            versions[name] = None
    return versions


def promoted_folder(reference: str, root: Path | None = None) -> Path | None:
    """The version folder that ``NAME`` (its current version) or ``NAME@VERSION`` names; None when there is no such name.

    Raises `ModelError` for a version that does not exist, and for ``NAME@VERSION`` of an unknown name.
    """
    name, at, version = reference.partition("@")
    if not _NAME.fullmatch(name) or name in (TINY, SMOLLM2):
        return None
    root = root or promoted_root()
    state = promoted_state(root, name)
    if state is None and at and not Path(reference).exists():
        raise ModelError(
            f"there is no promoted model {name} in {root.absolute()}", hint="name its folder with LGOV_MODELS"
        )
    if state is None:
        return None
    folder = root / name / (version if at else str(state["version"]))
    if (at and not version.isdecimal()) or not (folder / MODEL_FOLDER).is_dir():
        raise ModelError(f"{name} has no version {folder.name}", hint=f"see {root / name}")
    return folder


def pinned(reference: str) -> str:
    """``NAME@VERSION`` for a promoted name, with its current version; any other name of a model unchanged."""
    folder = promoted_folder(reference)
    return reference if folder is None else f"{folder.parent.name}@{folder.name}"
