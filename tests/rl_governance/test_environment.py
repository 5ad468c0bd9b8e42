"""GovernedEnvironment is a Gymnasium environment: resets, seeds, spaces, construction, rewards and ends."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import subprocess
import sys
import threading
import warnings
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env
from kernel_cases import DROP, SELECT, sql

from lgov_core import AuditLog, Effect, KernelSpace, Point, PolicySet, Severity
from lgov_core.environment import EnvironmentConfig, GovernedEnvironment, create_governed_env
from lgov_core.errors import ArgumentError, KernelError, PolicyDenied
from lgov_core.policies import ConstantPolicy, Rule

gymnasium = pytest.importorskip("gymnasium", reason="needs the extra gym")


def some_task() -> str:
    return random.choice(["SELECT 1", "SELECT 2", "SELECT 3"]) + f" -- {random.random()}"


@pytest.mark.parametrize("executor", [None, len])
def test_it_passes_the_environment_checker(record: AuditLog, executor: Any) -> None:
    env = GovernedEnvironment(KernelSpace([sql()], record, executor=executor), task_generator=some_task)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*render.*")
        check_env(env)
    env.close()


def test_the_beginning_and_the_end_of_an_episode_are_judged(record: AuditLog) -> None:
    kernel = KernelSpace([sql()], record, executor=len)
    env = GovernedEnvironment(kernel, task_generator=some_task)
    env.reset()
    env.reset()
    env.close()
    points = [entry.body["point"] for entry in record.entries() if entry.kind == "decision"]
    assert points == ["agent_startup", "agent_shutdown"] * 2


def test_an_episode_that_a_policy_does_not_let_begin_does_not(record: AuditLog) -> None:
    no_start = PolicySet([Rule(ConstantPolicy(Effect.DENY, name="closed"), on=[Point.AGENT_STARTUP])])
    env = GovernedEnvironment(KernelSpace(no_start, record, executor=len))
    with pytest.raises(PolicyDenied, match="not allowed"):
        env.reset()
    assert env.get_metrics()["total_episodes"] == 0
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(SELECT)


def test_observations_are_the_agents_own_to_keep_and_to_change(kernel: KernelSpace) -> None:
    space = gymnasium.spaces.Box(0, 1, (2,))
    env = GovernedEnvironment(kernel, lambda np_random: np_random.random(2, "float32"), observation_space=space)
    check_env(env, skip_render_check=True)
    first, _ = env.reset(seed=1)
    kept = first.copy()
    first[:] = 7
    assert (env.step(SELECT)[0] == kept).all()


def test_it_can_be_wrapped_and_vectorised(record: AuditLog) -> None:
    def make() -> GovernedEnvironment:
        return GovernedEnvironment(KernelSpace([sql()], record), task_generator=some_task)

    limited = gymnasium.wrappers.TimeLimit(make(), max_episode_steps=2)
    limited.reset(seed=1)
    limited.step("SELECT 1")
    assert limited.step("SELECT 1")[3] is True
    vector = gymnasium.vector.SyncVectorEnv([make, make])
    states, _ = vector.reset(seed=1)
    assert len(states) == 2
    _, rewards, terminated, _, _ = vector.step(("SELECT 1", DROP))
    assert (rewards[0] > 0, rewards[1] < -99, list(terminated)) == (True, True, [False, True])
    vector.close()


def from_np_random(np_random: np.random.Generator) -> str:
    return str(np_random.random())


def from_seed(seed: int) -> str:
    return str(seed)


def from_numpy() -> str:
    return str(np.random.random())


@pytest.mark.parametrize("generator", [some_task, from_np_random, from_seed, from_numpy])
def test_a_seed_makes_the_tasks_repeatable_and_different(kernel: KernelSpace, generator: Any) -> None:
    def first_tasks(seed: int) -> list[str]:
        env = GovernedEnvironment(kernel, generator)
        found = [env.reset(seed=seed)[0], env.reset()[0], env.reset()[0]]
        env.close()
        return found

    assert first_tasks(1) == first_tasks(1)
    assert first_tasks(1) != first_tasks(2)
    assert len(set(first_tasks(1))) == 3


def test_global_random_numbers_are_left_unchanged(kernel: KernelSpace) -> None:
    random.seed(5)
    np.random.seed(5)
    expected = (random.random(), np.random.random())
    random.seed(5)
    np.random.seed(5)
    GovernedEnvironment(kernel, some_task).reset(seed=3)
    assert (random.random(), np.random.random()) == expected


def test_a_generator_that_cannot_be_called_is_refused(kernel: KernelSpace) -> None:
    for wrong in (7, lambda level: str(level)):
        with pytest.raises(ArgumentError):
            GovernedEnvironment(kernel, wrong)  # type: ignore[arg-type]


def test_tasks_belong_to_the_observation_space(kernel: KernelSpace) -> None:
    assert GovernedEnvironment(kernel, lambda: "naïve 東京").reset()[0] == "naïve 東京"
    with pytest.raises(ArgumentError, match="observation_space"):
        GovernedEnvironment(kernel, lambda: 7, observation_space=spaces.Discrete(5)).reset()
    assert GovernedEnvironment(kernel, lambda: 3, observation_space=spaces.Discrete(5)).reset()[0] == 3


def test_a_task_may_be_given_and_nothing_else(kernel: KernelSpace) -> None:
    env = GovernedEnvironment(kernel, some_task)
    assert env.reset(options={"task": "mine"})[0] == "mine"
    with pytest.raises(ArgumentError, match="tsak"):
        env.reset(options={"tsak": "mine"})


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("max_steps", 0),
        ("max_steps", 1.5),
        ("max_steps", True),
        ("violation_penalty", 10.0),
        ("violation_penalty", float("nan")),
        ("step_penalty", 0.1),
        ("success_bonus", -1.0),
        ("success_bonus", float("inf")),
        ("terminate_on_critical", "yes"),
    ],
)
def test_a_configuration_without_meaning_is_refused(kernel: KernelSpace, option: str, value: Any) -> None:
    with pytest.raises(ValueError, match=option):
        EnvironmentConfig(**{option: value})
    with pytest.raises(ValueError, match=option):
        create_governed_env(kernel, **{option: value})


def test_an_unknown_keyword_is_warned_about_with_the_nearest(kernel: KernelSpace) -> None:
    with pytest.warns(UserWarning, match="did you mean max_steps"):
        create_governed_env(kernel, max_step=3)


def test_keywords_go_where_they_belong(kernel: KernelSpace) -> None:
    env = create_governed_env(
        kernel,
        max_steps=200,
        violation_penalty=-20.0,
        config=EnvironmentConfig(success_bonus=1.0),
        task_generator=some_task,
    )
    assert env.config == EnvironmentConfig(max_steps=200, violation_penalty=-20.0, success_bonus=1.0)


class NoHook:
    def execute(self, given: Any) -> Any:
        return given


def test_another_kernel_works_too() -> None:
    class Foreign(NoHook):
        policies = ("one",)

        def on_policy_violation(self, callback: Any) -> None:
            self.callback = callback

        def execute(self, given: Any) -> Any:
            if given == DROP:
                self.callback("Foreign", "found", "critical", True)
            return given

    env = GovernedEnvironment(Foreign())
    assert env.reset()[1]["kernel_policies"] == ["one"]
    assert env.step(SELECT)[1] == pytest.approx(10.9)
    assert env.step(DROP)[1] == pytest.approx(-100.1)


def test_without_gymnasium_the_import_says_what_to_install() -> None:
    program = "import sys; sys.modules['gymnasium'] = None\nfrom lgov_core import GovernedEnvironment"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "pip install 'lgov[gym]'" in done.stderr.splitlines()[-1]


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
