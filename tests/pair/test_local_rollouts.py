"""Rollouts of one process: each ends once and is on record, and those that nobody waits for do nothing that was not judged."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from lgov_core._util.containers import BoundedDict
from lgov_core.client import Resource, Task
from lgov_core.client.attempts import Agent, AgentRunner
from lgov_core.client.wire import Assignment
from lgov_core.gateway.access import KeyRing
from lgov_core.governance import Governance
from lgov_core.server.local import LocalRollouts, RolloutPlan
from lgov_core.store import TraceStore, open_store
from lgov_core.types import Outcome, Rollout
from tests.pair.test_client_governed import POLICY


@pytest.fixture
def store() -> Generator[TraceStore]:
    with contextlib.closing(open_store("memory://")) as store:
        yield store


def local(store: TraceStore, agent: Agent, workers: int, tries: int = 1) -> LocalRollouts:
    runner = AgentRunner(agent, endpoint="http://127.0.0.1:9", instrument=False)
    plan = RolloutPlan(workers, 600.0, tries)
    return LocalRollouts(store, runner, plan, "m", "http://127.0.0.1:9", KeyRing(required=False), BoundedDict(1))


def rollouts(count: int) -> list[Rollout]:
    return [Rollout(f"ro_{n}", f"t_{n}", "run", {"task": {"number": n}, "mode": "test"}) for n in range(count)]


def test_every_rollout_ends_once_with_its_report_and_is_on_record(store: TraceStore) -> None:
    def agent(resource: Resource, task: Task) -> float:
        assert resource.mode == "test"
        if task.number == 2:
            raise SystemExit("enough")  # ends the attempt, and not the program
        return task.number

    ended = {rollout.rollout_id: report for rollout, report, _ in local(store, agent, 2).run(rollouts(4), {"by": "me"})}
    assert {name: report.outcome.value for name, report in ended.items()} == {
        "ro_0": "failed", "ro_1": "succeeded", "ro_2": "failed", "ro_3": "succeeded",
    }  # fmt: skip
    assert str(ended["ro_2"].error).startswith("SystemExit: enough (test_local_rollouts.py, line ")
    recorded = {attempt.rollout_id: attempt for attempt in store.attempts()}
    assert {name: attempt.outcome for name, attempt in recorded.items()} == {
        name: report.outcome for name, report in ended.items()
    }
    assert recorded["ro_3"].result == {"counts": {}, "by": "me"}
    values = {reward.rollout_id: reward.value for reward in store.rewards()}
    assert values == {"ro_0": 0.0, "ro_1": 1.0, "ro_2": 0.0, "ro_3": 3.0}
    assert list(local(store, agent, 2).run([])) == []


def test_what_a_machine_broke_is_tried_again_as_often_as_allowed(store: TraceStore) -> None:
    tries: list[int] = []

    def agent(resource: Resource, task: Task) -> float:
        tries.append(resource.attempt)
        if task.number or resource.attempt < 3:
            raise ConnectionError("the network is gone")
        return 1.0

    ended = [(rollout.rollout_id, report.outcome.value, attempt) for rollout, report, attempt in
             local(store, agent, 1, tries=3).run(rollouts(2))]  # fmt: skip
    assert ended == [("ro_0", "succeeded", 3), ("ro_1", "infrastructure", 3)]
    assert tries == [1, 2, 3] * 2
    assert len(store.attempts()) == 6


def test_no_more_run_at_a_time_than_there_are_workers(store: TraceStore) -> None:
    most, both, lock = list[int](), threading.Barrier(2), threading.Lock()
    running = 0

    def agent(resource: Resource, task: Task) -> float:
        nonlocal running
        with lock:
            running += 1
            most.append(running)
        both.wait(timeout=60)  # two run side by side, or none goes on
        with lock:
            running -= 1
        return 1.0

    assert len(list(local(store, agent, 2).run(rollouts(6)))) == 6
    assert max(most) == 2


def test_when_nobody_asks_any_more_nothing_is_begun_and_nothing_is_waited_for(store: TraceStore) -> None:
    go, begun, over = threading.Event(), list[int](), threading.Event()

    def agent(resource: Resource, task: Task) -> float:
        begun.append(task.number)
        if task.number:
            go.wait()
            over.set()
        return 1.0

    running = local(store, agent, 2).run(rollouts(4))
    assert next(running)[0].rollout_id == "ro_0"
    running.close()  # the second runs, and is waited for by nobody
    assert all(thread.daemon for thread in threading.enumerate() if thread.name.startswith("lgov-agent-"))
    go.set()
    over.wait()
    assert sorted(begun) == [0, 1]
    assert {attempt.rollout_id: attempt.outcome for attempt in store.attempts()} == {
        "ro_0": Outcome.SUCCEEDED, "ro_1": None,
    }  # fmt: skip


def test_an_agent_that_is_left_behind_stays_governed_until_it_ends(tmp_path: Path) -> None:
    pytest.importorskip("langchain", reason="needs the extra langchain")
    from langchain_core.tools import tool

    ran: list[str] = []

    @tool
    def delete(what: str) -> str:
        """Deletes something."""
        ran.append(what)
        return "gone"

    begun, go, said = threading.Event(), threading.Event(), list[Any]()

    def agent(resource: Any, task: Any) -> float:
        begun.set()
        go.wait()
        try:
            said.append(delete.invoke({"what": "everything"}))
        except Exception as error:
            said.append(error)
        return 1.0

    (tmp_path / "policy.yaml").write_text(POLICY.replace("[nothing]", "[delete]"))
    runner = AgentRunner(
        agent,
        endpoint="http://127.0.0.1:9",
        governance=Governance(policy=tmp_path / "policy.yaml", audit=tmp_path / "audit.db"),
    )
    given = Assignment("ro_1", 1, "t", "train", {"a": 1}, "http://127.0.0.1:9/v1", "m", 600.0)
    thread = threading.Thread(target=runner.run, args=(given,))
    thread.start()
    begun.wait()
    runner.close()  # as after Ctrl-C, or when the run is over and one attempt hangs
    go.set()
    thread.join()
    assert ran == [], "its record is closed, so nothing can be committed, and what cannot be committed does not run"
    assert len(said) == 1
    # Once it has ended nothing is governed here any more, and a new runner may govern again.
    assert delete.invoke({"what": "this"}) == "gone"
    again = AgentRunner(
        agent,
        endpoint="http://127.0.0.1:9",
        governance=Governance(policy=tmp_path / "policy.yaml", audit=tmp_path / "audit.db"),
    )
    again.run(given)
    assert ran == ["this", "everything"]
    again.close()
