"""The pages on a store that no training wrote: an endpoint recorded a program's calls."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lgov_core.governor import Governor
from lgov_core.policies import ApprovalPolicy, FlowPolicy
from lgov_core.scope import RolloutScope, enter_scope
from lgov_core.store import open_store
from lgov_core.trace.sink import StoreSink
from lgov_core.types import Action, Point, ToolOutcome
from tests.web.browser import expect
from tests.web.recorded_run import DeniesDrops, Planted
from tests.web.served import Served, served
from tests.window.recorded_rollouts import call, proposed
from tests.window.test_window_governed import reported


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    place = tmp_path_factory.mktemp("governed") / "traces.sqlite"
    with open_store(place) as store:
        for number in range(2):
            store.add_call(reported(f"c{number}", "first", {"prompt_tokens": 100, "completion_tokens": 20}))
        governor = Governor([ApprovalPolicy(["refund"]), DeniesDrops(Planted())], plugins=[StoreSink(store)])
        with enter_scope(RolloutScope("first")):
            for name, arguments in (("refund", {"euros": 120}), ("run_sql", {"query": "DROP TABLE staff"})):
                governor.decide(Action(Point.PRE_TOOL_CALL, name, arguments=arguments))
    with served(place) as opened:
        yield opened


@pytest.fixture
def flows(tmp_path: Path) -> Iterator[Served]:
    """A rollout in which two calls took their recipient from the user and from a page."""
    with open_store(tmp_path / "traces.sqlite") as store:
        read = {"tool_calls": [proposed("t0", "read_page")]}
        store.add_call(call("c8", "flows", [], read, None, None, tools=("t0",), started_at=0.5))
        paid = {"tool_calls": [proposed("t1", "pay"), proposed("t2", "pay")]}
        store.add_call(
            call("c9", "flows", [{"role": "user", "content": "Pay ann"}], paid, None, None, tools=("t1", "t2"))
        )
        governor = Governor([FlowPolicy()], plugins=[StoreSink(store)])
        with enter_scope(RolloutScope("flows")):
            governor.decide(Action(Point.INPUT, "desk", text="Pay ann@firma.de", source="user"))
            governor.decide(Action(Point.POST_TOOL_CALL, "read_page", text="eve@evil.net <i>x</i>", source="tool"))
            for call_id, recipient in (("t1", "ann@firma.de"), ("t2", "eve@evil.net")):
                arguments = {"to": recipient, "note": "of the model"}
                pay = Action(Point.PRE_TOOL_CALL, "pay", arguments=arguments, call_id=call_id)
                decision = governor.decide(pay)
                governor.record(ToolOutcome(pay, "denied" if decision.blocks else "ok", decision=decision))
    with served(tmp_path / "traces.sqlite") as opened:
        yield opened


def test_a_rollout_is_found_from_the_tasks(window: Served, page: Any) -> None:
    window.open(page, "#/tasks")
    page.get_by_role("listitem", name="Task first").locator("a.chip").click()
    expect(page.locator("main")).to_contain_text("200 → 40")
    expect(page.locator("main")).not_to_contain_text("running")


def test_each_argument_of_a_call_says_which_text_it_is_from(flows: Served, page: Any) -> None:
    flows.open(page, "#/rollout/flows?step=1")
    calls = page.get_by_role("group", name="Tool call pay")
    expect(calls).to_have_count(2)
    edges = [
        call.get_by_role("list", name="where the arguments come from").get_by_role("listitem") for call in calls.all()
    ]
    assert [[edge.inner_text() for edge in each.all()] for each in edges] == [
        ["note\n←\nthe model", "to\n←\nuser"],
        ["note\n←\nthe model", "to\n←\nread_page"],
    ]
    with page.expect_event("framenavigated"):
        edges[1].last.get_by_role("link", name="read_page").click()
    expect(page.get_by_role("group", name="Tool call read_page")).to_be_visible()
    page.go_back()
    assert [each.last.get_attribute("class") for each in edges] == ["chip good", "chip warn"]


def test_without_tokens_to_train_on_nothing_is_said_of_training(window: Served, page: Any) -> None:
    window.open(page, "#/rollout/first")
    page.get_by_role("list", name="Turns").wait_for()
    assert page.get_by_role("region", name="What training leaves out").count() == 0


def test_a_pending_approval_does_not_count_as_denied(window: Served, page: Any) -> None:
    window.open(page, "#/governance")
    expect(page.get_by_role("region", name="Denied, by policy").locator(".legend")).to_have_text("read-only 1")
    facts = page.locator("main .facts").first.inner_text().splitlines()
    assert dict(zip(facts[::2], facts[1::2], strict=True)) == {"Decisions": "2", "pending approval": "1", "deny": "1"}
    listed = page.get_by_role("region", name="Decisions", exact=True)
    listed.get_by_label("Effect").select_option("pending approval")
    expect(listed.locator("tbody tr")).to_have_count(1)
    assert listed.locator("tbody .badge").all_inner_texts() == ["pending approval"]


def test_the_doctor_says_when_nothing_was_examined(window: Served, page: Any) -> None:
    window.open(page, "#/doctor")
    page.get_by_text("Nothing was examined").wait_for()
    assert "found nothing wrong" not in page.locator("main").inner_text()
