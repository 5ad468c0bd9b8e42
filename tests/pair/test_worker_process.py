"""Worker processes of a client: a real agent governed in one, several attempts in one, and frameworks loaded late."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langchain", reason="a worker governs at least one framework")
sys.path.insert(0, str(Path(__file__).parents[1] / "train"))

from episodes import ALLOW_ALL, READ_ONLY

from lgov_core.audit import AuditLog
from lgov_core.client.wire import Assignment, Report
from lgov_core.client.workers import ProcessWorkers
from lgov_core.errors import TrainError
from lgov_core.gateway.server import EndpointServer
from lgov_core.gateway.upstream import UpstreamEngine
from lgov_core.governance import Governance
from lgov_core.store import open_store
from lgov_core.store.sqlite import SQLiteStore
from lgov_core.testing import ScriptedCall, ScriptedModelServer, ScriptedReply
from lgov_core.types import Outcome
from tests.pair.test_train_commands import until

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX processes")

AGENTS = """
import contextlib, os, signal, sys, time
from pathlib import Path

def clerk(resource, task):
    import episodes
    return episodes.clerk(resource, task)

def late_clerk(resource, task):
    assert "langchain_core" not in sys.modules, "it is loaded within the first attempt"
    return clerk(resource, task)

def clerk_on_a_full_disk(resource, task):
    from lgov_core.audit import AuditLog
    from lgov_core.errors import AuditError
    from lgov_core.types import Point
    commit = AuditLog.commit
    def full(log, action, decision):
        if action.point is Point.PRE_TOOL_CALL:
            raise AuditError("audit record: database or disk is full", hint="make space")
        return commit(log, action, decision)
    AuditLog.commit = full
    return clerk(resource, task)

def importer(resource, task):
    sys.path.insert(0, task["folder"])
    if task["silent"]:
        sys.stderr.close()
    for _ in range(2):
        with contextlib.suppress(Exception):
            import langchain_core
    return 1.0

def together(resource, task):
    Path(task["folder"], resource.rollout_id).touch()
    if task.get("dies") == resource.rollout_id:
        while len(list(Path(task["folder"]).iterdir())) < 3:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    while not Path(task["folder"], "go").exists():
        time.sleep(0.01)
    return float(os.getpid())

def noisy(resource, task):
    print('{"ready": false}')
    print("printed by the agent", file=sys.__stdout__, flush=True)
    os.write(1, b"written by the agent\\n")
    return float(sys.stdin.read() == "")
"""


class Desk:
    """An agent file, a policy, a store, and what workers reported."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "agents.py").write_text(AGENTS)
        (folder / "policy.yaml").write_text(READ_ONLY)
        with closing(sqlite3.connect(folder / "company.db")) as connection, connection:
            connection.execute("CREATE TABLE staff (name)")
            connection.execute("INSERT INTO staff VALUES ('a'), ('b')")
        self.store: SQLiteStore = open_store(str(folder / "store.sqlite"))  # type: ignore[assignment]
        self.reports: dict[str, Report] = {}
        self.lock = threading.Lock()

    @contextlib.contextmanager
    def workers(
        self, agent: str, count: int = 1, *, url: str = "http://127.0.0.1:9", processes: int | None = None
    ) -> Iterator[ProcessWorkers]:
        options = {
            "agent": f"{self.folder / 'agents.py'}:{agent}", "endpoint": url, "rules": True, "instrument": True,
            "governance": Governance().under(self.folder / "policy.yaml", self.folder / "audit.sqlite").as_json(),
        }  # fmt: skip
        made = ProcessWorkers(options, count, self.done, processes=processes)
        try:
            until(lambda: made.failure or made.free == count, "they are ready")
            yield made
        finally:
            made.close()

    def done(self, given: Assignment, report: Report) -> None:
        with self.lock:
            self.reports[given.rollout_id] = report

    def work(self, agent: str, *replies: ScriptedReply | str) -> tuple[Report, list[Mapping[str, Any]]]:
        """One attempt of an agent against a scripted model; its report and the bodies of the model's requests."""
        with (
            ScriptedModelServer(replies, token_ids=True) as model,
            EndpointServer([UpstreamEngine(model.base_url)], self.store) as endpoint,
            self.workers(agent, url=endpoint.url) as workers,
        ):
            workers.give(
                assignment("ro-1", endpoint.base_url, say="how many?", database=str(self.folder / "company.db"))
            )
            until(lambda: "ro-1" in self.reports, "the attempt has ended")
            return self.reports["ro-1"], [request.body for request in model.requests]

    def staff(self) -> int:
        with closing(sqlite3.connect(self.folder / "company.db")) as connection:
            return connection.execute("SELECT COUNT(*) FROM staff").fetchone()[0]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[1] / "train"), *sys.path]))
    made = Desk(tmp_path)
    yield made
    made.store.close()


def assignment(rollout_id: str, model_api: str = "http://127.0.0.1:9/v1", **task: Any) -> Assignment:
    return Assignment(rollout_id, 1, "t", "train", task, model_api, "tiny", 120.0)


def sql(query: str, call_id: str) -> ScriptedReply:
    return ScriptedReply(tool_calls=[ScriptedCall("run_sql", {"query": query}, call_id)])


