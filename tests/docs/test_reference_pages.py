"""The reference is made from the code, and the site knows every page."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from lgov_core.commands import cli
from tests.docs import reference_pages

DOCS = Path(__file__).parents[2] / "docs"


def test_the_pages_are_up_to_date() -> None:
    stale = [path.name for path, text in reference_pages.pages().items() if text != path.read_text(encoding="utf-8")]
    assert stale == [], "python -m tests.docs.reference_pages --write"


def test_every_part_has_a_place_in_a_page() -> None:
    places = [name for path in DOCS.rglob("*.md") for _, name, _ in reference_pages.BLOCK.findall(path.read_text())]
    assert sorted(set(places) & {*reference_pages.PARTS}) == sorted(reference_pages.PARTS)


@pytest.mark.parametrize("name", ["run", "policy check", "approvals", "export"])
def test_a_command_is_shown_with_its_options(name: str) -> None:
    page = reference_pages.commands()
    part = page.partition(f"# lgov {name}\n")[2].partition("\n## ")[0].partition("\n### ")[0]
    made: click.Command = cli
    for word in name.split():
        made = made.load(word)  # type: ignore[attr-defined]
    flags = [option.opts[-1] for option in made.params if isinstance(option, click.Option)]
    assert [flag for flag in flags if flag not in part and flag not in reference_pages.SHARED] == []
    assert [flag for flag in reference_pages.SHARED if f"`{flag}" not in page.partition("\n## ")[0]] == []


def test_every_page_is_in_the_navigation() -> None:
    navigation = (DOCS.parent / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    missing = [str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")]
    assert [page for page in missing if f" {page}\n" not in navigation] == []
