"""examples/08_code_agent: what a code agent writes runs in a sandbox, and is rewarded for what it does there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.confine.conftest import why_not

FOLDER = Path(__file__).parents[2] / "examples" / "08_code_agent"
CLEAN = {key: value for key, value in os.environ.items() if not key.startswith(("OPENAI_", "LGOV_", "PYTEST_"))}


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_programs_are_run_and_rewarded(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(FOLDER / "rollout.py")],
        cwd=tmp_path,
        env={**CLEAN, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line[:3] for line in lines[::2]] == ["1.0", "0.3", "1.0", "0.0", "0.0", "0.0"]
    assert lines[1:4:2] == ["     exit code 0: 5050", "     exit code 0: 26"]
    for line, error in zip(lines[7::2], ("ZeroDivisionError", "FileNotFoundError", "Connection refused"), strict=True):
        assert error in line
