"""Where models are kept that need no hub."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def models_folder(cache: Path | None = None) -> Path:
    """The folder of models: under ``cache``, else ``$LGOV_CACHE``, else the user's cache folder."""
    return (cache or _cache_from_environment()) / "models"


def _cache_from_environment() -> Path:
    if folder := os.environ.get("LGOV_CACHE"):
        return Path(folder).expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "lgov"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "lgov"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lgov"
