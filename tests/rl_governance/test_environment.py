"""GovernedEnvironment is a Gymnasium environment: resets, seeds, spaces, construction."""

from __future__ import annotations

import random
import subprocess
import sys
import warnings
from typing import Any

import pytest
from kernel_cases import DROP, SELECT, sql

from lgov_core import AuditLog, Effect, KernelSpace, Point, PolicySet
from lgov_core.errors import ArgumentError, PolicyDenied
from lgov_core.policies import ConstantPolicy, Rule

gymnasium = pytest.importorskip("gymnasium", reason="needs the extra gym")

import numpy as np  # noqa: E402
from gymnasium import spaces  # noqa: E402
from gymnasium.utils.env_checker import check_env  # noqa: E402

from lgov_core.environment import EnvironmentConfig, GovernedEnvironment, create_governed_env  # noqa: E402


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
