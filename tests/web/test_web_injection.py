"""Sixty payloads in every field that a model, a tool, a task or a policy can fill: shown as text, none executed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lgov_core.commands import cli
from tests.web.browser import expect
from tests.web.payloads import PAYLOADS
from tests.web.recorded_run import Planted, ask_for_approval, recording, write_tokenizer
from tests.web.served import Served, served

PLAIN = (
    "#/runs",
    "#/tasks",
    "#/compare",
    "#/governance",
    "#/governance?by=rule",
    "#/governance?effect=deny",
    "#/approvals",
    "#/doctor",
)
#: What no page of the window has of its own.
_STRANGE = (
    "script, style, iframe, object, embed, base, img, video, audio, marquee, math, form[action], link,"
    " main svg, a:not([href^='#/']):not([href='#main'])"
)


def planted(at: int) -> Planted:
    # What the operating system and SQLite take for the end of a text cannot be in a field of the store.
    return Planted(" " + PAYLOADS[at])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A rollout for each payload, with it in every text; names of tasks, agents, tools, policies and rules too."""
    made = tmp_path_factory.mktemp("injection") / "run"
    with recording(made) as run:
        for at in range(len(PAYLOADS)):
            queries = ["DROP TABLE staff", "SELECT 1"]
            run.rollout(
                f"ro_{at}", f"{'before' if at % 2 else 'after'}-{at // 2}", queries, task=at % 2, planted=planted(at)
            )
            if at % 6 == 0:
                name, agent = f"send {PAYLOADS[at]}", f"clerk {PAYLOADS[at]}"
                ask_for_approval(made, {PAYLOADS[at + 1]: PAYLOADS[at + 2]}, name=name, agent=agent)
        run.step(1, task=0.5)
    write_tokenizer(made, Planted("".join(PAYLOADS)))
    return made


@pytest.fixture(scope="module")
def window(folder: Path) -> Iterator[Served]:
    with served(folder) as opened:
        yield opened


class Watched:
    """A page of which everything that would be an execution is counted."""

    def __init__(self, page: Any, own: str) -> None:
        self.page = page
        self.found: list[str] = []
        page.on("dialog", lambda dialog: (self.found.append(f"dialog {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: self._request(request.url, own))
        page.on("popup", lambda other: self.found.append(f"popup {other.url}"))

    def _request(self, url: str, own: str) -> None:
        if not url.startswith((own, "data:image/svg+xml")):
            self.found.append(f"request {url}")

    def look(self) -> None:
        self.page.mouse.move(640, 450)
        if self.page.evaluate("window.executed === 1"):
            self.found.append("a script ran")
        strange = self.page.locator("#app").evaluate(
            "(app, names) => [...app.querySelectorAll(names)].map(one => one.outerHTML.slice(0, 80))", _STRANGE
        )
        self.found += strange


def test_there_are_sixty_payloads() -> None:
    assert len(set(PAYLOADS)) == 60


@pytest.mark.timeout(600)
def test_no_payload_runs_on_any_page(window: Served, new_page: Callable[..., Any]) -> None:
    watched = Watched(new_page(), window.base)
    page = window.open(watched.page)
    for route in PLAIN:
        page.goto(window.base + route)
        page.wait_for_timeout(700)
        watched.look()
    for at, payload in enumerate(PAYLOADS):
        page.goto(f"{window.base}#/rollout/ro_{at}?step=0")
        page.locator(".decision.blocks").wait_for()
        if payload.isprintable():
            assert payload in page.locator(".decision.blocks").inner_text()
        watched.look()
        page.goto(f"{window.base}#/rollout/ro_{at}?step=0&view=tokens")
        page.get_by_role("listbox").wait_for()
        watched.look()
    assert watched.found == []


def test_no_payload_runs_in_an_address(window: Served, new_page: Callable[..., Any]) -> None:
    watched = Watched(new_page(), window.base)
    page = window.open(watched.page)
    for payload in PAYLOADS:
        for route in ("#/rollout/{}", "#/tasks?text={0}&task={0}", "#/governance?policy={}", "#/{}"):
            page.evaluate("address => { location.hash = address }", route.format(payload))
        page.wait_for_timeout(60)
        watched.look()
    assert watched.found == []


def test_no_payload_runs_in_an_exported_file(folder: Path, tmp_path: Path, new_page: Callable[..., Any]) -> None:
    place = tmp_path / "report.html"
    result = CliRunner().invoke(cli, ["view", str(folder), "--export", str(place)])
    assert result.exit_code == 0, result.output
    watched = Watched(new_page(), place.as_uri())
    page = watched.page
    page.goto(place.as_uri())
    for route in ("#/tasks", "#/governance", "#/compare", *(f"#/rollout/ro_{at}" for at in range(len(PAYLOADS)))):
        page.goto(place.as_uri() + route)
        page.wait_for_timeout(120)
        watched.look()
    assert watched.found == []


def test_the_check_would_see_a_payload_that_runs(window: Served, browser: Any) -> None:
    context = browser.new_context(bypass_csp=True)
    watched = Watched(context.new_page(), window.base)
    page = window.open(watched.page)
    page.evaluate("html => { document.querySelector('main').innerHTML = html }", PAYLOADS[8])
    expect(page.locator("main img")).to_have_count(1)
    page.wait_for_timeout(300)
    watched.look()
    assert any(entry.startswith("dialog") for entry in watched.found)
    assert any(entry.startswith("<img") for entry in watched.found)
    context.close()
