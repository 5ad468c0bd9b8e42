"""`lgov_core.sandbox`: code that a model wrote, in a box of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lgov_core import sandbox
from lgov_core.errors import InstrumentationError
from tests.confine.conftest import LGOV, why_not

needs_box = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
ALONE = """
import os, socket
def refused(act):
    try:
        return act()
    except OSError as error:
        return type(error).__name__
print([
    refused(lambda: open({secret!r}).read()),
    refused(lambda: socket.create_connection(('127.0.0.1', {port}), 2)),
    refused(lambda: open('/proc/1/environ').read().count('SECRET')),
    os.environ.get('SECRET'),
    os.listdir(),
])
"""


@pytest.fixture
def box() -> Iterator[sandbox.Sandbox]:
    made = sandbox.create()
    yield made
    made.delete()
    assert not made.process.folder.exists()


@needs_box
def test_code_runs_and_its_output_is_the_result(box: sandbox.Sandbox) -> None:
    assert box.process.code_run("print(6 * 7)") == sandbox.CodeExecution(0, "42")
    failed = box.process.code_run("print('before')\n1 / 0")
    assert failed.exit_code == 1
    assert failed.result.startswith("before\n")
    assert failed.result.endswith("ZeroDivisionError: division by zero")
    assert box.process.code_run("import sys; sys.exit(78)").exit_code == 78


@needs_box
def test_code_sees_neither_files_nor_network_nor_secrets(
    box: sandbox.Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import socket

    (tmp_path / "secret").write_text("SECRET")
    monkeypatch.setenv("SECRET", "SECRET")
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = ALONE.format(secret=str(tmp_path / "secret"), port=server.getsockname()[1])
        done = box.process.code_run(code)
    assert done.result == str(["FileNotFoundError", "ConnectionRefusedError", 0, None, []])


@needs_box
def test_what_code_leaves_behind_is_there_next_time_and_harms_nobody(box: sandbox.Sandbox, tmp_path: Path) -> None:
    (tmp_path / "victim").mkdir()
    left = f"""
import os
open('notes', 'w').write('n')
for name in ('json.py', 'sitecustomize.py', 'lgov_core.py'):
    open(name, 'w').write('open("{tmp_path}/imported", "w")')
for name in ('pyproject.toml', 'lgov.toml', 'main.py', '/tmp/main.py', '.env'):
    os.symlink({str(tmp_path / "victim")!r}, name)
"""
    assert box.process.code_run(left).exit_code == 0
    again = box.process.code_run(
        "import os; print(open('notes').read(), os.path.exists('pyproject.toml'), os.path.lexists('/tmp/main.py'))"
    )
    assert again.result == "n False False"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["victim"]


@needs_box
def test_time_memory_and_output_are_bounded(box: sandbox.Sandbox) -> None:
    begun = time.monotonic()
    done = box.process.code_run("import os, time\nprint('up', flush=True)\nos.fork()\ntime.sleep(60.4321)", timeout=2)
    assert (done.exit_code, done.result) == (sandbox.TIMED_OUT, "up")
    assert time.monotonic() - begun < 10
    assert "MemoryError" in box.process.code_run("bytearray(4 << 30)").result
    flood = box.process.code_run("import sys\nwhile True: sys.stdout.write('x' * 1_000_000)", timeout=30)
    assert flood.exit_code != 0
    assert len(flood.result) == sandbox.MAX_RESULT


@needs_box
def test_a_governed_program_may_use_one(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text("version: 1\nrules: [{use: allow}]\n")
    (tmp_path / "program.py").write_text(
        "from lgov_core import sandbox\nbox = sandbox.create()\n"
        "print(box.process.code_run('print(1)').result)\nbox.delete()"
    )
    done = subprocess.run(
        [*LGOV, "run", "--", "python", "program.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


def test_without_a_box_nothing_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python whose kernel gives no namespaces: here, one inside of which the call fails."""
    site = tmp_path / "lgov_core"
    shutil.copytree(Path(sandbox.__file__).parent, site, ignore=shutil.ignore_patterns("__pycache__"))
    with (site / "confine" / "layers.py").open("a") as file:
        file.write("_FIXES['namespaces'] = 'ask the kernel'\n")
    with (site / "confine" / "box.py").open("a") as file:
        file.write("def enter_namespaces():\n    raise OSError('no namespaces here')\n")
    monkeypatch.setattr(sandbox.lgov_core, "__file__", str(site / "__init__.py"))
    box = sandbox.create()
    with pytest.raises(InstrumentationError, match=r"no sandbox: .*namespaces cannot be had") as raised:
        box.process.code_run(f"open({str(tmp_path / 'ran')!r}, 'w')")
    assert raised.value.hint == "ask the kernel"
    box.delete()
    assert not (tmp_path / "ran").exists()
    with pytest.raises(InstrumentationError, match="was deleted"):
        box.process.code_run("1")


def test_a_launcher_that_dies_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    box = sandbox.create()
    with pytest.raises(InstrumentationError, match="no sandbox"):
        box.process.code_run("print(1)")
    box.delete()


@needs_box
def test_in_a_box_there_is_no_second_one(box: sandbox.Sandbox) -> None:
    """A box gives up what a box is made with, so code in one that asks for another is refused."""
    assert os.path.isdir(box.process.folder)
    asked = "import ctypes, json; print(json.dumps(ctypes.CDLL(None).unshare(0x10000000)))"
    assert json.loads(box.process.code_run(asked).result) == -1


@needs_box
def test_a_repository_made_in_one_run_can_be_used_in_the_next(box: sandbox.Sandbox) -> None:
    assert (
        box.process.code_run("import os; os.mkdir('.git'); os.mkdir('env'); open('env/pyvenv.cfg', 'w')").exit_code == 0
    )
    done = box.process.code_run("open('.git/index', 'w'); open('env/new', 'w')")
    assert done.exit_code == 0, done.result
