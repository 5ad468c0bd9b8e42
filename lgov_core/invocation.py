"""What ``lgov run -- python …`` is asked to run, and the running of it inside this interpreter."""

from __future__ import annotations

import os
import re
import runpy
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from lgov_core.errors import ArmError

_PYTHON = re.compile(r"python(3(\.\d+)?)?(\.exe)?")


@dataclass(frozen=True, slots=True)
class Invocation:
    """A Python program: a script file or, with ``is_module``, a module's name; and its arguments."""

    target: str
    arguments: tuple[str, ...]
    is_module: bool = False
    unbuffered: bool = False

    @property
    def folder(self) -> Path:
        """The folder that the program calls its own: the script's, or the working directory for a module."""
        return Path.cwd() if self.is_module else Path(self.target).resolve().parent


def parse_command(command: Sequence[str]) -> Invocation:
    """Understands ``python [-u] SCRIPT …`` and ``python [-u] -m MODULE …``.

    Raises `ArmError` for anything that cannot be run inside this interpreter: another program, another interpreter,
    another option, a script that is not there.
    """
    if not command:
        raise ArmError("there is no command to run", hint="write it after --, as in: lgov run -- python agent.py")
    _check_interpreter(command[0])
    rest, unbuffered = list(command[1:]), False
    while rest and rest[0] == "-u":
        rest, unbuffered = rest[1:], True
    if rest and rest[0] == "-m" and len(rest) > 1:
        return Invocation(rest[1], tuple(rest[2:]), is_module=True, unbuffered=unbuffered)
    if not rest or rest[0].startswith("-"):
        what = f"the interpreter option {rest[0]}" if rest else "an interpreter without a script"
        raise ArmError(
            f"{what} cannot be run governed", hint="use python SCRIPT or python -m MODULE, with -u if you like"
        )
    if not Path(rest[0]).is_file():
        raise ArmError(f"there is no script {rest[0]}")
    return Invocation(rest[0], tuple(rest[1:]), unbuffered=unbuffered)


def _check_interpreter(word: str) -> None:
    running = f"python{sys.version_info.major}.{sys.version_info.minor}"
    if os.path.dirname(word):
        if _is_running_interpreter(word):
            return
        raise ArmError(
            f"{word} is not the interpreter that lgov runs in ({sys.executable}), so it cannot be governed from here",
            hint="install lgov into that interpreter's environment and use the lgov of that environment",
        )
    matched = _PYTHON.fullmatch(word)
    if matched is None:
        raise ArmError(f"{word} is not a Python interpreter", hint="lgov run governs Python programs: python agent.py")
    version = word.removesuffix(".exe")
    if matched.group(2) and version != running:
        raise ArmError(
            f"{word} was asked for, but lgov runs in {running}", hint=f"use the lgov of a {word} environment"
        )


def _is_running_interpreter(path: str) -> bool:
    """Same file in the same folder: the file alone does not tell, all environments of one Python link to the same."""
    try:
        return os.path.samefile(path, sys.executable) and os.path.samefile(
            os.path.dirname(os.path.abspath(path)), os.path.dirname(os.path.abspath(sys.executable))
        )
    except OSError:
        return False


def execute(invocation: Invocation) -> int:
    """Runs the program as ``__main__`` and returns its exit status.

    ``SystemExit`` gives its own status, an exception prints its traceback (from the program's first line on) and
    gives 1, an interrupt gives 130.
    """
    if invocation.unbuffered:
        for stream in (sys.stdout, sys.stderr):
            if callable(reconfigure := getattr(stream, "reconfigure", None)):
                reconfigure(write_through=True, line_buffering=True)
    sys.argv = [invocation.target, *invocation.arguments]
    if not sys.flags.safe_path:
        sys.path[0:1] = [str(invocation.folder)]
    try:
        if invocation.is_module:
            runpy.run_module(invocation.target, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(invocation.target, run_name="__main__")
    except SystemExit as end:
        return _status(end.code)
    except KeyboardInterrupt:
        return 130
    except BaseException as error:  # noqa: BLE001 - the program's own, reported as Python would report it
        error.__traceback__ = _from_program(error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    return 0


def _status(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code
    sys.stderr.write(f"{code}\n")
    return 1


def _from_program(trace: TracebackType | None) -> TracebackType | None:
    """``trace`` without the frames that only started the program."""
    ours = {__file__, runpy.__file__, "<frozen runpy>"}
    while trace is not None and trace.tb_frame.f_code.co_filename in ours:
        trace = trace.tb_next
    return trace
