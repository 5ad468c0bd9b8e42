"""The checks of rewards and of behaviour, and `examine`, which makes all checks of a run.

The text, the JSON and the pages of `lgov doctor RUN` are views of these values. A value of rollouts *rises* when it is more by
a least amount and the 95 % intervals of both ends, rollouts of a group together, do not overlap.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import StatisticsError, correlation, fmean, pvariance, variance
from typing import Any, Final

from lgov_core.settings import without_password
from lgov_core.train.diagnosis import training_checks
from lgov_core.train.diagnosis.evidence import TASK, Evidence, RecordedRollout, TrainedRollout, groups_of, read_evidence
from lgov_core.train.diagnosis.training_checks import ALIKE, TEXTS, RunFinding, exceeds, finding
from lgov_core.train.loop.figures import Estimate, grouped_interval, mean_interval
from lgov_core.transitions.transition_set import INTERMEDIATE
from lgov_core.types import Severity


@dataclass(frozen=True, slots=True)
class DiagnosisReport:
    """An examination of ``place``: ``findings``, what to repair first at the beginning; ``checked``, the names of what was
    looked for; and ``not_examined``, which says by the name of a finding why it could not be. ``updates`` and ``rollouts``
    count what was looked at.
    """

    place: str
    updates: int
    rollouts: int
    findings: tuple[RunFinding, ...]
    checked: tuple[str, ...]
    not_examined: Mapping[str, str]

    def as_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


#: Rollouts, pairs or groups below which rewards say nothing.
_FEWEST: Final = 8
#: Of the rollouts, the share with the least reward above which it is sparse.
_SPARSE: Final = 0.9
#: Of the groups with advantages, the share that may have them from AIR alone.
_AIR_ALONE: Final = 0.5
#: Decimals to which rewards are compared: sums of the same values in another order are alike.
_DECIMALS: Final = 9


def find_dull_reward(evidence: Evidence) -> Iterator[RunFinding]:
    """Groups that teach nothing by the task reward, named after the cause: constant, sparse, or alike within tasks."""
    rollouts = _rewarded(evidence)
    if len(rollouts) < _FEWEST:
        return
    values = [_task(rollout) for rollout in rollouts]
    groups, least = groups_of(rollouts), min(values)
    alike = [group for group in groups.values() if len({_task(rollout) for rollout in group}) == 1]
    low = sum(value == least for value in values)
    figures: dict[str, float] = {
        "rollouts": len(rollouts),
        "groups": len(groups),
        "groups_alike": len(alike),
        "low": low,
    }
    figures |= {"least": least, "most": max(values), "share_with_least": low / len(values)}
    if len(set(values)) == 1:
        yield finding("reward-constant", figures, (rollout.rollout_id for rollout in rollouts))
    elif exceeds(low, len(values), _SPARSE):
        yield finding("reward-sparse", figures, (rollout.rollout_id for rollout in rollouts if _task(rollout) > least))
    elif exceeds(len(alike), len(groups), ALIKE):
        yield finding("groups-alike", figures, (group[0].rollout_id for group in alike))


def find_air_alone(evidence: Evidence) -> Iterator[RunFinding]:
    """Groups whose advantages come from tool rewards alone: all other channels are alike in them."""
    taught = [group for group in groups_of(evidence.recent).values() if _teaches(group)]
    alone = [
        group
        for group in taught
        if len({_others(rollout.rewards) for rollout in group}) == 1 < len({rollout.air for rollout in group})
    ]
    if exceeds(len(alone), len(taught), _AIR_ALONE):
        figures = {"groups_with_advantages": len(taught), "groups_from_air_alone": len(alone)}
        ids = (rollout.rollout_id for group in alone for rollout in group if rollout.air)
        yield finding("advantages-from-air-alone", figures, ids)


def _teaches(group: list[TrainedRollout]) -> bool:
    """Returns whether a group has advantages; where that is not recorded, whether anything in it differs."""
    if all(rollout.credited is not None for rollout in group):
        return any(rollout.credited for rollout in group)
    return len({(_others(rollout.rewards), rollout.air) for rollout in group}) > 1


def _rewarded(evidence: Evidence) -> list[TrainedRollout]:
    return [rollout for rollout in evidence.recent if TASK in rollout.rewards]


def _task(rollout: TrainedRollout) -> float:
    return round(rollout.rewards[TASK], _DECIMALS)


def _others(rewards: Mapping[str, float]) -> tuple[tuple[str, float], ...]:
    others = ((name, round(value, _DECIMALS)) for name, value in rewards.items() if name != INTERMEDIATE)
    return tuple(sorted(reward for reward in others if reward[1]))


#: Of the different calls to tools in a task, the share whose results may hold its answer.
_HOLDS: Final = 0.75
#: Of what the reward spreads over in a group, the share by which the expected answer must be better.
_FOLLOWS: Final = 0.25
#: Rank correlation of rewards with lengths, and the share of their variance that there may be at equal lengths.
_BY_LENGTH: Final = 0.8
_AT_LENGTH: Final = 0.1
#: How many times as wide as that of the middle nine tenths the range of the rewards may be.
_RANGE: Final = 10.0
#: Updates from which on a run without progress is a finding, and how much of the range of rewards is progress.
_PATIENCE: Final = 20
_PROGRESS: Final = 0.1


def find_overlap(evidence: Evidence) -> Iterator[RunFinding]:
    """Held-out tasks that are trained on."""
    count, total = evidence.overlap or (0, 0)
    if count:
        figures = {"tasks": total, "tasks_trained_on": count}
        yield finding("test-tasks-trained-on", figures, critical=2 * count > total)


def find_leaks(evidence: Evidence) -> Iterator[RunFinding]:
    """Tools whose results hold a field of the task that its prompt does not, whatever they are asked."""
    results: dict[str, dict[str, dict[str, bool]]] = defaultdict(lambda: defaultdict(dict))
    ids: dict[tuple[str, str], str] = {}
    for rollout, record in evidence.recorded_of(evidence.recent):
        for name, value in record.hidden.items():
            ids[name, rollout.group[1]] = rollout.rollout_id
            results[name][rollout.group[1]] |= {call: value in result for call, result in record.lookups.items()}
    for name, by_task in sorted(results.items()):
        several = {task: list(holds.values()) for task, holds in by_task.items() if len(holds) > 1}
        holds = [held for values in several.values() for held in values]
        if exceeds(sum(holds), len(holds), _HOLDS):
            figures = {"tasks": len(several), "calls": len(holds), "calls_with_answer": sum(holds)}
            yield finding("answers-leaked", figures, (ids[name, task] for task in several), field=name)
            return


def find_noise(evidence: Evidence) -> Iterator[RunFinding]:
    """Rewards that differ as much between rollouts of a task with the very same conversation as between others."""
    same: list[float] = []
    other: list[float] = []
    ids: list[str] = []
    for group in _recorded_groups(evidence):
        by_conversation: dict[int, list[TrainedRollout]] = defaultdict(list)
        for rollout, record in group:
            by_conversation[record.conversation].append(rollout)
        if len(by_conversation) > 1:
            other.append(2 * variance(_task(rollouts[0]) for rollouts in by_conversation.values()))
        for rollouts in by_conversation.values():
            rewards = [_task(rollout) for rollout in rollouts]
            same += [(first - second) ** 2 for first, second in zip(rewards[::2], rewards[1::2], strict=False)]
            ids += [rollout.rollout_id for rollout in rollouts if len(set(rewards)) > 1]
    if min(len(same), len(other)) >= _FEWEST and mean_interval(same).low > 0.5 * fmean(other):
        yield finding("reward-random", {"same": fmean(same), "other": fmean(other), "pairs": len(same)}, ids)


def find_ignored_answer(evidence: Evidence) -> Iterator[RunFinding]:
    """Replies that hold the answer that their task expects, and earn no more than others of their group.

    A field is the answer when replies hold that of their own task more often than those of other tasks.
    """
    groups = list(_recorded_groups(evidence))
    fields: list[tuple[Estimate, str, list[str]]] = []
    for name in sorted({name for group in groups for _, record in group for name in record.hidden}):
        values = {record.hidden[name] for group in groups for _, record in group if name in record.hidden}
        gaps: list[float] = []
        ids: list[str] = []
        naming = 0
        for group in groups:
            rewards: dict[bool, list[float]] = defaultdict(list)
            for rollout, record in group:
                answers = [value for value in values if value in record.reply]
                naming += bool(answers)
                right = answers == [record.hidden.get(name)]
                rewards[right].append(_task(rollout))
                ids += [rollout.rollout_id] * right
            if len(rewards) == 2:
                gap = fmean(rewards[True]) - fmean(rewards[False])
                gaps.append(gap and gap / (max(map(max, rewards.values())) - min(map(min, rewards.values()))))
        if len(gaps) >= _FEWEST and exceeds(len(ids), naming, 1 / len(values)):
            fields.append((mean_interval(gaps), name, ids))
    if fields and (best := max(fields, key=lambda field: field[0].high))[0].high < _FOLLOWS:
        gap, name, ids = best
        figures = {"gap": gap.mean, "low": gap.low, "high": gap.high, "groups": gap.count}
        yield finding("reward-ignores-answer", figures, ids, field=name)


def _recorded_groups(evidence: Evidence) -> Iterator[list[tuple[TrainedRollout, RecordedRollout]]]:
    for group in groups_of(_rewarded(evidence)).values():
        yield evidence.recorded_of(group)


def find_length(evidence: Evidence) -> Iterator[RunFinding]:
    """A task reward that is one of the length of the last reply, whatever the task."""
    recorded = [
        (rollout, record.reply) for rollout, record in evidence.recorded_of(_rewarded(evidence)) if record.reply
    ]
    rewards, lengths = [_task(rollout) for rollout, _ in recorded], [len(reply) for _, reply in recorded]
    at_length: dict[int, list[float]] = defaultdict(list)
    for reward, length in zip(rewards, lengths, strict=True):
        at_length[length].append(reward)
    try:
        follows = correlation(_ranks(rewards), _ranks(lengths))
    except StatisticsError:  # fewer than two, or all alike
        return
    left = sum(len(group) * pvariance(group) for group in at_length.values()) / (len(rewards) * pvariance(rewards))
    if len(rewards) >= 3 * _FEWEST and abs(follows) >= _BY_LENGTH and left <= _AT_LENGTH:
        figures = {"correlation": follows, "variance_left": left, "rollouts": len(rewards)}
        most = sorted((rollout for rollout, _ in recorded), key=_task, reverse=True)
        yield finding("reward-follows-length", figures, (rollout.rollout_id for rollout in most))


def _ranks(values: Sequence[float]) -> list[float]:
    ranks: dict[float, list[int]] = defaultdict(list)
    for rank, value in enumerate(sorted(values)):
        ranks[value].append(rank)
    return [fmean(ranks[value]) for value in values]


def find_outliers(evidence: Evidence) -> Iterator[RunFinding]:
    """A few task rewards beside which all others are the same."""
    rollouts = sorted(_rewarded(evidence), key=_task)
    if not (cut := len(rollouts) // 20):
        return
    low, high = _task(rollouts[cut]), _task(rollouts[-cut - 1])
    far = _RANGE * (high - low)
    ids = [rollout.rollout_id for rollout in rollouts if far and not low - far <= _task(rollout) <= high + far]
    if ids:
        figures = {"rollouts": len(rollouts), "outliers": len(ids), "low": low, "high": high}
        yield finding("reward-outliers", {**figures, "least": _task(rollouts[0]), "most": _task(rollouts[-1])}, ids)


def find_no_progress(evidence: Evidence) -> Iterator[RunFinding]:
    """A task reward that is in the second half of the updates surely no better than in the first, and not at its best."""
    lines = [(line.get("rewards") or {}).get(TASK) or {} for line in evidence.updates]
    means = [line["mean"] for line in lines if line.get("mean") is not None]
    rewards = [rollout.rewards[TASK] for rollout in (*evidence.early, *evidence.recent) if TASK in rollout.rewards]
    if len(means) < _PATIENCE or not rewards:
        return
    first, last = mean_interval(means[: len(means) // 2]), mean_interval(means[len(means) // 2 :])
    gain, spread = last.mean - first.mean, max(rewards) - min(rewards)
    half = ((first.high - first.mean) ** 2 + (last.high - last.mean) ** 2) ** 0.5
    if gain + half < _PROGRESS * spread and last.mean < max(rewards) - _PROGRESS * spread:
        figures = {"updates": len(means), "first": first.mean, "last": last.mean, "range": spread}
        yield finding("no-progress", {**figures, "gain_low": gain - half, "gain_high": gain + half})


#: How many more rollouts with a violation, and rewarded repeats a rollout, are worth a finding.
_MORE_VIOLATIONS: Final = 0.05
_MORE_REPEATS: Final = 0.2


def find_cheating(evidence: Evidence) -> Iterator[RunFinding]:
    """Executed violations, and tool rewards for repeating the same call, that rise; critical when the task reward does too."""
    yield from _rising(evidence, "violations-rising", lambda record: record.violated, _MORE_VIOLATIONS)
    yield from _rising(evidence, "tool-rewards-farmed", lambda record: record.repeats, _MORE_REPEATS)


def _rising(
    evidence: Evidence, name: str, value: Callable[[RecordedRollout], float], least: float
) -> Iterator[RunFinding]:
    """A finding about a value of recorded rollouts that rises by ``least`` or more."""
    early, late = (evidence.recorded_of(rollouts) for rollouts in (evidence.early, evidence.late))
    first, last = (_mean([(rollout, value(record)) for rollout, record in recorded]) for recorded in (early, late))
    if not (last.low > first.high and last.mean - first.mean >= least):
        return
    task_first, task_last = (
        _mean([(rollout, rollout.rewards.get(TASK, 0.0)) for rollout, _ in recorded]) for recorded in (early, late)
    )
    rises = task_last.low > task_first.high
    figures = {"first": first.mean, "last": last.mean, "task_first": task_first.mean, "task_last": task_last.mean}
    ids = (rollout.rollout_id for rollout, record in late if value(record))
    figures["task_rises"] = float(rises)
    yield finding(name, figures, ids, critical=rises, verb="rose" if rises else "went")


def _mean(values: Sequence[tuple[TrainedRollout, float]]) -> Estimate:
    groups: dict[str, list[float]] = {}
    for rollout, value in values:
        groups.setdefault(f"{rollout.group[0]} {rollout.group[1]}", []).append(value)
    return grouped_interval(groups)


_CHECKS: Final[tuple[Callable[[Evidence], Iterator[RunFinding]], ...]] = (
    training_checks.find_endings, training_checks.find_shares, training_checks.find_equal_replies,
    training_checks.find_other_weights, training_checks.find_far_policy, training_checks.find_large_updates,
    training_checks.find_collapse, find_dull_reward, find_air_alone, find_overlap, find_leaks, find_noise,
    find_ignored_answer, find_length, find_outliers, find_no_progress, find_cheating,
)  # fmt: skip
_SEVERITIES: Final = list(Severity)


def examine(place: str | Path) -> DiagnosisReport:
    """Examines ``place``: the folder of a run (finished or in progress), or a trace store (a path or an address).

    Reads only, and writes nothing; a run may go on meanwhile. Raises `LgovError` where there is nothing to examine or it
    cannot be read. Callable from any thread.
    """
    return examine_evidence(without_password(str(place)), read_evidence(str(place)))


def examine_evidence(place: str, evidence: Evidence) -> DiagnosisReport:
    """As `examine`, of evidence at hand. Pure."""
    findings = [named for check in _CHECKS for named in check(evidence)]
    order = list(TEXTS.content["findings"])
    findings.sort(key=lambda named: (-_SEVERITIES.index(named.severity), order.index(named.name)))
    rollouts = {rollout.rollout_id for rollout in (*evidence.early, *evidence.recent)}
    names = {named.name for named in findings}
    missing = {name: why for name, why in _not_examined(evidence).items() if name not in names}
    checked = tuple(name for name in order if name not in missing)
    return DiagnosisReport(place, len(evidence.updates), len(rollouts), tuple(findings), checked, missing)


def _not_examined(evidence: Evidence) -> dict[str, str]:
    missing: dict[str, str] = {}
    if not evidence.recent:
        missing["rollouts"] = "there is no rollout that ended"
    if not evidence.updates:
        missing["metrics"] = "there is no update in metrics.jsonl"
    elif not any(isinstance(line.get("kl"), int | float) for line in evidence.updates):
        missing["kl"] = "no update has a KL to the reference (training.kl_coef is 0, or verl has the figure)"
    if not evidence.early:
        missing["ends"] = "the run is too short to compare its beginning with its end"
    if evidence.overlap is None:
        missing["tasks"] = "there is no data/train.jsonl in the folder of the run"
    if not evidence.recorded:
        missing["store"] = "no rollout that was trained on is in a trace store"
    if not any(TASK in rollout.rewards for rollout in evidence.recent):
        missing["reward"] = "no rollout has a reward of the dimension task"
    return {name: why for need, why in missing.items() for name in sorted(TEXTS.words("needs", need))}
