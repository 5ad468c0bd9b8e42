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
import sys
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from types import CodeType

from tests.governor.act_path import ACT_PATH
from tests.mutants.mutations import Mutant, mutants_of
from tests.mutants.running import (
    Items,
    LiveFunctions,
    TestRun,
    Trial,
    Work,
    body_lines,
    by_import,
    collect,
    forked,
    functions_of,
    in_place,
    load,
    measured,
    run_trials,
)
from tests.mutants.typed import refused

#: Fast tests, so that those of a mutant take a second or two together.
TESTS = (
    "tests/core/test_flow.py",
    *sorted(map(str, Path("tests/governor").glob("test_*.py"))),
    "tests/instrumentation/test_governed_calls.py",
    "tests/instrumentation/test_live_span.py",
    "tests/instrumentation/test_tool_arguments.py",
    "tests/instrumentation/test_tool_call.py",
    "tests/types/test_actions.py",
    "tests/types/test_types.py",
    *(f"tests/policies/test_{name}.py" for name in ("policies_tool", "policies_set", "plugin_policies")),
    *(f"tests/audit/test_audit{name}.py" for name in ("", "_attacks", "_entry", "_forged", "_keys", "_record_file")),
    *(
        f"tests/autogen/test_autogen_{name}.py"
        for name in (
            "components",
            "endings",
            "governed_calls",
            "instrumentor",
            "internals",
            "tool_calls",
            "tool_models",
        )
    ),
)
STATUSES = ("killed", "refused", "equivalent", "survived", "not run")
PAGE, SUMMARY = Path("ARCHITECTURE.md"), Path("docs/concepts/threat-model.md")
_BEGIN, _END = "<!-- mutants: python -m tests.mutants --report --write -->\n", "<!-- the end of the mutants -->\n"
_IN_WORDS = {
    "killed": "fail a test",
    "refused": "fail the type checker",
    "equivalent": "change nothing",
    "survived": "are noticed by nothing",
    "not run": "were not tried",
}
#: The tests of a mutant are started for so many seconds of the run without one.
_LONGEST_S = 20.0
#: Loading a test file takes about so many seconds, and so many are loaded for a mutant that is read by import.
_LOADING_S, _LOADED = 2.0, 3
#: One run in so many is of the same tests without a mutant.
_CONTROLLED = 25


@dataclass(frozen=True)
class Subject:
    """The files that are mutated, the tests that may notice, and where results are kept and explanations are."""

    files: tuple[str, ...]
    tests: tuple[str, ...]
    equivalent: Path
    cache: Path = Path(".mutants")

    @cached_property
    def digest(self) -> str:
        """That of all files and tests, as they are when this is first asked."""
        return _digest((*self.files, *self.tests))

    def explained(self) -> set[tuple[str, str, str, str]]:
        """The mutants that ``equivalent`` lists."""
        entries = tomllib.loads(self.equivalent.read_text()).get("mutant", [])
        for entry in entries:
            assert entry["reason"].strip(), f"an entry without a reason: {entry}"
        return {(entry["file"], entry["scope"], entry["from"], entry["to"]) for entry in entries}

    def kept(self) -> Kept:
        """What earlier calls have found out."""
        path = self.cache / "results.json"
        if not path.exists():
            return Kept(path)
        kept = json.loads(path.read_text())
        return Kept(path, {key: Result(**result) for key, result in kept["results"].items()}, kept["unreliable"])


@dataclass(frozen=True, slots=True)
class Result:
    """``status`` is killed (by ``test``), refused (by the type checker) or survived; ``tests`` is the digest of all tests."""

    status: str
    tests: str
    test: str


@dataclass(slots=True)
class Kept:
    """The results so far, by the mutants' keys. ``unreliable`` are tests that have failed without a mutant: they kill none."""

    path: Path
    results: dict[str, Result] = field(default_factory=dict)
    unreliable: list[str] = field(default_factory=list)

    def write(self) -> None:
        """Replaces what is there."""
        self.path.parent.mkdir(exist_ok=True)
        new = self.path.with_suffix(".new")
        results = {key: asdict(result) for key, result in self.results.items()}
        new.write_text(json.dumps({"results": results, "unreliable": self.unreliable}))
        new.replace(self.path)

    def control(self, trial: Trial) -> None:
        """Notes how a run without a mutant has ended."""
        if trial.ended != "survived":
            print(f"unreliable  {trial.test}: {trial.ended} what is no mutant", flush=True)
            self.unreliable.append(trial.test)
            self.results = {key: result for key, result in self.results.items() if result.test != trial.test}


