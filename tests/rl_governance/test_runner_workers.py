"""Workers take tasks from a store, and share their statistics through it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from kernel_cases import DROP, sql
from runner_cases import tasks

from lgov_core import AuditLog, Effect, KernelSpace, Outcome, open_store
from lgov_core.policies import ConstantPolicy
from lgov_core.runner import (
    GovernedRollout,
    GovernedRunner,
)
from lgov_core.types import Rollout, Span


class Queue:
    """A store of the small kind."""

    def __init__(self, *tasks: Any) -> None:
        self.tasks, self.rollouts = list(tasks), list[GovernedRollout]()

    async def get_task(self) -> Any:
        return self.tasks.pop(0) if self.tasks else None

    def submit_rollout(self, rollout: GovernedRollout) -> None:
        self.rollouts.append(rollout)


async def test_iter_takes_tasks_and_hands_rollouts_back(kernel: KernelSpace) -> None:
    store = Queue("SELECT 1", DROP, {"input": "SELECT 2", "rollout_id": "mine", "mode": "eval"})
    runner = GovernedRunner(kernel, fail_on_violation=True)
    runner.init_worker(worker_id=0, store=store)
    await runner.iter()
    assert [rollout.outcome for rollout in store.rollouts] == [Outcome.SUCCEEDED, Outcome.BLOCKED, Outcome.SUCCEEDED]
    assert (store.rollouts[2].rollout_id, store.rollouts[2].mode) == ("mine", "eval")


@pytest.mark.parametrize("kind", [asyncio.Event, threading.Event])
async def test_iter_ends_when_no_task_is_left_or_its_event_is_set(kernel: KernelSpace, kind: Any) -> None:
    store, stop = Queue("SELECT 1"), kind()
    runner = GovernedRunner(kernel)
    runner.init_worker(0, store)
    await asyncio.wait_for(runner.iter(event=stop), 30)
    stop.set()
    store.tasks.append("SELECT 1")
    await runner.iter(event=stop)
    assert len(store.rollouts) == 1


async def test_a_store_may_keep_statistics_in_its_own_way(kernel: KernelSpace) -> None:
    class Reports(Queue):
        def __init__(self, *tasks: Any) -> None:
            super().__init__(*tasks)
            self.reports: dict[Any, Any] = {"other": {"total_rollouts": 2, "total_violations": 0}}

        def report_worker(self, worker_id: Any, stats: Any) -> None:
            self.reports[worker_id] = stats

        def worker_reports(self) -> Any:
            return self.reports

    runner = GovernedRunner(kernel)
    runner.init_worker(0, Reports("SELECT 1", DROP))
    await runner.iter()
    assert runner.get_worker_stats()["0"] == {"total_rollouts": 2, "total_violations": 1, "violation_rate": 0.5}
    assert runner.get_stats() == {"total_rollouts": 4, "total_violations": 1, "violation_rate": 0.25}


async def test_iter_without_a_store_with_tasks_ends(kernel: KernelSpace, caplog: pytest.LogCaptureFixture) -> None:
    runner = GovernedRunner(kernel)
    runner.init_worker(0, object())
    await runner.iter()
    assert "init_worker" in caplog.text
    runner.teardown_worker(7)


async def test_workers_share_the_tasks_of_a_trace_store(record: AuditLog, tmp_path: Path) -> None:
    path = tmp_path / "traces.db"
    with open_store(path) as store:
        store.add_rollouts(tasks(20))

    def work(worker_id: int) -> None:
        with open_store(path) as store:
            runner = GovernedRunner(KernelSpace(sql(), record), log_violations=False)
            runner.init_worker(worker_id, store)
            asyncio.run(runner.iter())
            runner.teardown()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    with open_store(path) as store:
        attempts = store.attempts()
        assert len(attempts) == 20
        outcomes = [attempt.outcome for attempt in attempts]
        assert (outcomes.count(Outcome.BLOCKED), outcomes.count(Outcome.SUCCEEDED)) == (4, 16)
        blocked = next(one for one in attempts if one.outcome is Outcome.BLOCKED)
        assert isinstance(blocked.result, dict)
        assert blocked.result["total_penalty"] == 100.0
        reader = GovernedRunner(KernelSpace(sql(), record))
        reader.init_worker("reader", store)
        assert reader.get_stats() == {"total_rollouts": 20, "total_violations": 4, "violation_rate": 0.2}
        assert sum(stats["total_rollouts"] for stats in reader.get_worker_stats().values()) == 20


async def test_workers_of_one_runner_keep_their_own_counts(record: AuditLog, tmp_path: Path) -> None:
    with open_store(tmp_path / "traces.db") as store:
        runner = GovernedRunner(KernelSpace(sql(), record), log_violations=False)

        async def worker(worker_id: int, given: list[str]) -> None:
            runner.init_worker(worker_id, store)
            for one in given:
                await runner.step(one)
                await asyncio.sleep(0)

        await asyncio.gather(worker(0, ["SELECT 1"] * 3), worker(1, [DROP, DROP]))
        runner.teardown_worker(1)
        forged = {"worker": "0", "reporter": "x", "rollouts": 100, "violations": 0}
        store.add_spans([Span("lgov.runner.worker", "sp", 1.0, 1.0, forged, "runner-statistics", 1, claimed=True)])
        assert runner.get_worker_stats() == {
            "0": {"total_rollouts": 3, "total_violations": 0, "violation_rate": 0.0},
            "1": {"total_rollouts": 2, "total_violations": 2, "violation_rate": 1.0},
        }
        runner.teardown()
    assert runner.get_stats() == {"total_rollouts": 5, "total_violations": 2, "violation_rate": 0.4}


WORKER = """
import asyncio, sys
from lgov_core import AuditLog, GovernedRunner, KernelSpace, SQLPolicy, open_store
async def main():
    with open_store(sys.argv[1]) as store, AuditLog(sys.argv[2]) as record:
        policy = SQLPolicy(dialect="sqlite", argument="input", deny=["DROP"])
        runner = GovernedRunner(KernelSpace(policy, record), log_violations=False)
        runner.init_worker(sys.argv[3], store)
        await runner.step("DROP TABLE users")
        await runner.step("SELECT 1")
        runner.teardown()
