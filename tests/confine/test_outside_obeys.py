"""What programs outside run, or are configured by, is read-only in a box: repositories and Python environments."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from tests.confine.conftest import POLICY, Workspace

AS_SOMEONE = ("-c", "user.email=a@b", "-c", "user.name=n")
#: Code in a box that has git outside run a command of its own, by another folder of configuration.
REDIRECT = """
import os
for folder in ("evil", "evil/objects", "evil/refs"):
    os.makedirs(folder, exist_ok=True)
open("evil/HEAD", "w").write("ref: refs/heads/main")
open("evil/config", "w").write("[core]\\nrepositoryformatversion = 0\\nfsmonitor = touch obeyed; false\\n")
try:
    open(".git/commondir", "w").write("../evil")
except OSError as error:
    print(error.strerror)
"""


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", *AS_SOMEONE, *words], cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@pytest.fixture
def repository(workspace: Workspace) -> Workspace:
    git(workspace.folder, "init", "-q", "-b", "main")
    git(workspace.folder, "add", "policy.yaml")
    git(workspace.folder, "commit", "-qm", "first")
    return workspace


def test_git_outside_runs_no_command_of_the_box(repository: Workspace) -> None:
    ran = repository.run(REDIRECT)
    assert ran.output == "Read-only file system\n", ran.errors
    git(repository.folder, "status")
    assert not (repository.folder / "obeyed").exists()


def test_a_repository_that_write_names_takes_commits_but_no_hooks(repository: Workspace) -> None:
    (repository.folder / "policy.yaml").write_text(f"{POLICY}{{preset: workspace, write: [.git]}}\n")
    commit = f"""
import subprocess
import time
subprocess.run(["git", *{AS_SOMEONE!r}, "commit", "-qam", "second"], check=True)
for name in ("hooks/evil", "config"):
    try:
        open(".git/" + name, "a")
    except OSError as error:
        print(error.strerror)
"""
    ran = repository.run(commit)
    assert ran.output == "Read-only file system\nRead-only file system\n", ran.errors
    assert "second" in git(repository.folder, "log", "--oneline")
    # Then git outside obeys what the box wrote, as the page on confinement says; so the attack is a real one.
    assert repository.run(REDIRECT).output == ""
    git(repository.folder, "status")
    assert (repository.folder / "obeyed").exists()


@pytest.mark.parametrize("write", ["out", "program.py"])
def test_code_in_a_box_does_not_write_the_program_that_the_next_run_starts(workspace: Workspace, write: str) -> None:
    (workspace.folder / "out").mkdir()
    (workspace.folder / "policy.yaml").write_text(f"{POLICY}{{preset: workspace, write: [{write}]}}\n")
    ran = workspace.run("""
try:
    open("program.py", "a").write("print('again')")
except OSError as error:
    print(error.strerror)
open("notes.txt", "w").write("working data")
""")
    assert ran.output == "Read-only file system\n", ran.errors
    assert (workspace.folder / "notes.txt").read_text() == "working data"


def test_git_reads_a_repository_that_it_cannot_change(repository: Workspace) -> None:
    ran = repository.run("import subprocess; subprocess.run('git status -s; git log --oneline', shell=True)")
    assert "?? program.py" in ran.output, ran.errors
    assert "first" in ran.output


def test_an_environment_that_write_names_may_be_changed(workspace: Workspace) -> None:
    (workspace.folder / "env").mkdir()
    (workspace.folder / "env" / "pyvenv.cfg").write_text("")
    install = """
try:
    open("env/new", "w")
except OSError as error:
    print(error.strerror)
"""
    assert workspace.run(install).output == "Read-only file system\n"
    (workspace.folder / "policy.yaml").write_text(f"{POLICY}{{preset: workspace, write: [env]}}\n")
    assert workspace.run(install).output == ""


def test_a_folder_made_to_look_like_an_environment_still_hides_its_secrets(workspace: Workspace) -> None:
    (workspace.folder / "sub").mkdir()
    (workspace.folder / "sub" / ".env").write_text("SECRET")
    assert workspace.run("for name in ('pyvenv.cfg', 'HEAD'): open(f'sub/{name}', 'w')").status == 0
    assert "PermissionError" in workspace.run("open('sub/.env').read()").errors


def test_what_a_killed_run_kept_free_the_next_removes_and_an_empty_file_of_the_user_stays(workspace: Workspace) -> None:
    (workspace.folder / "policy.yml").touch()
    (workspace.folder / ".git").mkdir()
    process = workspace.start("open('runs', 'w'); import time; time.sleep(60)")
    while not (workspace.folder / "runs").exists() and process.poll() is None:
        time.sleep(0.02)
    process.kill()
    process.communicate()
    assert (workspace.folder / "lgov.toml").exists(), "the process that removes it was killed"
    assert workspace.run("").status == 0
    assert sorted(path.name for path in workspace.folder.glob("*.*ml")) == ["policy.yaml", "policy.yml"]


def test_a_box_that_cannot_be_made_leaves_nothing(workspace: Workspace) -> None:
    (workspace.folder / "policy.yaml").write_text(f"{POLICY}{{preset: workspace, files: 100000000}}\n")
    assert workspace.run("").status == 78
    assert not (workspace.folder / "lgov.toml").exists()
    assert not (workspace.folder / ".git").exists()


def test_settings_that_a_box_makes_below_a_writable_folder_are_named(workspace: Workspace) -> None:
    (workspace.folder.parent / "out" / "sub").mkdir(parents=True)
    (workspace.folder / "policy.yaml").write_text(f"{POLICY}{{preset: workspace, write: [../out]}}\n")
    ran = workspace.run("open('../out/sub/lgov.toml', 'w').write('timeout_s = 9')")
    assert "out/sub/lgov.toml appeared" in ran.box["changed"][0]
    assert workspace.run("").status == 78
