"""The documents are plain English: no word that the house bans, nothing misspelt, and a README of one screen or four."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("examples/*/*.md")]
PAGES = sorted(path for path in PAGES if path.name != "CHANGELOG.md")
#: Metaphors, and what to write instead.
BANNED = {
    r"(un)?told|heard": "say who reads or configures what",
    r"(?<!-)stands?|stood": "is",
    r"passes by|voices?|seats?|story|stories": "the technical word",
    r"somebody|nobody|whoever|everybody": "a person, no process, everyone who ...",
    r"what (becomes|became|comes|came) of": "result, outcome, effect",
    r"as (it|they) came": "unchanged",
    r"so many": "the number",
    r"(?<!there )(?<!There )(is|are) no (?!longer)[a-z]+": "is not a ...",
}
CODE = re.compile(r"^(```|~~~).*?^\1|`[^`]*`|<!--.*?-->", re.M | re.S)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_uses_plain_words(path: Path) -> None:
    text = " ".join(CODE.sub(" x ", path.read_text(encoding="utf-8")).split())
    found = {one[0]: advice for words, advice in BANNED.items() for one in re.finditer(rf"\b(?:{words})\b", text, re.I)}
    assert found == {}


def test_nothing_is_misspelt() -> None:
    command = [sys.executable, "-m", "codespell_lib", *map(str, PAGES), str(ROOT / "CHANGELOG.md")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_the_site_draws_nothing_with_a_script_from_elsewhere() -> None:
    """The site's theme loads Mermaid from a public server; the site works without one."""
    assert [path.name for path in (ROOT / "docs").rglob("*.md") if "```mermaid" in path.read_text("utf-8")] == []


def test_the_pages_can_be_read() -> None:
    """The bars of tables are no words; generated pages count."""
    pages = list((ROOT / "docs").rglob("*.md"))
    words = sum(len(re.findall(r"\S*\w\S*", page.read_text(encoding="utf-8"))) for page in pages)
    assert len(pages) <= 34
    assert words <= 48_000, f"{words} words: say it once, where a reader would look for it"
