"""A working directory for each command."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory without settings, above which no settings are looked for."""
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("LGOV_")]:
        monkeypatch.delenv(name)
    return tmp_path
