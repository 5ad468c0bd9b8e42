"""Runs tests on mutants: the tests are collected once, and each mutant gets a fork of the process that has collected them.

A mutant of a function's body is put into the live function, whose tests then run. Everything else (class bodies, defaults,
constants, and what survives in a function that runs while tests are collected) is read by import, in a fork without lgov.

The tests of a mutant are those that run its lines, the fastest first, until one fails. Each fork has folders of its own;
nothing is written to the source tree. Tests that start processes of their own see no mutant there, and kill none.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import itertools
import os
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, TypeAlias

import coverage
import pytest

Items: TypeAlias = dict[str, pytest.Item]

#: A test has hung after so many seconds, and so many times what it takes without a mutant.
_LIMIT_S, _SLOWER = 8.0, 8.0
#: So many forks run at once, and one where the load of the machine is more than `_BUSY`.
_AT_ONCE, _BUSY = 2, 8.0
_ARGUMENTS = (
    "-q",
    "-s",
    "--assert=plain",  # else pytest loads lgov itself, and from the files
    "-p",
    "no:cacheprovider",
    "--no-header",
    "--hypothesis-seed=0",
    "-o",
    "addopts=",
)
#: What is mutated and what tests it: these packages are loaded by a fork, or with the tests.
_OURS = ("__main__", "tests", "lgov_core", "lgov_autogen", "lgov_langchain", "lgov_openai", "lgov_openai_agents")
_PASSED, _FAILED, _BROKEN = 0, 1, 70


# ---------------------------------------------------------------------- pytest


class _Collected:
    """Gives the collected tests to ``work``, which runs them as it likes."""

    def __init__(self, work: Callable[[Items], None]) -> None:
        self.work = work

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            raise session.Interrupted("not all tests could be collected")
        self.work({item.nodeid: item for item in session.items})
        return True


class _Seen:
    """Notes which tests failed or were skipped."""

    def __init__(self) -> None:
        self.failed: set[str] = set()
        self.skipped: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.add(report.nodeid)
        elif report.skipped:
            self.skipped.add(report.nodeid)


def collect(files: Iterable[str], work: Callable[[Items], None]) -> int:
    """Collects the tests of ``files`` in this process and calls ``work`` with them, by their ids."""
    return int(pytest.main([*files, *_ARGUMENTS], plugins=[_Collected(work)]))


def _each(items: Sequence[pytest.Item], begins: Callable[[str], object]) -> Iterator[tuple[pytest.Item, _Seen]]:
    """Runs the tests one after the other; after each, the test and what has been seen so far."""
    if not items:
        return
    seen = _Seen()
    items[0].config.pluginmanager.register(seen)
    for item, following in itertools.zip_longest(items, items[1:]):
        begins(item.nodeid)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        yield item, seen
    items[0].config.pluginmanager.unregister(seen)


# ---------------------------------------------------------------------- which tests run which lines


@dataclass(frozen=True, slots=True)
class TestRun:
    """A test that passes without mutants: how long it took, and the lines that it ran of each file."""

    seconds: float
    lines: Mapping[str, frozenset[int]]


class Measure:
    """Notes the lines of ``files`` that run from now on, for each test, and while the tests are collected."""

    def __init__(self, files: Sequence[str]) -> None:
        self._files = {str(Path(file).absolute()): file for file in files}
        self._coverage = coverage.Coverage(data_file=None, include=list(self._files), config_file=False)
        self._coverage.start()

    def collected(self) -> dict[str, list[int]]:
        """Stops; the lines that have run in this process."""
        self._coverage.stop()
        data = self._coverage.get_data()
        return {file: sorted(data.lines(path) or ()) for path, file in self._files.items()}

    def tests(
        self, items: Sequence[pytest.Item], begins: Callable[[str], object]
    ) -> dict[str, tuple[float, dict[str, list[int]]]]:
        """Runs tests, in a fork: the seconds and the lines of each that passes."""
        started: dict[str, float] = {}
        ended: dict[str, float] = {}

        def begins_measured(test: str) -> None:
            begins(test)
            self._coverage.switch_context(test)
            started[test] = time.perf_counter()

        passed: set[str] = set()
        for item, seen in _each(items, begins_measured):
            ended[item.nodeid] = time.perf_counter()
            if item.nodeid not in seen.failed | seen.skipped:
                passed.add(item.nodeid)
        self._coverage.stop()
        lines: dict[str, dict[str, list[int]]] = {}
        for path, file in self._files.items():
            for line, tests in self._coverage.get_data().contexts_by_lineno(path).items():
                for test in filter(None, tests):
                    lines.setdefault(test, {}).setdefault(file, []).append(line)
        return {test: (ended[test] - started[test], lines[test]) for test in sorted(passed & lines.keys())}


# ---------------------------------------------------------------------- a mutant


class _Mutated(SourceFileLoader):
    """Finds and loads the module at ``path`` with another source; imports of others are not its business."""

    def __init__(self, path: str, text: str) -> None:
        self.module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        self.text = text
        super().__init__(self.module, str(Path(path).absolute()))

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != self.module:
            return None
        return importlib.util.spec_from_file_location(name, self.path, loader=self)

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.text, self.path, "exec", dont_inherit=True)


def functions_of(path: str, text: str, name: str) -> list[CodeType]:
    """The code of the functions and methods with this qualified name where ``path`` reads ``text``."""
    pending = [compile(text, str(Path(path).absolute()), "exec", dont_inherit=True)]
    functions: list[CodeType] = []
    while pending:
        for code in _inside(pending.pop(0)):
            pending.append(code)
            if code.co_qualname == name:
                functions.append(code)
    return functions


def body_lines(code: CodeType) -> set[int]:
    """The lines of a function's body, with those of functions in it."""
    lines = {line for _, _, line in code.co_lines() if line is not None} - {code.co_firstlineno}
    return lines.union(*map(body_lines, _inside(code)))


