"""Mutates the files between a model's reply and the permitted act, and says which change no test notices.

    python -m tests.mutants --minutes 30            goes on where the last call ended; what has changed since begins again
    python -m tests.mutants --minutes 5 flow.py     only files whose path ends so
    python -m tests.mutants --report                runs nothing

Ends with 1 if a mutant survives that ``equivalent.toml`` does not explain, or an explanation there is for no survivor.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.governor.act_path import ACT_PATH
from tests.mutants.mutations import Mutant, mutants_of
from tests.mutants.running import TestRun, digest_of, limit_s, load_slow_imports, measure, start, stop, tests_for

#: In the order in which they are mutated: what decides first.
FILES = tuple(ACT_PATH)
TESTS = (
    "tests/core/test_flow.py",
    *sorted(str(path) for path in Path("tests/governor").glob("test_*.py")),
    "tests/golden/test_decisions.py",
    "tests/instrumentation/test_governed_calls.py",
    "tests/instrumentation/test_live_span.py",
    "tests/types/test_types.py",
    "tests/policies/test_policies_tool.py",
    "tests/policies/test_policies_set.py",
    "tests/policies/test_policies_permits.py",
    *(f"tests/audit/test_audit{name}.py" for name in ("", "_entry", "_attacks", "_writers", "_erasure", "_proof")),
    "tests/autogen/test_autogen_tool_calls.py",
    "tests/autogen/test_autogen_components.py",
)
CACHE = Path(".mutants")
RESULTS = CACHE / "results.json"
EQUIVALENT = Path(__file__).with_name("equivalent.toml")
_AT_ONCE = 2


@dataclass(frozen=True, slots=True)
class Result:
    """``status`` is killed or survived; ``tests`` is the digest of the tests that a survivor was run with."""

    status: str
    tests: str


def explained() -> set[tuple[str, str, str, str]]:
    """The mutants that ``equivalent.toml`` lists."""
    entries = tomllib.loads(EQUIVALENT.read_text()).get("mutant", [])
    for entry in entries:
        assert entry["reason"].strip(), f"an entry without a reason: {entry}"
    return {(entry["file"], entry["scope"], entry["from"], entry["to"]) for entry in entries}


def _described(mutant: Mutant) -> str:
    return f"survived  {mutant.file} {mutant.scope}\n  - {mutant.removed}\n  + {mutant.added}"


def _identity(mutant: Mutant) -> tuple[str, str, str, str]:
    return mutant.file, mutant.scope, mutant.removed, mutant.added


def _read() -> dict[str, Result]:
    return {key: Result(**value) for key, value in json.loads(RESULTS.read_text()).items()} if RESULTS.exists() else {}


def _write(results: Mapping[str, Result]) -> None:
    CACHE.mkdir(exist_ok=True)
    new = RESULTS.with_suffix(".new")
    new.write_text(json.dumps({key: {"status": one.status, "tests": one.tests} for key, one in results.items()}))
    new.replace(RESULTS)


def run(files: list[str], minutes: float) -> None:
    """Runs what has no result yet, and the survivors of other tests, for at most ``minutes``."""
    load_slow_imports()
    runs: dict[str, TestRun] = {}
    for test_file in TESTS:
        runs |= measure(test_file, FILES, CACHE)
    print(f"{len(runs)} tests run these files", flush=True)
    until = time.monotonic() + minutes * 60
    tests = digest_of(TESTS)
    results, running = _read(), dict[int, tuple[Mutant, float]]()
    pending = _pending(files, results, tests)
    last, counts = time.monotonic(), Counter[str]()
    exhausted = False
    try:
        while running or not exhausted:
            while len(running) < _AT_ONCE and not exhausted:
                mutant, text = next(pending, (None, ""))
                if mutant is None or time.monotonic() > until:
                    exhausted = True
                    break
                chosen = tests_for(mutant.file, mutant.scope, runs)
                if not chosen:
                    results[mutant.key] = Result("survived", tests)
                    continue
                running[start(mutant.file, text, chosen)] = mutant, time.monotonic() + limit_s(chosen, runs)
            time.sleep(0.02)
            for process, (mutant, limit) in list(running.items()):
                ended, status = os.waitpid(process, os.WNOHANG)
                if not ended and time.monotonic() > limit:
                    stop(process)
                if ended:
                    stop(process)  # what it started
                    del running[process]
                    outcome = (
                        "survived" if os.waitstatus_to_exitcode(status) in (0, 5) else "killed"
                    )  # 5: no test was run
                    results[mutant.key] = Result(outcome, tests)
                    counts[outcome] += 1
                    if outcome == "survived":
                        print(_described(mutant), flush=True)
            if time.monotonic() - last > 20:
                last = time.monotonic()
                _write(results)
                left = f"{(until - last) / 60:.0f} min left"
                print(f"{counts['killed']} killed, {counts['survived']} survived, {left}", flush=True)
    finally:
        for process in running:
            stop(process)
        _write(results)


def _pending(files: list[str], results: Mapping[str, Result], tests: str) -> Iterator[tuple[Mutant, str]]:
    equivalent = explained()
    for file in files:
        module, mutants = mutants_of(file, Path(file).read_text())
        for mutant in mutants:
            result = results.get(mutant.key)
            again = result is not None and result.status == "survived" and result.tests != tests
            if result is None or (again and _identity(mutant) not in equivalent):
                yield mutant, mutant.source(module)


def report(files: list[str]) -> int:
    """Prints the table and the survivors that nothing explains; returns 1 if there are any."""
    results, equivalent = _read(), explained()
    unused = {entry for entry in equivalent if entry[0] in files}
    open_mutants: list[Mutant] = []
    total: Counter[str] = Counter()
    print(f"{'file':44} {'mutants':>8} {'killed':>7} {'equivalent':>11} {'survived':>9} {'not run':>8}")
    for file in files:
        counts: Counter[str] = Counter()
        for mutant in mutants_of(file, Path(file).read_text())[1]:
            result = results.get(mutant.key)
            status = "not run" if result is None else result.status
            if status == "survived" and _identity(mutant) in equivalent:
                status = "equivalent"
            if status != "killed":
                unused.discard(_identity(mutant))
            if status == "survived":
                open_mutants.append(mutant)
            counts[status] += 1
        total += counts
        _print_row(file, counts)
    _print_row("all", total)
    for mutant in open_mutants:
        print(f"\n{_described(mutant)}")
    for entry in sorted(unused):
        print(f"\n{EQUIVALENT.name} explains what does not survive: {entry}")
    return int(bool(open_mutants or unused))


def _print_row(name: str, counts: Mapping[str, Any]) -> None:
    columns = [sum(counts.values()), *(counts[status] for status in ("killed", "equivalent", "survived", "not run"))]
    print(f"{name:44} {columns[0]:8} {columns[1]:7} {columns[2]:11} {columns[3]:9} {columns[4]:8}")


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("files", nargs="*", help="only files whose path ends with one of these")
    parser.add_argument("--minutes", type=float, default=30.0, help="how long new mutants are started")
    parser.add_argument("--report", action="store_true", help="run nothing")
    arguments = parser.parse_args()
    files = [file for file in FILES if not arguments.files or file.endswith(tuple(arguments.files))]
    if not arguments.report:
        run(files, arguments.minutes)
    return report(files)


if __name__ == "__main__":
    raise SystemExit(main())
