"""The generated parts of docs/reference/frameworks.md: the table of denials, the surfaces, the gaps.

``python -m tests.frameworks_page`` says whether the page is up to date, ``--write`` brings it up to date. The table of
denials is made from the tests that are marked ``cell(framework, mode, shape)``: a cell is supported because a test shows
it. Tests marked ``client(property, …)`` make the table of clients. Surfaces and gaps are what the adapters declare; tests
marked ``surface(framework, point, ability, …)`` and ``gap(framework, name)`` show them.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import defaultdict
from functools import lru_cache
from pathlib import Path
from typing import Any

from lgov_core.commands.doctor import ABILITIES, surface_rows
from lgov_core.instrumentation.framework import MODES, SHAPES, Adapter
from lgov_core.plugins import make_plugin_manager
from lgov_core.process.governed import installed_adapters

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/reference/frameworks.md"
KINDS = ("cell", "surface", "gap", "client")
#: The columns of the table of clients.
PROPERTIES = ("governed", "attributed", "token-exact", "boxed")
FOLDERS = ("clients", "contract", "langchain", "autogen", "openai_agents", "openai", "e2e")


def adapters() -> list[Adapter]:
    """The adapters that ship with lgov."""
    return installed_adapters(make_plugin_manager(third_party=False))


@lru_cache(maxsize=1)
def _all_marks() -> list[list[Any]]:
    """Every mark of every collected test: ``[kind, words, test]``. Collected in a process of its own."""
    command = [sys.executable, "-m", "tests.frameworks_page", "--marks"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"the tests could not be collected: {done.stdout[-3000:]}{done.stderr[-3000:]}")
    return json.loads(next(line for line in done.stdout.splitlines() if line.startswith("[[") or line == "[]"))


def marked(kind: str) -> dict[tuple[str, ...], list[str]]:
    """For each mark of this kind (its words) the tests that bear it."""
    found: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for one, words, test in _all_marks():
        if one == kind:
            found[tuple(words)].append(test)
    return found


def print_marks() -> int:
    """Collects the tests of the adapters and prints their marks as JSON, on a line of its own."""
    import pytest

    class Marks:
        def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
            marks = [
                (kind, words, item.nodeid)
                for item in items
                for kind in KINDS
                for mark in item.iter_markers(kind)
                for words in _words(mark, item)
            ]
            print("\n" + json.dumps(marks))

    def _words(mark: pytest.Mark, item: pytest.Item) -> list[tuple[str, ...]]:
        if mark.name != "client":
            return [mark.args]
        client = item.callspec.params["client"].name  # type: ignore[attr-defined]
        return [(client, name) for name in mark.args]

    folders = [str(ROOT / "tests" / name) for name in FOLDERS if (ROOT / "tests" / name).exists()]
    options = ["--collect-only", "-qq", "--no-summary", "--no-header", "-p", "no:cacheprovider"]
    status = pytest.main([*options, *folders], plugins=[Marks()])
    return int(status)


def unsupported(adapter: Adapter, mode: str, shape: str) -> str | None:
    """Why there is no such cell, or None if the adapter does not say."""
    return adapter.unsupported.get((mode, shape)) or adapter.unsupported.get((mode, "*"))


def denials() -> str:
    """The table of denials, with the reasons for what is not supported below it."""
    cells, reasons = marked("cell"), list[str]()
    modes: dict[tuple[str, str], list[str]] = defaultdict(list)
    for adapter in adapters():
        for mode in MODES:
            row: list[str] = []
            for shape in SHAPES:
                reason = unsupported(adapter, mode, shape)
                tests = cells.get((adapter.name, mode, shape), [])
                if reason is None:
                    row.append("denied" if tests else "NOT TESTED")
                    continue
                note = f"{adapter.name}: {reason}"
                if note not in reasons:
                    reasons.append(note)
                row.append(f"– ({reasons.index(note) + 1})")
            modes[adapter.name, " | ".join(row)].append(mode)
    lines = [f"| framework | mode | {' | '.join(SHAPES)} |", f"|---|---|{'---|' * len(SHAPES)}"]
    lines += [f"| {name} | {', '.join(alike)} | {row} |" for (name, row), alike in modes.items()]
    notes = [f"{number}. {reason}" for number, reason in enumerate(reasons, 1)]
    return "\n".join([*lines, "", *notes])


def clients() -> str:
    """A table of what tests show for each client of the endpoint."""
    shown = marked("client")
    rows = [
        f"| {client} | {' | '.join('yes' if (client, name) in shown else 'NOT TESTED' for name in PROPERTIES)} |"
        for client in dict.fromkeys(client for client, _ in shown)
    ]
    if all(row.count("yes") == len(PROPERTIES) for row in rows):
        names = list(dict.fromkeys(client for client, _ in shown))
        return f"All four hold for {', '.join(names[:-1])} and {names[-1]}."
    return "\n".join([f"| client | {' | '.join(PROPERTIES)} |", f"|---|{'---|' * len(PROPERTIES)}", *rows])


def surfaces() -> str:
    """A table of what can be done at each point, for each framework: all of `ABILITIES`, or all but some."""
    versions = [
        f"- {adapter.name}: {', '.join(f'{name} {wanted}' for name, wanted in adapter.tested.items())}"
        for adapter in adapters()
    ]
    cells: dict[str, list[str]] = defaultdict(list)
    for adapter in adapters():
        for point, *able in surface_rows(adapter, yes="yes", no=""):
            lacking = [ability for ability, word in zip(ABILITIES, able, strict=True) if not word]
            cells[point].append(f"all but {', '.join(lacking)}" if lacking else "all")
    rows = [f"| `{point}` | {' | '.join(row)} |" for point, row in cells.items()]
    head = f"| point | {' | '.join(adapter.name for adapter in adapters())} |\n|---|{'---|' * len(adapters())}"
    return "\n".join([*versions, "", head, *rows])


def gaps() -> str:
    """The known ways around, one row each."""
    rows = [f"| {adapter.name} | {gap.name} | {gap.why} |" for adapter in adapters() for gap in adapter.gaps]
    return "\n".join(["| framework | gap | what it means |", "|---|---|---|", *rows])


def page() -> str:
    """The page as it should be."""
    text = PAGE.read_text(encoding="utf-8")
    for name, part in {"denials": denials(), "clients": clients(), "surfaces": surfaces(), "gaps": gaps()}.items():
        block = re.compile(rf"(<!-- generated: {name} -->\n).*?(\n<!-- end: {name} -->)", re.S)
        assert block.search(text), f"{PAGE} has no place for {name}"
        text = block.sub(lambda found, part=part: f"{found[1]}{part}{found[2]}", text)
    return text


def main() -> int:
    """Compares, or writes with ``--write``."""
    if "--marks" in sys.argv:
        return print_marks()
    wanted = page()
    if wanted == PAGE.read_text(encoding="utf-8"):
        return 0
    if "--write" not in sys.argv:
        print(f"{PAGE} is not up to date: python -m tests.frameworks_page --write")
        return 1
    PAGE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