def _inside(code: CodeType) -> list[CodeType]:
    return [constant for constant in code.co_consts if isinstance(constant, CodeType)]


class LiveFunctions:
    """The functions of ``files`` as this process has loaded them, whose code can be changed."""

    def __init__(self, files: Sequence[str]) -> None:
        paths = {str(Path(file).absolute()) for file in files}
        for file in files:
            importlib.import_module(file.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
        gc.collect()
        self._functions: dict[tuple[str, str, int], list[FunctionType]] = {}
        for value in gc.get_objects():
            if type(value) is FunctionType and value.__code__.co_filename in paths:
                self._functions.setdefault(self._place(value.__code__), []).append(value)
        gc.freeze()  # the forks share the memory of what is here

    def put(self, old: CodeType, new: CodeType) -> None:
        """Puts ``new`` in the place of ``old``. Raises `LookupError` where nothing has that."""
        for function in self._functions[self._place(old)]:
            function.__code__ = new

    @staticmethod
    def _place(code: CodeType) -> tuple[str, str, int]:
        return code.co_filename, code.co_qualname, code.co_firstlineno


@dataclass(slots=True)
class Trial:
    """A fork in which ``tests`` run; ``subject`` is the caller's. It ends as ``killed``, ``survived`` or ``broken``."""

    subject: Any
    function: Callable[[Callable[[str], object]], int]
    tests: Mapping[str, TestRun]
    ended: str = ""
    test: str = ""
    _process: int = 0
    _folder: str = ""
    _since: float = 0.0
    _size: int = field(default=0)

    def start(self) -> None:
        """Starts it."""
        self._folder = tempfile.mkdtemp(prefix="lgov-mutant-")
        self._since = time.monotonic()
        self._process = _fork(self.function, self._folder)

    def has_ended(self) -> bool:
        """Looks whether it has ended, and ends it where a test has hung."""
        process, status = os.waitpid(self._process, os.WNOHANG)
        log = Path(self._folder, "tests").read_text() if Path(self._folder, "tests").exists() else ""
        self.test = log.split("\n")[-2] if log else ""
        if not process:
            if len(log) != self._size:
                self._size, self._since = len(log), time.monotonic()
            run = self.tests.get(self.test)
            if time.monotonic() - self._since < _LIMIT_S + _SLOWER * (run.seconds if run else 5.0):
                return False
            self.stop()
            os.waitpid(self._process, 0)
            self.ended, self.test = "killed", f"{self.test} (hung)"
            return True
        code = os.waitstatus_to_exitcode(status)
        self.ended = {_PASSED: "survived", _FAILED: "killed"}.get(code, "broken")
        if self.ended == "broken":
            output = Path(self._folder, "output").read_text(errors="replace")
            print(f"ended with {code}, in {self.test or 'no test'}:\n{output[-2000:]}", flush=True)
        self.stop()  # what it started
        return True

    def stop(self) -> None:
        """Ends it with the processes that it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process, signal.SIGKILL)
        shutil.rmtree(self._folder, ignore_errors=True)


def in_place(live: LiveFunctions, old: CodeType, new: CodeType, tests: Sequence[pytest.Item]) -> Any:
    """What a trial runs that puts ``new`` in the place of ``old``."""

    def run(begins: Callable[[str], object]) -> int:
        live.put(old, new)
        return _passes(tests, begins)

    return run


def by_import(path: str, text: str, tests: Sequence[str]) -> Any:
    """What a trial runs that loads the module at ``path`` as ``text``."""

    def run(begins: Callable[[str], object]) -> int:
        mutated = _Mutated(path, text)
        sys.meta_path.insert(0, mutated)  # type: ignore[arg-type]
        begins("import")
        try:
            importlib.import_module(mutated.module)
        except Exception:
            return _FAILED
        for file in dict.fromkeys(test.partition("::")[0] for test in tests):
            of_file = [test for test in tests if test.startswith(f"{file}::")]
            status = [_BROKEN]

            def work(items: Items, of_file: list[str] = of_file, status: list[int] = status) -> None:
                status[0] = _passes([items[test] for test in of_file], begins)

            begins(f"collection of {file}")
            pytest_status = collect([file], work)
            if pytest_status in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.USAGE_ERROR):
                return _FAILED  # a module, or conftest.py, raises while it is loaded
            if status[0] != _PASSED:
                return status[0]
        return _PASSED

    return run


def _passes(tests: Sequence[pytest.Item], begins: Callable[[str], object]) -> int:
    for _, seen in _each(tests, begins):
        if seen.failed:
            return _FAILED
    return _PASSED


def run_trials(pending: Iterator[Trial]) -> Iterator[Trial]:
    """Runs trials, some at once; each as it ends."""
    if threading.active_count() > 1:
        raise RuntimeError(f"a process with threads cannot be forked: {threading.enumerate()}")
    running: list[Trial] = []
    try:
        while True:
            while len(running) < (1 if os.getloadavg()[0] > _BUSY else _AT_ONCE):
                trial = next(pending, None)
                if trial is None:
                    break
                trial.start()
                running.append(trial)
            if not running:
                return
            time.sleep(0.005)
            for trial in list(running):
                if trial.has_ended():
                    running.remove(trial)
                    yield trial
    finally:
        for trial in running:
            trial.stop()


# ---------------------------------------------------------------------- processes


def foreign_modules() -> list[str]:
    """The modules that are loaded here, without ours."""
    return sorted(name for name in sys.modules if name.partition(".")[0] not in _OURS)


def load(modules: Iterable[str]) -> None:
    """Loads what the tests import, so that a fork need not."""
    for name in modules:
        with contextlib.suppress(Exception):
            importlib.import_module(name)


def forked(function: Callable[[], object]) -> int:
    """Calls ``function`` in a fork; the status with which that ends."""
    sys.stdout.flush()
    process = os.fork()
    if not process:
        status = _BROKEN
        try:
            function()
            status = _PASSED
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def _fork(function: Callable[[Callable[[str], object]], int], folder: str) -> int:
    sys.stdout.flush()
    process = os.fork()
    if process:
        with contextlib.suppress(OSError):
            os.setpgid(process, process)
        return process
    status = _BROKEN
    try:
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
        output = os.open(f"{folder}/output", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for descriptor, target in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(descriptor, target)
        tests = os.open(f"{folder}/tests", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.environ["TMPDIR"] = tempfile.tempdir = f"{folder}/tmp"
        os.mkdir(tempfile.tempdir)
        for variable in ("XDG_CONFIG_HOME", "XDG_STATE_HOME"):
            os.environ[variable] = f"{folder}/{variable}"
        status = function(lambda test: os.write(tests, f"{test}\n".encode()))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
