"""GovernedRunner over kernels other than KernelSpace."""

from __future__ import annotations

import threading
from typing import Any
from unittest.mock import AsyncMock, Mock, create_autospec

import pytest
from kernel_cases import DROP
from runner_cases import ForeignKernel, violation

from lgov_core import KernelSpace, Outcome, current_scope
from lgov_core.errors import ArgumentError
from lgov_core.runner import (
    GovernedRunner,
    PolicyViolationError,
)


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
