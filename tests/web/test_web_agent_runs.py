"""The window of somebody who does not train: a governed program's runs, an audit record alone, a store that is broken."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lgov_core.audit import AuditLog
from lgov_core.commands import cli
from lgov_core.governor import Governor
from lgov_core.scope import RolloutScope, enter_scope
from lgov_core.store import open_store
from lgov_core.trace.sink import StoreSink
from lgov_core.types import Action, CapturedCall, Outcome, Point, Reward, Rollout, ToolOutcome
from lgov_core.views.web.window import WindowOptions
from tests.web.browser import NARROW, expect
from tests.web.recorded_run import DeniesDrops, Planted
from tests.web.served import Served, served
from tests.web.test_web_accessibility import AXE

PRICES = "version: 1\nrules:\n  - {name: money, use: cost, with: {max_usd: 5, prices: {gpt-*: [2, 10]}}}\n"


def govern(folder: Path) -> None:
    """Two runs of a program: one ended, in the other a query was denied and no end is recorded."""
    began = time.time() - 3600
    with open_store(folder / "traces.sqlite") as store, AuditLog(folder / "audit.db", signer=None) as log:
        governor = Governor([DeniesDrops(Planted())], plugins=[StoreSink(store)], audit=log, capture_content=True)
        for at, (name, query) in enumerate([("ended", "SELECT 1"), ("lost", "DROP TABLE staff")]):
            store.add_rollouts([Rollout(name, "agent.py", "", {}, began + at)])
            store.start_attempt(name, 1)
            call = {"id": f"c_{name}", "type": "function", "function": {"name": "run_sql", "arguments": "{}"}}
            for turn, reply in enumerate([{"content": None, "tool_calls": [call]}, {"content": f"It was {name}."}]):
                store.add_call(
                    CapturedCall(
                        response_id=f"{name}{turn}",
                        model="gpt-5",
                        request={"messages": [{"role": "user", "content": f"How was the run that {name}?"}]},
                        response={
                            "choices": [{"message": {"role": "assistant", **reply}}],
                            "usage": {"prompt_tokens": 100_000, "completion_tokens": 30_000},
                        },
                        prompt_ids=None,
                        response_ids=None,
                        logprobs=None,
                        finish_reason="stop",
                        weights_version=None,
                        temperature=1.0,
                        top_p=1.0,
                        started_at=began + 10 * turn,
                        ended_at=began + 10 * turn + 2.5,
                        rollout_id=name,
                        attempt=1,
                        agent="clerk",
                        tool_call_ids=(),
                    )
                )
            with enter_scope(RolloutScope(name)):
                action = Action(
                    Point.PRE_TOOL_CALL, "run_sql", arguments={"query": query}, call_id=f"c_{name}", agent="clerk"
                )
                decision = governor.decide(action)
                governor.record(
                    ToolOutcome(action, "denied" if decision.blocks else "ok", result="1", decision=decision)
                )
            store.add_rewards([Reward(-0.1 - 0.2, "compliance", name, 1, tool_call_id=f"c_{name}", source="air")])
            if name == "ended":
                store.finish_attempt(name, 1, Outcome.SUCCEEDED)
    with closing(sqlite3.connect(folder / "traces.sqlite")) as connection, connection:
        connection.execute("UPDATE attempts SET started_at = ? WHERE ended_at IS NULL", (began,))
    (folder / "policy.yaml").write_text(PRICES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("governed_only")
    govern(folder)
    return folder


@pytest.fixture(scope="module")
def window(folder: Path) -> Iterator[Served]:
    with served(folder / "traces.sqlite", WindowOptions(policies=(folder / "policy.yaml",))) as opened:
        yield opened


def test_it_opens_on_the_runs_and_says_how_each_ended_and_what_it_cost(window: Served, page: Any) -> None:
    window.open(page, "")
    rows = page.get_by_role("region", name="Agent runs").locator("tbody tr")
    expect(rows).to_have_count(2)
    shown = [row.split("\t")[1:] for row in rows.all_inner_texts()]
    same = ["260,000", "$1.00"]
    asked = [f"How was the run that {name}?" for name in ("lost", "ended")]
    assert shown[0][:-1] == [asked[0], "It was lost.", "clerk", "ended (no end recorded)", "2", "1", "1", *same]
    assert shown[1][:-1] == [asked[1], "It was ended.", "clerk", "succeeded", "2", "1", "0", *same]
    assert shown[0][-1] == "12.5 s"


def test_a_run_is_found_by_a_text_a_tool_or_a_rule(window: Served, page: Any) -> None:
    window.open(page, "")
    rows = page.get_by_role("region", name="Agent runs").locator("tbody tr")
    for text, count in (("run_sql", 2), ("drop table", 1), ("no-drop", 2), ("It was ended", 1), ("nowhere", 0)):
        page.get_by_role("searchbox").fill(text)
        expect(rows).to_have_count(count)


@pytest.mark.parametrize("route", ["", "#/rollout/lost", "#/governance", "#/approvals"])
def test_nothing_is_said_of_training(window: Served, page: Any, route: str) -> None:
    window.open(page, route)
    assert page.get_by_role("navigation", name="Pages").inner_text().split("\n") == [
        "Agent runs",
        "Governance",
        "Waiting for a person",
    ]
    words = page.locator("main").inner_text().lower()
    assert not [word for word in ("reward", "return", "teaches", "doctor", "train", "compliance") if word in words]


def test_a_rollout_opens_at_its_denial_and_shows_when_its_calls_ran(window: Served, page: Any) -> None:
    window.open(page, "#/rollout/lost")
    turns = page.get_by_role("list", name="Turns")
    expect(turns.locator("[aria-current=step]")).to_contain_text("denied")
    expect(turns.get_by_role("img")).to_have_count(2)
    first, second = (turns.get_by_role("img").nth(at).locator("i").first.bounding_box() for at in range(2))
    assert first["x"] < second["x"]
    expect(page.locator("main")).to_contain_text("ended (no end recorded)")


def test_an_audit_record_alone_opens_on_governance(folder: Path, page: Any) -> None:
    with served(folder / "audit.db") as opened:
        opened.open(page, "")
        expect(page.get_by_role("heading", name="Governance", level=1)).to_be_visible()
        expect(page.get_by_role("heading", name="Top denials", level=2)).to_be_visible()


def test_a_run_of_an_audit_record_alone_says_what_was_decided_about_what(folder: Path, page: Any) -> None:
    with served(folder / "audit.db") as opened:
        opened.open(page, "#/agents")
        expect(page.locator("main")).to_contain_text("audit: 2 runs")
        page.goto(page.url.partition("#")[0] + "#/rollout/lost")
        expect(page.locator("main")).to_contain_text("known from its decisions in the audit record only")
        expect(page.get_by_role("group", name="Tool call run_sql")).to_contain_text("DROP TABLE staff")
        expect(page.locator("main")).to_contain_text("No model call is recorded")


def test_the_list_of_decisions_says_what_each_was_about(window: Served, page: Any) -> None:
    window.open(page, "#/governance")
    expect(page.get_by_role("region", name="Decisions", exact=True)).to_contain_text("DROP TABLE staff")


def test_a_store_that_another_process_holds_is_said_once(tmp_path: Path, page: Any) -> None:
    govern(tmp_path)
    with closing(sqlite3.connect(tmp_path / "traces.sqlite", isolation_level=None)) as holder:
        holder.execute("PRAGMA locking_mode=EXCLUSIVE")
        holder.execute("BEGIN EXCLUSIVE")
        with served(tmp_path / "traces.sqlite") as opened:
            began = time.monotonic()
            opened.open(page, "")
            expect(page.get_by_role("alert")).to_have_count(1)
            assert time.monotonic() - began < 5
            expect(page.get_by_role("alert")).to_contain_text("another process holds the file")
            assert "0 runs" not in page.locator("main").inner_text()
            holder.execute("ROLLBACK")
            holder.close()
            expect(page.locator("main")).to_contain_text("traces: 2 runs", timeout=10_000)


def test_a_store_that_cannot_be_read_says_so(tmp_path: Path, page: Any) -> None:
    govern(tmp_path)
    for suffix in ("-wal", "-shm"):
        (tmp_path / f"traces.sqlite{suffix}").unlink(missing_ok=True)
    whole = (tmp_path / "traces.sqlite").read_bytes()
    (tmp_path / "traces.sqlite").write_bytes(whole[:100] + b"\x55" * (len(whole) - 100))
    with served(tmp_path / "traces.sqlite") as opened:
        opened.open(page, "")
        expect(page.get_by_role("alert").first).to_be_visible()


def test_what_lies_beside_a_store_is_shown_with_it(folder: Path, tmp_path: Path) -> None:
    govern(tmp_path)
    (tmp_path / "lgov.toml").write_text('policy = "policy.yaml"\naudit = "audit.db"\n')
    report = tmp_path / "report.html"
    done = CliRunner().invoke(cli, ["view", str(tmp_path / "traces.sqlite"), "--export", str(report)])
    assert done.exit_code == 0, done.output
    text = report.read_text()
    assert "audit.db" in text
    assert '"cost":1.0' in text.replace(" ", "")


def test_axe_finds_nothing_serious_on_the_runs(window: Served, browser: Any) -> None:
    context = browser.new_context(bypass_csp=True, color_scheme="dark", viewport=NARROW)
    page = window.open(context.new_page(), "")
    page.evaluate(AXE.read_text("utf-8"))
    serious = [one for one in page.evaluate("axe.run()")["violations"] if one["impact"] in ("serious", "critical")]
    context.close()
    assert serious == []


def serve_two(path: Path) -> None:
    """One process that talked to Ann in a named thread, and to somebody whom nothing names."""
    began = time.time() - 60
    with open_store(path) as store:
        store.add_rollouts([Rollout("both", "app.py", "", {"command": ["app.py", "--port", "80"]}, began)])
        store.start_attempt("both", 1)
        for at, (text, metadata) in enumerate([("I am Ann", {"thread_id": "ann"}), ("Who am I?", {})]):
            store.add_call(
                CapturedCall(
                    response_id=f"r{at}",
                    model="gpt-5",
                    request={"messages": [{"role": "user", "content": text}], "metadata": metadata},
                    response={"choices": [{"message": {"role": "assistant", "content": f"Answer {at}"}}]},
                    prompt_ids=None,
                    response_ids=None,
                    logprobs=None,
                    finish_reason="stop",
                    weights_version=None,
                    temperature=1.0,
                    top_p=1.0,
                    started_at=began + at,
                    ended_at=began + at + 0.5,
                    rollout_id="both",
                    attempt=1,
                    agent="desk",
                    tool_call_ids=(),
                )
            )


def test_two_conversations_of_a_process_are_two_rows_each_of_which_opens_alone(tmp_path: Path, page: Any) -> None:
    serve_two(tmp_path / "traces.sqlite")
    with served(tmp_path / "traces.sqlite") as opened:
        opened.open(page, "")
        rows = page.get_by_role("region", name="Agent runs").locator("tbody tr")
        expect(rows).to_have_count(3)
        expect(rows.nth(0)).to_contain_text("app.py --port 80 2 conversations")
        expect(rows.nth(1)).to_contain_text("Who am I?")
        expect(rows.nth(1)).to_contain_text("conversation from turn 2")
        expect(rows.nth(2)).to_contain_text("conversation ann")
        page.get_by_role("searchbox").fill("i am ann")
        expect(rows).to_have_count(2)
        expect(rows.nth(0)).to_contain_text("1 of 2 conversations")
        rows.nth(1).get_by_role("link").click()
        turns = page.get_by_role("list", name="Turns")
        expect(turns.locator("[data-row]")).to_have_count(1)
        expect(page.locator("main")).to_contain_text("I am Ann")
        page.get_by_label("Conversation").select_option("")
        expect(turns.locator("[data-row]")).to_have_count(2)
        expect(turns).to_contain_text("conversation from turn 2")


def test_an_exported_page_opens_a_conversation_alone_too(tmp_path: Path, page: Any) -> None:
    serve_two(tmp_path / "traces.sqlite")
    report = tmp_path / "report.html"
    done = CliRunner().invoke(cli, ["view", str(tmp_path / "traces.sqlite"), "--export", str(report)])
    assert done.exit_code == 0, done.output
    page.goto(f"{report.as_uri()}#/rollout/both?conversation=ann")
    turns = page.get_by_role("list", name="Turns")
    expect(turns.locator("[data-row]")).to_have_count(1)
