"""Runs code that a model wrote, in a box that the Linux kernel holds: a folder of its own, no network, nothing of yours.

    from lgov_core import sandbox

    box = sandbox.create()
    done = box.process.code_run("print(6 * 7)")  # done.exit_code == 0, done.result == "42"
    box.delete()

The names are those of Daytona's client, so that an agent can be given either. What holds is `docs/how-to/confinement.md`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import lgov_core
from lgov_core.errors import InstrumentationError
from lgov_core.governance import DEFAULT_AUDIT
from lgov_core.process.children import VARIABLE, report_begin

TIMED_OUT = 124  # the exit code of ``timeout``
MAX_RESULT, MAX_FILE = 1_000_000, 1 << 28  # in bytes


@dataclass(frozen=True, slots=True)
class CodeExecution:
    """The exit code of a run (128 and the signal that ended it), and what it printed, errors too: 1,000,000 bytes at most."""

    exit_code: int
    result: str


@dataclass(frozen=True, slots=True)
class Process:
    """Runs code in the sandbox at ``folder``, with ``memory`` bytes for each process."""

    folder: Path
    memory: int

    def code_run(self, code: str, *, timeout: float = 60.0) -> CodeExecution:
        """Runs Python ``code`` as a program of its own, with this Python and its packages, and waits until it has ended.

        It can read and change the sandbox's folder, in which it starts; files that it leaves there are there the next time.
        It has no network and none of this process's environment. After ``timeout`` seconds it is ended, with all that it
        started, and the exit code is 124. Raises `InstrumentationError` when no strict box can be had: then nothing was
        run. May be called from several threads at once.
        """
        if not self.folder.is_dir():
            raise InstrumentationError("this sandbox was deleted", hint="make another with sandbox.create()")
        from lgov_core.confine.layers import make_private_folder

        private = make_private_folder()  # a new one each time: code could have left links in it
        try:
            return self._run(code, timeout, private.path)
        finally:
            private.remove()

    def _run(self, code: str, timeout: float, private: Path) -> CodeExecution:
        governed = os.environ.get(VARIABLE)
        arguments = {
            "folder": str(self.folder),
            "private": str(private),
            "memory": self.memory,
            "audit": str(DEFAULT_AUDIT.absolute()),
            "reports": json.loads(governed)["reports"] if governed else None,
        }
        # All that is in its environment and on its command line can be read inside. -P: none of the folder's files is imported.
        command = (sys.executable, "-P", "-c", "from lgov_core.sandbox import launch; launch()", json.dumps(arguments))
        home, lgov = os.path.expanduser("~"), str(Path(lgov_core.__file__).parents[1])
        environment = {"PATH": os.defpath, "LANG": "C.UTF-8", "HOME": home, "PYTHONPATH": lgov}
        output, ended = private / "output", private / "ended"
        with output.open("wb") as file:
            process = subprocess.Popen(
                command, cwd="/", env=environment, stdin=subprocess.PIPE, stdout=file, stderr=subprocess.STDOUT
            )
            try:
                process.communicate(code.encode(), timeout)
            except subprocess.TimeoutExpired:
                return CodeExecution(TIMED_OUT, _text(output))
            finally:
                process.kill()  # and the kernel ends the box
                process.wait()
        ending: dict[str, Any] = json.loads(ended.read_bytes()) if ended.exists() else {"message": _text(output)}
        if "exit_code" not in ending:
            raise InstrumentationError(f"no sandbox: {ending['message']}", hint=ending.get("hint"))
        return CodeExecution(ending["exit_code"], _text(output))


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A folder in which code is run by ``process``."""

    process: Process

    def delete(self) -> None:
        """Removes the folder with all that code has left in it."""
        shutil.rmtree(self.process.folder, ignore_errors=True)


def create(*, memory: int = 2 << 30) -> Sandbox:
    """A new sandbox with an empty folder; ``memory`` is in bytes, of each process. Raises `InstrumentationError` off Linux."""
    if sys.platform != "linux":
        raise InstrumentationError(
            f"a sandbox needs Linux, and this is {sys.platform}",
            hint="use it in a Linux container or virtual machine, or Daytona's client, which has the same methods",
        )
    return Sandbox(Process(Path(tempfile.mkdtemp(prefix="lgov-sandbox-")), memory))


def _text(output: Path) -> str:
    with output.open("rb") as file:
        return file.read(MAX_RESULT).decode(errors="replace").rstrip("\n")


def launch() -> None:
    """Makes the box, has the code that stands on standard input run in it, and writes how it ended. In a process of its own."""
    from lgov_core.confine import box
    from lgov_core.confine.layers import BEST_EFFORT
    from lgov_core.confine.plan import Outside, make_plan
    from lgov_core.policies.confinement import ConfineRules

    arguments = json.loads(sys.argv[1])
    folder, private = arguments["folder"], Path(arguments["private"])
    for name in ("tmp", "home"):
        (private / name).mkdir()
    # Not the folders of projects that are installed for editing: they hold more than packages.
    sys.path[:] = [path for path in sys.path if path.startswith((sys.prefix, sys.base_prefix))]
    rules = ConfineRules(write=(folder,), model=False, memory=arguments["memory"], file_size=MAX_FILE)
    try:
        plan = make_plan(rules, None, Outside(Path(arguments["audit"]), str(private)), checked=False, own=True)
        placed = box.start(replace(plan, folder=os.path.realpath(folder)), strict=True, ports=[])
    except InstrumentationError as error:
        hint = error.hint and error.hint.removesuffix(f"; {BEST_EFFORT}")
        (private / "ended").write_text(json.dumps({"message": error.message, "hint": hint}))
        return
    if isinstance(placed, box.Inside):
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "HOME", "TMPDIR")}
        os.execve(sys.executable, [sys.executable, "-"], kept)
    if arguments["reports"]:  # of lgov run: the kernel holds this child
        report_begin(Path(arguments["reports"]), os.getppid())
    if placed.refused is not None:
        os.close(placed.refused)  # refused system calls are answered by the kernel itself
    placed.release()
    (private / "ended").write_text(json.dumps({"exit_code": placed.wait()}))
