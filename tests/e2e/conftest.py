"""A folder with a policy for the programs of the tests."""

from __future__ import annotations

from pathlib import Path

import pytest

POLICY = """
version: 1
name: test
rules:
  - {name: sql, tools: [run_sql], use: sql, with: {dialect: sqlite, mode: read_only, argument: query}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "policy.yaml").write_text(POLICY)
    return tmp_path
