"""The tasks of each update, and those that replace alike groups. Both depend on seed, number and what is recorded alone."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from lgov_core.train.loop.loop import Task
from lgov_core.transitions.build import INTERMEDIATE
from lgov_core.types import Attempt, Reward

Tasks = Sequence[Mapping[str, Any]]

#: A task is settled when all its rollouts earned the same this many times in a row.
_TIMES: Final = 2
#: Decimals to which rewards are compared: sums of the same values in another order are alike.
_DECIMALS: Final = 9
#: The share of its turns that a settled task keeps.
_KEPT: Final = 0.25


def numbered(split: str, number: int, task: Mapping[str, Any]) -> Task:
    """A task of a file under the name of its group."""
    return Task(f"{split}-{number:06d}", {"task": task, "mode": split})


def updates_of(tasks: Tasks, size: int) -> int:
    """How many updates one pass over the tasks makes."""
    return math.ceil(len(tasks) / size)


def batch_of(tasks: Tasks, size: int, step: int, seed: str, settled: Collection[str] = ()) -> list[Task]:
    """The tasks of update ``step`` (from 0): each pass goes over all of them in an order of its own.

    One that is ``settled`` keeps one turn in four, and gives the others to tasks that are not, if there are enough.
    """
    per_epoch = updates_of(tasks, size)
    order = list(range(len(tasks)))
    random.Random(f"{seed}/{step // per_epoch}").shuffle(order)
    start = step % per_epoch * size
    batch = [numbered("train", number, tasks[number]) for number in order[start : start + size]]
    if not settled:
        return batch
    others = [task for task in (numbered("train", *pair) for pair in enumerate(tasks)) if task.task_id not in settled]
    chance = random.Random(f"{seed}/{step}/settled")
    for at, task in enumerate(batch):
        if task.task_id in settled and chance.random() >= _KEPT:
            drawn = chance.sample(others, min(len(others), size))  # one of so many is not in the batch, if any is
            batch[at] = next((other for other in drawn if other not in batch), task)
    return batch


def further_of(tasks: Tasks, batch: Sequence[Task], step: int, seed: str, most: int) -> list[Task]:
    """``most`` tasks, or as many as there are, none of which is in ``batch``, that of update ``step``.

    Drawn from all others in an order of the update's own: none loses its turn, and those whose turn comes next are drawn
    no more often than others.
    """
    if most == 0:
        return []
    taken = {task.task_id for task in batch}
    drawn = random.Random(f"{seed}/{step}/further").sample(range(len(tasks)), min(len(tasks), len(taken) + most))
    candidates = [numbered("train", number, tasks[number]) for number in drawn]
    return [task for task in candidates if task.task_id not in taken][:most]


def common_rewards(results: Iterable[Attempt], rewards: Iterable[Reward]) -> dict[str, dict[str, float] | None]:
    """Of each task what all its rollouts earned alike, by channel, without AIR; None where they differ: for `settled_tasks`.

    Only attempts count that can be trained on, and tasks with two of them.
    """
    earned: defaultdict[tuple[str | None, int | None], defaultdict[str, float]] = defaultdict(
        lambda: defaultdict(float)
    )
    for reward in rewards:
        if reward.dimension != INTERMEDIATE:
            earned[reward.rollout_id, reward.attempt][reward.dimension] += reward.value
    groups: defaultdict[str, list[dict[str, float]]] = defaultdict(list)
    for result in results:
        if result.trainable:
            mine = earned[result.rollout_id, result.attempt]
            groups[result.task_id].append({name: round(value, _DECIMALS) for name, value in sorted(mine.items())})
    return {
        task: totals[0] if all(total == totals[0] for total in totals) else None
        for task, totals in groups.items()
        if len(totals) > 1
    }


def settled_tasks(lines: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """The tasks whose rollouts all earned the same the last two times that they were drawn, by what `common_rewards` gave.

    ``lines`` are those of ``metrics.jsonl``, in order.
    """
    times: defaultdict[str, list[Any]] = defaultdict(list)
    for line in lines:
        for by_task in (line.get("common_rewards") or {}, (line.get("further") or {}).get("common_rewards") or {}):
            for task, earned in by_task.items():
                times[task].append(earned)
    return frozenset(
        task for task, last in times.items() if last[-1] is not None and last[-_TIMES:] == [last[-1]] * _TIMES
    )
