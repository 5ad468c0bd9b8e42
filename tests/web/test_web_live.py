"""A run in progress updates by itself, and says when it stalls; a server that goes away comes back."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lgov_core.types import Outcome
from lgov_core.views import lists
from lgov_core.views import sources as open_source
from tests.web.browser import expect
from tests.web.recorded_run import recording
from tests.web.served import served

FIGURES = "Reward by channel. return: first 0.250, last {0}; task: first 0.250, last {0}"


def test_new_rollouts_and_steps_appear_without_a_reload(tmp_path: Path, page: Any) -> None:
    with recording(tmp_path / "run") as run:
        run.rollout("ro_0", "task-0")
        run.step(1, task=0.25)
        with served(tmp_path / "run") as window:
            window.open(page, "#/tasks")
            rows = page.locator("main [data-row]")
            expect(rows).to_have_count(1)
            run.rollout("ro_1", "task-1", ["SELECT 1"])
            expect(rows).to_have_count(2)
            expect(page.get_by_text("live", exact=True)).to_be_visible()
            page.goto(window.base + "#/runs")
            label = page.locator(".chart[role=img]").first
            expect(label).to_have_attribute("aria-label", FIGURES.format("0.250"))
            run.step(2, task=0.75)
            expect(label).to_have_attribute("aria-label", FIGURES.format("0.750"))


def test_no_row_is_lost_between_pages_that_are_read_again(
    tmp_path: Path, page: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lists, "SEARCH_S", 0.0)  # each page of a search holds one task
    with recording(tmp_path / "run") as run:
        for number in range(4):
            run.rollout(f"ro_{number}", f"task-{number}")
        with served(tmp_path / "run") as window:
            window.open(page, "#/tasks?text=staff")
            expect(page.locator("main [data-row]")).to_have_count(4)
            run.rollout("ro_new", "new-0")
            expect(page.locator("main [data-row]")).to_have_count(5)


def test_an_open_rollout_grows_and_then_ends(tmp_path: Path, page: Any) -> None:
    with recording(tmp_path / "run") as run:
        run.rollout("ro_0", "task-0", task=None)
        with served(tmp_path / "run") as window:
            window.open(page, "#/rollout/ro_0")
            steps = page.locator("ol.timeline a")
            expect(steps).to_have_count(1)
            expect(page.get_by_text("running").first).to_be_visible()
            run.call("ro_0", [{"role": "user", "content": "More?"}], {"content": "No."})
            expect(steps).to_have_count(2)
            run.store.finish_attempt("ro_0", 1, Outcome.SUCCEEDED)
            expect(page.locator("main .badge", has_text="succeeded")).to_have_count(1)


def test_a_run_that_stalls_says_so(tmp_path: Path, page: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_source, "STALLED_S", 1.0)
    with recording(tmp_path / "run") as run:
        run.rollout("ro_0", "task-0", task=None)
        (tmp_path / "run" / "metrics.jsonl").write_text('{"phase": "train", "step": 1}\n')
        with served(tmp_path / "run") as window:
            window.open(page)
            page.get_by_text("something is open, and nothing was written").wait_for()
            expect(page.locator(".side .live")).to_have_text("stalled")
            run.rollout("ro_1", "task-1")
            expect(page.locator(".side .live")).to_have_text("live")


def test_a_window_says_when_its_server_is_gone(tmp_path: Path, page: Any) -> None:
    with recording(tmp_path / "run") as run:
        run.rollout("ro_0", "task-0")
        with served(tmp_path / "run") as window:
            window.open(page, "#/tasks")
            expect(page.locator("main [data-row]")).to_have_count(1)
        expect(page.locator(".side .live")).to_have_text("no connection")
        assert page.locator("main [data-row]").count() == 1


def test_ctrl_c_ends_the_window_quietly_while_a_page_waits_for_changes(tmp_path: Path, page: Any) -> None:
    with recording(tmp_path / "run") as run:
        run.rollout("ro_0", "task-0")
    command = [
        sys.executable,
        "-c",
        "from lgov_core.commands import main; main()",
        "view",
        "run",
        "--port",
        "0",
        "--no-open",
    ]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        page.goto(process.stdout.readline().split()[-1] + "#/tasks")
        expect(page.locator("main [data-row]")).to_have_count(1)
        expect(page.locator(".side .live")).to_have_text("live")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert [line for line in errors.splitlines() if "for another browser" not in line] == ["closed"]
