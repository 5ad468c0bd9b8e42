"""axe-core finds nothing serious on any page: both themes, both widths; and the window can be used without a mouse."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.web.browser import NARROW, WIDE, expect
from tests.web.recorded_run import ask_for_approval, make_run
from tests.web.served import Served, served

AXE = Path(__file__).parent / "assets" / "axe.min.js"
ROUTES = (
    "#/runs",
    "#/agents",
    "#/tasks",
    "#/tasks?text=nothing-has-this",
    "#/rollout/ro_mixed1",
    "#/rollout/ro_mixed1?step=0&view=tokens&by=mask",
    "#/rollout/ro_mixed1?step=0&view=tokens&by=logprobs",
    "#/rollout/ro_mixed1?step=0&view=tokens&by=advantages",
    "#/rollout/ro_gone",
    "#/compare",
    "#/compare?left=seed0~ro_before1~1&right=seed0~ro_after1~1",
    "#/governance",
    "#/approvals",
    "#/doctor",
    "#/nothing",
)


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("accessibility") / "seed0"
    make_run(folder)
    ask_for_approval(folder, {"to": "Ann", "amount": 10})
    with served(folder) as opened:
        yield opened


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [WIDE, NARROW], ids=["wide", "narrow"])
def test_axe_finds_nothing_serious(window: Served, browser: Any, theme: str, viewport: dict[str, int]) -> None:
    # axe-core is put into the page by the test, which the page's own policy would not allow.
    context = browser.new_context(bypass_csp=True, color_scheme=theme, viewport=viewport)
    page = window.open(context.new_page())
    page.evaluate(AXE.read_text("utf-8"))
    found: list[str] = []
    for route in ROUTES:
        page.goto(window.base + route)
        page.wait_for_timeout(500)
        expect(page.get_by_role("status", name="Loading")).to_have_count(0)
        result = page.evaluate("axe.run()")
        assert len(result["passes"]) > 10
        found += [
            f"{route}: {one['impact']} {one['id']} {one['nodes'][0]['html'][:120]}"
            for one in result["violations"]
            if one["impact"] in ("serious", "critical")
        ]
    context.close()
    assert found == []


def test_a_denial_is_reached_without_a_mouse(window: Served, page: Any) -> None:
    window.open(page, "#/tasks?task=train-mixed")
    page.get_by_role("listitem").wait_for()
    page.keyboard.press("j")
    for _ in range(3):
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.get_by_role("list", name="Turns").wait_for()
    assert "ro_mixed1" in page.url
    expect(page.locator("main")).to_be_focused()


def test_the_first_stop_of_the_tab_key_skips_the_navigation(window: Served, page: Any) -> None:
    window.open(page)
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
