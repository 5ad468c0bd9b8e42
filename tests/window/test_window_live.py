"""The window beside a run in progress, and stores in a bad state."""

from __future__ import annotations

import json
import shutil
import sqlite3
import threading
import time
from pathlib import Path

import pytest

from lgov_core.store import RolloutQueue, open_store
from lgov_core.store.sqlite import SQLiteStore
from lgov_core.types import Outcome, Rollout
from tests.store.test_sqlite_file import file_of_format_1
from tests.window.conftest import Opened
from tests.window.recorded_rollouts import call, record, record_rollout


def test_changes_are_answered_as_soon_as_something_is_written(
    opened: Opened, store: RolloutQueue, tmp_path: Path
) -> None:
    record(store)
    browser = opened(tmp_path)
    since = browser.get("changes")["since"]
    assert browser.get("changes", since=since)["changed"] == []
    writer = threading.Timer(1.0, record_rollout, (store, "new-0", "new", Outcome.SUCCEEDED, 1.0))
    writer.start()
    began = time.monotonic()
    seen: set[str] = set()
    while not {"rollouts", "calls", "decisions"} <= seen and time.monotonic() - began < 20:
        answer = browser.get("changes", since=since, wait=2)
        since = answer["since"]
        seen |= {what for one in answer["changed"] for what in one["what"]}
    writer.join()
    assert time.monotonic() - began < 10
    assert browser.get("rollouts", limit=1)["items"][0]["rollout_id"] == "new-0"
    assert browser.get("tasks", limit=1)["items"][0]["task_id"] == "new"


def test_pages_do_not_move_while_rollouts_are_added(opened: Opened, store: RolloutQueue, tmp_path: Path) -> None:
    ids = record(store)
    browser = opened(tmp_path)
    first = browser.get("rollouts", limit=3)
    record_rollout(store, "new-0", "new", Outcome.SUCCEEDED, 1.0)
    rest = browser.get("rollouts", limit=50, cursor=first["cursor"])
    assert [row["rollout_id"] for row in (*first["items"], *rest["items"])] == ids[::-1]


def test_a_run_that_stopped_writing_has_stalled(opened: Opened, store: RolloutQueue, tmp_path: Path) -> None:
    store.add_rollouts([Rollout("ro", "task", "run", {})])
    browser = opened(tmp_path)
    assert browser.get("sources")["sources"][0]["state"] == "live", "a rollout waits for a worker"
    store.start_attempt("ro", 1)
    assert browser.get("sources")["sources"][0]["state"] == "live"
    assert browser.get("rollouts", outcome="running")["items"][0]["outcome"] == "running"
    since = browser.get("changes")["since"]
    with sqlite3.connect(tmp_path / "store.sqlite") as connection:
        connection.execute("UPDATE rollouts SET created_at = created_at - 100")
        connection.execute("UPDATE attempts SET started_at = started_at - 100")
    assert {"source": tmp_path.name, "what": ["state"]} in browser.get("changes", since=since, wait=2)["changed"]
    source = browser.get("sources")["sources"][0]
    assert source["state"] == "stalled"
    assert 100 <= source["silent_s"] < 130
    store.finish_attempt("ro", 1, Outcome.SUCCEEDED)
    assert browser.get("sources")["sources"][0]["state"] == "live"


