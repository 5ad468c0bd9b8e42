"""The message shown after Ctrl-C."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from lgov_core._util.plurals import counted

#: Said at once.
ENDING: Final = "ending after the update in progress; once more ends at once"


def interrupted(folder: Path, updates: int | None) -> str:
    """Said at the end: what is kept, and how to continue. ``updates`` is None while the training was getting ready."""
    if updates is None:
        return "interrupted while it was getting ready; nothing has changed, run the same command again"
    kept = counted(updates, "update is kept", "updates are kept")
    return f"interrupted; {kept}, continue with --resume --folder {folder}"
