"""GovernedRunner: each task is a rollout, and each violation is on the rollout it belongs to, whatever the kernel."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import AsyncMock, Mock, create_autospec

import pytest
from kernel_cases import DROP, sql
from runner_cases import ForeignKernel, violation

from lgov_core import AuditLog, Effect, KernelSpace, Outcome, RolloutScope, SQLPolicy, current_scope
from lgov_core.errors import ArgumentError, KernelError
from lgov_core.policies import ConstantPolicy
from lgov_core.runner import (
    AgentOSRunner,
    GovernedRunner,
    PolicyViolation,
    PolicyViolationError,
    PolicyViolationType,
)
from lgov_core.scope import enter_scope


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


async def test_a_step_without_executor_is_judged_with_an_accuracy(record: AuditLog) -> None:
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


async def test_an_agent_that_recovers_from_a_denial_succeeds(record: AuditLog) -> None:
    kernel = KernelSpace(sql(), record, executor=lambda text: text, critical_signal=None)

    def agent(given: str) -> str:
        assert kernel.execute(DROP) is None
        return kernel.execute(given)

    runner = GovernedRunner(kernel)
    runner.init(agent)
    rollout = await runner.step("SELECT 1")
    assert (rollout.success, rollout.task_output, len(rollout.violations)) == (True, "SELECT 1", 1)


async def test_fail_on_violation_raises_and_records_a_block_once(kernel: KernelSpace) -> None:
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


async def test_a_callback_that_raises_is_counted(kernel: KernelSpace) -> None:
    def broken(_: PolicyViolation) -> None:
        raise RuntimeError("no")

    runner = GovernedRunner(kernel, violation_callback=broken)
    assert len((await runner.step(DROP)).violations) == 1
    assert runner.callback_errors == 1


async def test_violations_are_logged_unless_switched_off(kernel: KernelSpace, caplog: pytest.LogCaptureFixture) -> None:
    await GovernedRunner(kernel, log_violations=False).step(DROP)
    assert "policy violation" not in caplog.text
    await GovernedRunner(kernel).step(DROP)
    assert caplog.text.count("policy violation") == 1


async def test_any_mode_is_kept_on_the_rollout(kernel: KernelSpace) -> None:
    assert (await GovernedRunner(kernel).step("SELECT 1", mode="test")).mode == "test"


def test_the_contributed_name_is_the_same_runner() -> None:
    assert AgentOSRunner is GovernedRunner


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


async def test_a_step_is_the_current_rollout_unless_that_is_running(kernel: KernelSpace) -> None:
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


async def test_two_runners_of_one_kernel_do_not_mix(kernel: KernelSpace) -> None:
    one, other = GovernedRunner(kernel), GovernedRunner(kernel)
    await one.step(DROP)
    assert (one.get_stats()["total_violations"], other.get_stats()["total_violations"]) == (1, 0)


async def test_what_names_no_rollout_is_kept_apart(record: AuditLog) -> None:
    kernel = ForeignKernel()
    runner = GovernedRunner(kernel)
    kernel.report(violation())
    assert (len(runner.unattributed), runner.get_stats()["total_violations"]) == (1, 1)


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


async def test_another_kernel_may_name_the_rollout_from_a_thread() -> None:
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


async def test_another_kernel_that_needs_an_agent_gets_none() -> None:
    rollout = await GovernedRunner(ForeignKernel()).step("x")
    assert (rollout.success, rollout.task_output) == (False, None)


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
        *(None, object(), "strict", AsynchronousHook(), KnowsEverything()),
        *(Mock(), AsyncMock(), Mock(spec=KernelSpace), create_autospec(KernelSpace, instance=True)),
    ],
    ids=lambda kernel: type(kernel).__name__,
)
@pytest.mark.filterwarnings("ignore::UserWarning")
async def test_rollouts_of_a_kernel_that_cannot_govern_say_so(kernel: Any) -> None:
    assert (await GovernedRunner(kernel).step("x")).governed is False


@pytest.mark.parametrize(
    "kernel", [BrokenHook(), BrokenExecute(), KernelSpace], ids=lambda kernel: type(kernel).__name__
)
def test_a_kernel_that_is_broken_is_refused(kernel: Any) -> None:
    with pytest.raises(ArgumentError, match="cannot govern"):
        GovernedRunner(kernel)


@pytest.mark.parametrize("kernel", [NoHook(), NoExecute()], ids=lambda kernel: type(kernel).__name__)
async def test_a_hook_or_a_method_that_runs_acts_is_enough(kernel: Any) -> None:
    runner = GovernedRunner(kernel)
    runner.init(lambda given: given)
    rollout = await runner.step("x")
    assert (rollout.governed, rollout.task_output) == (True, "x")


def test_callbacks_on_a_refused_kernel_are_removed() -> None:
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
