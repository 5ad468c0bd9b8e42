"""Section 5 of the tutorial: GovernedEnvironment."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("gymnasium", reason="needs the extra gym")
import lgov_core
from tests.rl_governance.tutorial_code import ALL_TABLES, Database, run

ENVIRONMENT = """
from agent_lightning_gov import GovernedEnvironment
from agent_lightning_gov.environment import EnvironmentConfig

env = GovernedEnvironment(
    kernel,
    task_generator=generate_sql_task,  # returns initial state each episode
    reward_fn=custom_reward,           # (state, action, result) → float
    config=EnvironmentConfig(
        max_steps=100,
        terminate_on_critical=True,
        violation_penalty=-10.0,
        step_penalty=-0.1,
        success_bonus=10.0,
        reset_kernel_state=True,
    ),
)
"""
EPISODE = """
state, info = env.reset(seed=42)
print(info)
# {"episode": 1, "kernel_policies": ["SQLPolicy", "CostControlPolicy"]}

while not env.terminated:
    action = agent.get_action(state)
    state, reward, terminated, truncated, info = env.step(action)

    print(f"Step {info['step']:3d}  reward={reward:+.2f}  "
          f"violations={len(info['violations'])}")
"""
TERMINATION = """
# Example: terminate on critical, allow 50 steps
config = EnvironmentConfig(
    max_steps=50,
    terminate_on_critical=True,
)
"""
GENERATOR = """
import random

SQL_TEMPLATES = [
    "SELECT name FROM users WHERE id = {id}",
    "UPDATE orders SET status = 'shipped' WHERE order_id = {id}",
    "INSERT INTO logs (message) VALUES ('{msg}')",
]

def generate_sql_task():
    template = random.choice(SQL_TEMPLATES)
    return template.format(id=random.randint(1, 1000), msg="agent action")

env = GovernedEnvironment(kernel, task_generator=generate_sql_task)
"""
METRICS = """
metrics = env.get_metrics()
print(metrics)
# {
#     "total_episodes": 200,
#     "total_steps": 12400,
#     "total_violations": 87,
#     "successful_episodes": 168,
#     "success_rate": 0.84,
#     "violations_per_episode": 0.435,
#     "steps_per_episode": 62.0,
# }
"""
ENV_FACTORY = """
from agent_lightning_gov.environment import create_governed_env

env = create_governed_env(
    kernel,
    max_steps=200,
    terminate_on_critical=True,
    violation_penalty=-20.0,
)
"""


@pytest.fixture
def env_names(kernel_names: dict[str, Any], database: Database) -> dict[str, Any]:
    """The namespace with an environment whose kernel really runs the acts, on the database."""
    policies = kernel_names["kernel"].policies
    kernel_names |= {
        "kernel": lgov_core.KernelSpace(policy=policies, executor=database.run),
        "generate_sql_task": lambda: "SELECT name FROM users WHERE id = 42",
        "custom_reward": lambda state, action, result: result.accuracy,
    }
    run(ENVIRONMENT, kernel_names)
    return kernel_names


def test_5_1_to_5_3_an_episode_rewards_reads_and_ends_on_a_drop(
    env_names: dict[str, Any], database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    acts = iter(["SELECT name FROM users", "SELECT name FROM users WHERE id = 42", "DROP TABLE users"])
    env_names["agent"] = SimpleNamespace(get_action=lambda _: next(acts))
    run(EPISODE, env_names)
    assert capsys.readouterr().out.splitlines() == [
        "{'episode': 1, 'kernel_policies': ['SQLPolicy', 'CostControlPolicy']}",
        "Step   1  reward=+10.75  violations=0",
        "Step   2  reward=+10.75  violations=0",
        "Step   3  reward=-100.10  violations=1",
    ]
    assert (env_names["terminated"], env_names["truncated"]) == (True, False)
    assert database.ran == ["SELECT name FROM users", "SELECT name FROM users WHERE id = 42"]
    run(METRICS, env_names)
    assert env_names["metrics"] == {
        "total_episodes": 1,
        "total_steps": 3,
        "total_violations": 1,
        "successful_episodes": 0,
        "success_rate": 0.0,
        "violations_per_episode": 1.0,
        "steps_per_episode": 3.0,
    }


def test_5_a_hundred_drops_never_pay(env_names: dict[str, Any], database: Database) -> None:
    env_names["agent"] = SimpleNamespace(get_action=lambda _: "DROP TABLE users")
    rewards = []
    for _ in range(100):
        run(EPISODE, env_names)
        rewards.append(env_names["reward"])
        assert env_names["terminated"]
    assert len(rewards) == 100
    assert max(rewards) < 0
    assert env_names["env"].get_metrics()["total_violations"] == 100
    assert database.ran == []
    assert database.tables() == ALL_TABLES


def test_5_4_an_episode_is_cut_short_after_its_steps(env_names: dict[str, Any]) -> None:
    run(TERMINATION, env_names)
    env = lgov_core.GovernedEnvironment(env_names["kernel"], env_names["generate_sql_task"], config=env_names["config"])
    env_names |= {"env": env, "agent": SimpleNamespace(get_action=lambda state: state)}
    run(EPISODE, env_names)
    assert (env_names["info"]["step"], env_names["terminated"], env_names["truncated"]) == (50, False, True)


def test_5_5_a_task_generator_makes_a_task_for_each_episode(env_names: dict[str, Any]) -> None:
    run(GENERATOR, env_names)
    env = env_names["env"]
    tasks = [env.reset(seed=7)[0], env.reset()[0], env.reset()[0]]
    again = [env.reset(seed=7)[0], env.reset()[0], env.reset()[0]]
    assert tasks == again
    assert len(set(tasks)) > 1
    _, reward, terminated, _, info = env.step(tasks[0])
    assert (reward, terminated, info["violations"]) == (1.0 - 0.1 + 10.0, False, [])


def test_5_7_the_factory(env_names: dict[str, Any]) -> None:
    run(ENV_FACTORY, env_names)
    config = env_names["env"].config
    assert (config.max_steps, config.terminate_on_critical, config.violation_penalty) == (200, True, -20.0)
    env_names["env"].reset()
    assert env_names["env"].step("DROP TABLE users")[1] == -200.1
