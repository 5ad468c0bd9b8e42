"""A folder with a policy for the programs of the tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from lgov_runs import POLICY


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "policy.yaml").write_text(POLICY)
    return tmp_path