def _digest(files: Iterable[str]) -> str:
    return hashlib.sha256(b"\0".join(Path(file).read_bytes() for file in files)).hexdigest()


def _described(mutant: Mutant, status: str = "survived") -> str:
    return f"{status}  {mutant.file} {mutant.scope}\n  - {mutant.removed}\n  + {mutant.added}"


# ---------------------------------------------------------------------- which tests run which lines


def _is_ours(module: object) -> bool:
    file = getattr(module, "__file__", None) or ""
    return Path(file).is_relative_to(Path.cwd()) and "site-packages" not in file


class Measured:
    """The tests that run the files, with their lines, and the modules that they load besides ours."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self.tests: dict[str, TestRun] = {}
        self.modules: set[str] = set()
        for test_file in filter(self.is_kept, subject.tests):
            kept = json.loads(self._kept_at(test_file).read_text())
            self.modules.update(kept["modules"])
            for test, (seconds, lines) in kept["tests"].items():
                self.tests[test] = TestRun(seconds, {file: frozenset(numbers) for file, numbers in lines.items()})
        self._weights: dict[str, dict[str, float]] = {}

    def is_kept(self, test_file: str) -> bool:
        """Returns whether ``test_file`` was measured, as it and the mutated files are now."""
        path = self._kept_at(test_file)
        return path.exists() and json.loads(path.read_text())["digest"] == self._digest(test_file)

    def measure(self, items: Items) -> None:
        """Runs the tests without mutants, where nothing is kept of them."""

        def trial(test_file: str) -> Trial:
            tests = [item for test, item in items.items() if test.startswith(f"{test_file}::")]

            def work(begins: Callable[[str], object]) -> int:
                of_tests = measured(self._subject.files, tests, begins)
                modules = sorted(name for name, module in sys.modules.items() if not _is_ours(module))
                kept = {"digest": self._digest(test_file), "tests": of_tests, "modules": modules}
                self._kept_at(test_file).write_text(json.dumps(kept))
                return 0

            return Trial(test_file, work, {})

        self._subject.cache.mkdir(exist_ok=True)
        for ended in run_trials(trial(test_file) for test_file in self._subject.tests if not self.is_kept(test_file)):
            if ended.ended != "survived":
                raise SystemExit(f"{ended.subject} could not be run without mutants: {ended.test}")

    def _kept_at(self, test_file: str) -> Path:
        return self._subject.cache / f"{test_file.replace('/', '.')}.json"

    def _digest(self, test_file: str) -> str:
        return _digest((*self._subject.files, test_file))

    def run_by(self, mutant: Mutant) -> list[str]:
        """The tests that run the changed expression, or at least the statement around it."""
        for lines in mutant.lines[:2]:
            wanted = frozenset(lines)
            tests = [test for test, run in self.tests.items() if not wanted.isdisjoint(run.lines.get(mutant.file, ()))]
            if tests:
                return tests
        return []

    def chosen(self, mutant: Mutant, *, in_place: bool, kills: Mapping[str, int], without: Iterable[str]) -> list[str]:
        """The tests that may notice the mutant, the likeliest and fastest first.

        Likely are those with ``kills`` of others there, and those that run little but this file, and in it what few others run.
        """
        about = self._about(mutant.file)
        if not in_place:
            return self._of_the_closest_files(about, without)
        tests = self.run_by(mutant)
        cost = {
            test: (self.tests[test].seconds + 0.005) / (1 + kills.get(test, 0)) for test in tests if test not in without
        }
        orders: list[Callable[[str], float]] = [
            lambda test: cost[test] / self._share(test, mutant.file),
            lambda test: cost[test] / about[test],
            lambda test: cost[test],
        ]
        return list(
            dict.fromkeys(test for order in orders for test in self._first(sorted(cost, key=order), len(orders)))
        )

    def _of_the_closest_files(self, about: Mapping[str, float], without: Iterable[str]) -> list[str]:
        """The tests of the files that say most of a mutated file in the time that they take: each is loaded anew."""
        weights: defaultdict[str, list[float]] = defaultdict(list)
        seconds: defaultdict[str, float] = defaultdict(lambda: _LOADING_S)
        for test, weight in about.items():
            test_file = test.partition("::")[0]
            weights[test_file].append(weight)
            seconds[test_file] += self.tests[test].seconds
        files = sorted(weights, key=lambda file: seconds[file] / fmean(weights[file]))[:_LOADED]
        # All their tests: one that only reads a default runs no line of the file that has it.
        tests = sorted(self.tests, key=lambda test: (self.tests[test].seconds + 0.005) / about.get(test, 1e-3))
        return [test for file in files for test in tests if test.startswith(f"{file}::") and test not in without]

    def _about(self, file: str) -> dict[str, float]:
        if file not in self._weights:
            runs = Counter(line for run in self.tests.values() for line in run.lines.get(file, ()))
            self._weights[file] = {
                test: sum(1 / runs[line] for line in run.lines[file]) * self._share(test, file)
                for test, run in self.tests.items()
                if file in run.lines
            }
        return self._weights[file]

    def _share(self, test: str, file: str) -> float:
        """How much of what the test runs is of ``file``."""
        lines = self.tests[test].lines
        return len(lines[file]) / sum(map(len, lines.values()))

    def _first(self, tests: list[str], parts: int) -> list[str]:
        """As many as begin in one of ``parts`` of the time that a mutant's tests may take."""
        began = accumulate((self.tests[test].seconds for test in tests), initial=0.0)
        return [test for test, spent in zip(tests, began, strict=False) if spent <= _LONGEST_S / parts]


