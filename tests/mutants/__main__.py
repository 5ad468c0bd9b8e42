"""Mutates the files between a model's reply and the permitted act, and says which change no test notices.

    python -m tests.mutants --minutes 30            goes on where the last call ended; what has changed since begins again
    python -m tests.mutants --minutes 5 flow.py     only files whose path ends so
    python -m tests.mutants --report                runs nothing

Ends with 1 if a mutant survives that ``equivalent.toml`` does not explain, or an explanation there is for no survivor.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from itertools import accumulate
from pathlib import Path
from types import CodeType
from typing import Any

from tests.governor.act_path import ACT_PATH
from tests.mutants.mutations import Mutant, mutants_of
from tests.mutants.running import (
    Items,
    LiveFunctions,
    Measure,
    TestRun,
    Trial,
    body_lines,
    by_import,
    collect,
    foreign_modules,
    forked,
    functions_of,
    in_place,
    load,
    run_trials,
)
from tests.mutants.typed import refused

#: In the order in which they are mutated: what decides first.
FILES = tuple(ACT_PATH)
TESTS = (
    "tests/core/test_flow.py",
    *sorted(map(str, Path("tests/governor").glob("test_*.py"))),
    "tests/golden/test_decisions.py",
    "tests/contract/test_judged_is_executed.py",
    "tests/instrumentation/test_governed_calls.py",
    "tests/instrumentation/test_live_span.py",
    "tests/types/test_types.py",
    *(
        f"tests/policies/test_{name}.py"
        for name in ("policies_tool", "policies_set", "policies_permits", "plugin_policies")
    ),
    *sorted(map(str, Path("tests/audit").glob("test_*.py"))),
    *sorted(map(str, Path("tests/autogen").glob("test_*.py"))),
)
STATUSES = ("killed", "refused", "equivalent", "survived", "not run")
CACHE = Path(".mutants")
RESULTS = CACHE / "results.json"
PAGE = Path("docs/concepts/threat-model.md")
_BEGIN, _END = "<!-- mutants: python -m tests.mutants --report --write -->\n", "<!-- the end of the mutants -->\n"
EQUIVALENT = Path(__file__).with_name("equivalent.toml")
#: What the tests of a mutant may take together, in seconds of the run without one.
_LONGEST_S = 10.0
#: One run in so many is of the same tests without a mutant.
_CONTROLLED = 25


@dataclass(frozen=True, slots=True)
class Result:
    """``status`` is killed (by ``test``), refused (by the type checker) or survived; ``tests`` is the digest of all tests."""

    status: str
    tests: str
    test: str


def explained() -> set[tuple[str, str, str, str]]:
    """The mutants that ``equivalent.toml`` lists."""
    entries = tomllib.loads(EQUIVALENT.read_text()).get("mutant", [])
    for entry in entries:
        assert entry["reason"].strip(), f"an entry without a reason: {entry}"
    return {(entry["file"], entry["scope"], entry["from"], entry["to"]) for entry in entries}


def _described(mutant: Mutant, status: str = "survived") -> str:
    return f"{status}  {mutant.file} {mutant.scope}\n  - {mutant.removed}\n  + {mutant.added}"


def _identity(mutant: Mutant) -> tuple[str, str, str, str]:
    return mutant.file, mutant.scope, mutant.removed, mutant.added


@dataclass(slots=True)
class Kept:
    """What earlier calls have found out, in ``.mutants/results.json``.

    ``unreliable`` are tests that have failed without a mutant: they kill none. ``controls`` counts the runs without one.
    """

    results: dict[str, Result] = field(default_factory=dict)
    unreliable: list[str] = field(default_factory=list)
    controls: int = 0

    @classmethod
    def read(cls) -> Kept:
        """What is there."""
        if not RESULTS.exists():
            return cls()
        kept = json.loads(RESULTS.read_text())
        results = {key: Result(**value) for key, value in kept["results"].items()}
        return cls(results, kept["unreliable"], kept["controls"])

    def write(self) -> None:
        """Replaces what is there."""
        CACHE.mkdir(exist_ok=True)
        new = RESULTS.with_suffix(".new")
        new.write_text(json.dumps(asdict(self)))
        new.replace(RESULTS)

    def ran_without_mutant(self, trial: Trial) -> None:
        """Notes how a run without a mutant has ended."""
        self.controls += 1
        if trial.ended != "survived":
            print(f"unreliable  {trial.test}: {trial.ended} what is no mutant", flush=True)
            self.unreliable.append(trial.test)
            self.results = {key: one for key, one in self.results.items() if one.test != trial.test}


# ---------------------------------------------------------------------- which tests run which lines


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """The tests that run the files, the lines that run while tests are collected, and the modules that the tests load."""

    tests: Mapping[str, TestRun]
    collected: Mapping[str, frozenset[int]]
    modules: frozenset[str]

    @classmethod
    def read(cls, test_files: Iterable[str] = TESTS) -> Measured:
        """What is kept. Raises `LookupError` where it is missing or of other files."""
        tests: dict[str, TestRun] = {}
        modules: set[str] = set()
        for test_file in test_files:
            of_tests, loaded = _kept(test_file)
            modules.update(loaded)
            for test, (seconds, of_file) in of_tests.items():
                tests[test] = TestRun(seconds, {file: frozenset(lines) for file, lines in of_file.items()})
        collected = {file: frozenset(lines) for file, lines in _kept("collected").items()}
        return cls(tests, collected, frozenset(modules))

    def chosen(self, mutant: Mutant, kills: Mapping[str, int], unreliable: Sequence[str]) -> dict[str, TestRun]:
        """The tests that may notice the mutant: those with ``kills`` of others and the fastest, then those about its file."""
        expression, statement, outermost = mutant.lines
        whole_file = range(10**6)
        for lines in (expression, statement) if mutant.function else (outermost, whole_file):
            wanted = frozenset(lines)
            tests = [
                test
                for test, run in self.tests.items()
                if test not in unreliable and not wanted.isdisjoint(run.lines.get(mutant.file, ()))
            ]
            if tests:
                break
        else:
            return {}
        about = _about(self, mutant.file)
        fastest = sorted(tests, key=lambda test: self.tests[test].seconds / (1 + 10 * kills.get(test, 0)))
        closest = sorted(tests, key=lambda test: self.tests[test].seconds / about[test])
        chosen = dict.fromkeys([*self._first(fastest), *self._first(closest)])
        return {test: self.tests[test] for test in chosen}

    def ran_while_collected(self, mutant: Mutant) -> bool:
        """Returns whether the mutant's function ran while tests were collected."""
        functions = functions_of(mutant.file, Path(mutant.file).read_text(), mutant.function)
        return any(not self.collected[mutant.file].isdisjoint(body_lines(function)) for function in functions)

    def _first(self, tests: list[str]) -> list[str]:
        """As many as begin in half of the time that a mutant's tests may take."""
        began = accumulate((self.tests[test].seconds for test in tests), initial=0.0)
        return [test for test, spent in zip(tests, began, strict=False) if spent <= _LONGEST_S / 2]


