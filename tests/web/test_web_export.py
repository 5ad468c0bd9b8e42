"""`lgov view --export`: one file that shows the same pages from the disk, without a server and without a network."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lgov_core.commands import cli
from tests.web.browser import expect
from tests.web.recorded_run import make_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("export") / "seed0"
    make_run(made)
    return made


def export(folder: Path, place: Path, *arguments: str) -> str:
    result = CliRunner().invoke(cli, ["view", str(folder), "--export", str(place), *arguments])
    assert result.exit_code == 0, result.output
    return place.as_uri()


@pytest.fixture
def offline(new_page: Callable[..., Any]) -> Any:
    """A page that reaches nothing but files."""
    page = new_page(offline=True)
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.requests = requests
    return page


def test_every_page_works_from_the_file(folder: Path, tmp_path: Path, offline: Any) -> None:
    address = export(folder, tmp_path / "report.html")
    offline.goto(address + "#/runs")
    offline.locator(".uplot canvas").first.wait_for()
    offline.goto(address + "#/tasks?denied=1")
    expect(offline.locator("main [data-row]")).to_have_count(4)
    offline.goto(address + "#/rollout/ro_mixed1")
    expect(offline.locator(".decision.blocks")).to_contain_text("read-only / no-drop")
    offline.goto(address + "#/rollout/ro_mixed1?step=0&view=tokens")
    expect(offline.get_by_role("listbox").locator("[role=option]")).to_have_count(19)
    offline.goto(address + "#/compare")
    offline.locator("main tr[data-row] a").first.click()
    offline.get_by_text("first difference").first.wait_for()
    offline.goto(address + "#/governance")
    offline.get_by_text("whole").wait_for()
    offline.goto(address + "#/doctor")
    expect(offline.get_by_role("status", name="Loading")).to_have_count(0)
    assert {url.partition("#")[0] for url in offline.requests if not url.startswith("data:")} == {address}


def test_the_file_says_that_it_is_one_and_has_no_approvals(folder: Path, tmp_path: Path, offline: Any) -> None:
    offline.goto(export(folder, tmp_path / "report.html"))
    expect(offline.locator(".side .live")).to_contain_text("exported")
    assert offline.get_by_role("link", name="Approvals").count() == 0


def test_what_is_not_in_the_file_is_said(folder: Path, tmp_path: Path, offline: Any) -> None:
    offline.goto(export(folder, tmp_path / "report.html") + "#/rollout/ro_elsewhere")
    expect(offline.get_by_role("alert")).to_contain_text("not in the exported file")


def test_without_content_no_text_of_an_agent_is_in_the_file(folder: Path, tmp_path: Path, offline: Any) -> None:
    address = export(folder, tmp_path / "report.html", "--no-content")
    text = (tmp_path / "report.html").read_text("utf-8")
    assert "DROP TABLE" not in text
    assert "There are 42" not in text
    offline.goto(address + "#/rollout/ro_mixed1")
    expect(offline.locator("a[aria-current=step]")).to_contain_text("Turn 1")
    offline.goto(address + "#/rollout/ro_mixed1?step=0&view=tokens")
    expect(offline.get_by_role("listbox").locator("[role=option]")).to_have_count(19)
