"""A program that uses up its open files hides nothing of what it did."""

from __future__ import annotations

import subprocess

from tests.confine.conftest import LGOV, Workspace

#: Opens all the files that the process may.
USE_UP = """
import glob, os, resource, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
def use_up():
    try:
        while True:
            os.open("/dev/null", os.O_RDONLY)
    except OSError as error:
        print(error.strerror)
"""
#: Closes what lgov keeps for its report besides.
AND_THE_SPARE = """
spare = [int(one) for one in os.listdir("/proc/self/fd") if "lgov-children" in os.path.realpath(f"/proc/self/fd/{one}")]
assert spare
for one in spare:
    os.close(one)
use_up()
"""


def test_the_report_is_written_all_the_same(workspace: Workspace) -> None:
    ran = workspace.run(f"{USE_UP}use_up()")
    assert (ran.status, ran.output) == (0, "Too many open files\n"), ran.errors
    assert '"report": {' in ran.errors
    assert "Traceback" not in ran.errors


def test_without_a_report_the_status_is_78(workspace: Workspace) -> None:
    ran = workspace.run(f"{USE_UP}{AND_THE_SPARE}")
    assert ran.status == 78
    assert "the closing report cannot be made: OSError: [Errno 24] Too many open files" in ran.errors
    assert "Traceback" not in ran.errors
    assert workspace.run(f"{USE_UP}{AND_THE_SPARE}sys.exit(3)").status == 3


def test_nothing_is_started_unseen(workspace: Workspace) -> None:
    (workspace.folder / "program.py").write_text(
        f"{USE_UP}use_up()\nos.system(f'{{sys.executable}} -I -c \"print(1)\"')"
    )
    command = [*LGOV, "run", "--", "python", "program.py"]  # outside a box, where ungoverned programs are not accepted
    done = subprocess.run(command, cwd=workspace.folder, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "Too many open files\n")
    assert "OSError: [Errno 24] Too many open files" in done.stderr