@cache
def _about(measured: Measured, file: str) -> dict[str, float]:
    """How much each test is about ``file``: its lines there, of which one that few tests run counts more."""
    runs = Counter(line for run in measured.tests.values() for line in run.lines.get(file, ()))
    return {test: sum(1 / runs[line] for line in run.lines.get(file, ())) for test, run in measured.tests.items()}


def _kept(name: str) -> Any:
    path = _kept_at(name)
    content = json.loads(path.read_text()) if path.exists() else {}
    if content.get("digest") != _digest(name):
        raise LookupError(name)
    return content["kept"]


def _keep(name: str, value: object) -> None:
    _kept_at(name).parent.mkdir(exist_ok=True)
    _kept_at(name).write_text(json.dumps({"digest": _digest(name), "kept": value}))


def _kept_at(name: str) -> Path:
    return CACHE / f"{name.replace('/', '.')}.json"


@cache
def _digest(name: str) -> str:
    files = [*FILES, *(TESTS if name == "collected" else [name])]
    return hashlib.sha256(b"\0".join(Path(file).read_bytes() for file in files)).hexdigest()


def _measure(measure: Measure, items: Items) -> None:
    """Runs the tests without mutants, where nothing is kept of them."""

    def of_file(test_file: str) -> Trial:
        tests = [item for test, item in items.items() if test.startswith(f"{test_file}::")]

        def run(begins: Callable[[str], object]) -> int:
            _keep(test_file, (measure.tests(tests, begins), foreign_modules()))
            return 0

        return Trial(test_file, run, {})

    for trial in run_trials(of_file(test_file) for test_file in TESTS if not _is_kept(test_file)):
        if trial.ended != "survived":
            raise SystemExit(f"{trial.subject} could not be run without mutants: {trial.test}")
    _keep("collected", measure.collected())


