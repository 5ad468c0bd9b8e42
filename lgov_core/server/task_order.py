"""The tasks of each update, and those that replace alike groups. Both depend on seed, number and what is recorded alone."""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from lgov_core.train.loop.loop import Task
from lgov_core.train.workers.jobs import JobResult
from lgov_core.types import Outcome

Tasks = Sequence[Mapping[str, Any]]

#: A task is settled when all its rollouts passed, or all failed, this many times in a row.
_TIMES: Final = 2
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
    place = step % per_epoch * size
    batch = [numbered("train", number, tasks[number]) for number in order[place : place + size]]
    if not settled:
        return batch
    others = [one for one in (numbered("train", *one) for one in enumerate(tasks)) if one.task_id not in settled]
    chance = random.Random(f"{seed}/{step}/settled")
    for at, task in enumerate(batch):
        if task.task_id in settled and chance.random() >= _KEPT:
            drawn = chance.sample(others, min(len(others), size))  # one of so many is not in the batch, if any is
            batch[at] = next((one for one in drawn if one not in batch), task)
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
    found = [numbered("train", number, tasks[number]) for number in drawn]
    return [task for task in found if task.task_id not in taken][:most]


def passed(results: Iterable[JobResult]) -> dict[str, list[int]]:
    """Of each task how many of its rollouts succeeded, of how many that can be trained on: for `settled_tasks`."""
    found: dict[str, list[int]] = {}
    for result in results:
        if result.outcome.trainable:
            counts = found.setdefault(result.job.task_id, [0, 0])
            counts[0] += result.outcome is Outcome.SUCCEEDED
            counts[1] += 1
    return found


def settled_tasks(lines: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """The tasks whose rollouts all passed, or all failed, the last two times that they were drawn, by what `passed` gave.

    ``lines`` are those of ``metrics.jsonl``, in order.
    """
    rates: dict[str, list[float]] = {}
    for line in lines:
        for counts in (line.get("passed") or {}, (line.get("further") or {}).get("passed") or {}):
            for task, (good, of) in counts.items():
                rates.setdefault(task, []).append(good / of)
    last = {task: found[-_TIMES:] for task, found in rates.items()}
    return frozenset(task for task, found in last.items() if found in ([0.0] * _TIMES, [1.0] * _TIMES))
