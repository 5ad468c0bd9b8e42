"""The first commands of the README print what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.e2e.test_examples import CLEAN

ROOT = Path(__file__).parents[2]
LGOV = (sys.executable, "-c", "from lgov_core.commands import main; main()")


def test_the_first_commands_print_what_the_readme_says(tmp_path: Path) -> None:
    start = (ROOT / "README.md").read_text().partition("## Start")[2].partition("## ")[0]
    (text,) = re.findall(r"^```text\n(.*?)^```", start, re.M | re.S)
    for command in ("init --framework langchain", "run -- python agent.py"):
        done = subprocess.run(
            [*LGOV, *command.split()], cwd=tmp_path, env=CLEAN, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
    printed = done.stdout + done.stderr
    assert [line for line in text.splitlines() if line not in printed] == []
