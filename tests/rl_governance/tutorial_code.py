"""The tutorial's quick start, and what its snippets run on: a namespace, an agent with a database.

The tests of this folder run the tutorial on RL training governance section by section: its own code, with only the import
names changed. What the tutorial leaves to its reader (an agent, a store, a handler) is a small stand-in. Everything else is
real: policies, kernel, recorder, a SQLite database, and for sections 7.5 and 7.6 a model that is trained.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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
