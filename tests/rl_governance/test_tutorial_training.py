"""Section 7 of the tutorial: the full training loop and the trainer."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gymnasium", reason="needs the extra gym")
import lgov_core
from tests.rl_governance.tutorial_code import ALL_TABLES, Learner, run

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
