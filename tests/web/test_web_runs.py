"""Several runs in one window: curves over each other, a page for each source; and where there is nothing yet."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from lgov_core.store import open_store
from tests.web import browser
from tests.web.browser import expect
from tests.web.recorded_run import make_run, recording
from tests.web.served import Served, served
from tests.window.recorded_rollouts import record


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("runs")
    make_run(folder / "seed0")
    with recording(folder / "seed1") as run:
        run.rollout("ro_other", "other-0")
        for step in range(1, 5):
            run.step(step, task=step / 20)
    with served(folder) as opened:
        yield opened


def test_runs_are_drawn_over_each_other(window: Served, page: Any) -> None:
    window.open(page)
    curves = page.locator(".chart[role=img]").first
    first = "first 0.125, last 1"
    second = "first 0.050, last 0.200"
    both = f"seed0: return: {first}; seed0: task: {first}; seed1: return: {second}; seed1: task: {second}"
    expect(curves).to_have_attribute("aria-label", f"Reward by channel. {both}")
    page.get_by_label("Draw seed0").uncheck()
    expect(curves).to_have_attribute("aria-label", f"Reward by channel. return: {second}; task: {second}")
    page.go_back()
    expect(page.get_by_label("Draw seed0")).to_be_checked()


def test_a_source_is_chosen_in_the_address(window: Served, page: Any) -> None:
    window.open(page, "#/tasks")
    expect(page.locator("main [data-row]")).to_have_count(8)
    page.get_by_label("Source").select_option(label="seed1")
    expect(page.locator("main [data-row]")).to_have_count(1)
    assert "source=seed1" in page.url
    page.locator("a.chip").click()
    page.get_by_role("list", name="Turns").wait_for()
    page.goto(window.base + "#/governance?source=seed1")
    page.get_by_text("No decision is on record").wait_for()


def test_a_store_without_a_training_says_what_is_missing(tmp_path: Path, page: Any) -> None:
    with recording(tmp_path / "alone") as run:
        run.rollout("ro_0", "task-0")
    with served(tmp_path / "alone") as window:
        window.open(page)
        page.get_by_text("No figures of a training yet").wait_for()
        page.goto(window.base + "#/compare")
        page.get_by_text("There is nothing to compare yet").wait_for()
        page.goto(window.base + "#/approvals")
        page.get_by_text("Nothing waits").wait_for()


def test_the_steps_of_an_agent_in_an_agent_are_indented(tmp_path: Path, page: Any) -> None:
    with closing(open_store(tmp_path / "store.sqlite")) as store:
        nested = record(store)
    with served(tmp_path / "store.sqlite") as window:
        window.open(page, f"#/rollout/{nested[0]}")
        agents = page.locator("ol.timeline .agent")
        expect(agents).to_have_text(["Agent planner › desk"])
        expect(agents).to_have_class(re.compile(r"\bdepth-1\b"))


def test_without_a_browser_tests_are_skipped_but_not_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="apt-get install chromium"):
        browser.required()
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="apt-get install chromium"):
        browser.required()
