"""What code in a box tries, it tries in vain: one program runs every attack of the table."""

from __future__ import annotations

import ctypes
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.confine.attacks import ATTACKS, BY_DESIGN, PREPARED
from tests.confine.conftest import Workspace

_IPC_CREAT, _IPC_RMID = 0o1000, 0


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[dict[str, object]]:
    """A folder outside with secrets, a process, and services that accept."""
    folder = tmp_path / "victim"
    (folder / "home" / ".ssh").mkdir(parents=True)
    (folder / "home" / ".ssh" / "id_rsa").write_text("PRIVATE KEY")
    for name in ("precious", "mode", "trunc", "audit.db"):
        (folder / name).write_text("x" * 100)
    libc = ctypes.CDLL(None)
    memory = libc.shmget(0x4C474F56, 4096, _IPC_CREAT | 0o600)
    shared = Path("/dev/shm/lgov-attack")
    shared.write_text("x")
    with ExitStack() as stack:
        sleeper = stack.enter_context(
            subprocess.Popen([sys.executable, "-c", "input()", "sleep-outside"], stdin=subprocess.PIPE)
        )
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        udp.bind(("127.0.0.1", 0))
        port = tcp.getsockname()[1]
        for address in (f"{folder}/docker.sock", f"\0lgov-attack-{port}"):
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(address)
            listener.listen()
        yield {"outside": str(folder), "pid": sleeper.pid, "tcp": port, "udp": udp.getsockname()[1]}
        assert sleeper.poll() is None, "nothing in the box ended it"
        sleeper.kill()
    libc.shmctl(memory, _IPC_RMID, None)
    shared.unlink()


def prepared(outside: dict[str, object]) -> str:
    attacks = {name: code.replace("{shm}", str(0x4C474F56)) for name, code in ATTACKS.items()}
    program = PREPARED.replace("{attacks!r}", repr(attacks))
    for name, value in outside.items():
        program = program.replace("{" + name + "!r}", repr(value)).replace("{" + name + "}", repr(value))
    return program


@pytest.fixture
def attacked(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workspace]:
    """A workspace with a secret, repositories, Python environments and a service of a program outside."""
    work = workspace.folder
    for folder in (".git/hooks", "sub/.git", "module", "bare/objects", "bare/refs", "env/lib", "active"):
        (work / folder).mkdir(parents=True)
    for file, text in {".env": "SECRET", "module/.git": "", "bare/HEAD": "", "env/pyvenv.cfg": ""}.items():
        (work / file).write_text(text)
    monkeypatch.setenv("VIRTUAL_ENV", f"{work}/active")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{work}/dev.sock")
        server.listen()
        yield workspace


def test_no_attack_works_but_those_by_design(attacked: Workspace, outside: dict[str, object]) -> None:
    ran = attacked.run(prepared(outside))
    assert ran.status == 0, ran.errors
    assert set(json.loads(ran.output.splitlines()[-1])) == BY_DESIGN
    assert Path(str(outside["outside"]), "precious").read_text() == "x" * 100


def test_at_least_fifty_attacks_are_tried_and_two_work() -> None:
    assert len(ATTACKS) >= 50
    assert len(BY_DESIGN) <= 2


def test_without_a_box_most_attacks_work(workspace: Workspace, outside: dict[str, object]) -> None:
    """The attacks are real ones: without a box most of those on files, processes and the network work."""
    (workspace.folder / ".env").write_text("SECRET")
    harmless = (
        "reads",
        "TCP",
        "UDP",
        "a unix socket",
        "an abstract",
        "signals",
        "links",
        "writes through",
        "moves a file",
    )
    tried = [name for name in ATTACKS if name.startswith(harmless)]
    program = (
        prepared(outside)
        .replace("worked = []", f"worked = []\ntried = {tried!r}")
        .replace("    space = dict(globals())", "    if name not in tried: continue\n    space = dict(globals())")
    )
    (workspace.folder / "program.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=workspace.folder, capture_output=True, text=True, timeout=60, check=True
    )
    worked = set(json.loads(done.stdout.splitlines()[-1]))
    expected = {
        "reads the environment of another process",
        "TCP to a local service",
        "UDP out",
        "a unix socket outside",
    }
    assert expected <= worked
    assert len(worked) >= 9, worked
