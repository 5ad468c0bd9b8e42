"""Stores at the edges, in the browser: locked, gone, half deleted, of other formats, without token ids, on PostgreSQL."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from lgov_core.store import open_store
from lgov_core.store.sqlite import TRACE_STORE
from lgov_core.types import Outcome, Rollout
from tests.postgres_server import shared_server
from tests.store.sqlite_parts import FORMAT_1
from tests.web.browser import expect
from tests.web.recorded_run import make_run, recording
from tests.web.served import Served, served
from tests.window.recorded_rollouts import call, record, record_rollout


@pytest.fixture
def window(tmp_path: Path) -> Generator[Served]:
    make_run(tmp_path / "run")
    with served(tmp_path / "run") as opened:
        yield opened


def test_a_store_that_is_locked_says_so_and_comes_back(tmp_path: Path, page: Any) -> None:
    page.set_default_timeout(180_000)  # a store is waited for, by each of the first questions
    with recording(tmp_path / "run") as run:
        run.rollout("ro_0", "task-0")
    with closing(sqlite3.connect(tmp_path / "run" / "store.sqlite", isolation_level=None)) as holder:
        holder.execute("PRAGMA locking_mode=EXCLUSIVE")
        holder.execute("BEGIN EXCLUSIVE")
        with served(tmp_path / "run") as window:
            window.open(page, "#/tasks")
            expect(page.get_by_role("alert").first).to_contain_text("locked", timeout=60_000)
            holder.execute("COMMIT")
            holder.close()
            expect(page.locator("main [data-row]")).to_have_count(1, timeout=60_000)
            expect(page.get_by_role("alert")).to_have_count(0)


def test_a_store_that_is_moved_away_says_so_and_comes_back(window: Served, page: Any, tmp_path: Path) -> None:
    store, away = tmp_path / "run" / "store.sqlite", tmp_path / "away.sqlite"
    window.open(page, "#/tasks")
    expect(page.locator("main [data-row]")).to_have_count(8)
    store.rename(away)
    expect(page.get_by_role("alert").first).to_contain_text("there is no trace store")
    away.rename(store)
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(page.locator("main [data-row]")).to_have_count(8)


def test_a_rollout_that_is_deleted_while_it_is_open_says_so(window: Served, page: Any, tmp_path: Path) -> None:
    window.open(page, "#/rollout/ro_mixed1")
    page.get_by_role("list", name="Turns").wait_for()
    with closing(open_store(tmp_path / "run" / "store.sqlite")) as store:
        store.prune(keep_last=1)
    page.reload()
    expect(page.get_by_role("alert")).to_contain_text("there is no rollout ro_mixed1")
    page.goto(window.base + "#/tasks")
    expect(page.locator("a.chip")).to_have_count(1)


def test_a_rollout_whose_calls_are_gone_shows_what_is_left(window: Served, page: Any, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "run" / "store.sqlite")) as connection, connection:
        connection.execute("DELETE FROM calls WHERE rollout_id = 'ro_mixed1'")
    window.open(page, "#/rollout/ro_mixed1")
    expect(page.get_by_text("No model call is recorded")).to_be_visible()
    assert "+0.550" in page.locator("main .facts").inner_text()
    expect(page.get_by_role("region", name="Belongs to no single call")).to_contain_text("no-drop")


def test_a_store_of_the_first_format_is_shown(tmp_path: Path, page: Any) -> None:
    with closing(sqlite3.connect(tmp_path / "store.sqlite")) as connection:
        connection.executescript(FORMAT_1)
        with connection:
            connection.execute("INSERT INTO rollouts VALUES (1, 'ro_0', 'old-0', 'run', '{\"question\": 1}', 5.0)")
            connection.execute("INSERT INTO attempts VALUES (1, 'ro_0', 1, 5.0, 6.0, 'succeeded', NULL, NULL)")
            connection.execute("INSERT INTO rewards VALUES (1, 'r', 1.0, 'task', 'ro_0', 1, NULL, NULL, 'grader')")
    with served(tmp_path / "store.sqlite") as window:
        window.open(page, "#/tasks")
        page.locator("a.chip").click()
        expect(page.locator("main .facts")).to_contain_text("Turns")  # rewards are where a training is


def test_a_store_of_a_newer_format_says_what_to_do(tmp_path: Path, page: Any) -> None:
    open_store(tmp_path / "store.sqlite").close()
    with closing(sqlite3.connect(tmp_path / "store.sqlite")) as connection:
        connection.execute(f"PRAGMA user_version={TRACE_STORE.version + 1}")
    with served(tmp_path / "store.sqlite") as window:
        window.open(page, "#/tasks")
        expect(page.get_by_role("alert").first).to_contain_text("upgrade lgov")


def test_a_call_without_token_ids_says_why_there_are_no_tokens(tmp_path: Path, page: Any) -> None:
    with closing(open_store(tmp_path / "store.sqlite")) as store:
        store.add_rollouts([Rollout("ro_0", "task", "run", {})])
        store.start_attempt("ro_0", 1)
        store.add_call(call("c", "ro_0", [{"role": "user", "content": "Hi"}], {"content": "Hello"}, None, None))
    with served(tmp_path / "store.sqlite") as window:
        window.open(page, "#/rollout/ro_0?view=tokens")
        expect(page.get_by_text("The engine behind this call gave none")).to_be_visible()
        expect(page.locator("ol.timeline")).to_contain_text("tokens not reported")


def test_a_store_on_postgresql_is_shown_and_followed(page: Any) -> None:
    address = shared_server().empty_store()
    with closing(open_store(address)) as store:
        rollouts = record(store)
        with served(address) as window:
            window.open(page, "#/tasks")
            rows = page.locator("main [data-row]")
            expect(rows).to_have_count(4)
            record_rollout(store, "new-0", "new", Outcome.SUCCEEDED, 1.0)
            expect(rows).to_have_count(5)
            page.goto(window.base + f"#/rollout/{rollouts[0]}?view=tokens&step=0")
            expect(page.get_by_role("listbox")).to_be_visible()
            page.goto(window.base + "#/governance")
            expect(page.locator("main .facts").first).to_contain_text("deny")
