"""Signals stop, resume and end rollouts at their next governed point."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from kernel_cases import allowing, bodies, coroutine, sql, started

from lgov_core import Action, AuditLog, KernelSpace, Point, RolloutScope
from lgov_core.errors import ArgumentError, AuditError
from lgov_core.reward import PolicyViolationType
from lgov_core.scope import enter_scope


class StoppedRollout:
    """An agent in a thread of its own that is stopped between its first and its second act."""

    def __init__(self, kernel: KernelSpace, agent: str | None = None) -> None:
        self.kernel, self.ran = kernel, list[str]()
        self.reached, self.go_on, self.waiting = threading.Event(), threading.Event(), threading.Event()
        holding = kernel.signals._holding

        def holding_seen(*args: Any) -> Any:
            box = holding(*args)
            if box is not None:
                self.waiting.set()
            return box

        kernel.signals._holding = holding_seen  # type: ignore[method-assign]
        self.thread = started(self.work)
        assert self.reached.wait(10)

    def act(self, given: str) -> str:
        self.ran.append(given)
        return given

    def work(self) -> None:
        with enter_scope(RolloutScope("stopped")):
            self.kernel.execute(self.act, "first")
            self.reached.set()
            self.go_on.wait(10)
            self.kernel.execute(self.act, "second")
            self.kernel.execute(self.act, "third")

    def finish(self) -> list[str]:
        self.thread.join(10)
        assert not self.thread.is_alive()
        return self.ran


@pytest.mark.parametrize("target", ["stopped", RolloutScope("stopped"), "act"])
def test_sigstop_holds_the_next_point_until_sigcont(record: AuditLog, target: Any) -> None:
    kernel = KernelSpace(allowing(), record)
    rollout = StoppedRollout(kernel)
    kernel.signal(target, "SIGSTOP")
    rollout.go_on.set()
    assert rollout.waiting.wait(10)
    assert rollout.ran == ["first"]
    kernel.signal(target, "SIGCONT")
    assert rollout.finish() == ["first", "second", "third"]
    assert kernel.get_recent_violations() == []


def test_a_stopped_rollout_that_nobody_resumes_is_denied(record: AuditLog) -> None:
    kernel = KernelSpace(allowing(), record, stop_timeout_s=0.05)
    rollout = StoppedRollout(kernel)
    kernel.signal("stopped", "SIGSTOP")
    rollout.go_on.set()
    assert rollout.finish() == ["first"]
    violations = kernel.get_recent_violations()
    assert {violation.violation_type for violation in violations} == {PolicyViolationType.SIGNAL_SENT}
    assert len(violations) == 2, "the third act is denied at once"


def test_sigkill_releases_who_waits_with_a_denial(record: AuditLog) -> None:
    kernel = KernelSpace(allowing(), record, stop_timeout_s=600)
    rollout = StoppedRollout(kernel)
    kernel.signal("stopped", "SIGSTOP")
    rollout.go_on.set()
    assert rollout.waiting.wait(10)
    kernel.signal("stopped", "SIGKILL")
    assert rollout.finish() == ["first"]


def test_sigcont_takes_back_neither_sigterm_nor_sigkill(record: AuditLog) -> None:
    for signal in ("SIGTERM", "SIGKILL"):
        kernel = KernelSpace(allowing(), record)
        kernel.signal("r", signal)
        kernel.signal("r", "SIGCONT")
        with enter_scope(RolloutScope("r")):
            decision = kernel.run(lambda given: given, "x").decision
        assert (decision.blocks, decision.abort, decision.rule) == (True, True, signal.lower())


def test_an_output_passes_after_sigterm_and_not_after_sigkill(record: AuditLog) -> None:
    kernel = KernelSpace(allowing(), record)
    output = Action(Point.OUTPUT, "agent", text="done", rollout_id="r")
    kernel.signal("r", "SIGTERM")
    assert not kernel.governor.decide(output).blocks
    kernel.signal("r", "SIGKILL")
    assert kernel.governor.decide(output).blocks


async def test_tasks_wait_without_holding_up_the_loop(record: AuditLog) -> None:
    kernel = KernelSpace(allowing(), record, stop_timeout_s=600)
    kernel.signal("r", "SIGSTOP")
    ran: list[str] = []

    async def agent(name: str) -> str:
        ran.append(name)
        return name

    async def rollout(name: str) -> Any:
        with enter_scope(RolloutScope(name)):
            return await kernel.execute_async(agent, name)

    stopped = asyncio.create_task(rollout("r"))
    for number in range(5):
        await asyncio.create_task(rollout(f"other{number}"))
    assert ran == [f"other{number}" for number in range(5)]
    kernel.signal("r", "SIGCONT")
    assert await stopped == "r"


async def test_a_stopped_task_that_nobody_resumes_is_denied(record: AuditLog) -> None:
    kernel = KernelSpace(allowing(), record, stop_timeout_s=0.01)
    kernel.signal("coroutine", "SIGSTOP")
    execution = await kernel.run_async(coroutine, "x")
    assert (execution.ran, execution.decision.rule) == (False, "sigstop")


async def test_a_task_that_waits_can_be_cancelled(record: AuditLog) -> None:
    kernel = KernelSpace(allowing(), record, stop_timeout_s=600)
    kernel.signal("coroutine", "SIGSTOP")
    task = asyncio.create_task(kernel.execute_async(coroutine, "x"))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert kernel.signals._boxes["coroutine"].waiting == []
    assert bodies(record)[-1]["point"] == "agent_shutdown"


def test_a_critical_violation_ends_its_rollout_at_the_next_act(record: AuditLog) -> None:
    kernel = KernelSpace(sql(), record, executor=lambda text: text)
    signals: list[tuple[str, str]] = []
    kernel.on_signal(lambda signal, target: signals.append((signal, target)))
    with enter_scope(RolloutScope("bad")):
        kernel.execute("DROP TABLE users")
        assert kernel.run("SELECT 1").decision.rule == "sigterm"
    with enter_scope(RolloutScope("good")):
        assert kernel.execute("SELECT 1") == "SELECT 1"
    assert signals == [("SIGTERM", "bad")]
    kernel.reset()
    with enter_scope(RolloutScope("bad")):
        assert kernel.execute("SELECT 1") == "SELECT 1"


def test_the_signal_on_critical_violations_can_be_left_out(record: AuditLog) -> None:
    kernel = KernelSpace(sql(), record, executor=lambda text: text, critical_signal=None)
    with enter_scope(RolloutScope("bad")):
        kernel.execute("DROP TABLE users")
        assert kernel.execute("SELECT 1") == "SELECT 1"


def test_what_a_person_sent_survives_a_reset(record: AuditLog) -> None:
    kernel = KernelSpace(allowing(), record)
    kernel.signal("agent", "SIGKILL")
    kernel.reset()

    def agent(given: str) -> str:
        return given

    assert not kernel.run(agent, "x").ran


def test_the_governor_of_a_kernel_obeys_its_signals(record: AuditLog) -> None:
    kernel = KernelSpace(allowing(), record)
    kernel.signal("r", "SIGKILL")
    with enter_scope(RolloutScope("r")):
        assert kernel.governor.decide(Action(Point.PRE_MODEL_CALL, "model")).blocks


class SignalLog(AuditLog):
    """A record that keeps signals too, until its disk is full."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.kept: list[tuple[Any, ...]] = []
        self.full = False

    def log_signal(self, agent_id: str, signal: str, *, reason: str = "", rollout_id: str | None = None) -> str:
        if self.full:
            raise AuditError("full")
        self.kept.append((agent_id, signal, rollout_id))
        return "sig_1"


