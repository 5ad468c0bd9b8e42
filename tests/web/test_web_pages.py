"""Every page of the window on a recorded run: what it shows, its address, the keys, both widths and themes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.web.browser import NARROW, expect
from tests.web.recorded_run import make_run
from tests.web.served import Served, served

ROUTES = (
    "#/runs",
    "#/agents",
    "#/tasks",
    "#/rollout/ro_mixed1",
    "#/rollout/ro_mixed1?view=tokens",
    "#/compare",
    "#/governance",
    "#/approvals",
    "#/doctor",
)

#: What makes a page wider than the window.
_WIDER = """() => document.documentElement.scrollWidth <= innerWidth ? [] : ["the page",
  ...[...document.querySelectorAll("body *")].filter(one => one.getBoundingClientRect().right > innerWidth + 1)
    .map(one => `${one.tagName}.${one.className}`)]"""


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("pages") / "seed0"
    make_run(folder)
    (folder / "policy-none.yaml").write_text(
        "version: 1\nrules:\n  - {name: none, use: tool, with: {allow: [other]}}\n"
    )
    with served(folder) as opened:
        yield opened


def test_the_first_page_draws_the_curves_of_the_run(window: Served, page: Any) -> None:
    window.open(page)
    row = page.get_by_role("region", name="Trainings").locator("tbody tr")
    assert row.locator("a").first.inner_text() == "seed0"
    assert row.locator("td").nth(5).inner_text() == "8"
    curves = page.locator(".chart[role=img]")
    curves.first.wait_for()
    assert "task: first 0.125, last 1" in curves.first.get_attribute("aria-label")
    assert page.locator(".uplot canvas").count() == curves.count()


def test_evaluations_before_and_after_are_in_a_table(window: Served, page: Any) -> None:
    window.open(page)
    rows = page.get_by_role("region", name="Evaluations").locator("tbody tr")
    expect(rows).to_have_count(2)
    assert rows.nth(1).inner_text().split() == ["seed0", "after", "8", "3", "0.667", "0"]


def test_taking_a_run_off_the_picture_is_in_the_address(window: Served, page: Any) -> None:
    window.open(page)
    page.get_by_label("Draw seed0").uncheck()
    page.get_by_text("No run is chosen").wait_for()
    assert page.url.endswith("#/runs?show=-")


def test_tasks_show_groups_side_by_side(window: Served, page: Any) -> None:
    window.open(page, "#/tasks?task=train-mixed")
    group = page.get_by_role("listitem", name="Task train-mixed")
    expect(group.locator("a.chip")).to_have_count(4)
    assert "2 succeeded" in group.inner_text()
    group.get_by_role("button", name="Side by side").click()
    lines = [line.split("\t") for line in group.locator("table").inner_text().splitlines()]
    assert [line[1:] for line in lines if line[0] == "task reward"] == [["+1", "+1", "0", "0"]]
    assert [line[1:] for line in lines if line[0] == "blocked calls"] == [["0", "1", "0", "0"]]


def test_a_group_that_teaches_nothing_is_marked(window: Served, page: Any) -> None:
    window.open(page, "#/tasks?task=train-alike")
    expect(page.get_by_text("teaches nothing")).to_be_visible()
    expect(page.get_by_text("all rewards are alike")).to_be_visible()


def test_filters_are_in_the_address_and_back_undoes_them(window: Served, page: Any) -> None:
    window.open(page, "#/tasks")
    page.get_by_label("Decisions").select_option("1")
    expect(page.locator("main [data-row]")).to_have_count(4)
    assert page.url.endswith("#/tasks?denied=1")
    page.go_back()
    expect(page.locator("main [data-row]")).to_have_count(8)
    page.get_by_label("Text").fill("do not know")
    expect(page.locator("main [data-row]")).to_have_count(3)


def test_a_rollout_opens_at_its_denial_with_policy_rule_and_reason(window: Served, page: Any) -> None:
    window.open(page, "#/tasks?task=train-mixed")
    page.locator("a.chip").nth(1).click()
    page.get_by_role("list", name="Turns").wait_for()
    step = page.locator("a[aria-current=step]")
    assert "DROP TABLE staff" in step.inner_text()
    assert "compliance -0.50" in step.inner_text()
    decision = page.locator(".decision.blocks")
    assert "read-only / no-drop" in decision.inner_text()
    assert "Only SELECT is allowed here." in decision.inner_text()


def test_a_rollout_says_what_its_denial_cost(window: Served, page: Any) -> None:
    window.open(page, "#/rollout/ro_mixed1")
    facts = page.locator("main .facts").inner_text().splitlines()
    assert dict(zip(facts[::2], facts[1::2], strict=True)) == {
        "Turns": "3",
        "Tokens": "36 → 21",
        "Blocked": "1",
        "Return": "+0.550",
        "air reward": "+0.050",
        "compliance reward": "-0.500",
        "task reward": "+1",
        "Advantages": "recomputed",
    }


def test_what_training_leaves_out_comes_last(window: Served, page: Any) -> None:
    window.open(page, "#/rollout/ro_mixed1")
    page.get_by_role("list", name="Turns").wait_for()
    last = page.locator("main section").last
    assert last.get_attribute("aria-label") == "What training leaves out"
    assert "resp_ro_mixed1_4" in last.inner_text()


def test_a_page_of_a_run_leads_to_its_denials(window: Served, page: Any) -> None:
    window.open(page)
    page.get_by_role("region", name="Trainings").locator("tbody a").nth(1).click()
    expect(page.locator("main [data-row]")).to_have_count(4)


def test_a_narrow_window_has_filters_in_two_columns_and_all_pages_in_sight(
    window: Served, new_page: Callable[..., Any]
) -> None:
    page = window.open(new_page(viewport=NARROW), "#/tasks")
    for name in ("Decisions", "Rule", "Text"):
        assert page.get_by_label(name).bounding_box()["width"] > 150
    for link in page.get_by_role("navigation", name="Pages").get_by_role("link").all():
        box = link.bounding_box()
        assert box["x"] + box["width"] <= NARROW["width"]


def test_the_tokens_of_a_call_have_mask_log_probability_and_advantage(window: Served, page: Any) -> None:
    window.open(page, "#/rollout/ro_mixed1?step=0&view=tokens&by=mask")
    box = page.get_by_role("listbox")
    box.wait_for()
    assert box.locator("[role=option]").count() == 19
    assert box.locator(".q4").count() == 7
    box.locator("[data-at='13']").hover()
    facts = page.locator(".token-facts")
    assert '#13 · reply · id 8 · " pay" · trained on · log-probability -0.0700' in facts.inner_text()
    assert "weights 3" in facts.inner_text()
    page.get_by_role("button", name="Log-probability").click()
    assert page.url.endswith("by=logprobs")
    assert "q0" in box.locator("[data-at='12']").get_attribute("class")
    page.get_by_role("button", name="Advantage").click()
    expect(box.locator("[data-at='13']")).to_have_class(re.compile(r"\bd\d\b"))


def test_tokens_can_be_read_with_the_keyboard(window: Served, page: Any) -> None:
    window.open(page, "#/rollout/ro_mixed1?step=0&view=tokens")
    box = page.get_by_role("listbox")
    box.focus()
    box.press("ArrowRight")
    box.press("ArrowRight")
    assert box.get_attribute("aria-activedescendant") == "token-13"
    assert page.locator("#token-13").get_attribute("aria-selected") == "true"
    box.press("Home")
    assert "#0 · prompt · id 0" in page.locator(".token-facts").inner_text()


def test_drift_is_marked_where_the_prompt_parts(window: Served, page: Any) -> None:
    window.open(page, "#/rollout/ro_mixed1?step=1&view=tokens")
    page.get_by_text("drift at").wait_for()
    assert page.locator(".shift").count() == 1


def test_compare_says_what_was_fixed_and_opens_both_sides_where_they_part(window: Served, page: Any) -> None:
    window.open(page, "#/compare")
    page.get_by_role("button", name="fixed 2").click()
    expect(page.locator("main tr[data-row]")).to_have_count(2)
    assert "+66.7 %" in page.locator(".facts").inner_text()
    page.locator("main tr[data-row] a").first.click()
    page.get_by_text("They part at turn 1").wait_for()
    assert page.get_by_text("first difference").count() == 2
    assert "From: before-1" in page.get_by_label("Side: from").inner_text()
    assert "DROP TABLE staff" in page.get_by_label("Side: from").inner_text()
    assert "SELECT 1" in page.get_by_label("Side: to").inner_text()
    page.go_back()
    page.get_by_role("button", name="fixed 2").wait_for()


def test_governance_counts_decisions_and_lists_them(window: Served, page: Any) -> None:
    window.open(page, "#/governance")
    listed = page.get_by_role("region", name="Decisions", exact=True)
    listed.wait_for()
    assert "4" in page.locator(".facts .bad").first.inner_text()
    listed.get_by_label("Effect").select_option("deny")
    expect(listed.locator("tbody tr")).to_have_count(4)
    page.get_by_text("whole").wait_for()
    audit = page.get_by_role("region", name="Audit chain")
    assert "not signed: whoever can write the file can write it anew" in audit.get_by_role("list").inner_text()


def test_another_policy_shows_what_it_would_change(window: Served, page: Any) -> None:
    window.open(page, "#/governance?replay=policy-none.yaml")
    changes = page.get_by_role("region", name="Another policy on what is on record")
    expect(changes.locator("tbody tr")).to_have_count(6)
    expect(changes.get_by_text("6 changes shown")).to_be_visible()


def test_doctor_shows_findings_with_the_rollouts_behind_them(window: Served, page: Any) -> None:
    window.open(page, "#/doctor")
    finding = page.get_by_role("region", name="Retokenisation drift")
    finding.wait_for()
    assert "What to do:" in finding.inner_text()
    finding.get_by_role("link").first.click()
    page.get_by_role("list", name="Turns").wait_for()


@pytest.mark.parametrize(
    "options", [{}, {"viewport": NARROW}, {"color_scheme": "dark"}], ids=["wide", "narrow", "dark"]
)
def test_no_page_is_wider_than_the_window(
    window: Served, new_page: Callable[..., Any], options: dict[str, Any]
) -> None:
    page = window.open(new_page(**options))
    for route in ROUTES:
        page.goto(window.base + route)
        page.wait_for_timeout(400)
        assert page.evaluate(_WIDER) == [], route


def test_keys_move_over_rows_and_open_pages_and_help(window: Served, page: Any) -> None:
    window.open(page, "#/tasks")
    page.locator("main [data-row]").first.wait_for()
    for key in ("j", "j", "k"):
        page.keyboard.press(key)
    names = page.evaluate("[...document.querySelectorAll('main [data-row]')].indexOf(document.activeElement)")
    assert names == 0
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.hasAttribute('data-filter')")
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("c")
    page.get_by_role("heading", name="Compare").wait_for()


def test_the_theme_is_the_systems_until_one_is_chosen(window: Served, new_page: Callable[..., Any]) -> None:
    page = window.open(new_page(color_scheme="dark"))
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(ground)
    page.keyboard.press("t")
    assert page.evaluate(ground) != dark
    page.reload()
    page.wait_for_selector("main h1")
    assert page.evaluate(ground) != dark


def test_an_unknown_address_and_an_unknown_rollout_say_so(window: Served, page: Any) -> None:
    window.open(page, "#/nothing")
    expect(page.get_by_role("heading", name="There is no such page")).to_be_visible()
    page.goto(window.base + "#/rollout/ro_gone")
    page.get_by_role("alert").wait_for()
    assert "ro_gone" in page.get_by_role("alert").inner_text()


def test_without_a_session_a_page_shows_no_data_and_says_what_to_do(window: Served, page: Any) -> None:
    page.goto(window.base)
    page.get_by_role("alert").wait_for()
    assert "open the address that was printed" in page.get_by_role("alert").inner_text()
    assert page.locator("main table").count() == 0
