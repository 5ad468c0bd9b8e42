"""A workspace, and running programs in a box there. Skips where the kernel has no user namespaces or no Landlock."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lgov_core.confine import layers

LGOV = (sys.executable, "-c", "from lgov_core.commands import main; main()")
POLICY = "version: 1\nrules: [{use: allow}]\nconfine: "


def why_not() -> str | None:
    """Why no strict box can be had here; None: it can."""
    if sys.platform != "linux":
        return f"--confine needs Linux, this is {sys.platform}"
    unshare = shutil.which("unshare")
    if unshare is None:
        return "the program unshare is not installed"
    if subprocess.run([unshare, "-Urnpf", "--mount-proc", "true"], capture_output=True, check=False).returncode:
        return "the kernel gives no user namespaces here, or they may not mount /proc"
    try:
        version = layers.landlock_abi()
    except OSError as error:
        return f"the kernel has no Landlock here: {error}"
    return None if version >= layers.STRICT_ABI else f"the kernel has Landlock ABI {version}"


@dataclass(frozen=True, slots=True)
class Ran:
    """What became of a program: its status, its output, what lgov said, and lgov's report on the box."""

    status: int
    output: str
    errors: str

    @property
    def box(self) -> dict[str, Any]:
        return json.loads(self.errors.splitlines()[-1])["confinement"]


@dataclass(frozen=True, slots=True)
class Workspace:
    folder: Path

    def start(
        self, program: str, *options: str, confine: str = "--confine", env: dict[str, str] | None = None, **more: Any
    ) -> subprocess.Popen[str]:
        (self.folder / "program.py").write_text(program)
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("OPENAI_", "LGOV_", "PYTEST_"))}
        return subprocess.Popen(
            [*LGOV, "run", confine, *options, "--json", "--", "python", "program.py"],
            cwd=self.folder,
            env={**clean, **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **more,
        )

    def run(self, program: str, *options: str, **more: Any) -> Ran:
        process = self.start(program, *options, **more)
        output, errors = process.communicate(timeout=120)
        return Ran(process.returncode, output, errors)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """A folder with a policy that gives it the preset ``workspace``."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "policy.yaml").write_text(f"{POLICY}{{preset: workspace}}\n")
    return Workspace(folder)
