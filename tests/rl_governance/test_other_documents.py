"""The README, the pull request, and this project's own page on rewards."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("gymnasium", reason="needs the extra gym")
import lgov_core
from lgov_core.runner import GovernedRollout
from tests.docs.page_runner import page_text
from tests.rl_governance.tutorial_code import ALL_TABLES, DROP_STEP, Database, run

README_CONFIG = """
from agent_lightning_gov import PolicyReward, RewardConfig

config = RewardConfig(
    critical_penalty=-100.0,  # Harsh penalty for critical violations
    high_penalty=-50.0,
    medium_penalty=-10.0,
    low_penalty=-1.0,
    clean_bonus=5.0,          # Bonus for no violations
)

reward_fn = PolicyReward(kernel, config=config)

# Calculate reward
reward = reward_fn(rollout)  # Base reward + policy penalties
"""
README_ENVIRONMENT = """
from agent_lightning_gov import GovernedEnvironment

env = GovernedEnvironment(
    kernel,
    config=EnvironmentConfig(
        max_steps=100,
        terminate_on_critical=True,
    )
)

# Standard Gym interface
state, info = env.reset()
while not env.terminated:
    action = agent.get_action(state)
    state, reward, terminated, truncated, info = env.step(action)
"""
PULL_REQUEST = """
from agent_os import KernelSpace
from agent_os.policies import SQLPolicy

# Create governed kernel
kernel = KernelSpace(policy=SQLPolicy(deny=['DROP', 'DELETE']))

# Wrap in Agent-OS runner
runner = AgentOSRunner(kernel)
"""
PRESET = """
kernel = KernelSpace(policy='strict')
runner = AgentOSRunner(kernel)
"""


def test_the_readmes_reward_and_environment(scored: dict[str, Any]) -> None:
    run(README_CONFIG, scored)
    assert scored["reward"] == 6.0
    scored["EnvironmentConfig"] = lgov_core.EnvironmentConfig  # the README does not import it
    scored["agent"] = SimpleNamespace(get_action=lambda _: "DROP TABLE users")
    run(README_ENVIRONMENT, scored)
    assert (scored["terminated"], scored["reward"]) == (True, -100.1)


def test_the_pull_requests_kernel_and_runner(names: dict[str, Any], database: Database) -> None:
    from lgov_core.runner import AgentOSRunner

    names["AgentOSRunner"] = AgentOSRunner  # contributed to another package there
    run(PULL_REQUEST, names)
    names |= {"reward_fn": lgov_core.PolicyReward(names["kernel"])}
    names["runner"].init(database)
    run(DROP_STEP, names)
    assert (names["reward"], database.tables()) == (-100.0, ALL_TABLES)
    run(PRESET, names)
    names["runner"].init(database)
    run(DROP_STEP, names)
    assert names["rollout"].success is False
    assert database.tables() == ALL_TABLES


def test_the_rewards_for_training_of_our_own_page(scored: dict[str, Any], database: Database) -> None:
    page = page_text(
        f"{Path(__file__).parents[2]}/docs/reference/rl-governance.md#Beyond the documents: rewards for real training"
    )
    (code,) = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    failed = GovernedRollout("task", None, False)
    scored |= {"task_reward": lambda rollout: float(rollout.success)}
    scored["rollouts_of_one_task"] = [scored["good"], scored["bad"], failed]
    run(code, scored)
    good, bad, neither = scored["advantages"]
    assert good > neither > bad

    heard: list[Any] = []

    class Sink:
        @lgov_core.hookimpl
        def lgov_observe(self, event: Any) -> None:
            if isinstance(event, lgov_core.Reward):
                heard.append(event)

    kernel = lgov_core.KernelSpace(
        policy=scored["kernel"].policies, executor=database.run, plugins=[scored["reward_fn"], Sink()]
    )
    kernel.execute("SELECT 1")
    kernel.execute("DROP TABLE users")
    (reward,) = heard
    assert (reward.dimension, reward.value, reward.source) == ("compliance", -1.0, "policy:critical")
    assert reward.tool_call_id
