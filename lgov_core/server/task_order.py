"""The tasks of each update, and those that replace alike groups. Both depend on seed and number alone."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

from lgov_core.train.loop.loop import Task

Tasks = Sequence[Mapping[str, Any]]


def numbered(split: str, number: int, task: Mapping[str, Any]) -> Task:
    """A task of a file under the name of its group."""
    return Task(f"{split}-{number:06d}", {"task": task, "mode": split})


def updates_of(tasks: Tasks, size: int) -> int:
    """How many updates one pass over the tasks makes."""
    return math.ceil(len(tasks) / size)


def batch_of(tasks: Tasks, size: int, step: int, seed: str) -> list[Task]:
    """The tasks of update ``step`` (from 0): each pass goes over all of them in an order of its own."""
    per_epoch = updates_of(tasks, size)
    order = list(range(len(tasks)))
    random.Random(f"{seed}/{step // per_epoch}").shuffle(order)
    place = step % per_epoch * size
    return [numbered("train", number, tasks[number]) for number in order[place : place + size]]


def further_of(tasks: Tasks, size: int, step: int, seed: str, most: int) -> list[Task]:
    """``most`` tasks, or as many as there are, none of which is in the batch of that update.

    Drawn from all others in an order of the update's own: none loses its turn, and those whose turn comes next are drawn
    no more often than others.
    """
    if most == 0:
        return []
    taken = {task.task_id for task in batch_of(tasks, size, step, seed)}
    drawn = random.Random(f"{seed}/{step}/further").sample(range(len(tasks)), min(len(tasks), len(taken) + most))
    found = [numbered("train", number, tasks[number]) for number in drawn]
    return [task for task in found if task.task_id not in taken][:most]
