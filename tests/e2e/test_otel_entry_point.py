"""``opentelemetry-instrument`` finds lgov by its entry point, and fails closed as far as that can be done there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
from lgov_core.otel_instrumentor import LgovInstrumentor  # as opentelemetry-instrument loads it

try:
    LgovInstrumentor().instrument(skip_dep_check=True)
except Exception:
    pass  # OpenTelemetry logs it and goes on
from langchain_core.tools import tool

@tool
def erase(path: str) -> str:
    "Erases."
    return "erased " + path

print(erase.invoke({"path": "x"}))
"""


def run(folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("LGOV_")}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=folder,
        env={**clean, "PYTHONPATH": os.pathsep.join(sys.path), **env},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_the_entry_point_is_declared() -> None:
    import tomllib

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    declared = project["entry-points"]["opentelemetry_instrumentor"]
    assert declared == {"lgov": "lgov_core.otel_instrumentor:LgovInstrumentor"}


def test_it_governs_by_the_policy_of_the_settings(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(
        "version: 1\nrules:\n  - {name: never, tools: [erase], use: deny, with: {reason: never}}\n"
    )
    done = run(tmp_path, LGOV_POLICY="p.yaml")
    assert "DENIED" in done.stdout, done.stderr
    assert (tmp_path / ".lgov" / "audit.db").exists()


def test_without_a_policy_it_does_nothing(tmp_path: Path) -> None:
    assert run(tmp_path).stdout == "erased x\n"


@pytest.mark.parametrize("policy", ["missing.yaml", "broken.yaml"])
def test_what_cannot_be_governed_does_not_run(policy: str, tmp_path: Path) -> None:
    (tmp_path / "broken.yaml").write_text("version: 1\nrules: [")
    done = run(tmp_path, LGOV_POLICY=policy)
    assert (done.returncode, done.stdout) == (78, "")
    assert policy in done.stderr
