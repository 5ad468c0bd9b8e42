"""`pytest --lgov-confine`: a project's tests, with all that they start, in a box."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points

import pytest

from lgov_core.audit import AuditLog, verify
from tests.confine.conftest import Workspace

SQL = "{name: sql, tools: [run_sql], use: sql, with: {dialect: sqlite, mode: read_only, argument: query}}"
TESTS = """
import os
import pytest
from langchain_core.tools import tool

@tool
def run_sql(query: str) -> str:
    "Runs SQL."
    return "ran " + query

def test_the_box():
    assert os.path.isdir("/.lgov-box")
    assert not os.path.exists({outside!r})
    with pytest.raises(PermissionError):
        os.listdir(".lgov")

def test_denied():
    assert "DENIED" in run_sql.invoke({{"query": "DROP TABLE t"}})

def test_allowed():
    assert run_sql.invoke({{"query": "SELECT 1"}}) == "ran SELECT 1"
"""


@pytest.fixture
def project(workspace: Workspace) -> Workspace:
    """Tests of an agent, and a policy for it. The first line of its conftest says whether it is in a box."""
    outside = workspace.folder.parent / "outside"
    outside.write_text("o")
    (workspace.folder / "policy.yaml").write_text(f"version: 1\nrules: [{SQL}]\nconfine: {{preset: workspace}}\n")
    (workspace.folder / "conftest.py").write_text("import os; assert os.path.isdir('/.lgov-box')\n")
    (workspace.folder / "test_agent.py").write_text(TESTS.format(outside=str(outside)))
    return workspace


def run_pytest(
    project: Workspace,
    *options: str,
    program: tuple[str, ...] = ("-m", "pytest"),
    confine: tuple[str, ...] = ("--lgov-confine",),
) -> tuple[int, str, str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("LGOV_", "PYTEST_", "OPENAI_"))}
    installed = any(point.name == "lgov" for point in entry_points(group="pytest11"))
    plugin = () if installed else ("-p", "lgov_core.pytest_plugin")
    done = subprocess.run(
        [sys.executable, *program, "-p", "no:cacheprovider", "--rootdir", ".", *plugin, *confine, *options],
        cwd=project.folder,
        env={**clean, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("processes", ["0", "2"])
def test_tests_are_confined_and_their_record_is_outside(processes: str, project: Workspace) -> None:
    status, output, errors = run_pytest(project, "-n", processes, "--lgov-policy", "policy.yaml")
    assert status == 0, output + errors
    assert "3 passed" in output
    assert "governed: langchain; decisions: " in output
    assert "lgov: confined: namespaces" in errors
    record = project.folder / ".lgov" / "pytest.db"
    with AuditLog(record) as log:
        entries = log.entries()
    assert [entry.kind for entry in entries[:2]] == ["policy", "confinement"]
    assert sorted(str(one.effect) for one in entries if one.point == "pre_tool_call" and one.effect) == [
        "allow",
        "deny",
    ]
    assert verify(record).ok


def test_without_a_policy_the_box_shows_the_working_folder(project: Workspace) -> None:
    status, output, errors = run_pytest(project, "-k", "test_the_box")
    assert (status, "1 passed" in output) == (0, True), output + errors
    with AuditLog(project.folder / ".lgov" / "pytest.db") as log:
        assert log.entries()[0].body["rules"]["write"] == [str(project.folder)]


def test_the_status_of_the_tests_is_kept(project: Workspace) -> None:
    (project.folder / "test_agent.py").write_text("def test_it(): assert False\n")
    assert run_pytest(project)[0] == 1


@pytest.mark.parametrize(
    ("confine", "options", "said"),
    [
        ("{preset: workspace, files: 100000000}", ("--lgov-policy", "policy.yaml"), "limits cannot be had"),
        ("{preset: workspace}", ("--lgov-preset", "workspce"), "did you mean workspace"),
        ("{preset: workspace}", ("--lgov-broker", "1:t"), "loaded too late"),
    ],
)
def test_tests_that_cannot_be_confined_are_not_run(
    confine: str, options: tuple[str, ...], said: str, project: Workspace
) -> None:
    (project.folder / "policy.yaml").write_text(f"version: 1\nrules: [{SQL}]\nconfine: {confine}\n")
    (project.folder / "conftest.py").unlink()
    (project.folder / "test_agent.py").write_text("open('ran', 'w')\ndef test_it(): pass\n")
    status, output, errors = run_pytest(project, *options)
    assert status == 78
    assert said in output + errors
    assert not (project.folder / "ran").exists()


def test_a_preset_alone_is_wrong_usage(project: Workspace) -> None:
    status, _, errors = run_pytest(project, "--lgov-preset", "workspace", confine=())
    assert (status, "--lgov-preset is for --lgov-confine" in errors) == (4, True), errors


def test_a_plugin_of_the_project_that_would_run_outside_is_refused(project: Workspace) -> None:
    (project.folder / "helper.py").write_text("")
    (project.folder / "pytest.ini").write_text("[pytest]\naddopts = -p helper\n")
    status, output, errors = run_pytest(project, "-k", "test_the_box")
    assert (status, "helper.py" in errors, "pytest_plugins" in errors) == (4, True, True), output + errors
    (project.folder / "pytest.ini").write_text("[pytest]\n")
    (project.folder / "conftest.py").write_text("pytest_plugins = ['helper']\n")
    (project.folder / "helper.py").write_text("import os; assert os.path.isdir('/.lgov-box')\n")
    status, output, errors = run_pytest(project, "-k", "test_the_box")
    assert status == 0, output + errors


def test_a_program_that_calls_pytest_is_refused(project: Workspace) -> None:
    (project.folder / "program.py").write_text(
        "import pytest, sys; sys.exit(pytest.main([*sys.argv[1:], '--lgov-confine']))"
    )
    status, _, errors = run_pytest(project, program=("program.py",))
    assert status == 78
    assert "cannot be started again" in errors