asyncio.run(main())
"""


def test_workers_in_several_processes_share_statistics(record: AuditLog, tmp_path: Path) -> None:
    arguments = [str(tmp_path / "traces.db"), str(tmp_path / "other-audit.db")]
    for name in ("a", "a", "b"):
        subprocess.run([sys.executable, "-c", WORKER, *arguments, name], check=True, timeout=60)
    with open_store(tmp_path / "traces.db") as store:
        runner = GovernedRunner(KernelSpace(sql(), record))
        runner.init_worker("reader", store)
        assert runner.get_stats() == {"total_rollouts": 6, "total_violations": 3, "violation_rate": 0.5}
        assert runner.get_worker_stats()["a"]["total_rollouts"] == 4
        assert runner.get_violation_rate() == 0.5


async def test_an_interrupted_task_is_an_infrastructure_outcome(record: AuditLog, tmp_path: Path) -> None:
    with open_store(tmp_path / "traces.db") as store:
        store.add_rollouts([Rollout("r", "t", "run", {"input": "x"})])
        reached = asyncio.Event()

        async def agent(_: Any) -> None:
            reached.set()
            await asyncio.Event().wait()

        runner = GovernedRunner(KernelSpace(ConstantPolicy(Effect.ALLOW), record))
        runner.init(agent)
        runner.init_worker(0, store)
        running = asyncio.create_task(runner.iter())
        await asyncio.wait_for(reached.wait(), 30)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert [attempt.outcome for attempt in store.attempts()] == [Outcome.INFRASTRUCTURE]
