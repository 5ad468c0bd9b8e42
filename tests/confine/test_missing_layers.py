"""A box where the kernel does not give every layer."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from lgov_core.confine import layers
from tests.confine.attacks import BY_DESIGN
from tests.confine.conftest import LGOV, Workspace
from tests.confine.test_box_attacks import attacked, outside, prepared  # noqa: F401 - fixtures

#: Runs a command where no further user namespace can be made.
WITHOUT_NAMESPACES = ("unshare", "-Ur", "sh", "-c", 'echo 0 > /proc/sys/user/max_user_namespaces; exec "$@"', "sh")

#: What Landlock and seccomp alone leave open.
OPEN_WITHOUT_NAMESPACES = {
    *BY_DESIGN,
    "a child reads .env in the workspace",  # hide, and read inside of write, need a root of the box's own
    "makes the hidden file readable",
    "removes the record's folder",  # in which a run with a record elsewhere has a note only
    "changes the policy file",
    "replaces the policy file",
    "writes a git hook",
    "has git take its configuration from another folder",
    "writes the configuration of a worktree",
    "moves .git away to make its own",
    "writes into a nested repository",
    "points a submodule elsewhere",
    "moves a nested repository away",
    "writes into a bare repository",
    "adds to a Python environment",
    "replaces a Python environment",
    "changes the active environment",
    "changes a mode outside",  # Landlock does not check modes
    "reads the command lines of others",
    "System V shared memory outside",
}


def run(workspace: Workspace, program: str, confine: str) -> subprocess.CompletedProcess[str]:
    (workspace.folder / "program.py").write_text(program)
    audit = str(workspace.folder.parent / "record" / "audit.db")
    command = [*WITHOUT_NAMESPACES, *LGOV, "run", confine, "--audit", audit, "--json", "--", "python", "program.py"]
    return subprocess.run(command, cwd=workspace.folder, capture_output=True, text=True, timeout=120, check=False)


def test_a_strict_box_names_the_layer_that_is_missing(workspace: Workspace) -> None:
    done = run(workspace, "open('ran', 'w')", "--confine")
    assert done.returncode == 78
    assert "namespaces cannot be had: [Errno 28] unshare: " in done.stderr
    assert "allow unprivileged user namespaces" in done.stderr
    assert "--confine=best-effort" in done.stderr
    assert not (workspace.folder / "ran").exists()


#: Runs a command where neither namespaces nor Landlock are to be had.
WITHOUT_BOTH = """
import os, sys
from lgov_core.confine import layers, seccomp
seccomp.DENIED = (*seccomp.DENIED, "landlock_create_ruleset")
layers.drop_capabilities()
seccomp._install(seccomp.build(unix_sockets=True, observed=False), 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_what_would_hold_no_file_is_refused_at_best_effort_too(workspace: Workspace) -> None:
    (workspace.folder / "program.py").write_text("open('ran', 'w')")
    command = [sys.executable, "-c", WITHOUT_BOTH, *LGOV, "run", "--confine=best-effort", "--", "python", "program.py"]
    audit = {**os.environ, "LGOV_AUDIT": str(workspace.folder.parent / "record" / "audit.db")}
    done = subprocess.run(command, cwd=workspace.folder, env=audit, capture_output=True, text=True, check=False)
    assert done.returncode == 78, done.stderr
    assert "neither a root of its own nor landlock" in done.stderr
    assert not (workspace.folder / "ran").exists()


def test_best_effort_holds_with_what_there_is(attacked: Workspace, outside: dict[str, object]) -> None:  # noqa: F811
    if (version := layers.landlock_abi()) < layers.FULL_ABI:
        pytest.skip(f"Landlock ABI {version} leaves signals and abstract sockets open besides")
    done = run(attacked, prepared(outside), "--confine=best-effort")
    box = json.loads(done.stderr.splitlines()[-1])["confinement"]
    assert list(box["missing"]) == ["namespaces", "root"]
    assert set(json.loads(done.stdout.splitlines()[-1])) == OPEN_WITHOUT_NAMESPACES
