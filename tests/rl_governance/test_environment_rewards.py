"""What a step of a GovernedEnvironment is paid, when episodes end, and the metrics."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from typing import Any

import pytest
from kernel_cases import DROP, SELECT, sql

from lgov_core import AuditLog, Effect, KernelSpace, Severity
from lgov_core.errors import ArgumentError, KernelError
from lgov_core.policies import ConstantPolicy

gymnasium = pytest.importorskip("gymnasium", reason="needs the extra gym")

from gymnasium.error import ResetNeeded  # noqa: E402

from lgov_core.environment import GovernedEnvironment, create_governed_env  # noqa: E402


def test_a_select_pays_and_runs(kernel: KernelSpace) -> None:
    results: list[Any] = []

    def reward(state: Any, action: Any, result: Any) -> float:
        results.append((state, action, result))
        return 0.25

    env = GovernedEnvironment(kernel, lambda: "find", reward)
    assert env.reset(seed=0)[1] == {"episode": 1, "kernel_policies": ["SQLPolicy"]}
    state, paid, terminated, truncated, info = env.step(SELECT)
    assert results == [("find", SELECT, [("Ada",)])]
    assert (state, terminated, truncated) == ("find", False, False)
    assert paid == pytest.approx(0.25 - 0.1 + 10.0)
    assert (info["violations"], info["step"], info["success"], info["error"]) == ([], 1, True, None)
    assert info["total_reward"] == pytest.approx(paid)


def test_a_drop_costs_and_ends_the_episode_and_does_not_run(kernel: KernelSpace, users: sqlite3.Connection) -> None:
    env = GovernedEnvironment(kernel, reward_fn=lambda *_: 1000.0)
    env.reset()
    assert not env.terminated
    _, paid, terminated, truncated, info = env.step(DROP)
    assert paid == pytest.approx(-100.1)
    assert (terminated, truncated, env.terminated, info["success"]) == (True, False, True, False)
    assert [one["severity"] for one in info["violations"]] == ["critical"]
    assert info["signals"] == ["SIGTERM"]
    assert users.execute("SELECT count(*) FROM users").fetchone() == (1,)
    with pytest.raises(ResetNeeded):
        env.step(SELECT)


@pytest.mark.parametrize("ends", [True, False])
def test_a_hundred_drops_never_pay(kernel: KernelSpace, ends: bool) -> None:
    env = create_governed_env(kernel, terminate_on_critical=ends, reward_fn=lambda *_: 1e6)
    env.reset()
    paid: list[float] = []
    for _ in range(100):
        if env.terminated:
            env.reset()
        paid.append(env.step(DROP)[1])
    assert max(paid) <= -100.0
    assert sum(paid) == pytest.approx(-10_010.0)
    metrics = env.get_metrics()
    assert (metrics["total_violations"], metrics["successful_episodes"]) == (100, 0)


def test_an_episode_may_go_on_after_a_critical_violation(kernel: KernelSpace) -> None:
    env = create_governed_env(kernel, terminate_on_critical=False)
    env.reset()
    env.step(DROP)
    assert env.step(SELECT)[1] == pytest.approx(10.9)


@pytest.mark.parametrize(("severity", "scale"), [("critical", 10), ("high", 5), ("medium", 1), ("low", 1)])
def test_penalties_are_scaled_by_severity(record: AuditLog, severity: str, scale: float) -> None:
    kernel = KernelSpace(ConstantPolicy(Effect.DENY, name="no", severity=Severity(severity)), record, executor=len)
    env = create_governed_env(kernel, violation_penalty=-3.0, step_penalty=0.0)
    env.reset()
    assert env.step("x")[1] == pytest.approx(-3.0 * scale)


def test_a_warning_costs_its_penalty_and_the_bonus(record: AuditLog) -> None:
    env = GovernedEnvironment(KernelSpace(ConstantPolicy(Effect.WARN, name="careful"), record, executor=lambda _: None))
    env.reset()
    assert env.step("x")[4]["success"] is False
    kernel = KernelSpace(ConstantPolicy(Effect.WARN, name="careful"), record, executor=lambda _: 1)
    env = GovernedEnvironment(kernel)
    env.reset()
    _, paid, _, _, info = env.step("x")
    # The act, its result: two things were warned about.
    assert paid == pytest.approx(1.0 - 0.1 - 10.0 * len(info["violations"]))
    assert info["success"]


def test_an_act_that_raises_earns_nothing_and_ends_nothing(kernel: KernelSpace) -> None:
    env = GovernedEnvironment(kernel)
    env.reset()
    _, paid, terminated, _, info = env.step("SELECT * FROM nowhere")
    assert (paid, terminated, info["success"], info["violations"]) == (-0.1, False, False, [])
    assert info["error"].startswith("OperationalError")


@pytest.mark.parametrize("answer", [float("nan"), float("inf"), 10**400, None, "much", "1.0"])
def test_a_reward_must_be_finite(kernel: KernelSpace, answer: Any) -> None:
    env = GovernedEnvironment(kernel, reward_fn=lambda *_: answer)
    env.reset()
    with pytest.raises(ArgumentError, match="reward_fn"):
        env.step(SELECT)


def test_it_is_truncated_at_max_steps(kernel: KernelSpace) -> None:
    env = create_governed_env(kernel, max_steps=2)
    env.reset()
    assert env.step(SELECT)[2:4] == (False, False)
    assert env.step(SELECT)[2:4] == (False, True)
    assert env.terminated
    with pytest.raises(ResetNeeded):
        env.step(SELECT)


def test_a_step_needs_an_open_episode(kernel: KernelSpace) -> None:
    env = GovernedEnvironment(kernel)
    with pytest.raises(ResetNeeded):
        env.step(SELECT)
    env.reset()
    env.close()
    env.close()
    for call in (lambda: env.step(SELECT), env.reset):
        with pytest.raises(KernelError, match="closed"):
            call()


def test_a_kill_ends_the_episode(kernel: KernelSpace) -> None:
    env = create_governed_env(kernel, terminate_on_critical=False)
    env.reset()
    episode = env._episode
    assert episode is not None
    kernel.signal(episode.scope.rollout_id, "SIGKILL")
    _, paid, terminated, _, _ = env.step(SELECT)
    assert terminated
    assert paid < 0
    env.reset()
    assert env.step(SELECT)[1] > 0


def test_metrics_count_episodes_and_never_exceed_one(kernel: KernelSpace) -> None:
    env = create_governed_env(kernel, max_steps=3)
    assert env.get_metrics()["success_rate"] == 0.0
    for acts in ([SELECT] * 3, [SELECT, DROP], [DROP], [SELECT]):
        env.reset()
        for act in acts:
            env.step(act)
    assert env.get_metrics() == {
        "total_episodes": 4,
        "total_steps": 7,
        "total_violations": 2,
        "successful_episodes": 2,
        "success_rate": 0.5,
        "violations_per_episode": 0.5,
        "steps_per_episode": 1.75,
    }


def test_environments_in_threads_share_a_kernel_without_mixing(record: AuditLog) -> None:
    kernel = KernelSpace([sql()], record, executor=lambda text: text)
    metrics: dict[int, Any] = {}

    def work(number: int) -> None:
        env = create_governed_env(kernel, terminate_on_critical=False)
        for _ in range(3):
            env.reset(seed=number)
            for _ in range(5):
                env.step(DROP if number % 2 else SELECT)
        metrics[number] = env.get_metrics()
        env.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [metrics[number]["total_violations"] for number in range(8)] == [0, 15] * 4


async def test_a_step_inside_a_running_loop_refuses_a_coroutine(record: AuditLog, kernel: KernelSpace) -> None:
    env = GovernedEnvironment(kernel)
    env.reset()
    assert env.step(SELECT)[4]["success"]

    async def executor(text: str) -> str:
        await asyncio.sleep(0)
        return text

    slow = GovernedEnvironment(KernelSpace([sql()], record, executor=executor))
    slow.reset()
    with pytest.raises(KernelError, match="execute_async"):
        slow.step(SELECT)
