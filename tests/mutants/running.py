"""Runs tests on mutants: the tests are collected once, and each mutant gets a fork of the process that has collected them.

A mutant of a function's body is put into the live function, whose tests then run. Everything else (class bodies, defaults,
constants, functions that only run while modules are loaded) is read by import, in a fork without the mutated packages.

Each fork has folders of its own; nothing is written to the source tree. Tests that start processes of their own see no mutant
there, and kill none.
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
from dataclasses import dataclass
from functools import lru_cache
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, TypeAlias

import coverage
import pytest

Items: TypeAlias = dict[str, pytest.Item]
#: Runs in a fork, calls what it gets with the name of each test as the test begins, and returns the fork's exit status.
Work: TypeAlias = Callable[[Callable[[str], object]], int]

#: A test has hung after so many seconds, and so many times what it takes without a mutant, or this where that is not known.
_LIMIT_S, _SLOWER, _UNKNOWN_S = 30.0, 8.0, 30.0
#: So many forks run at once: most of their time tests wait.
_AT_ONCE = 4
_ARGUMENTS = (
    "-q",
    "-s",
    "--assert=plain",  # else pytest loads lgov itself, and from the files
    "--tb=native",  # else pytest looks through all modules for the source of a failure, which takes longer than most tests
    "--no-header",
    "--hypothesis-seed=0",
    *("-p", "no:cacheprovider", "-o", "addopts="),
)
_PASSED, _FAILED, _BROKEN = 0, 1, 70


# ---------------------------------------------------------------------- pytest


class _Collected:
    """Gives the collected tests to ``work``, which runs them as it likes."""

    def __init__(self, work: Callable[[Items], object]) -> None:
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


def collect(files: Iterable[str], work: Callable[[Items], object]) -> int:
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


def _passes(tests: Sequence[pytest.Item], begins: Callable[[str], object]) -> int:
    return _FAILED if any(seen.failed for _, seen in _each(tests, begins)) else _PASSED


@dataclass(frozen=True, slots=True)
class TestRun:
    """A test that passes without mutants: how long it took, and the lines that it ran of each file."""

    seconds: float
    lines: Mapping[str, frozenset[int]]


def _clock() -> float:
    """Seconds, without those in which this process had to wait for a processor: the machine may have other work to do."""
    waits = Path("/proc/self/schedstat")
    return time.perf_counter() - (int(waits.read_text().split()[1]) / 1e9 if waits.exists() else 0.0)


def measured(
    files: Sequence[str], items: Sequence[pytest.Item], begins: Callable[[str], object]
) -> dict[str, tuple[float, dict[str, list[int]]]]:
    """Runs tests, in a fork: the seconds of each that passes, and the lines of ``files`` that it ran."""
    paths = {str(Path(file).absolute()): file for file in files}
    tracer = coverage.Coverage(data_file=None, include=list(paths), config_file=False)
    tracer.start()
    seconds: dict[str, float] = {}

    def begins_measured(test: str) -> None:
        begins(test)
        tracer.switch_context(test)
        seconds[test] = -_clock()

    for item, seen in _each(items, begins_measured):
        seconds[item.nodeid] = max(seconds[item.nodeid] + _clock(), 0.0)
        if item.nodeid in seen.failed | seen.skipped:
            del seconds[item.nodeid]
    tracer.stop()
    lines: dict[str, dict[str, list[int]]] = {}
    for path, file in paths.items():
        for line, tests in tracer.get_data().contexts_by_lineno(path).items():
            for test in filter(None, tests):
                lines.setdefault(test, {}).setdefault(file, []).append(line)
    return {test: (seconds[test], lines.get(test, {})) for test in sorted(seconds)}


# ---------------------------------------------------------------------- a mutant


@lru_cache(maxsize=8)
def functions_of(path: str, text: str, name: str) -> list[CodeType]:
    """The code of the functions and methods with this qualified name where ``path`` reads ``text``."""
    pending = [compile(text, str(Path(path).absolute()), "exec", dont_inherit=True)]
    for code in pending:  # grows
        pending += _inside(code)
    return [code for code in pending if code.co_qualname == name]


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
        load(map(_module_of, files))
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


def in_place(live: LiveFunctions, old: CodeType, new: CodeType, tests: Sequence[pytest.Item]) -> Work:
    """Puts ``new`` in the place of ``old``, and runs the tests."""

    def work(begins: Callable[[str], object]) -> int:
        live.put(old, new)
        return _passes(tests, begins)

    return work


class _Mutated(SourceFileLoader):
    """Finds and loads the module at ``path`` with another source; imports of others are not its business."""

    def __init__(self, path: str, text: str) -> None:
        self.module, self.text = _module_of(path), text
        super().__init__(self.module, str(Path(path).absolute()))

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return None if name != self.module else importlib.util.spec_from_file_location(name, self.path, loader=self)

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.text, self.path, "exec", dont_inherit=True)


def _module_of(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def by_import(path: str, text: str, tests: Sequence[str]) -> Work:
    """Loads the module at ``path`` as ``text``, and runs the tests, the files in the order of their first tests."""

    def work(begins: Callable[[str], object]) -> int:
        mutated = _Mutated(path, text)
        sys.meta_path.insert(0, mutated)  # type: ignore[arg-type]
        begins("import")
        try:
            importlib.import_module(mutated.module)
        except Exception:
            return _FAILED
        for file in dict.fromkeys(test.partition("::")[0] for test in tests):
            statuses: list[int] = []
            of_file = [test for test in tests if test.startswith(f"{file}::")]

            def passes(items: Items, statuses: list[int] = statuses, of_file: list[str] = of_file) -> None:
                # A test of another name, which a value of the mutated module is part of, is missed.
                there = [items[test] for test in of_file if test in items]
                statuses.append(_passes(there, begins) if len(there) == len(of_file) else _FAILED)

            begins(f"collection of {file}")
            ended = collect([file], passes)
            if ended in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.USAGE_ERROR):
                return _FAILED  # a module, or conftest.py, raises while it is loaded
            if statuses != [_PASSED]:
                return statuses[0] if statuses else _BROKEN
        return _PASSED

    return work


# ---------------------------------------------------------------------- forks


@dataclass(slots=True)
class Trial:
    """A fork in which ``work`` runs ``tests``; ``subject`` is the caller's. It ends killed, survived or broken."""

    subject: Any
    work: Work
    tests: Mapping[str, TestRun]
    ended: str = ""
    test: str = ""
    _process: int = 0
    _folder: str = ""
    _since: float = 0.0

    def start(self) -> None:
        """Starts it."""
        self._folder = tempfile.mkdtemp(prefix="lgov-mutant-")
        self._since = time.monotonic()
        self._process = _fork(self.work, self._folder)

    def has_ended(self) -> bool:
        """Looks whether it has ended, and ends it where a test has hung."""
        process, status = os.waitpid(self._process, os.WNOHANG)
        log = Path(self._folder, "tests")
        test = (log.read_text() if log.exists() else "").strip().rpartition("\n")[2]
        if test != self.test:
            self.test, self._since = test, time.monotonic()
        if not process:
            run = self.tests.get(test)
            if time.monotonic() - self._since < _LIMIT_S + _SLOWER * (run.seconds if run else _UNKNOWN_S):
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


