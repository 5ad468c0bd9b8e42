"""Tasks that are always solved, or never, are drawn less often where that is wanted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lgov_core import Client
from lgov_core.server.run_state import NextUpdate, batch_of, curriculum, earlier_results, settled_tasks, task_rewards
from lgov_core.server.training import TrainingServer
from lgov_core.train.loop.run_files import read_metrics, train_lines
from lgov_core.types import Attempt, Outcome, Reward
from tests.pair.pair_agents import ask

Serve = Callable[..., TrainingServer]
TASKS = [{"question": f"task {number}"} for number in range(10)]


def name(number: int) -> str:
    return f"train-{number:06d}"


def test_what_all_rollouts_of_a_task_earned_leaves_out_air_and_what_the_machines_broke() -> None:
    def result(task: str, name: str, outcome: Outcome = Outcome.SUCCEEDED) -> Attempt:
        return Attempt(name, 1, 0.0, 1.0, outcome, task_id=task)

    broken = result("same", "r3", Outcome.INFRASTRUCTURE)
    results = [result("same", "r1"), result("same", "r2"), broken, result("graded", "r4"), result("graded", "r5")]
    results += [result("alone", "r6"), result("lost", "r7", Outcome.TIMEOUT)]
    earned = {"r1": 0.3, "r2": 0.1, "r3": 9.0, "r4": 0.4, "r5": 0.6, "r6": 1.0}
    rewards = [Reward(value, "task", name, 1) for name, value in earned.items()]
    rewards += [Reward(0.2, "task", "r2", 1), Reward(0.05, "air", "r1", 1)]
    assert task_rewards(results, rewards) == {
        "same": [{"task": 0.3}, {"task": 0.3}],
        "graded": [{"task": 0.4}, {"task": 0.6}],
        "alone": [{"task": 1.0}],
    }


def test_a_task_is_settled_after_two_times_alike() -> None:
    one, none, differ = [{"task": 1.0}] * 2, [{"task": 0.0}] * 2, [{"task": 0.0}, {"task": 1.0}]
    won, lost, changed, once, again, graded, alone = map(name, range(7))
    lines: list[dict[str, Any]] = [
        {"task_rewards": {won: one, lost: none, changed: none, once: one, again: one, graded: differ, alone: one[:1]}},
        {"loss": 0.1},
        {
            "task_rewards": {won: one, changed: one, again: one, graded: differ, alone: one[:1]},
            "further": {"task_rewards": {lost: none}},
        },
        {"task_rewards": {again: differ}},
    ]
    assert settled_tasks(earlier_results(lines)) == {0, 1}


def settled_after(*numbers: int) -> list[dict[int, list[dict[str, float]]]]:
    """Results of two updates in which the rollouts of these tasks were alike."""
    return [{number: [{"task": 1.0}] * 2 for number in numbers}] * 2


def test_settled_tasks_keep_one_turn_in_four() -> None:
    results = settled_after(*range(5))
    drawn: Counter[int] = Counter()
    for step in range(4 * 400):
        batch = curriculum(NextUpdate(TASKS, 3, step, "7/0", results))
        assert len({*batch}) == len(batch), "no task is twice in a batch"
        assert batch == curriculum(NextUpdate(TASKS, 3, step, "7/0", results))
        drawn.update(batch)
    assert sum(drawn.values()) == 400 * 10
    assert all(80 < drawn[task] < 120 for task in range(5)), drawn
    assert all(drawn[number] > 600 for number in range(5, 10)), drawn


def test_without_others_all_tasks_keep_their_turns() -> None:
    for step in range(4):
        plain = NextUpdate(TASKS, 3, step, "7/0")
        assert batch_of(NextUpdate(TASKS, 3, step, "7/0", settled_after(*range(10))), curriculum) == batch_of(plain)


def solver(resource: Any, task: Any) -> float:
    said = ask(resource, task.question)
    return 1.0 if task.question < "task 6" else float(len(said) % 2)


def train(serve: Serve, folder: Path, name: str, **more: Any) -> Counter[str]:
    """How often each task was drawn in the third pass and after it."""
    server = serve(folder=name, batch_size=5, group_size=4, steps=12, **more)
    client = Client(server.url, quiet=True)
    client.upload_data(TASKS)
    client.train(solver)
    lines = train_lines(read_metrics(folder / name / "metrics.jsonl"))
    assert all(("task_rewards" in line) is bool(more) for line in lines)
    return Counter(one.task_id for one in server.store.rollouts() if int(step_of(folder / name, one.rollout_id)) > 4)


def step_of(folder: Path, rollout_id: str) -> int:
    from lgov_core.train.loop.run_files import read_batch

    for step in range(1, 13):
        found = read_batch(folder / "transitions", step)
        assert found is not None
        if any(one.rollout_id == rollout_id for one in found[1]):
            return step
    raise AssertionError(rollout_id)


def test_a_training_draws_what_it_can_learn_from(serve: Serve, tmp_path: Path) -> None:
    plain = train(serve, tmp_path, "plain")
    chosen = train(serve, tmp_path, "chosen", curriculum=True)
    assert set(plain.values()) == {4 * 4}
    easy = sum(chosen[name(number)] for number in range(6))
    assert easy < 6 * 16 * 0.6, chosen
    assert sum(chosen.values()) == sum(plain.values())