def _is_kept(name: str) -> bool:
    try:
        _kept(name)
    except LookupError:
        return False
    return True


# ---------------------------------------------------------------------- running


def run(files: list[str], minutes: float, *, all_by_import: bool) -> None:
    """Runs what has no result yet, and the survivors of other tests, for at most ``minutes``.

    With ``all_by_import`` also what could be put into the live function is read by import.
    """
    until = time.monotonic() + minutes * 60  # the measure does not count
    for name in ("collected", *TESTS):
        _digest(name)  # of what the fork collects, whatever is changed meanwhile

    def with_tests() -> None:
        measure = None if all(map(_is_kept, ("collected", *TESTS))) else Measure(FILES)

        def work(items: Items) -> None:
            nonlocal until
            if measure:
                began = time.monotonic()
                _measure(measure, items)
                until += time.monotonic() - began
            measured = Measured.read()
            load(measured.modules)
            live = LiveFunctions(FILES)
            print(f"{len(measured.tests)} of {len(items)} tests run these files", flush=True)

            def way(mutant: Mutant, source: str, text: str, tests: Iterable[str]) -> Any:
                codes = None if all_by_import else _codes(mutant, source, text)
                return codes and in_place(live, *codes, [items[test] for test in tests])

            _run(files, measured, way, until, is_in_place=True)

        if status := collect(TESTS, work):
            raise SystemExit(f"the tests could not be collected ({status})")

    if forked(with_tests):
        raise SystemExit(1)
    measured = Measured.read()
    load(measured.modules)

    def way(mutant: Mutant, source: str, text: str, tests: Iterable[str]) -> Any:
        if not all_by_import and _codes(mutant, source, text) and not measured.ran_while_collected(mutant):
            return None
        return by_import(mutant.file, text, list(tests))

    _run(files, measured, way, until)
    _ask_type_checker(files)


def _ask_type_checker(files: list[str]) -> None:
    """Asks the type checker about what survives the tests and is not explained."""
    kept, equivalent = Kept.read(), explained()
    texts: dict[str, tuple[str, str]] = {}
    for file in files:
        source = Path(file).read_text()
        module, mutants = mutants_of(file, source)
        for mutant in mutants:
            result = kept.results.get(mutant.key)
            if result is not None and result.status == "survived" and _identity(mutant) not in equivalent:
                texts[mutant.key] = source, mutant.source(module)
    for key in refused(texts, CACHE / "types"):
        kept.results[key] = Result("refused", "", "the type checker")
    kept.write()


def _codes(mutant: Mutant, source: str, text: str) -> tuple[CodeType, CodeType] | None:
    """The code of the mutant's function, without and with the change; None where it cannot be put into the live function."""
    if not mutant.function:
        return None
    olds, news = (functions_of(mutant.file, version, mutant.function) for version in (source, text))
    for old, new in zip(olds, news, strict=True):
        if mutant.lines[0].start in range(old.co_firstlineno, max(body_lines(old), default=0) + 1):
            return None if old.co_freevars != new.co_freevars else (old, new)
    raise LookupError(f"{mutant.function} is not in {mutant.file}")


