"""``pytest --lgov-policy``: a project's own tests, with its agents under policy."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from lgov_core.audit import AuditLog

POLICY = """
version: 1
rules:
  - {name: sql, tools: [run_sql], use: sql, with: {dialect: sqlite, mode: read_only, argument: query}}
"""

_WHEEL = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]
PACKAGES = _WHEEL["wheel"]["packages"]

TESTS = """
from langchain_core.tools import tool

@tool
def run_sql(query: str) -> str:
    "Runs SQL."
    return "ran " + query

def test_denied():
    assert "DENIED" in run_sql.invoke({"query": "DROP TABLE t"})

def test_allowed(lgov_decisions):
    assert run_sql.invoke({"query": "SELECT 1"}) == "ran SELECT 1"
    assert [one.decision.effect.label for one in lgov_decisions if one.action.point == "pre_tool_call"] == ["allow"]

def test_the_governor_is_there(lgov_governor):
    assert lgov_governor.effects["deny"] == 1
"""


def run_pytest(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("LGOV_", "PYTEST_"))}
    installed = any(point.name == "lgov" for point in entry_points(group="pytest11"))
    plugin = () if installed else ("-p", "lgov_core.pytest_plugin")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", ".", *plugin, *options],
        cwd=folder,
        env={**clean, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "policy.yaml").write_text(POLICY)
    (tmp_path / "test_agent.py").write_text(TESTS)
    return tmp_path


def test_each_test_is_a_rollout_under_policy(project: Path) -> None:
    done = run_pytest(project, "--lgov-policy", "policy.yaml")
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout
    assert "governed: langchain; decisions: " in done.stdout
    assert " 1 denied" in done.stdout
    assert "denied: run_sql, by sql/" in done.stdout
    with AuditLog(project / ".lgov" / "pytest.db") as audit:
        acts = [entry for entry in audit.entries() if entry.point == "pre_tool_call" and entry.effect]
    assert [entry.effect for entry in acts] == ["deny", "allow"]
    assert len({entry.rollout_id for entry in acts}) == 2
    assert None not in {entry.rollout_id for entry in acts}


def test_with_several_processes_all_of_them_govern_and_report(project: Path) -> None:
    (project / "test_more.py").write_text(TESTS)
    done = run_pytest(project, "-n", "2", "--dist", "loadfile", "--lgov-policy", "policy.yaml")
    assert done.returncode == 0, done.stdout
    assert "6 passed" in done.stdout
    assert "governed: langchain; decisions: " in done.stdout
    assert " 2 denied" in done.stdout
    assert "denied 2 times: run_sql, by sql/" in done.stdout
    with AuditLog(project / ".lgov" / "pytest.db") as audit:
        acts = [entry for entry in audit.entries() if entry.point == "pre_tool_call" and entry.effect]
    assert sorted(str(entry.effect) for entry in acts) == ["allow", "allow", "deny", "deny"]


def test_without_the_option_nothing_is_governed(project: Path) -> None:
    done = run_pytest(project)
    assert "1 failed, 2 skipped" in done.stdout, done.stdout
    assert not (project / ".lgov").exists()


@pytest.mark.parametrize("policy", ["version: 1\nrules: [", "version: 1\nrules:\n  - {name: a, use: nosuch}\n", None])
@pytest.mark.parametrize("processes", ["0", "2"])
def test_without_a_sound_policy_no_test_runs(policy: str | None, processes: str, project: Path) -> None:
    (project / "policy.yaml").unlink() if policy is None else (project / "policy.yaml").write_text(policy)
    (project / "test_agent.py").write_text("open('imported', 'w')\ndef test_it(): pass\n")
    done = run_pytest(project, "-n", processes, "--lgov-policy", "policy.yaml")
    assert done.returncode == 78, done.stdout + done.stderr
    assert "cannot be governed" in done.stdout + done.stderr
    assert not (project / "imported").exists()


@pytest.mark.parametrize("processes", ["0", "2"])
def test_a_framework_that_cannot_be_instrumented_ends_the_session(processes: str, project: Path) -> None:
    (project / "langchain_core").mkdir()
    (project / "langchain_core" / "__init__.py").write_text("")
    (project / "test_agent.py").write_text("import langchain_core\nopen('went-on', 'w')\ndef test_it(): pass\n")
    done = run_pytest(project, "-n", processes, "--lgov-policy", "policy.yaml")
    assert done.returncode == 78 if processes == "0" else done.returncode != 0, done.stdout + done.stderr
    assert not (project / "went-on").exists()


def test_a_plugin_that_ends_the_process_does_not_pass_for_tests_that_ran(project: Path) -> None:
    (project / "ending.py").write_text("raise SystemExit(0)")
    info = project / "ending-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ending\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[lgov]\nending = ending\n")
    done = run_pytest(project, "--lgov-policy", "policy.yaml")
    assert done.returncode == 78, done.stdout
    assert "SystemExit" in done.stdout + done.stderr


def test_under_lgov_run_pytest_warns_of_none_of_its_packages(tmp_path: Path) -> None:
    """pytest would rewrite every package of a distribution with a plugin, and warns of those that are imported already."""
    (tmp_path / "policy.yaml").write_text("version: 1\nrules:\n- {name: all, use: allow}\n")
    (tmp_path / "test_a.py").write_text(f"import sys\ndef test_a(): assert {set(PACKAGES)} <= sys.modules.keys()\n")
    installed = tmp_path / "lgov-9.dist-info"  # as of an installed wheel, which lists its packages
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: lgov\nVersion: 9\n")
    (installed / "entry_points.txt").write_text("[pytest11]\nlgov = lgov_core.pytest_plugin\n")
    (installed / "RECORD").write_text("".join(f"{package}/__init__.py,,\n" for package in PACKAGES))
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("LGOV_", "PYTEST_"))}
    tests = [sys.executable, "-m", "pytest", "-W", "error", "-p", "no:asyncio", "--rootdir", ".", "test_a.py"]
    done = subprocess.run(
        [sys.executable, "-m", "lgov_core", "run", "--policy", "policy.yaml", "--", *tests],
        cwd=tmp_path,
        env={**clean, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr
