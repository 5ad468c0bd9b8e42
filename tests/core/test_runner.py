"""GovernedRunner: each task its own rollout, each violation on the rollout it belongs to, nothing run ungoverned."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock, create_autospec

import pytest

from lgov_core import AuditLog, Effect, KernelSpace, Outcome, RolloutScope, SQLPolicy, current_scope, open_store
from lgov_core.errors import ArgumentError, KernelError
from lgov_core.policies import ConstantPolicy
from lgov_core.runner import (
    AgentOSRunner,
    GovernedRollout,
    GovernedRunner,
    PolicyViolation,
    PolicyViolationError,
    PolicyViolationType,
)
from lgov_core.scope import enter_scope
from lgov_core.types import Rollout

DROP = "DROP TABLE users"


def sql() -> SQLPolicy:
    return SQLPolicy(dialect="sqlite", argument="input", deny=["DROP", "DELETE"])


@pytest.fixture
def record(tmp_path: Path) -> Iterator[AuditLog]:
    with AuditLog(tmp_path / "audit.db") as log:
        yield log


@pytest.fixture
def users() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:")
    connection.executescript("CREATE TABLE users (id INTEGER, name TEXT); INSERT INTO users VALUES (42, 'Ada')")
    yield connection
    connection.close()


@pytest.fixture
def kernel(record: AuditLog, users: sqlite3.Connection) -> Iterator[KernelSpace]:
    made = KernelSpace(sql(), record, executor=lambda text: users.execute(text).fetchall())
    yield made
    made.close()


def violation(severity: str = "high", *, blocked: bool = True) -> PolicyViolation:
    return PolicyViolation(PolicyViolationType.BLOCKED, "test", "found", severity, action_blocked=blocked)


# ---------------------------------------------------------------------- one step


async def test_a_clean_step(kernel: KernelSpace) -> None:
    rollout = await GovernedRunner(kernel).step("SELECT name FROM users WHERE id = 42")
    assert (rollout.success, rollout.task_output, rollout.violations) == (True, [("Ada",)], [])
    assert (rollout.total_penalty, rollout.signals_sent, rollout.outcome) == (0.0, [], Outcome.SUCCEEDED)
    assert rollout.execution_time_ms > 0


async def test_a_drop_is_not_executed_and_costs_a_hundred(kernel: KernelSpace, users: sqlite3.Connection) -> None:
    rollout = await GovernedRunner(kernel).step(DROP)
    assert users.execute("SELECT count(*) FROM users").fetchone() == (1,)
    assert (rollout.success, rollout.task_output, rollout.outcome) == (False, None, Outcome.BLOCKED)
    assert [(one.policy_name, one.severity, one.action_blocked) for one in rollout.violations] == [
        ("SQLPolicy", "critical", True)
    ]
    assert (rollout.total_penalty, rollout.signals_sent) == (100.0, ["SIGTERM"])


async def test_without_an_executor_a_step_is_judged_and_has_an_accuracy(record: AuditLog) -> None:
    rollout = await GovernedRunner(KernelSpace(sql(), record)).step("SELECT 1")
    assert (rollout.success, rollout.task_output.accuracy) == (True, 1.0)


async def test_the_agent_of_init_is_run_and_forgotten_by_teardown(record: AuditLog) -> None:
    runner = GovernedRunner(KernelSpace(ConstantPolicy(Effect.ALLOW), record))
    runner.init(agent=lambda given: f"did {given}")
    assert (await runner.step(input="x", mode="eval")).task_output == "did x"
    runner.teardown()
    assert runner.get_stats()["total_rollouts"] == 1
    assert (await runner.step("y")).task_output.action.name == "execute"


def test_an_agent_that_cannot_be_called_is_refused_by_init(kernel: KernelSpace) -> None:
    with pytest.raises(KernelError):
        GovernedRunner(kernel).init(object())


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ValueError("no"), Outcome.FAILED),
        (TimeoutError("late"), Outcome.TIMEOUT),
        (ConnectionResetError("gone"), Outcome.INFRASTRUCTURE),
    ],
)
async def test_what_an_agent_raises_is_no_success_and_no_violation(
    record: AuditLog, error: Exception, outcome: Outcome
) -> None:
    def agent(_: Any) -> None:
        raise error

    runner = GovernedRunner(KernelSpace(ConstantPolicy(Effect.ALLOW), record))
    runner.init(agent)
    rollout = await runner.step("x")
    assert (rollout.success, rollout.violations, rollout.outcome) == (False, [], outcome)
    assert str(error) in (rollout.error or "")


async def test_a_denial_inside_the_agent_that_it_recovers_from_is_a_success(record: AuditLog) -> None:
    kernel = KernelSpace(sql(), record, executor=lambda text: text, critical_signal=None)

    def agent(given: str) -> str:
        assert kernel.execute(DROP) is None
        return kernel.execute(given)

    runner = GovernedRunner(kernel)
    runner.init(agent)
    rollout = await runner.step("SELECT 1")
    assert (rollout.success, rollout.task_output, len(rollout.violations)) == (True, "SELECT 1", 1)


async def test_fail_on_violation_raises_after_a_block_and_records_it_once(kernel: KernelSpace) -> None:
    heard: list[PolicyViolation] = []
    runner = GovernedRunner(kernel, fail_on_violation=True, violation_callback=heard.append)
    with pytest.raises(PolicyViolationError) as raised:
        await runner.step(DROP)
    assert raised.value.violation is heard[0]
    assert runner.get_stats() == {"total_rollouts": 1, "total_violations": 1, "violation_rate": 1.0}


async def test_fail_on_violation_lets_a_warning_pass(record: AuditLog) -> None:
    kernel = KernelSpace(ConstantPolicy(Effect.WARN, name="careful"), record)
    rollout = await GovernedRunner(kernel, fail_on_violation=True).step("x")
    assert rollout.success
    assert {one.violation_type for one in rollout.violations} == {PolicyViolationType.WARNED}


async def test_fail_on_violation_also_stops_the_rest_of_the_rollout(record: AuditLog) -> None:
    kernel = KernelSpace(SQLPolicy(dialect="sqlite", argument="input", tables=["users"]), record, executor=lambda t: t)
    ran: list[Any] = []

    def agent(_: str) -> str:
        ran.append(kernel.execute("SELECT * FROM other"))
        ran.append(kernel.execute("SELECT * FROM users"))
        return "done"

    runner = GovernedRunner(kernel, fail_on_violation=True)
    runner.init(agent)
    with pytest.raises(PolicyViolationError):
        await runner.step("SELECT 1")
    assert ran == [None, None]


async def test_a_callback_that_raises_is_counted_and_the_violation_stays(kernel: KernelSpace) -> None:
    def broken(_: PolicyViolation) -> None:
        raise RuntimeError("no")

    runner = GovernedRunner(kernel, violation_callback=broken)
    assert len((await runner.step(DROP)).violations) == 1
    assert runner.callback_errors == 1


async def test_violations_are_logged_unless_told_otherwise(
    kernel: KernelSpace, caplog: pytest.LogCaptureFixture
) -> None:
    await GovernedRunner(kernel, log_violations=False).step(DROP)
    assert "policy violation" not in caplog.text
    await GovernedRunner(kernel).step(DROP)
    assert caplog.text.count("policy violation") == 1


async def test_an_unknown_mode_is_refused(kernel: KernelSpace) -> None:
    with pytest.raises(ArgumentError, match="mode"):
        await GovernedRunner(kernel).step("SELECT 1", mode="test")  # type: ignore[arg-type]


def test_a_rollout_sums_its_own_penalties() -> None:
    rollout = GovernedRollout("in", None, False, [violation("high"), violation("low")], total_penalty=-7.0)
    assert (rollout.total_penalty, rollout.outcome) == (51.0, Outcome.BLOCKED)


def test_the_contributed_name_is_the_same_runner() -> None:
    assert AgentOSRunner is GovernedRunner


# ---------------------------------------------------------------------- which rollout


def in_thread(work: Callable[[], Any]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(30)


@pytest.mark.parametrize("how", ["here", "thread", "executor", "to_thread", "task", "late"])
async def test_a_hundred_interleaved_steps_do_not_mix(record: AuditLog, how: str) -> None:
    kernel = KernelSpace(sql(), record, executor=lambda text: text, critical_signal=None)
    runner = GovernedRunner(kernel, log_violations=False)
    pool = ThreadPoolExecutor(4)
    late: list[asyncio.Task[Any]] = []

    async def agent(given: dict[str, Any]) -> str:
        async def child() -> None:
            await asyncio.sleep(0)
            await kernel.execute_async(given["inner"])

        for _ in range(given["times"]):
            await asyncio.sleep(0)
            match how:
                case "here":
                    kernel.execute(given["inner"])
                case "thread":
                    in_thread(lambda: kernel.execute(given["inner"]))
                case "executor":
                    await asyncio.wrap_future(pool.submit(kernel.execute, given["inner"]))
                case "to_thread":
                    await asyncio.to_thread(kernel.execute, given["inner"])
                case "task":
                    await asyncio.create_task(child())
                case _:
                    late.append(asyncio.create_task(child()))
        return "done"

    runner.init(agent)
    tasks = [{"input": "SELECT 1", "inner": DROP, "times": number % 4} for number in range(100)]
    rollouts = await asyncio.gather(*(runner.step(task) for task in tasks))
    await asyncio.gather(*late)
    pool.shutdown()
    assert [len(rollout.violations) for rollout in rollouts] == [number % 4 for number in range(100)]
    assert [rollout.total_penalty for rollout in rollouts] == [number % 4 * 100.0 for number in range(100)]
    assert len({rollout.rollout_id for rollout in rollouts}) == 100
    assert runner.get_stats()["total_violations"] == 150
    assert not runner.unattributed


async def test_a_step_is_the_current_rollout_unless_that_is_being_run_already(kernel: KernelSpace) -> None:
    async def agent(_: str) -> None:
        await asyncio.sleep(0)

    runner = GovernedRunner(kernel)
    runner.init(agent)
    with enter_scope(RolloutScope("mine")):
        first, second = await asyncio.gather(runner.step("SELECT 1"), runner.step("SELECT 1"))
        third = await runner.step("SELECT 1")
    assert first.rollout_id == "mine"
    assert third.rollout_id == "mine"
    assert second.rollout_id != "mine"


async def test_two_runners_of_one_kernel_do_not_hear_each_other(kernel: KernelSpace) -> None:
    one, other = GovernedRunner(kernel), GovernedRunner(kernel)
    await one.step(DROP)
    assert (one.get_stats()["total_violations"], other.get_stats()["total_violations"]) == (1, 0)


async def test_what_names_no_rollout_is_kept_apart(record: AuditLog) -> None:
    kernel = ForeignKernel()
    runner = GovernedRunner(kernel)
    kernel.report(violation())
    assert (len(runner.unattributed), runner.get_stats()["total_violations"]) == (1, 1)


# ---------------------------------------------------------------------- other kernels


class ForeignKernel:
    """A kernel that is not ours: it reports in one of several forms and runs what it likes."""

    def __init__(self, *report: Any, **named: Any) -> None:
        self.given, self.named = report, named
        self.callbacks: list[Callable[..., Any]] = []

    def on_policy_violation(self, callback: Callable[..., Any]) -> None:
        self.callbacks.append(callback)

    def report(self, *report: Any, **named: Any) -> None:
        for callback in self.callbacks:
            callback(*report, **named)

    def execute(self, agent: Any, given: Any) -> Any:
        if self.given or self.named:
            self.report(*self.given, **self.named)
        return agent(given)


class Found:
    policy_name, description, severity, action_blocked = "Foreign", "found", "critical", True


@pytest.mark.parametrize(
    ("report", "severity", "blocked"),
    [
        ((violation("low", blocked=False),), "low", False),
        (("Foreign", "found", "critical", True), "critical", True),
        (("Foreign", "found", "medium", False), "medium", False),
        (({"policy": "Foreign", "severity": "high", "blocked": True},), "high", True),
        ((Found(),), "critical", True),
        (("gibberish",), "high", True),
        (({"policy": "Foreign", "severity": "awful", "blocked": False},), "high", True),
        (("Foreign", "found", "low", "no"), "low", True),
    ],
)
async def test_another_kernel_may_report_in_its_own_way(report: Any, severity: str, blocked: bool) -> None:
    runner = GovernedRunner(ForeignKernel(*report))
    runner.init(lambda given: given)
    rollout = await runner.step("x")
    assert [(one.severity, one.action_blocked) for one in rollout.violations] == [(severity, blocked)]
    assert rollout.success is not blocked


async def test_another_kernel_may_name_the_rollout_from_a_thread_that_knows_none() -> None:
    queue: list[str] = []
    kernel, ready, done = ForeignKernel(), threading.Event(), threading.Event()

    def reporter() -> None:  # started outside any rollout, as a kernel's own worker would be
        ready.wait(30)
        kernel.report(violation("medium"), rollout_id=queue[0])
        done.set()

    thread = threading.Thread(target=reporter)
    thread.start()
    runner = GovernedRunner(kernel)

    def agent(given: str) -> str:
        scope = current_scope()
        assert scope is not None
        queue.append(scope.rollout_id)
        ready.set()
        assert done.wait(30)
        return given

    runner.init(agent)
    rollout = await runner.step("x")
    thread.join(30)
    assert [one.severity for one in rollout.violations] == ["medium"]


async def test_another_kernel_that_needs_an_agent_says_so() -> None:
    with pytest.raises(KernelError, match="init"):
        await GovernedRunner(ForeignKernel()).step("x")


async def test_an_error_of_another_kernel_is_recorded_once() -> None:
    found = violation("critical")

    class Raising(ForeignKernel):
        def execute(self, agent: Any, given: Any) -> Any:
            self.report(found)
            raise PolicyViolationError(found)

    runner = GovernedRunner(Raising())
    runner.init(lambda given: given)
    rollout = await runner.step("x")
    assert (rollout.violations, rollout.outcome, runner.get_stats()["total_violations"]) == (
        [found],
        Outcome.BLOCKED,
        1,
    )


class NoHook:
    def execute(self, agent: Any, given: Any) -> Any:
        return agent(given)


class NoExecute:
    def on_policy_violation(self, callback: Any) -> None: ...


class AsynchronousHook(ForeignKernel):
    async def on_policy_violation(self, callback: Any) -> Any: ...  # nobody awaits it: it would register nothing


class BrokenHook(ForeignKernel):
    def on_policy_violation(self, callback: Any) -> Any:
        raise RuntimeError("out of order")


class BrokenExecute(NoExecute):
    @property
    def execute(self) -> Any:
        raise RuntimeError("out of order")


class KnowsEverything:
    def __getattr__(self, name: str) -> Any:
        return lambda *_args: None


@pytest.mark.parametrize(
    "kernel",
    [
        *(None, object(), NoHook(), NoExecute(), KernelSpace, "strict"),
        *(AsynchronousHook(), BrokenHook(), BrokenExecute(), KnowsEverything()),
        *(Mock(), AsyncMock(), Mock(spec=KernelSpace), create_autospec(KernelSpace, instance=True)),
    ],
    ids=lambda kernel: type(kernel).__name__,
)
def test_a_kernel_that_cannot_govern_is_refused(kernel: Any) -> None:
    with pytest.raises(ArgumentError, match=r"not a kernel|cannot govern"):
        GovernedRunner(kernel)


def test_what_is_registered_with_a_kernel_that_is_refused_is_taken_back() -> None:
    class HalfHooked(ForeignKernel):
        def on_policy_violation(self, callback: Any) -> Any:
            self.callbacks.append(callback)
            return lambda: self.callbacks.remove(callback)

        def on_signal(self, callback: Any) -> Any:
            raise RuntimeError("out of order")

    kernel = HalfHooked()
    with pytest.raises(ArgumentError, match="on_signal does not register a callback: out of order"):
        GovernedRunner(kernel)
    assert kernel.callbacks == []


async def test_a_kernel_behind_a_proxy_governs() -> None:
    class Proxy:
        def __init__(self, kernel: Any) -> None:
            self._kernel = kernel

        def __getattr__(self, name: str) -> Any:
            return getattr(self._kernel, name)

    runner = GovernedRunner(Proxy(KernelSpace(policy="strict", executor=lambda query: query)))
    assert [(await runner.step(task)).task_output for task in ("SELECT 1", DROP)] == ["SELECT 1", None]


async def _asynchronous(_violation: Any) -> None: ...


@pytest.mark.parametrize(
    "options",
    [
        {"violation_callback": _asynchronous},
        {"violation_callback": lambda: None},
        {"fail_on_violation": "no"},
        {"log_violations": None},
    ],
)
def test_options_that_would_do_something_else_are_refused(kernel: KernelSpace, options: Any) -> None:
    with pytest.raises(ArgumentError):
        GovernedRunner(kernel, **options)


# ---------------------------------------------------------------------- workers and stores


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
async def test_iter_runs_until_it_is_told_to_stop(kernel: KernelSpace, kind: Any) -> None:
    store, stop = Queue("SELECT 1"), kind()
    runner = GovernedRunner(kernel)
    runner.init_worker(0, store)
    running = asyncio.create_task(runner.iter(event=stop))
    while not store.rollouts:
        await asyncio.sleep(0.001)
    assert not running.done()
    stop.set()
    await asyncio.wait_for(running, 30)
    store.tasks.append("SELECT 1")
    await runner.iter(event=stop)
    assert len(store.rollouts) == 1


async def test_iter_without_a_store_is_an_error_and_so_is_a_store_of_nothing(kernel: KernelSpace) -> None:
    runner = GovernedRunner(kernel)
    with pytest.raises(KernelError, match="init_worker"):
        await runner.iter()
    with pytest.raises(ArgumentError, match="get_task"):
        runner.init_worker(0, object())
    with pytest.raises(ArgumentError, match="no worker 7"):
        runner.teardown_worker(7)


def tasks(count: int) -> list[Rollout]:
    return [
        Rollout(
            f"r{number}", task_id=f"t{number}", run_id="run", input={"input": DROP if number % 5 == 0 else "SELECT 1"}
        )
        for number in range(count)
    ]


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


def test_workers_in_processes_of_their_own_share_their_statistics(record: AuditLog, tmp_path: Path) -> None:
    arguments = [str(tmp_path / "traces.db"), str(tmp_path / "other-audit.db")]
    for name in ("a", "a", "b"):
        subprocess.run([sys.executable, "-c", WORKER, *arguments, name], check=True, timeout=60)
    with open_store(tmp_path / "traces.db") as store:
        runner = GovernedRunner(KernelSpace(sql(), record))
        runner.init_worker("reader", store)
        assert runner.get_stats() == {"total_rollouts": 6, "total_violations": 3, "violation_rate": 0.5}
        assert runner.get_worker_stats()["a"]["total_rollouts"] == 4
        assert runner.get_violation_rate() == 0.5


async def test_a_task_that_is_interrupted_is_not_held_against_the_agent(record: AuditLog, tmp_path: Path) -> None:
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