# ---------------------------------------------------------------------- running


def run(subject: Subject, files: list[str], minutes: float) -> None:
    """Runs what has no result yet, and the survivors of other tests, for at most ``minutes``; measuring does not count."""
    subject.digest  # noqa: B018 - of what the fork collects, whatever is changed meanwhile
    ends = time.monotonic() + minutes * 60

    def with_tests(items: Items) -> None:
        began = time.monotonic()
        Measured(subject).measure(items)
        until = ends + time.monotonic() - began
        tests = Measured(subject)
        load(tests.modules)
        live = LiveFunctions(subject.files)
        print(
            f"{sum(bool(test.lines) for test in tests.tests.values())} of {len(items)} tests run these files",
            flush=True,
        )

        def work(mutant: Mutant, text: str, chosen: list[str]) -> Work:
            return in_place(live, *_codes(mutant, text), [items[test] for test in chosen])

        _run(subject, files, tests, work, until, in_place=True)

    def collected() -> None:
        if status := collect(subject.tests, with_tests):
            raise SystemExit(f"the tests could not be collected ({status})")

    if forked(collected):
        raise SystemExit(1)
    tests = Measured(subject)
    load(tests.modules)

    def work(mutant: Mutant, text: str, chosen: list[str]) -> Work:
        return by_import(mutant.file, text, chosen)

    _run(subject, files, tests, work, ends, in_place=False)
    _ask_type_checker(subject, files)


def _run(
    subject: Subject,
    files: list[str],
    tests: Measured,
    work: Callable[[Mutant, str, list[str]], Work],
    until: float,
    *,
    in_place: bool,
) -> None:
    """Runs the mutants that go into live functions (``in_place``), or the others."""
    kept, counts, last = subject.kept(), Counter[str](), time.monotonic()
    kills: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)

    def trials() -> Iterator[Trial]:
        pending = (mutant for mutant in _pending(subject, files, kept) if _fits_in_place(mutant, tests) is in_place)
        for number, mutant in enumerate(pending):
            if time.monotonic() > until:
                return
            chosen = tests.chosen(
                mutant, in_place=in_place, kills=kills[mutant.file, mutant.function], without=kept.unreliable
            )
            runs = {test: tests.tests[test] for test in chosen}
            yield Trial(mutant, work(mutant, mutant.source(), chosen), runs)
            if number % _CONTROLLED == 0:
                yield Trial(None, work(mutant, Path(mutant.file).read_text(), chosen), runs)

    try:
        for trial in run_trials(trials()):
            if trial.subject is None:
                kept.control(trial)
                continue
            counts[trial.ended] += 1
            if trial.ended == "killed":
                kills[trial.subject.file, trial.subject.function][trial.test] += 1
            if trial.ended in ("killed", "survived"):
                kept.results[trial.subject.key] = Result(trial.ended, subject.digest, trial.test)
            if trial.ended in ("survived", "broken"):
                print(_described(trial.subject, trial.ended), flush=True)
            if time.monotonic() - last > 20:
                last = time.monotonic()
                kept.write()
                print(f"{counts}, {(until - last) / 60:.0f} min left", flush=True)
    finally:
        kept.write()


def _pending(subject: Subject, files: list[str], kept: Kept) -> Iterator[Mutant]:
    """The mutants without a result, then the survivors of other tests."""
    equivalent = subject.explained()
    survivors: list[Mutant] = []
    for file in files:
        for mutant in mutants_of(file, Path(file).read_text()):
            result = kept.results.get(mutant.key)
            if result is None:
                yield mutant
            elif result.status == "survived" and result.tests != subject.digest and mutant.identity not in equivalent:
                survivors.append(mutant)
    yield from survivors


