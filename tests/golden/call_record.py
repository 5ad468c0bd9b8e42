"""Records what governors decide and show while a program runs, as JSON values that can be compared with ``==``.

As a pytest plug-in (``-p tests.golden.call_record``) it writes one line for each test into the folder that the environment
variable ``LGOV_CALL_RECORD`` names; ``python -m tests.golden.call_record OLD NEW`` compares two such folders.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from lgov_core.governor import Governor, ObservedDecision
from lgov_core.types import Action, Decision, Span

FOLDER_VARIABLE = "LGOV_CALL_RECORD"

#: What differs from run to run and says nothing: times, and the framework's own objects.
_LEFT_OUT = {
    "native", "latency_us", "started_at", "duration_s", "timestamp", "commit_s", "at", "policy_digest", "created", "created_at",
}  # fmt: skip
#: Values that are made anew in each run; each gets a number by its first appearance.
_IDS = re.compile(
    r"(?<![0-9a-zA-Z])(?:(?P<kind>[A-Za-z]{2,20}[-_])?(?:[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{16,64}))"
    r"(?![0-9a-zA-Z])"
)
_PLACES = re.compile(
    r"/tmp/[\w./-]*?pytest-[\w./-]*?/[\w-]+?\d*/(?=[\w.-]*)|127\.0\.0\.1:\d+|localhost:\d+| at 0x[0-9a-f]+"
)


class CallRecord:
    """The events of governors, in their order. Callable from any thread."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self._numbers: dict[str, str] = {}
        self._lock = threading.Lock()

    def add(self, kind: str, *values: Any) -> None:
        """Adds an event of a governor."""
        with self._lock:
            self.events.append([kind, *(self.plain(value) for value in values)])

    def plain(self, value: Any) -> Any:
        """``value`` as JSON, with ids numbered and times left out."""
        if value is None or isinstance(value, bool | int):
            return int(value) if isinstance(value, Enum) else value
        if isinstance(value, str):
            return self._without_ids(str(value))
        if isinstance(value, float):
            return round(value, 6)
        if isinstance(value, Mapping):
            return {
                self._without_ids(str(key)): self.plain(each)
                for key, each in value.items()
                if str(key) not in _LEFT_OUT and (key, each) != ("media", "")  # of a call without pictures and files
            }
        if isinstance(value, Sequence) and not isinstance(value, bytes):
            return [self.plain(each) for each in value]
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            named = {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
            if isinstance(value, Span):
                named["ended_at"] = None if value.ended_at is None else 1
            return {
                key: self.plain(each)
                for key, each in sorted(named.items())
                if key not in _LEFT_OUT and each not in (None, (), "") and each != {}
            }
        return f"<{type(value).__name__}>"

    def _without_ids(self, text: str) -> str:
        def numbered(found: re.Match[str]) -> str:
            kind = found["kind"] or ""
            return self._numbers.setdefault(found[0], f"{kind}#{len(self._numbers) + 1}")

        return _IDS.sub(numbered, _PLACES.sub("<here>", text))


@contextmanager
def recording() -> Iterator[CallRecord]:
    """Records all governors of the process inside the block."""
    record = CallRecord()
    taken, observe, show = Governor._taken, Governor.observe, Governor.record

    def _taken(self: Governor, action: Action, decision: Decision) -> Decision:
        decided = taken(self, action, decision)
        record.add("decided", action, dataclasses.replace(decided, parts=()))
        return decided

    def _observe(self: Governor, event: Any) -> None:
        if not isinstance(event, ObservedDecision):
            record.add(type(event).__name__, event)
        observe(self, event)

    def _record(self: Governor, outcome: Any) -> Any:
        record.add("recorded", outcome)
        return show(self, outcome)

    patched: Any = Governor
    patched._taken, patched.observe, patched.record = _taken, _observe, _record
    try:
        yield record
    finally:
        patched._taken, patched.observe, patched.record = taken, observe, show


# ---------------------------------------------------------------------- the plug-in


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Records what happens in the call of each test."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder:
        return (yield)
    Path(folder).mkdir(parents=True, exist_ok=True)
    with recording() as record:
        try:
            return (yield)
        finally:
            with Path(folder, f"{os.getpid()}.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps([item.nodeid, record.events], sort_keys=True) + "\n")


def read_folder(folder: Path) -> dict[str, Any]:
    """The records of a folder by the name of the test."""
    lines = (line for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines())
    return {name.partition("tests/")[2]: events for name, events in map(json.loads, lines)}


def unordered(events: Any) -> list[str]:
    """The events without their order and without the numbers of ids, for programs with tasks side by side."""
    return sorted(re.sub(r"#\d+", "#", json.dumps(event, sort_keys=True)) for event in events)


def main(old: str, new: str) -> int:
    """Prints the tests whose records differ; the number of them."""
    before, after = read_folder(Path(old)), read_folder(Path(new))
    differ = 0
    for name in sorted(before.keys() & after.keys()):
        if before[name] == after[name]:
            continue
        one, other = unordered(before[name]), unordered(after[name])
        if one == other:
            print(f"order   {name}")
            continue
        differ += 1
        print(f"DIFFERS {name}: {len(one)} and {len(other)} events")
        for line in [f"   - {line[:600]}" for line in one if line not in other][:6]:
            print(line)
        for line in [f"   + {line[:600]}" for line in other if line not in one][:6]:
            print(line)
    print(f"{len(before)} and {len(after)} tests, {len(before.keys() & after.keys())} in both, {differ} differ")
    return differ


if __name__ == "__main__":
    sys.exit(min(main(*sys.argv[1:3]), 1))
