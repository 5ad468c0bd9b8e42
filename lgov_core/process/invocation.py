"""The command of ``lgov run -- python …``, and running it inside this interpreter."""

from __future__ import annotations

import builtins
import importlib.util
import io
import os
import pkgutil
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, SourceFileLoader, SourcelessFileLoader
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any

from lgov_core.errors import InstrumentationError

_PYTHON = re.compile(r"python(3(\.\d+)?)?(\.exe)?")
#: Options that an interpreter takes at its start only, and that leave governing as it is.
_START_OPTIONS = re.compile(r"-[BOPbdqsuv]+|-[WX].+")
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")
#: Begins lgov in an interpreter with such options. The first place on the path becomes the program's later.
_BEGIN = "import sys; sys.flags.safe_path or sys.path.__setitem__(0, sys.prefix); from lgov_core.commands import main; main()"
#: A path to an interpreter in the first lines of a script; pip writes two where the path is long.
_SHEBANG = re.compile(rb"^(?:#!/bin/sh\n''+exec' \"?|#!\s*)(/[^\s\"]+)(?: +(python[\d.]*))?", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Invocation:
    """A Python program: a script (or a folder or archive with a ``__main__.py``) or a module's name; and its arguments.

    ``is_command``: the script is one that a package installed, as ``uvicorn`` is.
    """

    target: str
    arguments: tuple[str, ...]
    is_module: bool = False
    unbuffered: bool = False
    is_command: bool = False

    @property
    def folder(self) -> Path:
        """The folder that the program calls its own: the script's; the working directory for a module or a command."""
        return Path.cwd() if self.is_module or self.is_command else self.script_folder

    @property
    def files(self) -> tuple[Path, ...]:
        """The program's own files: the script, or what there is of a module or package in the working folder."""
        path = Path(self.target).absolute()
        if self.is_module:
            path = Path.cwd().joinpath(*self.target.split("."))
            files = (path.with_name(f"{path.name}.py"), path / "__init__.py", path / "__main__.py")
            return tuple(file for file in files if file.is_file())
        return (path / "__main__.py" if path.is_dir() else path,)

    @property
    def script_folder(self) -> Path:
        """The folder of the script, which Python puts on the path."""
        script = Path(self.target).resolve()
        return script if script.is_dir() else script.parent


def parse_command(command: Sequence[str]) -> Invocation:
    """Parses ``python [-u] SCRIPT …``, ``python [-u] -m MODULE …`` and ``COMMAND …``, a command of a package of this Python.

    Raises `InstrumentationError` for anything that cannot be run inside this interpreter: another program, another interpreter,
    another option, a script that is not there.
    """
    if not command:
        raise InstrumentationError(
            "there is no command to run", hint="write it after --, as in: lgov run -- python agent.py"
        )
    if (installed := _installed_command(command)) is not None:
        return installed
    _check_interpreter(command)
    rest, unbuffered = list(command[1:]), False
    while rest and rest[0] == "-u":
        rest, unbuffered = rest[1:], True
    if rest and rest[0] == "-m" and len(rest) > 1:
        return Invocation(rest[1], tuple(rest[2:]), is_module=True, unbuffered=unbuffered)
    if not rest or rest[0].startswith("-"):
        what = f"the interpreter option {rest[0]}" if rest else "an interpreter without a script"
        raise InstrumentationError(
            f"{what} cannot be run governed", hint="use python SCRIPT or python -m MODULE; put code of -c into a file"
        )
    script = Path(rest[0])
    if script.is_dir() and not (script / "__main__.py").is_file():
        raise InstrumentationError(f"the folder {script} cannot be run: it has no __main__.py")
    if not script.exists():
        raise InstrumentationError(f"there is no script {script}")
    return Invocation(rest[0], tuple(rest[1:]), unbuffered=unbuffered)


def is_interpreter(command: str) -> bool:
    """Returns whether a command is a Python by its name."""
    return _PYTHON.fullmatch(os.path.basename(command)) is not None


def without_arguments(command: Sequence[str]) -> list[str]:
    """``command`` up to the name of its program: what follows may hold what a user wrote."""
    if not command or not is_interpreter(command[0]):
        return list(command[:1])
    rest = _start_options(command)[1]
    return list(command[: len(command) - len(rest) + (2 if rest[:1] == ["-m"] else 1)])


def restart_with_options(command: Sequence[str]) -> None:
    """Replaces this process by lgov in an interpreter with the options in ``command`` (``-O``, ``-W``, ``-X``), if it has any.

    ``command`` must be the end of ``sys.argv``.
    """
    options, rest = _start_options(command)
    if not options:
        return
    own = sys.argv[1 : len(sys.argv) - len(command)]
    os.execv(sys.executable, [sys.executable, *options, "-c", _BEGIN, *own, command[0], *rest])


def _start_options(command: Sequence[str]) -> tuple[list[str], list[str]]:
    """The options of an interpreter that must be given at its start, and what follows them."""
    rest, options = list(command[1:]), list[str]()
    if not command or not is_interpreter(command[0]):
        return [], rest
    while rest and (_START_OPTIONS.fullmatch(rest[0]) or rest[0] in _WITH_VALUE):
        taken = 2 if rest[0] in _WITH_VALUE else 1
        options, rest = options + rest[:taken], rest[taken:]
    return ([] if set(options) <= {"-u"} else options), rest


def _installed_command(command: Sequence[str]) -> Invocation | None:
    """The script of a package of this Python that ``command`` begins with; None for anything else."""
    path = None if is_interpreter(command[0]) else shutil.which(command[0])
    if path is None:
        return None
    try:
        with open(path, "rb") as file:
            shebang = _SHEBANG.match(file.read(4096))
    except OSError:
        return None
    if shebang is None:
        return None
    interpreter = shebang[1].decode(errors="replace")
    if os.path.basename(interpreter) == "env":
        interpreter = shutil.which((shebang[2] or b"").decode()) or ""
    if _is_running_interpreter(interpreter):
        return Invocation(path, tuple(command[1:]), is_command=True)
    if "python" in os.path.basename(interpreter) and not command[0].endswith(".py"):
        raise InstrumentationError(
            f"{command[0]} is a program of {interpreter}, and lgov runs in {sys.executable}",
            hint="install lgov into that interpreter's environment and use the lgov of that environment",
        )
    return None


def _check_interpreter(command: Sequence[str]) -> None:
    word = command[0]
    if (
        list(command[1:2]) == ["run"] and _PYTHON.fullmatch(word) is None
    ):  # uv, poetry, pdm: they choose the environment
        program = " ".join(command[2:]) or "agent.py"
        python = "python " if program.split()[0].endswith(".py") else ""
        raise InstrumentationError(
            f"{word} run starts the program in an environment that it chooses, where lgov may not be",
            hint=f"add lgov to that environment, and turn them around: {word} run lgov run -- {python}{program}",
        )
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
            f"{word} is not a Python interpreter, or a command that a package of this one ({sys.prefix}) installed",
            hint="lgov run governs Python programs: python agent.py, python -m package, uvicorn app:app",
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
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        sys.stderr.write(f"{end.code}\n")
        return 1
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
    _put_on_path(str(invocation.script_folder))
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


def _from_program(trace: TracebackType | None) -> TracebackType | None:
    """``trace`` without the frames that only started the program."""
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace
