"""The tables of evidence/results/README.md and docs/evidence/results.md that are made from the committed results."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

from evidence import RESULTS, ROOT, read_result

PAGE = ROOT / "evidence/results/README.md"
SHORT_PAGE = ROOT / "docs/evidence/results.md"
#: A block between its marks, which are comments that Markdown does not show.
BLOCK = re.compile(r"(<!-- results: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def block(name: str, result: dict[str, Any] | None) -> str:
    """What the page says of one result."""
    if result is None:
        return "No result is committed yet.\n"
    versions = ", ".join(f"{package} {version}" for package, version in result["versions"].items())
    seconds = sum(sum(values) for values in result["seconds"].values()) / 60
    seeds = ", ".join(map(str, result["seeds"]))
    head = (
        f"`{result['command']}`, seeds {seeds}; commit `{result['commit'][:12]}`, {result['date']}; "
        f"Python {result['python']}, {versions}; {result['platform']}; {seconds:.0f} minutes of runs, one after the other."
    )
    package = name.partition("_")[0]
    module = f"{package}.report" if package in ("settings", "public") else name
    tables = importlib.import_module(module).tables(result)
    return f"{head}\n\n{tables}\n\n![{name}](../../docs/evidence/{name}.png)\n"


def filled(text: str, folder: Path = RESULTS) -> str:
    """The page with its blocks made anew."""
    return BLOCK.sub(lambda found: f"{found[1]}\n{block(found[2], read_result(found[2], folder))}\n{found[3]}", text)


def overview(folder: Path = RESULTS) -> str:
    """Returns the table of the short page: the held-out questions of each setting, before and after."""
    report = importlib.import_module("settings.report")
    rows = ["| questions | model | seeds | before | after | gain |", "|---|---|---|---|---|---|"]
    for path in sorted(folder.glob("*.json"), key=lambda path: ("real" in path.name, "public" in path.name, path.name)):
        package, _, name = path.stem.partition("_")
        result = read_result(path.stem, folder)
        if package not in ("settings", "public") or result is None:
            continue
        figures = report.summary(result["runs"])["held_out"]
        texts = [
            report.shown(figures["before"]),
            report.shown(figures["after"]),
            report.shown(figures["gain"], signed=True),
        ]
        title = name.partition("_")[0] + (", real" * name.endswith("_real")) + (", public" * (package == "public"))
        rows.append(f"| {title} | {result['plan']['model']} | {len(result['seeds'])} | {' | '.join(texts)} |")
    return "\n".join(rows)


def with_overview(text: str, folder: Path = RESULTS) -> str:
    """Returns the short page with its table made anew."""
    return re.sub(
        r"(<!-- overview: .*? -->\n).*?(<!-- end -->)",
        lambda found: f"{found[1]}\n{overview(folder)}\n\n{found[2]}",
        text,
        flags=re.DOTALL,
    )


def write_page() -> None:
    """Brings both pages up to the committed results."""
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    SHORT_PAGE.write_text(with_overview(SHORT_PAGE.read_text(encoding="utf-8")), encoding="utf-8")