def _run(
    files: list[str], measured: Measured, way: Callable[..., Any], until: float, *, is_in_place: bool = False
) -> None:
    """Runs the mutants for which there is this way.

    A mutant put in place comes too late for what ran while tests were collected: that it survives there says nothing.
    """
    kept, tests_digest, counts, last = Kept.read(), _digest("collected"), Counter[str](), time.monotonic()
    kills: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)

    def trials() -> Iterator[Trial]:
        number = 0
        for mutant, source, text in _pending(files, kept.results, tests_digest):
            if time.monotonic() > until:
                return
            tests = measured.chosen(mutant, kills[mutant.file, mutant.function], kept.unreliable)
            function = way(mutant, source, text, tests)
            if function is None:
                continue
            yield Trial(mutant, function, tests)
            number += 1
            if number % _CONTROLLED == 1:
                yield Trial(None, way(mutant, source, source, tests), tests)

    try:
        for trial in run_trials(trials()):
            if trial.subject is None:
                kept.ran_without_mutant(trial)
                continue
            if is_in_place and trial.ended == "survived" and measured.ran_while_collected(trial.subject):
                trial.ended = "undecided"
            counts[trial.ended] += 1
            if trial.ended == "killed":
                kills[trial.subject.file, trial.subject.function][trial.test] += 1
            if trial.ended in ("killed", "survived"):
                kept.results[trial.subject.key] = Result(trial.ended, tests_digest, trial.test)
            if trial.ended in ("survived", "broken"):
                print(_described(trial.subject, trial.ended), flush=True)
            if time.monotonic() - last > 20:
                last = time.monotonic()
                kept.write()
                print(f"{counts}, {(until - last) / 60:.0f} min left", flush=True)
    finally:
        kept.write()


def _pending(files: list[str], results: Mapping[str, Result], tests: str) -> Iterator[tuple[Mutant, str, str]]:
    """The mutants without a result, with the file as it is and as the mutant has it."""
    equivalent = explained()
    for file in files:
        source = Path(file).read_text()
        module, mutants = mutants_of(file, source)
        for mutant in mutants:
            result = results.get(mutant.key)
            again = result is not None and result.status == "survived" and result.tests != tests
            if result is None or (again and _identity(mutant) not in equivalent):
                yield mutant, source, mutant.source(module)


def report(files: list[str], *, is_written: bool = False) -> int:
    """Prints the table and the survivors that nothing explains; returns 1 if there are any, or explanations too many.

    With ``is_written`` the table is put on the page, too.
    """
    results, equivalent = Kept.read().results, explained()
    unused = {entry for entry in equivalent if entry[0] in files}
    open_mutants: list[Mutant] = []
    rows: list[tuple[str, Counter[str]]] = []
    for file in files:
        counts: Counter[str] = Counter()
        for mutant in mutants_of(file, Path(file).read_text())[1]:
            result = results.get(mutant.key)
            status = "not run" if result is None else result.status
            if status == "survived" and _identity(mutant) in equivalent:
                status = "equivalent"
            if status in ("equivalent", "not run"):
                unused.discard(_identity(mutant))
            if status == "survived":
                open_mutants.append(mutant)
            counts[status] += 1
        rows.append((file, counts))
    table = _table(rows)
    print(table)
    if is_written:
        before, _, rest = PAGE.read_text().partition(_BEGIN)
        PAGE.write_text(f"{before}{_BEGIN}\n{table}\n{_END}{rest.partition(_END)[2]}")
    for mutant in open_mutants:
        print(f"\n{_described(mutant)}")
    for entry in sorted(unused):
        print(f"\n{EQUIVALENT.name} explains what does not survive: {entry}")
    return int(bool(open_mutants or unused))


def _table(rows: list[tuple[str, Counter[str]]]) -> str:
    total = sum((counts for _, counts in rows), Counter[str]())
    lines = [f"| file | mutants | {' | '.join(STATUSES)} |", "|---" * (len(STATUSES) + 2) + "|"]
    for name, counts in [*((f"`{file}`", counts) for file, counts in rows), ("all", total)]:
        lines.append(f"| {name} | {counts.total():,} | {' | '.join(f'{counts[status]:,}' for status in STATUSES)} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("files", nargs="*", help="only files whose path ends with one of these")
    parser.add_argument("--minutes", type=float, default=30.0, help="how long new mutants are started")
    parser.add_argument("--report", action="store_true", help="run nothing")
    parser.add_argument(
        "--import", action="store_true", dest="all_by_import", help="put no mutant into a live function"
    )
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE}")
    arguments = parser.parse_args()
    files = [file for file in FILES if not arguments.files or file.endswith(tuple(arguments.files))]
    if not arguments.report:
        run(files, arguments.minutes, all_by_import=arguments.all_by_import)
    return report(files, is_written=arguments.write)


if __name__ == "__main__":
    raise SystemExit(main())