def test_signals_are_on_record_and_what_resumes_must_be(tmp_path: Path) -> None:
    with SignalLog(tmp_path / "audit.db") as log:
        kernel = KernelSpace(sql(), log, executor=lambda text: text, stop_timeout_s=0)
        with enter_scope(RolloutScope("bad")):
            kernel.execute("DROP TABLE users")
        kernel.signal("agent", "SIGSTOP")
        assert log.kept == [("bad", "SIGTERM", "bad"), ("agent", "SIGSTOP", None)]
        log.full = True
        with pytest.raises(AuditError):
            kernel.signal("agent", "SIGCONT")
        with pytest.raises(AuditError):
            kernel.signal("other", "SIGKILL")
        for agent in ("agent", "other"):
            assert kernel.governor.decide(Action(Point.PRE_MODEL_CALL, "model", agent=agent)).blocks


@pytest.mark.parametrize("target", [None, ""])
def test_a_signal_needs_a_target(kernel: KernelSpace, target: Any) -> None:
    with pytest.raises(ArgumentError):
        kernel.signal(target, "SIGSTOP")


def test_signals_of_rollouts_that_are_over_are_not_kept(kernel: KernelSpace) -> None:
    for _ in range(20):
        kernel.execute("DROP TABLE users")
    assert kernel.signals._boxes == {}


@pytest.mark.parametrize("target", [None, "", 5, [], b"ro_1", object()])
def test_a_signal_to_nobody_is_an_error(target: Any) -> None:
    with pytest.raises(ArgumentError, match="neither a rollout nor an agent"):
        KernelSpace(policy="strict").signal(target, "SIGKILL")
