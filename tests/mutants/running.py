"""Runs the tests on a mutant: in a fork of this process, which has loaded what is not lgov, with one module changed.

The tests of a mutant are those that run the function that it is in, the fastest first, until one fails. Nothing is written
to the source tree. Tests that start processes of their own see no mutant there, and kill none.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib.util
import json
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any

import coverage
import pytest

#: What a mutant's tests may take together, in seconds of the run without mutants, and how often longer with one.
_LONGEST_S, _SLOWER = 20.0, 4.0
_ARGUMENTS = (
    "-q",
    "-x",
    "--assert=plain",  # else pytest loads lgov itself, and from the files
    "-p",
    "no:cacheprovider",
    "-p",
    "no:rerunfailures",
    "--no-header",
    "--hypothesis-seed=0",
    "-o",
    "addopts=",
)
#: Loaded once, before the forks.
_SLOW_IMPORTS = (
    "autogen_agentchat.agents", "autogen_agentchat.teams", "autogen_ext.models.openai", "cryptography", "fastjsonschema",
    "hypothesis", "msgspec", "pytest_asyncio", "re2", "regex", "sqlglot", "yaml",
)  # fmt: skip


def load_slow_imports() -> None:
    """Loads what the tests import and lgov is no part of, so that a fork need not."""
    for name in _SLOW_IMPORTS:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def digest_of(paths: Sequence[str]) -> str:
    """SHA-256, in hex, of the files."""
    return hashlib.sha256(b"\0".join(Path(path).read_bytes() for path in paths)).hexdigest()


# ---------------------------------------------------------------------- which tests run which functions


@dataclass(frozen=True, slots=True)
class TestRun:
    """A test that passes without mutants: how long it took, and the functions that it ran, as ``file:name``."""

    seconds: float
    functions: frozenset[str]


class _Contexts:
    """Names the running test to coverage, and notes its time."""

    def __init__(self, measured: coverage.Coverage) -> None:
        self.measured = measured
        self.seconds: dict[str, float] = {}
        self.failed: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.measured.switch_context(item.nodeid)
        began = time.perf_counter()
        try:
            return (yield)
        finally:
            self.seconds[item.nodeid] = time.perf_counter() - began

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed or report.skipped:
            self.failed.add(report.nodeid)


def measure(test_file: str, files: Sequence[str], cache: Path) -> dict[str, TestRun]:
    """The tests of ``test_file``, by their ids, kept in ``cache`` until that or one of ``files`` changes."""
    wanted = digest_of([test_file, *files])
    kept = cache / f"{test_file.replace('/', '.')}.json"
    content = json.loads(kept.read_text()) if kept.exists() else {}
    if content.get("digest") != wanted:
        status = _forked(lambda: _measure(test_file, files, kept, wanted), 600)
        content = json.loads(kept.read_text()) if kept.exists() else {}
        if content.get("digest") != wanted:
            raise SystemExit(f"{test_file} could not be run without mutants (status {status})")
    return {test: TestRun(seconds, frozenset(functions)) for test, (seconds, functions) in content["tests"].items()}


def _measure(test_file: str, files: Sequence[str], kept: Path, digest: str) -> int:
    measured = coverage.Coverage(
        data_file=None, include=[str(Path(file).absolute()) for file in files], config_file=False
    )
    contexts = _Contexts(measured)
    measured.start()
    pytest.main([test_file, *(argument for argument in _ARGUMENTS if argument != "-x")], plugins=[contexts])
    measured.stop()
    data = measured.get_data()
    functions: dict[str, set[str]] = {}
    for file in files:
        of_line = _function_of_lines(Path(file).read_text())
        for line, tests in data.contexts_by_lineno(str(Path(file).absolute())).items():
            for test in tests:
                if test and line in of_line:
                    functions.setdefault(test, set()).add(f"{file}:{of_line[line]}")
    tests = {
        test: (contexts.seconds[test], sorted(ran)) for test, ran in functions.items() if test not in contexts.failed
    }
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps({"digest": digest, "tests": tests}))
    return 0


def _function_of_lines(source: str) -> dict[int, str]:
    """The function or method at the outside of each line of a body."""
    of_line: dict[int, str] = {}

    def look(statements: Sequence[ast.stmt], prefix: str) -> None:
        for statement in statements:
            if isinstance(statement, ast.ClassDef):
                look(statement.body, f"{prefix}{statement.name}.")
            elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                first, last = statement.body[0].lineno, statement.end_lineno or statement.lineno
                of_line.update(dict.fromkeys(range(first, last + 1), f"{prefix}{statement.name}"))

    look(ast.parse(source).body, "")
    return of_line


def tests_for(file: str, scope: str, tests: Mapping[str, TestRun]) -> list[str]:
    """The tests that run the function ``scope`` of ``file`` (of a class or a file, anything in it), the fastest first."""
    names = scope.split(".")
    for length in range(len(names), -1, -1):
        inside = f"{file}:{'.'.join(names[:length])}"
        chosen = [
            test
            for test, ran in tests.items()
            if any(
                function == inside or function.startswith(f"{inside}." if length else inside)
                for function in ran.functions
            )
        ]
        if chosen:
            break
    else:
        return []
    chosen.sort(key=lambda test: tests[test].seconds)
    spent, first = 0.0, []
    for test in chosen:
        spent += tests[test].seconds
        if spent > _LONGEST_S:
            break
        first.append(test)
    return first


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


class _Chosen:
    """Runs the chosen tests only, in their order."""

    def __init__(self, tests: Sequence[str]) -> None:
        self.order = {test: number for number, test in enumerate(tests)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted(
            (item for item in items if item.nodeid in self.order), key=lambda item: self.order[item.nodeid]
        )


def start(path: str, text: str, tests: Sequence[str]) -> int:
    """Starts ``tests`` with the module at ``path`` read as ``text``, and returns the process. It ends with 0 if all pass."""

    def run() -> int:
        sys.meta_path.insert(0, _Mutated(path, text))  # type: ignore[arg-type]
        files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
        return int(pytest.main([*files, *_ARGUMENTS], plugins=[_Chosen(tests)]))

    return _fork(run)


def limit_s(tests: Sequence[str], runs: Mapping[str, TestRun]) -> float:
    """The time after which a mutant has hung."""
    return 15 + _SLOWER * sum(runs[test].seconds for test in tests)


def _fork(function: Callable[[], int]) -> int:
    process = os.fork()
    if process:
        return process
    status = 70
    try:
        os.setpgid(0, 0)
        os.nice(10)
        log = os.open(f"{tempfile.gettempdir()}/lgov-mutant.{os.getpid() % 8}.log", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        for descriptor in (0, 1, 2):
            os.dup2(log, descriptor)
        resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
        status = function()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _forked(function: Callable[[], int], seconds: float) -> int:
    process, until = _fork(function), time.monotonic() + seconds
    while True:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            stop(process)
        time.sleep(0.05)


def stop(process: int) -> None:
    """Ends a process that `start` made, with those that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)