def test_runs_of_a_folder_are_found_and_new_ones_too(opened: Opened, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        with open_store(tmp_path / name / "store.sqlite") as store:
            record(store)
    browser = opened(tmp_path)
    assert [source["id"] for source in browser.get("sources")["sources"]] == ["one", "two"]
    since = browser.get("changes")["since"]
    (tmp_path / "three").mkdir()
    lines = [{"phase": "train", "step": 1, "kl": 0.5, "rewards": {"task": {"mean": 1, "low": 0, "high": 2}}}]
    (tmp_path / "three" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"half')
    deadline = time.monotonic() + 20
    while len(browser.get("sources")["sources"]) < 3 and time.monotonic() < deadline:
        time.sleep(0.2)
    assert "three" in [change["source"] for change in browser.get("changes", since=since, wait=2)["changed"]]
    figures = browser.get("runs/three")
    assert (figures["steps"], figures["series"]["kl"]["values"]) == ([1], [0.5])
    assert figures["series"]["rewards/task"] == {"values": [1.0], "low": [0.0], "high": [2.0]}
    assert [panel["title"] for panel in figures["panels"]] == ["Reward by channel", "KL to the reference"]
    assert browser.get("runs/three", after=1)["steps"] == []
    assert browser.error("rollouts", 404, source="three") == "store"
    assert [side["source"] for side in browser.get("compare/sides")["sides"] if not side["tasks"]] == ["one", "two"]
    assert [run["steps"] for run in browser.get("runs")["items"]] == [0, 0, 1]


def test_a_store_that_was_deleted_or_replaced_is_said_and_found_again(opened: Opened, tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    with open_store(path) as store:
        record(store)
    browser = opened(tmp_path)
    assert browser.get("rollouts")["items"]
    kept = shutil.copy(path, tmp_path / "kept")
    path.unlink()
    assert browser.error("rollouts", 503) == "store"
    assert browser.get("sources")["sources"][0]["state"] == "unreadable"
    Path(kept).rename(path)
    assert len(browser.get("rollouts")["items"]) == 7


@pytest.mark.parametrize("statement", ["PRAGMA user_version = 99", "DROP TABLE spans"])
def test_a_store_that_cannot_be_read_does_not_hide_the_others(opened: Opened, tmp_path: Path, statement: str) -> None:
    for name in ("bad", "good"):
        (tmp_path / name).mkdir()
        with open_store(tmp_path / name / "store.sqlite") as store:
            record(store)
    with sqlite3.connect(tmp_path / "bad" / "store.sqlite") as connection:
        connection.execute(statement)
    browser = opened(tmp_path)
    bad, good = browser.get("sources")["sources"]
    assert (bad["state"], good["state"]) == ("unreadable", "live")
    assert bad["error"]["message"]
    assert browser.error("governance/decisions", 503, source="bad") == "store"
    assert len(browser.get("rollouts", source="good")["items"]) == 7
    assert [run["state"] for run in browser.get("runs")["items"]] == ["unreadable", "live"]


def test_a_locked_store_is_unavailable_for_as_long(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient = SQLiteStore.__init__.__kwdefaults__
    monkeypatch.setattr(SQLiteStore.__init__, "__kwdefaults__", {**patient, "busy_timeout_s": 0.2})
    path = tmp_path / "store.sqlite"
    with open_store(path) as store:
        record(store)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    connection.execute("BEGIN EXCLUSIVE")
    browser = opened(path)
    assert browser.error("rollouts", 503) == "store"
    connection.execute("ROLLBACK")
    connection.close()
    time.sleep(0.5)  # for so long the others were told the same, without waiting
    assert len(browser.get("rollouts")["items"]) == 7


def test_a_rollout_that_is_half_deleted_is_shown_as_far_as_it_is_there(
    opened: Opened, store: RolloutQueue, tmp_path: Path
) -> None:
    record(store)
    with sqlite3.connect(tmp_path / "store.sqlite") as connection:
        connection.execute("DELETE FROM attempts WHERE rollout_id = 'mixed-0'")
        connection.execute("DELETE FROM calls WHERE rollout_id = 'mixed-1' AND response_id = 'c1_mixed-1'")
    browser = opened(tmp_path)
    shown = browser.get("rollouts/mixed-0")
    assert (shown["outcome"], shown["started_at"], len(shown["steps"])) == ("unknown", None, 2)
    assert browser.error("rollouts/mixed-1", 503) == "store"  # what is left refers to what was deleted
    assert len(browser.get("rollouts")["items"]) == 7
    store.prune(run_id="run-1")
    assert browser.get("rollouts")["items"] == []
    assert browser.error("rollouts/mixed-2", 404) == "store"


def test_a_store_of_the_first_format_is_shown(opened: Opened, tmp_path: Path) -> None:
    file_of_format_1(tmp_path / "store.sqlite")
    browser = opened(tmp_path)
    (row,) = browser.get("rollouts")["items"]
    assert browser.get(f"rollouts/{row['rollout_id']}")["steps"]


def test_rollouts_that_only_an_endpoint_knows_are_listed(opened: Opened, store: RolloutQueue, tmp_path: Path) -> None:
    reply = {"role": "assistant", "content": "Hello"}
    for number in range(5):
        store.add_call(call(f"c{number}", f"alone-{number}", [], reply, (1,), (2,), started_at=float(number)))
    record_rollout(store, "known-0", "known", Outcome.SUCCEEDED, 1.0)
    browser = opened(tmp_path)
    rows = browser.all("rollouts", limit=2)
    assert [row["rollout_id"] for row in rows] == ["known-0", *(f"alone-{number}" for number in (4, 3, 2, 1, 0))]
    assert (rows[1]["outcome"], rows[1]["turns"], rows[1]["run_id"]) == ("unknown", 1, "")
    assert [row["rollout_id"] for row in browser.all("rollouts", outcome="unknown", limit=1)] == [
        row["rollout_id"] for row in rows[1:]
    ]
    assert browser.all("rollouts", run="run-1") == rows[:1]
    store.add_call(call("c9", "alone-9", [], reply, (1,), (2,)))
    assert [row["rollout_id"] for row in browser.all("rollouts")][:2] == ["alone-9", "known-0"]
    assert [(group["task_id"], group["input"]) for group in browser.all("tasks", limit=1)][:1] == [("alone-9", None)]


def test_the_doctor_examines_beside_the_answers(opened: Opened, store: RolloutQueue, tmp_path: Path) -> None:
    record(store)
    browser = opened(tmp_path)
    deadline = time.monotonic() + 20
    while (found := browser.get("doctor"))["state"] == "running" and time.monotonic() < deadline:
        time.sleep(0.1)
    assert (found["state"], found["error"]) == ("done", None)
    assert "replies-truncated" in found["checked"]
    assert found["not_examined"]["kl-running-off"] == "there is no update in metrics.jsonl"