def run_trials(pending: Iterator[Trial]) -> Iterator[Trial]:
    """Runs trials, some at once; each as it ends."""
    if threading.active_count() > 1:
        raise RuntimeError(f"a process with threads cannot be forked: {threading.enumerate()}")
    running: list[Trial] = []
    try:
        while True:
            for trial in itertools.islice(pending, _AT_ONCE - len(running)):
                trial.start()
                running.append(trial)
            if not running:
                return
            time.sleep(0.04)
            for trial in list(running):
                if trial.has_ended():
                    running.remove(trial)
                    yield trial
    finally:
        for trial in running:
            trial.stop()


def load(modules: Iterable[str]) -> None:
    """Loads what the tests import, so that a fork need not."""
    for name in modules:
        with contextlib.suppress(Exception):
            importlib.import_module(name)


def forked(work: Callable[[], object]) -> int:
    """Calls ``work`` in a fork; the status with which that ends."""

    def passes(_begins: object) -> int:
        work()
        return _PASSED

    return os.waitstatus_to_exitcode(os.waitpid(_fork(passes), 0)[1])


def _fork(work: Work, folder: str = "") -> int:
    """Calls ``work`` in a fork; with ``folder`` in a group of processes of its own, which keeps its output there."""
    sys.stdout.flush()
    process = os.fork()
    if process:
        return process
    status = _BROKEN
    try:
        begins: Callable[[str], object] = _apart(folder) if folder else str
        status = work(begins)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _apart(folder: str) -> Callable[[str], object]:
    """Sets this process apart from the others; returns what writes a line into the list of its tests."""
    os.setpgid(0, 0)
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
    output = os.open(f"{folder}/output", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(descriptor, target)
    os.environ["TMPDIR"] = tempfile.tempdir = f"{folder}/tmp"
    os.mkdir(tempfile.tempdir)
    for variable in ("XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        os.environ[variable] = f"{folder}/{variable}"
    tests = os.open(f"{folder}/tests", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    return lambda test: os.write(tests, f"{test}\n".encode())
