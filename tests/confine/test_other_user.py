"""The box of a user without privileges: what the others of this folder show for the one who runs them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.confine.conftest import POLICY, Workspace, why_not

NOBODY: dict[str, Any] = {"user": 65534, "group": 65534, "extra_groups": ()}
PROGRAM = """
import multiprocessing, os, subprocess
if __name__ == "__main__":
    open("made", "w").write("x")
    with multiprocessing.Pool(2) as pool:
        assert pool.map(abs, [-1, -2]) == [1, 2]
    assert subprocess.run("true").returncode == 0
    effective = [line for line in open("/proc/self/status") if line.startswith("CapEff")]
    print(os.getuid(), int(effective[0].split()[1], 16))
    for path in ("/etc/shadow", "/var/log", ".lgov", ".env"):
        try:
            print(path, os.listdir(path) if os.path.isdir(path) else open(path).read())
        except OSError:
            print(path, "refused")
"""


@pytest.fixture
def of_nobody() -> Iterator[Workspace]:
    """A workspace of the user nobody."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    if os.geteuid() != 0:
        pytest.skip("the other tests run without privileges")
    try:
        subprocess.run([sys.executable, "-c", "import lgov_core"], **NOBODY, check=True)
    except (PermissionError, subprocess.CalledProcessError):
        pytest.skip("this Python is not for other users")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "policy.yaml").write_text(f"{POLICY}{{preset: workspace, processes: 64}}\n")
        (folder / ".env").write_text("TOKEN=1")
        os.chown(folder, 65534, 65534)
        yield Workspace(folder)


def test_a_user_without_privileges_has_the_whole_box(of_nobody: Workspace) -> None:
    own_home = {name: str(of_nobody.folder / "home") for name in ("HOME", "XDG_CONFIG_HOME")}
    ran = of_nobody.run(PROGRAM, "--children", "allow", env=own_home, **NOBODY)
    assert ran.status == 0, ran.errors
    assert ran.output.splitlines() == [
        "65534 0",
        *(f"{path} refused" for path in ("/etc/shadow", "/var/log", ".lgov", ".env")),
    ]
    assert list(ran.box["layers"]) == ["namespaces", "root", "limits", "capabilities", "landlock", "seccomp"]
