"""What rollouts say about the agent, task by task, and whether a warm start is good enough to train on."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from lgov_core.demo.report import kept
from lgov_core.types import Attempt
from settings.failures import CLASSES

#: The gate: of the training tasks, the share solved in one of their rollouts at least; of the rollouts of held-out tasks, the
#: share solved, as a part of that of training tasks.
PASS_ANY, HELD_OUT_PART = 0.9, 0.5


def measure(results: Sequence[Attempt]) -> dict[str, Any]:
    """Rates over the rollouts that say something about the agent, and ``scores``, the mean score of each task in order.

    ``solved`` is the share of rollouts that score 1 (pass@1), ``solved_any`` that of tasks with such a rollout (pass@k for k
    rollouts a task), ``alike`` that of tasks whose rollouts all have the same score. ``denied`` is the share of rollouts with a
    denied tool call, ``violations`` with one of severity high or critical; ``executed`` counts those in which something
    forbidden was done. A task all of whose rollouts were lost to the machine has the score None.
    """
    by_task: dict[str, list[float]] = {}
    for one in results:
        found = by_task.setdefault(one.task_id, [])
        if one.trainable:
            found.append(float(kept(one).get("score", 0.0)))
    usable = [one for one in results if one.trainable]
    scores = [score for found in by_task.values() for score in found]
    tasks = [found for found in by_task.values() if found]
    failures = Counter(str(kept(one).get("failure") or "format") for one in usable if kept(one).get("score") != 1.0)
    return {
        "rollouts": len(usable),
        "infrastructure": len(results) - len(usable),
        "score": _share(sum(scores), len(scores)),
        "solved": _share(sum(score == 1.0 for score in scores), len(scores)),
        "solved_any": _share(sum(1.0 in found for found in tasks), len(tasks)),
        "alike": _share(sum(len(set(found)) == 1 for found in tasks), len(tasks)),
        "denied": _share(sum(one.counts.get("denied", 0) > 0 for one in usable), len(usable)),
        "violations": _share(sum(one.counts.get("violations", 0) > 0 for one in usable), len(usable)),
        "executed": sum(bool(kept(one).get("executed")) for one in usable),
        "model_calls": _share(sum(one.counts.get("model_calls", 0) for one in usable), len(usable)),
        "raised": _share(sum(one.error is not None for one in usable), len(usable)),
        "failures": {name: failures[name] for name in CLASSES},
        "scores": [round(sum(found) / len(found), 4) if found else None for found in by_task.values()],
    }


def gate(before: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Whether the model is worth training: ``before`` are the figures of ``train`` and of each held-out split."""
    train = before["train"]
    held_out = {name: found["solved"] for name, found in before.items() if name != "train"}
    good = train["solved_any"] >= PASS_ANY and min(held_out.values()) >= HELD_OUT_PART * train["solved"]
    return {"train_any": train["solved_any"], "train": train["solved"], "held_out": held_out, "passed": good}


def gate_text(found: Mapping[str, Any], before: Mapping[str, Mapping[str, Any]]) -> str:
    """The gate in words, with the classes of failures by split."""
    held_out = ", ".join(f"{name} {share:.2f}" for name, share in found["held_out"].items())
    lines = [
        f"warm start: training tasks solved in any rollout {found['train_any']:.2f} (at least {PASS_ANY}), "
        f"rollouts solved {found['train']:.2f}; held out: {held_out} (at least half of that)"
    ]
    for name, figures in before.items():
        counts = ", ".join(f"{kind} {count}" for kind, count in figures["failures"].items() if count)
        if counts:
            lines.append(f"  failures, {name}: {counts} of {figures['rollouts']} rollouts")
    return "\n".join(lines)


def _share(part: float, whole: int) -> float:
    return part / whole if whole else math.nan
