"""Where does the run go? Entropy, KL, violations and tool rewards: the first quarter of a run against the last.

A value of rollouts rises when it is more by a least amount and the 95 % intervals of both ends, rollouts of a group
together, do not overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any, Final

from lgov_core.train.loop.intervals import Estimate, grouped_interval
from lgov_core.types import Severity
from lgov_core.views.findings.evidence import TASK, Evidence, RecordedRollout, TrainedRollout
from lgov_core.views.findings.report import RunFinding, named

#: Entropy (nats a token) below which replies no longer differ, and the share of the first entropy that may be left.
_LEAST_ENTROPY: Final = 0.01
_ENTROPY_LEFT: Final = 0.1
#: KL to the reference, nats a token.
_MOST_KL: Final = 0.5
#: How many more rollouts with a violation, and rewarded repeats a rollout, are worth a finding.
_MORE_VIOLATIONS: Final = 0.05
_MORE_REPEATS: Final = 0.2
#: Updates at either end that are averaged at most.
_ENDS: Final = 10


def find_entropy_collapse(evidence: Evidence) -> RunFinding | None:
    """An entropy of all but zero, or of a tenth of what it was."""
    if (ends := _ends(evidence.updates, "entropy")) is None or ends[1] >= max(_LEAST_ENTROPY, _ENTROPY_LEFT * ends[0]):
        return None
    return RunFinding(
        "entropy-collapsed",
        Severity.HIGH,
        f"Entropy fell from {ends[0]:.3g} to {ends[1]:.3g} nats a token: rollouts of a task are all but the same.",
        "Lower training.learning_rate, raise training.kl_coef, or take --algorithm dapo, whose clip leaves rare tokens room.",
        {"first": ends[0], "last": ends[1]},
    )


def find_kl(evidence: Evidence) -> RunFinding | None:
    """A policy far from its reference, or updates that fail by ``max_kl``."""
    failed = sum("max_kl" in str(line.get("error")) for line in evidence.failed)
    first, last = _ends(evidence.updates, "kl") or (0.0, 0.0)
    if last <= _MOST_KL and not failed:
        return None
    return RunFinding(
        "kl-running-off",
        Severity.HIGH,
        f"The KL to the reference went from {first:.3g} to {last:.3g} nats a token"
        + (f"; {failed} updates failed by max_kl." if failed else "."),
        "Lower training.learning_rate, raise training.kl_coef, or go back to an earlier checkpoint.",
        {"first": first, "last": last, "failed_updates": failed},
    )


def find_violations(evidence: Evidence) -> RunFinding | None:
    """Executed violations that rise; critical when the task reward rises with them."""
    return _rising(
        evidence,
        "violations-rising",
        lambda record: record.violated,
        _MORE_VIOLATIONS,
        "Rollouts in which an act against the policy was executed rose from {first:.1%} to {last:.1%}",
        "What is learnt is the violation. Enforce the policy (mode: enforce), charge for violations, and close the way"
        " by which they earn the task reward.",
    )


def find_farming(evidence: Evidence) -> RunFinding | None:
    """Tool rewards for repeating the same call that rise; critical when the task reward rises with them."""
    return _rising(
        evidence,
        "tool-rewards-farmed",
        lambda record: record.repeats,
        _MORE_REPEATS,
        "Rewarded repeats of the same tool call rose from {first:.2f} to {last:.2f} a rollout",
        "Let AIR be taken back at the end of an attempt (the default), pay a repeated call nothing, or add a loop rule.",
    )


def _ends(updates: Sequence[Mapping[str, Any]], name: str) -> tuple[float, float] | None:
    """The mean of a figure over the first and over the last quarter of the updates; None for fewer than two.

    An update that had no row to learn from measured nothing.
    """
    values = [
        float(line[name]) for line in updates if isinstance(line.get(name), int | float) and line.get("rows") != 0
    ]
    quarter = max(1, min(_ENDS, len(values) // 4))
    return (fmean(values[:quarter]), fmean(values[-quarter:])) if len(values) > 1 else None


def _rising(
    evidence: Evidence, name: str, value: Callable[[RecordedRollout], float], least: float, sentence: str, advice: str
) -> RunFinding | None:
    """A finding about a value of recorded rollouts that rises by ``least`` or more; ``sentence`` is given its figures."""
    early, late = (evidence.recorded_of(part) for part in (evidence.early, evidence.late))
    first, last = (_mean([(one, value(record)) for one, record in part]) for part in (early, late))
    if not (last.low > first.high and last.mean - first.mean >= least):
        return None
    task_first, task_last = (_mean([(one, one.rewards.get(TASK, 0.0)) for one, _ in part]) for part in (early, late))
    rises = task_last.low > task_first.high
    figures = {"first": first.mean, "last": last.mean, "task_first": task_first.mean, "task_last": task_last.mean}
    verb = "rose" if rises else "went"
    return RunFinding(
        name,
        Severity.CRITICAL if rises else Severity.HIGH,
        f"{sentence.format(**figures)}, while the task reward {verb} from {task_first.mean:.3g} to {task_last.mean:.3g}.",
        advice,
        {**figures, "task_rises": float(rises)},
        named(one.rollout_id for one, record in late if value(record)),
    )


def _mean(values: Sequence[tuple[TrainedRollout, float]]) -> Estimate:
    groups: dict[str, list[float]] = {}
    for one, value in values:
        groups.setdefault(f"{one.group[0]} {one.group[1]}", []).append(value)
    return grouped_interval(groups)
