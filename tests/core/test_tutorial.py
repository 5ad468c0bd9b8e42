"""The tutorial on RL training governance, section by section: its own code, with only the import names changed.

Whatever the tutorial leaves to its reader (an agent, a store, a handler) is defined here as a small stand-in. Everything
else is real: policies, kernel, recorder, a SQLite database that the agent works on, and for sections 7.5 and 7.6 a model that
is trained.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import logging
import re
import sqlite3
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("gymnasium", reason="needs the extra gym")

import lgov_core
from lgov_core.runner import GovernedRollout
from lgov_core.types import Outcome, Rollout

#: The only change to the tutorial's code: what is imported from where.
NAMES = (("agent_lightning_gov", "lgov_core"), ("agentlightning", "lgov_core"), ("agent_os", "lgov_core"))


def renamed(code: str) -> str:
    """``code`` with the names in its import lines changed, and nothing else."""
    lines = code.splitlines()
    for number, line in enumerate(lines):
        if re.match(r"\s*from \w", line):
            for theirs, ours in NAMES:
                lines[number] = re.sub(rf"^(\s*from ){theirs}\b", rf"\1{ours}", lines[number])
    return "\n".join(lines) + "\n"


def compiled(code: str, names: dict[str, Any]) -> Any:
    """The coroutine of a snippet that awaits at its top level, or None when it was run to its end."""
    program = compile(renamed(code), "<tutorial>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    made = eval(program, names)
    return made if inspect.iscoroutine(made) else None


def run(code: str, names: dict[str, Any], beside: Callable[[], Any] | None = None) -> None:
    """Runs a snippet. ``beside`` is a coroutine function that runs at the same time and ends it."""
    waiting = compiled(code, names)
    if waiting is None:
        return

    async def both() -> None:
        if beside is None:
            await waiting
            return
        task = asyncio.ensure_future(waiting)
        await beside()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(both())


class Database:
    """A real table of users, and an agent that runs on it whatever SQL it is given."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ran: list[str] = []
        with sqlite3.connect(path) as connection:
            connection.executescript(
                "CREATE TABLE users (id INTEGER, name TEXT); INSERT INTO users VALUES (42, 'Ada');"
                "CREATE TABLE contacts (email TEXT, company TEXT);"
                "CREATE TABLE orders (id INTEGER, order_id INTEGER, total REAL, status TEXT);"
                "CREATE TABLE logs (message TEXT);"
            )

    def run(self, statement: str) -> Any:
        self.ran.append(statement)
        with sqlite3.connect(self.path) as connection:
            rows = connection.execute(statement).fetchall()
        return SimpleNamespace(rows=rows, accuracy=0.85)

    def tables(self) -> set[str]:
        with sqlite3.connect(self.path) as connection:
            return {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}


ALL_TABLES = {"users", "contacts", "orders", "logs"}


class Learner(Database):
    """An agent that does its task, except that every fifth act drops the table of users."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.acts = 0
        self.rewards: dict[str, list[float]] = {}

    def get_action(self, state: str) -> str:
        self.acts += 1
        return "DROP TABLE users" if self.acts % 5 == 0 else state

    def update(self, state: str, action: str, reward: float) -> None:
        self.rewards.setdefault(action.split()[0], []).append(reward)


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path / "company.db")


@pytest.fixture
def names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[dict[str, Any]]:
    """The reader's namespace, in a folder of their own; what was printed is not the test's output."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    yield {"__name__": "tutorial"}
    capsys.readouterr()


@pytest.fixture
def kernel_names(names: dict[str, Any]) -> dict[str, Any]:
    """The namespace after the quick start: kernel, runner, reward_fn, rollout."""
    run(QUICK_START, names)
    return names


# ---------------------------------------------------------------------- 1. Quick Start

QUICK_START = """
from agent_os import KernelSpace
from agent_os.policies import SQLPolicy, CostControlPolicy
from agent_lightning_gov import GovernedRunner, PolicyReward

# 1. Build a kernel with two policies
kernel = KernelSpace(policy=[
    SQLPolicy(deny=["DROP", "DELETE"]),
    CostControlPolicy(max_cost_usd=100),
])

# 2. Create a governed runner
runner = GovernedRunner(kernel)

# 3. Create a policy-aware reward function
def accuracy_reward(rollout):
    return rollout.task_output.accuracy if rollout.success else 0.0

reward_fn = PolicyReward(kernel, base_reward_fn=accuracy_reward)

# 4. Execute a task and score it
rollout = await runner.step("SELECT name FROM users WHERE id = 42")
reward = reward_fn(rollout)

print(f"Success: {rollout.success}")
print(f"Violations: {len(rollout.violations)}")
print(f"Penalty: {rollout.total_penalty}")
print(f"Reward: {reward}")
"""
SELECT_STEP = 'rollout = await runner.step("SELECT name FROM users WHERE id = 42")\nreward = reward_fn(rollout)'
DROP_STEP = 'rollout = await runner.step("DROP TABLE users")\nreward = reward_fn(rollout)'