def _fits_in_place(mutant: Mutant, tests: Measured) -> bool:
    """Returns whether the mutant can be put into a function that tests run: not where modules run it while they are loaded."""
    if not mutant.function or not tests.run_by(mutant):
        return False
    old, new = _codes(mutant, mutant.source())
    return old.co_freevars == new.co_freevars


def _codes(mutant: Mutant, text: str) -> tuple[CodeType, CodeType]:
    """The code of the mutant's function as it is, and where its file reads ``text``."""
    versions = (
        functions_of(mutant.file, version, mutant.function) for version in (Path(mutant.file).read_text(), text)
    )
    for old, new in zip(*versions, strict=True):
        if mutant.lines[0].start in range(old.co_firstlineno, max(body_lines(old), default=0) + 1):
            return old, new
    raise LookupError(f"{mutant.function} is not in {mutant.file}")


def _ask_type_checker(subject: Subject, files: list[str]) -> None:
    """Asks the type checker about what survives the tests and is not explained."""
    kept, equivalent = subject.kept(), subject.explained()
    texts: dict[str, tuple[str, str]] = {}
    for file in files:
        source = Path(file).read_text()
        for mutant in mutants_of(file, source):
            result = kept.results.get(mutant.key)
            if result is not None and result.status == "survived" and mutant.identity not in equivalent:
                texts[mutant.key] = source, mutant.source()
    for key in refused(texts, subject.cache / "types"):
        kept.results[key] = Result("refused", "", "the type checker")
    kept.write()


# ---------------------------------------------------------------------- the table


def report(subject: Subject, files: list[str], *, is_written: bool = False) -> int:
    """Prints the table and the survivors that nothing explains; returns 1 if there are any, or explanations too many.

    With ``is_written`` the table is put on the page, too.
    """
    results, equivalent = subject.kept().results, subject.explained()
    unused = {entry for entry in equivalent if entry[0] in files}
    survivors: list[Mutant] = []
    rows: dict[str, Counter[str]] = {}
    for file in files:
        rows[f"`{file}`"] = counts = Counter()
        for mutant in mutants_of(file, Path(file).read_text()):
            result = results.get(mutant.key)
            status = "not run" if result is None else result.status
            if status == "survived" and mutant.identity in equivalent:
                status = "equivalent"
            if status in ("equivalent", "not run"):
                unused.discard(mutant.identity)
            if status == "survived":
                survivors.append(mutant)
            counts[status] += 1
    rows["all"] = sum(rows.values(), Counter[str]())
    lines = [f"| file | mutants | {' | '.join(STATUSES)} |", "|---" * (len(STATUSES) + 2) + "|"]
    for name, counts in rows.items():
        lines.append(f"| {name} | {counts.total():,} | {' | '.join(f'{counts[status]:,}' for status in STATUSES)} |")
    table = "\n".join(lines) + "\n"
    print(table)
    if is_written:
        _put(PAGE, f"\n{table}\n")
        counts = rows["all"]
        figures = ", ".join(f"{counts[status]:,} {words}" for status, words in _IN_WORDS.items())
        _put(SUMMARY, f"Of {counts.total():,} changes {figures}.\n")
    for mutant in survivors:
        print(f"\n{_described(mutant)}")
    for entry in sorted(unused):
        print(f"\n{subject.equivalent.name} explains what does not survive: {entry}")
    return int(bool(survivors or unused))


def _put(page: Path, text: str) -> None:
    before, _, rest = page.read_text().partition(_BEGIN)
    page.write_text(f"{before}{_BEGIN}{text}{_END}{rest.partition(_END)[2]}")


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("files", nargs="*", help="only files whose path ends with one of these")
    parser.add_argument("--minutes", type=float, default=30.0, help="how long new mutants are started")
    parser.add_argument("--report", action="store_true", help="run nothing")
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE}, the sums into {SUMMARY}")
    arguments = parser.parse_args()
    subject = Subject(tuple(ACT_PATH), TESTS, Path(__file__).with_name("equivalent.toml"))
    files = [file for file in subject.files if not arguments.files or file.endswith(tuple(arguments.files))]
    if not arguments.report:
        run(subject, files, arguments.minutes)
    return report(subject, files, is_written=arguments.write)


if __name__ == "__main__":
    raise SystemExit(main())
