"""The command of ``lgov run -- python …``, and running it inside this interpreter."""

from __future__ import annotations

import builtins
import importlib.util
import io
import os
import pkgutil
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, SourceFileLoader, SourcelessFileLoader
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any

from lgov_core.errors import InstrumentationError

_PYTHON = re.compile(r"python(3(\.\d+)?)?(\.exe)?")


@dataclass(frozen=True, slots=True)
class Invocation:
    """A Python program: a script (or a folder or archive with a ``__main__.py``) or a module's name; and its arguments."""

    target: str
    arguments: tuple[str, ...]
    is_module: bool = False
    unbuffered: bool = False

    @property
    def folder(self) -> Path:
        """The folder that the program calls its own: the script's, or the working directory for a module."""
        if self.is_module:
            return Path.cwd()
        script = Path(self.target).resolve()
        return script if script.is_dir() else script.parent


def parse_command(command: Sequence[str]) -> Invocation:
    """Parses ``python [-u] SCRIPT …`` and ``python [-u] -m MODULE …``.

    Raises `InstrumentationError` for anything that cannot be run inside this interpreter: another program, another interpreter,
    another option, a script that is not there.
    """
    if not command:
        raise InstrumentationError(
            "there is no command to run", hint="write it after --, as in: lgov run -- python agent.py"
        )
    _check_interpreter(command[0])
    rest, unbuffered = list(command[1:]), False
    while rest and rest[0] == "-u":
        rest, unbuffered = rest[1:], True
    if rest and rest[0] == "-m" and len(rest) > 1:
        return Invocation(rest[1], tuple(rest[2:]), is_module=True, unbuffered=unbuffered)
    if not rest or rest[0].startswith("-"):
        what = f"the interpreter option {rest[0]}" if rest else "an interpreter without a script"
        raise InstrumentationError(
            f"{what} cannot be run governed", hint="use python SCRIPT or python -m MODULE, with -u if you like"
        )
    script = Path(rest[0])
    if script.is_dir() and not (script / "__main__.py").is_file():
        raise InstrumentationError(f"the folder {script} cannot be run: it has no __main__.py")
    if not script.exists():
        raise InstrumentationError(f"there is no script {script}")
    return Invocation(rest[0], tuple(rest[1:]), unbuffered=unbuffered)


def _check_interpreter(word: str) -> None:
    if word.endswith((".py", ".pyc", ".pyz")):
        raise InstrumentationError(
            f"{word} is a program, not the Python that runs it", hint=f"lgov run -- python {word}"
        )
    running = f"python{sys.version_info.major}.{sys.version_info.minor}"
    if os.path.dirname(word):
        if _is_running_interpreter(word):
            return
        raise InstrumentationError(
            f"{word} is not the interpreter that lgov runs in ({sys.executable}), so it cannot be governed from here",
            hint="install lgov into that interpreter's environment and use the lgov of that environment",
        )
    matched = _PYTHON.fullmatch(word)
    if matched is None:
        raise InstrumentationError(
            f"{word} is not a Python interpreter", hint="lgov run governs Python programs: python agent.py"
        )
    version = word.removesuffix(".exe")
    if matched.group(2) and version != running:
        raise InstrumentationError(
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
    gives 1, an interrupt gives 130. As under Python itself the program's module stays ``__main__`` when its last line
    has run: threads and exit handlers that are still to come find their classes in it.
    """
    if invocation.unbuffered:
        for stream in (sys.stdout, sys.stderr):
            if callable(reconfigure := getattr(stream, "reconfigure", None)):
                reconfigure(write_through=True, line_buffering=True)
    sys.argv = ["-m" if invocation.is_module else invocation.target, *invocation.arguments]
    before = sys.modules["__main__"]
    main = sys.modules["__main__"] = ModuleType("__main__")
    vars(main)["__builtins__"] = builtins
    if "__annotations__" in vars(before):  # until Python 3.13 it is always there
        vars(main)["__annotations__"] = {}
    try:
        if invocation.is_module:
            _put_on_path(str(invocation.folder))
            _run_module(invocation.target)
        else:
            _run_script(invocation)
    except SystemExit as end:
        return _status(end.code)
    except BaseException as error:  # noqa: BLE001 - the program's own, reported as Python would report it
        error.__traceback__ = _from_program(error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _run_script(invocation: Invocation) -> None:
    # Absolute, as Python makes it: the program may go to another folder. Not normalised: what lies before a ``..`` may
    # be a link.
    path = os.path.join(os.getcwd(), invocation.target)
    importer: Any = pkgutil.get_importer(path)
    if importer is not None:  # a folder or an archive
        sys.path[0 : 0 if sys.flags.safe_path else 1] = [path]
        _run_found(importer.find_spec("__main__"), path)
        return
    _put_on_path(str(invocation.folder))
    with io.open_code(path) as file:
        code = pkgutil.read_code(file)
    loader = SourcelessFileLoader if code is not None else SourceFileLoader
    if code is None:
        code = compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)
    _run_code(code, __file__=path, __cached__=None, __loader__=loader("__main__", path))


def _run_module(name: str) -> None:
    """As ``python -m``: a module, or the ``__main__`` of a package."""
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        name = f"{name}.__main__"
        spec = importlib.util.find_spec(name)
    if spec is not None and spec.origin is not None:
        sys.argv[0] = spec.origin
    _run_found(spec, name)


def _run_found(spec: ModuleSpec | None, name: str) -> None:
    loader: Any = spec.loader if spec is not None else None
    code: CodeType | None = loader.get_code(spec.name) if spec is not None and hasattr(loader, "get_code") else None
    if spec is None or code is None:
        sys.exit(f"{sys.executable}: No module named {name}")
    _run_code(
        code,
        __file__=spec.origin,
        __cached__=spec.cached,
        __loader__=loader,
        __package__=spec.parent,
        __spec__=spec,
    )


def _run_code(code: CodeType, **names: Any) -> None:
    """Runs ``code`` in the ``__main__`` that is there, which stays there."""
    main = vars(sys.modules["__main__"])
    main.update(names)
    exec(code, main)


def _put_on_path(entry: str) -> None:
    if not sys.flags.safe_path:
        sys.path[0:1] = [entry]


def _status(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code
    sys.stderr.write(f"{code}\n")
    return 1


def _from_program(trace: TracebackType | None) -> TracebackType | None:
    """``trace`` without the frames that only started the program."""
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace
