"""Sections 1 and 2 of the tutorial: quick start and GovernedRunner."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

pytest.importorskip("gymnasium", reason="needs the extra gym")
import lgov_core
from lgov_core.runner import GovernedRollout
from lgov_core.types import Outcome, Rollout
from tests.rl_governance.tutorial_code import ALL_TABLES, DROP_STEP, QUICK_START, SELECT_STEP, Database, compiled, run


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


def test_2_6_iter_takes_tasks_from_the_store_until_stopped(kernel_names: dict[str, Any], database: Database) -> None:
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