def test_1_a_select_earns_its_base_reward_and_the_bonus(
    names: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    run(QUICK_START, names)
    # Nobody was there to run it: the kernel judged it, and the accuracy is that of a clean judgement.
    assert capsys.readouterr().out == "Success: True\nViolations: 0\nPenalty: 0.0\nReward: 6.0\n"


def test_1_a_select_is_run_by_the_agent(kernel_names: dict[str, Any], database: Database) -> None:
    kernel_names["runner"].init(database)
    run(SELECT_STEP, kernel_names)
    rollout = kernel_names["rollout"]
    assert (rollout.success, rollout.task_output.rows, rollout.violations) == (True, [("Ada",)], [])
    assert kernel_names["reward"] == 0.85 + 5.0


def test_1_a_drop_is_not_executed_and_costs_a_hundred(kernel_names: dict[str, Any], database: Database) -> None:
    kernel_names["runner"].init(database)
    run(DROP_STEP, kernel_names)
    rollout = kernel_names["rollout"]
    assert (rollout.success, rollout.task_output, rollout.outcome) == (False, None, Outcome.BLOCKED)
    (violation,) = rollout.violations
    assert (violation.policy_name, violation.severity, violation.action_blocked) == ("SQLPolicy", "critical", True)
    assert (rollout.total_penalty, kernel_names["reward"]) == (100.0, -100.0)
    assert database.ran == []
    assert database.tables() == ALL_TABLES


# ---------------------------------------------------------------------- 2. GovernedRunner

RUNNER = """
from agent_lightning_gov import GovernedRunner

runner = GovernedRunner(
    kernel,                        # KernelSpace with loaded policies
    fail_on_violation=False,       # True → raise exception on blocked action
    log_violations=True,           # Log every violation via Python logging
    violation_callback=my_handler, # Optional per-violation callback
)
"""
LIFECYCLE = """
# Called once during setup
runner.init(agent)

# Called once per worker in distributed training
runner.init_worker(worker_id=0, store=lightning_store)

# --- training happens here (see step / iter below) ---

# Called once per worker at shutdown
runner.teardown_worker(worker_id=0)

# Called once at the end
runner.teardown()
"""
STEP = """
rollout = await runner.step(
    input="SELECT * FROM orders WHERE total > 1000",
    mode="train",  # "train" or "eval"
)

print(rollout.success)         # True if execution completed
print(rollout.task_output)     # Agent's output
print(rollout.violations)      # List[PolicyViolation]
print(rollout.signals_sent)    # Kernel signals (SIGSTOP, etc.)
print(rollout.total_penalty)   # Sum of violation penalties
print(rollout.execution_time_ms)
"""
VIOLATION_TYPES = """
from agent_lightning_gov.runner import PolicyViolation, PolicyViolationType

# PolicyViolationType enum
PolicyViolationType.BLOCKED      # Action was blocked entirely
PolicyViolationType.MODIFIED     # Action was modified before execution
PolicyViolationType.WARNED       # Warning issued but action allowed
PolicyViolationType.SIGNAL_SENT  # Kernel signal dispatched (SIGSTOP, etc.)
"""
ITER = """
import asyncio

# Run until the stop event is set
stop = asyncio.Event()
await runner.iter(event=stop)

# In another coroutine, stop after 1000 episodes:
stop.set()
"""
STATS = """
stats = runner.get_stats()
print(stats)
# {
#     "total_rollouts": 1500,
#     "total_violations": 23,
#     "violation_rate": 0.0153,
# }

# Or just the rate:
rate = runner.get_violation_rate()  # 0.0153
"""
CALLBACK = """
violation_log = []

def on_violation(violation: PolicyViolation):
    violation_log.append({
        "policy": violation.policy_name,
        "severity": violation.severity,
        "blocked": violation.action_blocked,
        "time": violation.timestamp.isoformat(),
    })

runner = GovernedRunner(
    kernel,
    violation_callback=on_violation,
)
"""


def test_2_1_and_2_2_a_runner_is_made_and_lives(kernel_names: dict[str, Any], database: Database) -> None:
    heard: list[Any] = []
    store = lgov_core.open_store(str(database.path.with_name("traces.db")))
    kernel_names |= {"my_handler": heard.append, "agent": database, "lightning_store": store}
    run(RUNNER, kernel_names)
    kernel_names["runner"].init(database)
    run(DROP_STEP, kernel_names)
    assert [violation.severity for violation in heard] == ["critical"]
    assert database.ran == []
    run(LIFECYCLE, kernel_names)
    store.close()


def test_2_3_and_2_4_a_step_answers_a_rollout(kernel_names: dict[str, Any], database: Database) -> None:
    kernel_names["runner"].init(database)
    run(STEP, kernel_names)
    rollout = kernel_names["rollout"]
    assert isinstance(rollout, GovernedRollout)
    assert rollout.task_input == "SELECT * FROM orders WHERE total > 1000"
    assert (rollout.success, rollout.task_output.rows) == (True, [])
    assert (rollout.violations, rollout.signals_sent, rollout.total_penalty) == ([], [], 0.0)
    assert rollout.execution_time_ms > 0


def test_2_5_a_violation_costs_what_its_severity_says(names: dict[str, Any]) -> None:
    run(VIOLATION_TYPES, names)
    violation, kind = names["PolicyViolation"], names["PolicyViolationType"]
    prices = {}
    for severity in ("critical", "high", "medium", "low"):
        made = violation(
            violation_type=kind.BLOCKED, policy_name="SQLPolicy", description="no", severity=severity,
            timestamp=datetime.now(UTC), action_blocked=True,
        )  # fmt: skip
        prices[severity] = made.penalty
    assert prices == {"critical": 100.0, "high": 50.0, "medium": 10.0, "low": 1.0}


def test_2_6_iter_takes_tasks_from_the_store_until_it_is_stopped(
    kernel_names: dict[str, Any], database: Database
) -> None:
    store = lgov_core.open_store(str(database.path.with_name("traces.db")))
    tasks = ["SELECT name FROM users", "DROP TABLE users", "SELECT 1"]
    store.add_rollouts([Rollout(f"r{at}", f"t{at}", "run", {"input": task}) for at, task in enumerate(tasks)])
    runner = kernel_names["runner"]
    runner.init(database)

    async def stop() -> None:
        while sum(attempt.outcome is not None for attempt in store.attempts()) < len(tasks):
            await asyncio.sleep(0.01)
        kernel_names["stop"].set()
        while "iterated" not in kernel_names:
            await asyncio.sleep(0.01)

    async def both() -> None:
        runner.init_worker(worker_id=0, store=store)
        await asyncio.gather(compiled(ITER + "iterated = True\n", kernel_names), stop())

    asyncio.run(both())
    outcomes = {attempt.rollout_id: attempt.outcome for attempt in store.attempts()}
    assert outcomes == {"r0": Outcome.SUCCEEDED, "r1": Outcome.BLOCKED, "r2": Outcome.SUCCEEDED}
    assert database.tables() == ALL_TABLES
    store.close()


def test_2_7_statistics_count_rollouts_and_violations(kernel_names: dict[str, Any], database: Database) -> None:
    kernel_names["runner"].init(database)
    run(DROP_STEP, kernel_names)
    for _ in range(2):
        run(SELECT_STEP, kernel_names)
    run(STATS, kernel_names)
    # The quick start's own step is the first of the four.
    assert kernel_names["stats"] == {"total_rollouts": 4, "total_violations": 1, "violation_rate": 0.25}
    assert kernel_names["rate"] == 0.25


def test_2_8_a_callback_collects_violations(kernel_names: dict[str, Any], database: Database) -> None:
    run(VIOLATION_TYPES, kernel_names)
    run(CALLBACK, kernel_names)
    kernel_names["runner"].init(database)
    run(DROP_STEP, kernel_names)
    (entry,) = kernel_names["violation_log"]
    assert datetime.fromisoformat(entry.pop("time")).tzinfo is not None
    assert entry == {"policy": "SQLPolicy", "severity": "critical", "blocked": True}


# ---------------------------------------------------------------------- 3. PolicyReward

BASIC = """
from agent_lightning_gov import PolicyReward

# Define your base task reward
def task_reward(rollout):
    if rollout.success and rollout.task_output:
        return rollout.task_output.accuracy  # 0.0–1.0
    return 0.0

# Wrap it with policy awareness
reward_fn = PolicyReward(kernel, base_reward_fn=task_reward)

# Score a rollout
reward = reward_fn(rollout)
"""
MULTIPLICATIVE = """
from agent_lightning_gov.reward import RewardConfig

config = RewardConfig(
    multiplicative=True,
    multiplicative_factor=0.5,  # halve reward on any violation
)

reward_fn = PolicyReward(kernel, config=config)

# If base_reward = 0.9 and there's a violation:
# final = 0.9 * 0.5 = 0.45 (instead of 0.9 + penalty)
"""
REWARD_STATS = """
stats = reward_fn.get_stats()
print(stats)
# {
#     "total_rewards": 500,
#     "total_penalties": -1240.0,
#     "avg_penalty": -2.48,
#     "violation_rate": 0.032,
#     "clean_rate": 0.968,
# }

# Reset between phases
reward_fn.reset_stats()
"""
PENALTY = """
from agent_lightning_gov import policy_penalty

penalty = policy_penalty(
    rollout.violations,
    critical_penalty=-200.0,
    high_penalty=-80.0,
    medium_penalty=-15.0,
    low_penalty=-2.0,
)
final_reward = base_reward + penalty
"""
COMPOSITE = """
from agent_lightning_gov.reward import CompositeReward

reward = CompositeReward(
    components=[
        (accuracy_reward, 1.0),     # task accuracy (weight 1.0)
        (policy_reward, 0.5),       # governance penalty (weight 0.5)
        (efficiency_reward, 0.3),   # speed bonus (weight 0.3)
    ],
    normalize=False,  # True → weights sum to 1.0
)

score = reward(rollout)  # weighted sum of all components
"""
FACTORY = """
from agent_lightning_gov.reward import create_policy_reward

reward_fn = create_policy_reward(
    kernel,
    base_reward_fn=accuracy_reward,
    severity_penalties={
        "critical": -200.0,
        "high": -80.0,
        "medium": -15.0,
        "low": -2.0,
    },
    clean_bonus=10.0,
    multiplicative=False,
)
"""


@pytest.fixture
def scored(kernel_names: dict[str, Any], database: Database) -> dict[str, Any]:
    """The namespace with two rollouts beside it: ``good`` and ``bad``."""
    kernel_names["runner"].init(database)
    run(DROP_STEP, kernel_names)
    kernel_names["bad"] = kernel_names["rollout"]
    run(SELECT_STEP, kernel_names)
    kernel_names["good"] = kernel_names["rollout"]
    return kernel_names


def test_3_1_and_3_2_base_plus_penalty_plus_bonus(scored: dict[str, Any]) -> None:
    run(BASIC, scored)
    assert scored["reward"] == 0.85 + 5.0
    assert scored["reward_fn"](scored["bad"]) == -100.0
    plain = lgov_core.PolicyReward(scored["kernel"])
    assert (plain(scored["good"]), plain(scored["bad"])) == (6.0, -100.0)


def test_3_3_multiplicative_mode_halves_the_reward(scored: dict[str, Any]) -> None:
    run(MULTIPLICATIVE, scored)
    reward_fn = lgov_core.PolicyReward(scored["kernel"], lambda _: 0.9, scored["config"])
    assert reward_fn(scored["bad"]) == pytest.approx(0.45)
    assert scored["reward_fn"](scored["bad"]) == 0.0


def test_3_4_statistics_of_rewards(scored: dict[str, Any]) -> None:
    run(BASIC, scored)
    scored["reward_fn"](scored["bad"])
    run(REWARD_STATS, scored)
    assert scored["stats"] == {
        "total_rewards": 2, "total_penalties": -100.0, "avg_penalty": -50.0, "violation_rate": 0.5, "clean_rate": 0.5
    }  # fmt: skip
    assert scored["reward_fn"].get_stats()["total_rewards"] == 0


def test_3_5_the_penalty_helper(scored: dict[str, Any]) -> None:
    scored |= {"base_reward": 0.5, "rollout": scored["bad"]}
    run(PENALTY, scored)
    assert (scored["penalty"], scored["final_reward"]) == (-200.0, -199.5)


def test_3_6_a_composite_is_a_weighted_sum(scored: dict[str, Any]) -> None:
    scored |= {"policy_reward": lgov_core.PolicyReward(scored["kernel"]), "efficiency_reward": lambda _: 1.0}
    run(COMPOSITE, scored)
    assert scored["score"] == pytest.approx(0.85 + 0.5 * 6.0 + 0.3)
    assert scored["reward"](scored["bad"]) == pytest.approx(0.5 * -100.0 + 0.3)


def test_3_7_the_factory(scored: dict[str, Any]) -> None:
    run(FACTORY, scored)
    assert scored["reward_fn"](scored["good"]) == 10.85
    assert scored["reward_fn"](scored["bad"]) == -200.0


# ---------------------------------------------------------------------- 4. RewardConfig

FULL_CONFIG = """
from agent_lightning_gov.reward import RewardConfig

config = RewardConfig(
    # Per-severity penalties (additive mode)
    critical_penalty=-100.0,   # default: -100.0
    high_penalty=-50.0,        # default: -50.0
    medium_penalty=-10.0,      # default: -10.0
    low_penalty=-1.0,          # default: -1.0

    # Clean-execution bonus
    clean_bonus=5.0,           # default: 5.0

    # Multiplicative mode
    multiplicative=False,      # default: False
    multiplicative_factor=0.5, # default: 0.5 — only used when multiplicative=True

    # Reward bounds
    min_reward=-100.0,         # default: -100.0 — floor (None to disable)
    max_reward=100.0,          # default: 100.0 — ceiling (None to disable)
)
"""
TUNING = """
conservative = RewardConfig(
    critical_penalty=-200.0,
    high_penalty=-100.0,
    medium_penalty=-30.0,
    low_penalty=-5.0,
    clean_bonus=10.0,
)

lenient = RewardConfig(
    critical_penalty=-50.0,
    high_penalty=-20.0,
    medium_penalty=-5.0,
    low_penalty=-0.5,
    clean_bonus=2.0,
)
"""


def test_4_the_full_reference_is_the_defaults_and_tunings_differ(scored: dict[str, Any]) -> None:
    run(FULL_CONFIG, scored)
    assert scored["config"] == scored["RewardConfig"]()
    run(TUNING, scored)
    scores = {
        name: lgov_core.PolicyReward(None, None, scored[name])(scored["bad"])
        for name in ("conservative", "config", "lenient")
    }
    assert scores == {"conservative": -200.0, "config": -100.0, "lenient": -50.0}


# ---------------------------------------------------------------------- 5. GovernedEnvironment

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


def test_5_1_to_5_3_an_episode_pays_clean_acts_and_ends_on_a_drop(
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


# ---------------------------------------------------------------------- 6. FlightRecorderEmitter

EMITTER = """
from agent_os import FlightRecorder
from agent_lightning_gov import FlightRecorderEmitter

recorder = FlightRecorder()

emitter = FlightRecorderEmitter(
    recorder,
    include_policy_checks=True,   # include policy evaluation spans
    include_signals=True,         # include kernel signal spans
    include_tool_calls=True,      # include tool invocation spans
    trace_id_prefix="agentos",    # prefix for generated trace IDs
)
"""
SPAN = """
from agent_lightning_gov.emitter import LightningSpan

span = LightningSpan(
    span_id="entry-001",
    trace_id="agentos-agent-42",
    name="agent_os.policy_check",
    start_time=datetime.now(timezone.utc),
    end_time=datetime.now(timezone.utc),
    attributes={
        "agent_os.entry_type": "policy_check",
        "agent_os.agent_id": "agent-42",
        "agent_os.policy_name": "SQLPolicy",
        "agent_os.policy_result": "denied",
        "agent_os.policy_violated": True,
    },
    events=[],
)

# Serialise for storage
span_dict = span.to_dict()
span_json = span.to_json()
"""
EXPORT = """
count = emitter.export_to_file("training_audit.json")
print(f"Exported {count} spans to training_audit.json")
"""
STREAM = """
async for span in emitter.stream():
    print(f"{span.name}: {span.attributes}")
    # Or forward to your own telemetry backend
    otel_exporter.export(span.to_dict())
"""
SUMMARY = """
summary = emitter.get_violation_summary()
print(summary)
# {
#     "total_entries": 1200,
#     "total_violations": 34,
#     "violation_rate": 0.028,
#     "policies_violated": {
#         "SQLPolicy": 22,
#         "CostControlPolicy": 12,
#     },
# }
"""
INCREMENTAL = """
# First call: gets all spans
batch_1 = emitter.get_new_spans()

# ... training continues ...

# Second call: only spans added since batch_1
batch_2 = emitter.get_new_spans()
"""
EMITTER_FACTORY = """
from agent_lightning_gov.emitter import create_emitter

emitter = create_emitter(
    recorder,
    include_policy_checks=True,
    include_signals=False,
    trace_id_prefix="my-training-run",
)
"""


@pytest.fixture
def recorded(scored: dict[str, Any]) -> dict[str, Any]:
    """The namespace after a few steps, with an emitter of the record that a kernel without recorder writes to."""
    run(EMITTER, scored)
    return scored


def test_6_1_and_6_4_n_entries_are_n_spans(recorded: dict[str, Any], tmp_path: Path) -> None:
    entries = recorded["recorder"].get_log()
    spans = recorded["emitter"].get_spans()
    assert len(spans) == len(entries) > 0
    denied = [span for span in spans if span.attributes.get("agent_os.policy_violated")]
    assert [span.name for span in denied] == ["agent_os.policy_check"]
    assert denied[0].attributes["agent_os.policy_name"] == "SQLPolicy"
    assert denied[0].attributes["agent_os.policy_result"] == "denied"
    assert {"agent_os.policy_check", "agent_os.tool_call"} <= {span.name for span in spans}
    run(EXPORT, recorded)
    assert recorded["count"] == len(entries)
    assert len(json.loads((tmp_path / "training_audit.json").read_text())) == len(entries)


def test_6_2_a_span_serialises(names: dict[str, Any]) -> None:
    names |= {"datetime": datetime, "timezone": timezone}  # the tutorial does not import them
    run(SPAN, names)
    assert json.loads(names["span_json"]) == names["span_dict"]
    assert names["span_dict"]["attributes"]["agent_os.policy_violated"] is True


def test_6_3_a_store_takes_every_span(recorded: dict[str, Any], database: Database) -> None:
    store = lgov_core.open_store(str(database.path.with_name("traces.db")))
    recorded["lightning_store"] = store
    run("emitter.emit_to_store(lightning_store)", recorded)
    assert len(store.spans()) == len(recorded["recorder"].get_log())
    store.close()


def test_6_5_the_stream_yields_what_is_recorded(recorded: dict[str, Any]) -> None:
    exported: list[dict[str, Any]] = []
    recorded["otel_exporter"] = SimpleNamespace(export=exported.append)
    expected = len(recorded["recorder"].get_log())

    async def until_all_are_there() -> None:
        while len(exported) < expected:
            await asyncio.sleep(0.01)

    run(STREAM, recorded, beside=until_all_are_there)
    assert [span["span_id"] for span in exported] == [span.span_id for span in recorded["emitter"].get_spans()]


def test_6_6_the_summary_names_the_policies_violated(recorded: dict[str, Any]) -> None:
    run(SUMMARY, recorded)
    total = len(recorded["recorder"].get_log())
    assert recorded["summary"] == {
        "total_entries": total,
        "total_violations": 1,
        "violation_rate": 1 / total,
        "policies_violated": {"SQLPolicy": 1},
    }


def test_6_7_new_spans_come_once(recorded: dict[str, Any]) -> None:
    run(INCREMENTAL, recorded)
    assert len(recorded["batch_1"]) == len(recorded["recorder"].get_log())
    assert recorded["batch_2"] == []
    run(DROP_STEP, recorded)
    run("batch_3 = emitter.get_new_spans()", recorded)
    assert [span.attributes["agent_os.policy_violated"] for span in recorded["batch_3"]
            if "agent_os.policy_violated" in span.attributes].count(True) == 1  # fmt: skip


def test_6_8_the_factory(recorded: dict[str, Any]) -> None:
    run(EMITTER_FACTORY, recorded)
    spans = recorded["emitter"].get_spans()
    assert spans
    assert all(span.trace_id.startswith("my-training-run-") for span in spans)
    assert all(span.name != "agent_os.signal" for span in spans)


# ---------------------------------------------------------------------- 7. Full Training Loop

SETUP = """
import asyncio
import logging

from agent_os import KernelSpace, FlightRecorder
from agent_os.policies import SQLPolicy, CostControlPolicy
from agent_lightning_gov import (
    GovernedRunner,
    GovernedEnvironment,
    PolicyReward,
    FlightRecorderEmitter,
)
from agent_lightning_gov.reward import RewardConfig
from agent_lightning_gov.environment import EnvironmentConfig

logging.basicConfig(level=logging.INFO)

# ── Kernel with policies ──
kernel = KernelSpace(policy=[
    SQLPolicy(deny=["DROP", "DELETE", "TRUNCATE"]),
    CostControlPolicy(max_cost_usd=50),
])

# ── Flight recorder for audit trail ──
recorder = FlightRecorder()
"""
COMPONENTS = '''
# ── Reward shaping ──
reward_config = RewardConfig(
    critical_penalty=-100.0,
    high_penalty=-50.0,
    medium_penalty=-10.0,
    low_penalty=-1.0,
    clean_bonus=5.0,
    min_reward=-100.0,
    max_reward=100.0,
)

def task_accuracy(rollout):
    """Base reward: how well the agent completed the task."""
    if not rollout.success:
        return 0.0
    output = rollout.task_output
    return getattr(output, "accuracy", 1.0) if output else 0.0

reward_fn = PolicyReward(
    kernel,
    base_reward_fn=task_accuracy,
    config=reward_config,
)

# ── Governed runner ──
violation_log = []
runner = GovernedRunner(
    kernel,
    fail_on_violation=False,
    log_violations=True,
    violation_callback=lambda v: violation_log.append(v),
)

# ── Governed environment ──
import random

def generate_task():
    templates = [
        "SELECT name FROM users WHERE id = {id}",
        "SELECT email FROM contacts WHERE company = 'Acme'",
        "UPDATE orders SET status = 'complete' WHERE id = {id}",
    ]
    return random.choice(templates).format(id=random.randint(1, 500))

env_config = EnvironmentConfig(
    max_steps=50,
    terminate_on_critical=True,
    violation_penalty=-10.0,
    step_penalty=-0.1,
    success_bonus=10.0,
)

env = GovernedEnvironment(
    kernel,
    task_generator=generate_task,
    config=env_config,
)

# ── Audit emitter ──
emitter = FlightRecorderEmitter(recorder)
'''
TRAINING = """
NUM_EPISODES = 200
episode_rewards = []

async def train():
    runner.init(agent=my_agent)

    for episode in range(NUM_EPISODES):
        state, info = env.reset(seed=episode)
        episode_reward = 0.0

        while not env.terminated:
            # Agent selects an action
            action = my_agent.get_action(state)

            # Execute through governed environment
            state, reward, terminated, truncated, info = env.step(action)
            episode_reward += reward

            # Also run through governed runner for detailed rollout
            rollout = await runner.step(action, mode="train")
            shaped_reward = reward_fn(rollout)

            # Feed reward back to agent for learning
            my_agent.update(state, action, shaped_reward)

        episode_rewards.append(episode_reward)

        # Log progress every 20 episodes
        if (episode + 1) % 20 == 0:
            recent = episode_rewards[-20:]
            avg_reward = sum(recent) / len(recent)
            stats = runner.get_stats()
            print(
                f"Episode {episode + 1:4d}  "
                f"avg_reward={avg_reward:+.2f}  "
                f"violation_rate={stats['violation_rate']:.3f}"
            )

    runner.teardown()

asyncio.run(train())
"""
ANALYSIS = """
# ── Runner statistics ──
print("Runner stats:", runner.get_stats())

# ── Reward statistics ──
print("Reward stats:", reward_fn.get_stats())

# ── Environment metrics ──
print("Env metrics:", env.get_metrics())

# ── Violation summary from Flight Recorder ──
summary = emitter.get_violation_summary()
print(f"Violation rate: {summary['violation_rate']:.1%}")
print(f"Policies violated: {summary['policies_violated']}")

# ── Export full audit trail ──
emitter.export_to_file("training_audit.json")
print("Audit trail exported to training_audit.json")

# ── Export to LightningStore for dashboard ──
# emitter.emit_to_store(lightning_store)
"""


def test_7_1_to_7_4_the_full_training_loop(
    names: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    learner = names["my_agent"] = Learner(tmp_path / "company.db")
    for code in (SETUP, COMPONENTS, TRAINING):
        run(code, names)
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 10
    assert printed[-1].startswith("Episode  200  avg_reward=-")

    # The table was never dropped: neither by the environment's act nor by the runner's.
    assert learner.tables() == ALL_TABLES
    assert "DROP TABLE users" not in learner.ran
    assert learner.acts == 1000
    assert set(learner.rewards["DROP"]) == {-100.0}
    assert set(learner.rewards["SELECT"]) | set(learner.rewards["UPDATE"]) == {5.85}

    run(ANALYSIS, names)
    assert names["runner"].get_stats() == {"total_rollouts": 1000, "total_violations": 200, "violation_rate": 0.2}
    assert names["reward_fn"].get_stats() == {
        "total_rewards": 1000, "total_penalties": -20000.0, "avg_penalty": -20.0, "violation_rate": 0.2, "clean_rate": 0.8
    }  # fmt: skip
    metrics = names["env"].get_metrics()
    assert (metrics["total_episodes"], metrics["total_steps"], metrics["total_violations"]) == (200, 1000, 200)
    assert 0.0 <= metrics["success_rate"] <= 1.0
    assert len(names["violation_log"]) == 200
    warned = [
        record for record in caplog.records if record.levelno == logging.WARNING and record.name.startswith("lgov")
    ]
    assert len(warned) >= 200

    # One denial by the environment and one by the runner for every DROP, and every entry in the export.
    entries = names["recorder"].get_log()
    assert names["summary"]["total_entries"] == len(entries)
    assert names["summary"]["policies_violated"] == {"SQLPolicy": 400}
    exported = json.loads((tmp_path / "training_audit.json").read_text())
    assert len(exported) == len(entries)
    assert names["recorder"].verify_integrity()["valid"]


TRAINER = """
from agentlightning import Trainer

trainer = Trainer(
    runner=runner,
    reward_fn=reward_fn,
    algorithm="GRPO",
)

trainer.train(num_epochs=100)
"""
DISTRIBUTED = """
from agentlightning import Trainer

trainer = Trainer(
    runner=runner,
    reward_fn=reward_fn,
    algorithm="GRPO",
    num_workers=4,  # 4 parallel governed workers
)

# Each worker calls runner.init_worker(worker_id, store)
# Violations are tracked per-worker and aggregated
trainer.train(num_epochs=100)
"""


@pytest.fixture(scope="module")
def two_habits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that answers every question by a SELECT or by a DROP, each half of the time."""
    from tests.pair.habits import habits_model

    folder = tmp_path_factory.mktemp("models") / "habits"
    habits_model("Who is 42?", ["SELECT name FROM users", "DROP TABLE users"]).save(folder)
    return folder


@pytest.mark.parametrize(
    ("code", "workers"), [(TRAINER, {"0"}), (DISTRIBUTED, {"0", "1", "2", "3"})], ids=["7.5", "7.6"]
)
def test_7_5_and_7_6_the_trainer(
    kernel_names: dict[str, Any],
    two_habits: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    code: str,
    workers: set[str],
) -> None:
    # The tutorial says neither which model is trained nor on what: that is in the reader's settings.
    monkeypatch.setenv("LIGHTNING_MODEL_PATH", str(two_habits))
    (tmp_path / "tasks.jsonl").write_text('{"input": "Who is 42?"}\n')
    (tmp_path / "config.yaml").write_text(
        "model: {max_new_tokens: 24}\ndata: {train: tasks.jsonl}\n"
        "training: {steps: 8, group_size: 8, learning_rate: 1e-3, kl_coef: 0.0}\n"
        f"runtime: {{nworkers: {len(workers)}}}\n"
    )
    kernel_names["runner"].log_violations = False
    run(code, kernel_names)
    (folder,) = (tmp_path / "runs").iterdir()
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 9))
    # The DROPs are blocked and cost a hundred each: the model unlearns them.
    assert lines[0]["reward_compliance"] < -10
    assert lines[-1]["reward_compliance"] > lines[0]["reward_compliance"] / 2
    assert lines[-1]["reward"] > lines[0]["reward"]
    # Violations are counted by worker and summed up.
    stats = kernel_names["runner"].get_stats()
    assert stats["total_rollouts"] == 64
    assert stats["total_violations"] == sum(line["outcomes"].get("blocked", 0) for line in lines)
    store = lgov_core.open_store(str(folder / "store.sqlite"))
    counted = [span for span in store.spans(["runner-statistics"]) if span.name == "lgov.runner.worker"]
    assert {str(span.attributes["worker"]) for span in counted} == workers
    # And every call of the model stands on record beside the rollout that it belongs to.
    assert {call.rollout_id for call in store.calls()} == {rollout.rollout_id for rollout in store.rollouts()}
    store.close()


# ---------------------------------------------------------------------- the two other documents

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
    page = (Path(__file__).parents[2] / "docs" / "requirements.md").read_text(encoding="utf-8")
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