@pytest.mark.parametrize("agent", ["clerk", "late_clerk"])
def test_an_unedited_agent_is_governed_and_rewarded(agent: str, desk: Desk) -> None:
    """Also one that loads its framework within its first attempt."""
    report, asked = desk.work(agent, sql("DELETE FROM staff", "c1"), sql("SELECT COUNT(*) FROM staff", "c2"), "done")
    assert (report.outcome, report.error) == (Outcome.SUCCEEDED, None)
    assert report.counts == {"model_calls": 3, "tool_calls": 2, "denied": 1, "violations": 1}
    assert desk.staff() == 2
    assert asked[1]["messages"][-1]["content"].startswith("DENIED by policy")
    assert asked[2]["messages"][-1]["content"] == "[(2,)]"
    rewards = {(reward.dimension, reward.tool_call_id): reward.value for reward in report.rewards}
    assert rewards["compliance", "c1"] == -0.5
    assert rewards["task", None] == 1.0
    with AuditLog(desk.folder / "audit.sqlite") as audit:
        acts = [entry for entry in audit.entries("ro-1") if entry.point == "pre_tool_call" and entry.effect]
    assert [(entry.call_id, entry.effect) for entry in acts] == [("c1", "deny"), ("c2", "allow")]


def test_in_shadow_everything_is_counted_and_nothing_is_held_back(desk: Desk) -> None:
    (desk.folder / "policy.yaml").write_text(f"mode: shadow\n{READ_ONLY}")
    report, asked = desk.work("clerk", sql("DELETE FROM staff", "c1"), "done")
    assert report.outcome is Outcome.SUCCEEDED
    assert report.counts == {"model_calls": 2, "tool_calls": 1, "denied": 1, "violations": 1}
    assert desk.staff() == 0
    assert "DENIED" not in asked[1]["messages"][-1]["content"]


def test_a_denial_for_want_of_a_record_is_the_machines_failure(desk: Desk) -> None:
    """The record takes everything but acts; the act is denied, and the attempt is neither a violation nor worth 0."""
    report, asked = desk.work("clerk_on_a_full_disk", sql("SELECT COUNT(*) FROM staff", "c1"), "done")
    assert "audit-failed" in asked[1]["messages"][-1]["content"], "the model is told"
    assert report.outcome is Outcome.INFRASTRUCTURE
    assert "audit record failed" in str(report.error)
    assert "violations" not in report.counts
    assert report.rewards == ()


def test_a_policy_that_forbids_the_start_is_a_blocked_attempt(desk: Desk) -> None:
    rule = "{name: closed, on: [agent_startup], use: deny, with: {reason: closed today}}"
    (desk.folder / "policy.yaml").write_text(f"version: 1\nrules:\n  - {rule}\n")
    report, asked = desk.work("clerk")
    assert asked == []
    assert report.outcome is Outcome.BLOCKED
    assert "closed today" in str(report.error)


@pytest.mark.parametrize("silent", [False, True])
def test_a_framework_that_cannot_be_governed_ends_the_collection(desk: Desk, silent: bool) -> None:
    """An empty langchain, found in a folder; the agent takes no error for an answer, and may say nothing itself."""
    (desk.folder / "odd" / "langchain_core").mkdir(parents=True)
    (desk.folder / "odd" / "langchain_core" / "__init__.py").write_text("")
    with desk.workers("importer") as workers:
        workers.give(assignment("ro-1", folder=str(desk.folder / "odd"), silent=silent))
        until(lambda: workers.failure, "the client was told")
        with pytest.raises(TrainError, match="status 78"):
            _ = workers.free
    assert workers.deaths == 1
    assert desk.reports["ro-1"].outcome is Outcome.INFRASTRUCTURE


def together(desk: Desk, workers: ProcessWorkers, count: int, **more: str) -> Path:
    """Gives attempts that wait for one another; they have all begun."""
    folder = desk.folder / "begun"
    folder.mkdir()
    for number in range(count):
        workers.give(assignment(f"ro-{number}", folder=str(folder), **more))
    until(lambda: len(list(folder.iterdir())) == count, "they have begun")
    return folder


def test_processes_share_the_attempts_that_run_at_a_time(desk: Desk) -> None:
    (desk.folder / "policy.yaml").write_text(ALLOW_ALL)
    with desk.workers("together", 6, processes=2) as workers:
        pids = set(workers.pids)
        folder = together(desk, workers, 6)
        assert (len(pids), workers.free, len(workers.running())) == (2, 0, 6)
        workers.abandon(("ro-5", 1))
        assert workers.free == 1, "its place is free again, and no process was ended for it"
        (folder / "go").touch()
        until(lambda: len(desk.reports) == 5, "the others have ended")
        until(lambda: workers.free == 6, "all places are free")
        assert set(workers.pids) == pids
    assert "ro-5" not in desk.reports
    counts = [desk.reports[name].rewards[0].value for name in desk.reports]
    assert {counts.count(float(pid)) for pid in pids} <= {2, 3}


def test_a_process_that_dies_costs_its_attempts_and_no_others(desk: Desk) -> None:
    (desk.folder / "policy.yaml").write_text(ALLOW_ALL)
    with desk.workers("together", 4, processes=2) as workers:
        before = set(workers.pids)
        folder = together(desk, workers, 4, dies="ro-0")
        until(lambda: len(desk.reports) == 2, "the dead process was noticed")
        (folder / "go").touch()
        until(lambda: len(desk.reports) == 4, "the others have ended")
        until(lambda: workers.free == 4, "another process took its place")
        assert len(before & set(workers.pids)) == 1
    lost = {name: report for name, report in desk.reports.items() if report.outcome is Outcome.INFRASTRUCTURE}
    assert len(lost) == 2
    assert "ro-0" in lost
    assert {report.error for report in lost.values()} == {"the worker process ended with status -9"}
    assert workers.deaths == 1


def test_what_the_agent_prints_or_reads_does_not_touch_the_protocol(desk: Desk) -> None:
    (desk.folder / "policy.yaml").write_text(ALLOW_ALL)
    with desk.workers("noisy") as workers:
        workers.give(assignment("ro-1"))
        until(lambda: "ro-1" in desk.reports, "the attempt has ended")
    assert desk.reports["ro-1"].rewards[0].value == 1.0
