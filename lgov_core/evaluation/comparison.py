"""Two evaluations on the same tasks: which tasks were fixed, which broke, and the paired difference."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lgov_core.errors import TrainError
from lgov_core.train.loop.intervals import Estimate, mean_interval

EVALUATION_FILE: Final = "evaluation.json"
_NUMBER: Final = {"type": ["number", "null"]}
_MEASURED: Final = {
    "lost": {"type": "integer", "minimum": 0},
    "violation_rate": {"type": "object", "properties": {"mean": _NUMBER}},
}
_TASK: Final = {
    "type": "object",
    "required": ["task", "rollouts", "rewards", "succeeded"],
    "properties": {
        "rollouts": {"type": "integer"},
        "rewards": {"type": "object", "additionalProperties": {"type": "number"}},
        "succeeded": _NUMBER,
    },
}
#: What is read of a report here and by `lgov models promote`, as a JSON schema.
EVALUATION_SCHEMA: Final = {
    "type": "object",
    "required": ["by_task"],
    "properties": {
        **_MEASURED,
        "start": {"type": "object", "properties": _MEASURED},
        "difference": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "required": ["low", "high"],
                "properties": {"low": _NUMBER, "high": _NUMBER},
            },
        },
        "policy": {"type": ["object", "null"]},
        "by_task": {"type": "array", "items": _TASK},
    },
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """``fixed`` and ``broken`` are tasks (by number and text) whose share of successes rose or fell, with both shares.

    ``same`` counts the others, and ``lost`` the tasks that have no usable rollout in one of the two. ``difference`` is the
    second evaluation minus the first, by channel, paired by task.
    """

    fixed: tuple[Mapping[str, Any], ...]
    broken: tuple[Mapping[str, Any], ...]
    same: int
    lost: int
    difference: Mapping[str, Estimate]

    def as_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "fixed": list(self.fixed),
            "broken": list(self.broken),
            "same": self.same,
            "lost": self.lost,
            "difference": {name: interval.as_json() for name, interval in self.difference.items()},
        }


def read_evaluation(path: Path) -> dict[str, Any]:
    """The report that `lgov models eval` left in a folder, or in the file itself. Raises `TrainError`."""
    import fastjsonschema

    file = path / EVALUATION_FILE if path.is_dir() else path
    try:
        report: Any = json.loads(file.read_text("utf-8"), parse_constant=_finite, parse_float=_finite)
        fastjsonschema.compile(EVALUATION_SCHEMA)(report)
    except (OSError, ValueError, RecursionError) as error:  # fastjsonschema's errors are ValueErrors
        raise TrainError(
            f"{file} is not an evaluation: {error}", hint="name the --folder of lgov models eval"
        ) from error
    return report


def _finite(number: str) -> float:
    if not math.isfinite(float(number)):
        raise ValueError(f"{number} is not a finite number")
    return float(number)


def compare(before: Mapping[str, Any], after: Mapping[str, Any]) -> Comparison:
    """Raises `TrainError` when the two are not of the same tasks."""
    first_tasks, second_tasks = before["by_task"], after["by_task"]
    if before.get("tasks_sha256") != after.get("tasks_sha256") or len(first_tasks) != len(second_tasks):
        raise TrainError("the two evaluations are of different tasks", hint="run lgov models eval on the same file")
    flipped: dict[bool, list[Mapping[str, Any]]] = {True: [], False: []}
    gaps: dict[str, list[float]] = {}
    same = lost = 0
    for number, (first, second) in enumerate(zip(first_tasks, second_tasks, strict=True)):
        if first["succeeded"] is None or second["succeeded"] is None:
            lost += 1
            continue
        for channel in {*first["rewards"], *second["rewards"]}:
            gap = second["rewards"].get(channel, 0.0) - first["rewards"].get(channel, 0.0)
            gaps.setdefault(channel, []).append(gap)
        if first["succeeded"] == second["succeeded"]:
            same += 1
            continue
        about = {"number": number, "task": first["task"], "before": first["succeeded"], "after": second["succeeded"]}
        flipped[second["succeeded"] > first["succeeded"]].append(about)
    difference = {name: mean_interval(gaps[name]) for name in sorted(gaps)}
    return Comparison(tuple(flipped[True]), tuple(flipped[False]), same, lost, difference)
