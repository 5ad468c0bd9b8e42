"""The checks of a training, each a function of the `Evidence`, and their findings as values.

The text, the JSON and the pages of `lgov doctor RUN` are views of these values. A value of rollouts *rises* when it is more by
a least amount and the 95 % intervals of both ends, rollouts of a group together, do not overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import Any, Final

from lgov_core.settings import without_password
from lgov_core.train.diagnosis.evidence import TASK, Evidence, RecordedRollout, TrainedRollout, groups_of, read_evidence
from lgov_core.train.loop.figures import Estimate, grouped_interval, wilson_interval
from lgov_core.transitions.transition_set import INTERMEDIATE
from lgov_core.types import Severity

#: Rollouts named by one finding.
ROLLOUTS_NAMED: Final = 20


@dataclass(frozen=True, slots=True)
class RunFinding:
    """One thing that is wrong with a run.

    ``name`` is stable and meant for programs; ``sentence`` and ``advice`` are for people. ``figures`` are the numbers
    that the sentence rests on. ``rollouts`` are ids of rollouts that show it, at most `ROLLOUTS_NAMED`; none where the
    figures are those of whole updates.
    """

    name: str
    severity: Severity
    sentence: str
    advice: str
    figures: Mapping[str, float]
    rollouts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DiagnosisReport:
    """An examination of ``place``: ``findings``, the worst first; ``checked``, the names of what was looked for; and
    ``not_examined``, which says by the name of a finding why it could not be. ``updates`` and ``rollouts`` count what was
    looked at.
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


def named(rollout_ids: Iterable[str]) -> tuple[str, ...]:
    """The first of the given ids, each once, as many as a finding names."""
    return tuple(dict.fromkeys(rollout_ids))[:ROLLOUTS_NAMED]


#: How the rollouts of an update may end badly, by the warning about it: what to do.
_ENDINGS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "no-model-call": (
            "made no model call through resource.model_api, so nothing of them was trained on",
            "Give the agent's client resource.model_api as its base URL, anew in every rollout.",
        ),
        "agents-raise": (
            "ended with an exception of the agent, which was trained on as reward 0",
            "Repair the agent or the reward function: the model is pushed away from replies that were perhaps right.",
        ),
        "rollouts-lost": (
            "were lost to the machines or to the time limit",
            "Repair what the error names. What lasts long is lost most often, so the rest is of the short tasks.",
        ),
    }
)


def find_endings(evidence: Evidence) -> Iterator[RunFinding]:
    """Rollouts that ended without a call, by an exception or by the machines, with the commonest error."""
    lines = [line for line in evidence.updates[-_LAST:] if isinstance(line.get("endings"), Mapping)]
    total = sum(line["rollouts"] for line in lines)
    for name, (what, advice) in _ENDINGS.items():
        counts = [line["endings"].get(name, 0) for line in lines]
        if exceeds(count := sum(counts), total, _SHARE):
            said = [line["warnings"][name] for line in lines if name in (line.get("warnings") or {})]
            error = said[-1].partition(": ")[2] if said and name != "no-model-call" else ""
            sentence = f"{count} of {total} recent rollouts {what}" + (
                f"; in the last update {error}." if error else "."
            )
            figures = {"rollouts": total, "count": count, "share": count / total}
            yield RunFinding(name, Severity.CRITICAL if 2 * count > total else Severity.HIGH, sentence, advice, figures)


#: The share of calls, of tool calls and of calls that may be truncated, malformed and drifted.
_SHARE: Final = 0.05
#: How many versions older than the update the weights of its calls may be, on average.
_STALE: Final = 2.0
#: Mean difference between recorded and recomputed log-probabilities, nats a token: several times that of bfloat16.
_DIFFERENCE: Final = 0.2
#: Updates at the end of a run whose staleness and log-probabilities are averaged.
_LAST: Final = 10


def find_truncated(evidence: Evidence) -> RunFinding | None:
    """Replies cut off by the limit of tokens."""
    calls, cut = (sum(getattr(rollout, name) for rollout in evidence.recent) for name in ("calls", "truncated"))
    if not exceeds(cut, calls, _SHARE):
        return None
    return RunFinding(
        "replies-truncated",
        Severity.HIGH,
        f"{cut} of {calls} recent replies were cut off by the limit of tokens.",
        "Raise the limit (max_new_tokens, or max_tokens of the agent), or penalise long replies.",
        {"calls": calls, "truncated": cut, "share": cut / calls},
        named(rollout.rollout_id for rollout in evidence.recent if rollout.truncated),
    )


def find_malformed(evidence: Evidence) -> RunFinding | None:
    """Tool calls that could not be read, or that no tool can take."""
    recorded = evidence.recorded_of(evidence.recent)
    calls, bad = (sum(getattr(record, name) for _, record in recorded) for name in ("tool_calls", "malformed"))
    if not exceeds(min(bad, calls), calls, _SHARE):
        return None
    return RunFinding(
        "tool-calls-malformed",
        Severity.HIGH,
        f"{bad} of {calls} recent tool calls cannot be read, or name a tool or arguments that do not exist.",
        "Look at the replies as written: is it the model's own tool format? Imitate a few good rollouts first (sft), or"
        " ask for structured output.",
        {"tool_calls": calls, "malformed": bad, "share": bad / calls},
        named(rollout.rollout_id for rollout, record in recorded if record.malformed),
    )


def find_drift(evidence: Evidence) -> RunFinding | None:
    """Conversations that went on in other tokens than the model had written."""
    recorded = evidence.recorded_of(evidence.recent)
    later = sum(max(record.calls - 1, 0) for _, record in recorded)
    drifted = sum(record.drifted for _, record in recorded)
    if not exceeds(min(drifted, later), later, _SHARE):
        return None
    return RunFinding(
        "retokenisation-drift",
        Severity.MEDIUM,
        f"{drifted} of {later} recent calls that go on from another have its reply in other tokens than were sampled.",
        "Let the agent send replies back unchanged, tool calls too, and check that the chat template keeps them.",
        {"later_calls": later, "drifted": drifted, "share": drifted / later},
        named(rollout.rollout_id for rollout, record in recorded if record.drifted),
    )


def find_stale_weights(evidence: Evidence) -> RunFinding | None:
    """Calls made with weights that are several updates old."""
    lines = [line for line in evidence.updates[-_LAST:] if isinstance(line.get("staleness"), int | float)]
    if not lines or (mean := fmean(line["staleness"] for line in lines)) <= _STALE:
        return None
    most = max(line.get("staleness_max") or 0 for line in lines)
    return RunFinding(
        "weights-stale",
        Severity.HIGH,
        f"The weights that wrote the recent replies were {mean:.1f} updates old on average, and at most {most:g}.",
        "Check that the agents ask the endpoint that gets the new weights, and lower training.max_staleness.",
        {"staleness": mean, "staleness_max": most, "updates": len(lines)},
    )


def find_other_weights(evidence: Evidence) -> RunFinding | None:
    """Replies to which the model in training gives other probabilities than were recorded."""
    drifts = [
        drift
        for line in evidence.updates[-_LAST:]
        if line.get("rows") != 0 and isinstance(drift := line.get("logprob_drift"), int | float)
    ]
    if not drifts or (mean := fmean(drifts)) <= _DIFFERENCE:
        return None
    return RunFinding(
        "logprobs-differ",
        Severity.HIGH,
        f"Recorded log-probabilities differ by {mean:.2g} nats a token from those of the model in training.",
        "Check that what samples (--engine-url, an adapter) serves the model that is trained, in the same dtype.",
        {"logprob_drift": mean, "updates": len(drifts)},
    )


#: Rollouts below which a constant reward says nothing.
_FEWEST: Final = 8
#: Of the groups, the share that may be alike.
_ALIKE: Final = 0.75
#: Of the rollouts, the share with the least reward from which on it is called sparse.
_SPARSE: Final = 0.9
#: Of the groups with advantages, the share that may have them from AIR alone.
_AIR_ALONE: Final = 0.5
#: Decimals to which rewards are compared: sums of the same values in another order are alike.
_DECIMALS: Final = 9


def exceeds(count: int, total: int, share: float) -> bool:
    """Returns whether ``count`` of ``total`` is more than ``share``, with 95 % confidence."""
    return total > 0 and wilson_interval(count, total)[0] > share


def find_dull_reward(evidence: Evidence) -> RunFinding | None:
    """Groups that teach nothing by the task reward, named after the cause: constant, sparse, or alike within tasks."""
    rollouts = [rollout for rollout in evidence.recent if TASK in rollout.rewards]
    if len(rollouts) < _FEWEST:
        return None
    values = [_task(rollout) for rollout in rollouts]
    groups, least = groups_of(rollouts), min(values)
    alike = [group for group in groups.values() if len({_task(rollout) for rollout in group}) == 1]
    low = sum(value == least for value in values)
    figures: dict[str, float] = {"rollouts": len(rollouts), "groups": len(groups), "groups_alike": len(alike)}
    figures |= {"least": least, "most": max(values), "share_with_least": low / len(values)}
    if len(set(values)) == 1:
        return RunFinding(
            "reward-constant",
            Severity.HIGH,
            f"The task reward is {least:g} in all {len(rollouts)} recent rollouts.",
            "Look at what the reward is computed from in one of these rollouts. If all of them deserve it, choose other tasks.",
            figures,
            named(rollout.rollout_id for rollout in rollouts),
        )
    if not (exceeds(len(alike), len(groups), _ALIKE) if groups else exceeds(low, len(values), 0.95)):
        return None
    if low / len(values) >= _SPARSE:
        return RunFinding(
            "reward-sparse",
            Severity.HIGH,
            f"{low} of {len(rollouts)} recent rollouts earn the least task reward there is ({least:g});"
            f" {len(alike)} of {len(groups)} groups do not differ.",
            "Begin with easier tasks, take more rollouts a task, give partial rewards, or imitate good rollouts first (sft).",
            figures,
            named(rollout.rollout_id for rollout in rollouts if _task(rollout) > least),
        )
    return RunFinding(
        "groups-alike",
        Severity.HIGH,
        f"In {len(alike)} of {len(groups)} recent groups all rollouts earn the same task reward.",
        "Choose tasks that sometimes succeed, take more rollouts a task or a higher temperature, or set"
        " training.max_extra_groups.",
        figures,
        named(group[0].rollout_id for group in alike),
    )


def find_air_alone(evidence: Evidence) -> RunFinding | None:
    """Groups whose advantages come from tool rewards alone: all other channels are alike in them."""
    taught = [group for group in groups_of(evidence.recent).values() if _teaches(group)]
    alone = [group for group in taught if len({_others(rollout.rewards) for rollout in group}) == 1]
    if not exceeds(len(alone), len(taught), _AIR_ALONE):
        return None
    return RunFinding(
        "advantages-from-air-alone",
        Severity.HIGH,
        f"In {len(alone)} of {len(taught)} recent groups that have advantages, nothing differs but tool rewards (AIR).",
        "The policy is taught to please its tools. Repair the task reward, or leave AIR out until it differs"
        " (runtime.air_enabled: false).",
        {"groups_with_advantages": len(taught), "groups_from_air_alone": len(alone)},
        named(rollout.rollout_id for group in alone for rollout in group if rollout.air),
    )


def _teaches(group: list[TrainedRollout]) -> bool:
    """Returns whether a group has advantages; where that is not recorded, whether anything in it differs."""
    if all(rollout.credited is not None for rollout in group):
        return any(rollout.credited for rollout in group)
    return len({(_others(rollout.rewards), rollout.air) for rollout in group}) > 1


def _task(rollout: TrainedRollout) -> float:
    return round(rollout.rewards[TASK], _DECIMALS)


def _others(rewards: Mapping[str, float]) -> tuple[tuple[str, float], ...]:
    others = ((name, round(value, _DECIMALS)) for name, value in rewards.items() if name != INTERMEDIATE)
    return tuple(sorted(reward for reward in others if reward[1]))


#: Entropy (nats a token) below which replies no longer differ, and the share of the first entropy that may be left.
_LEAST_ENTROPY: Final = 0.01
_ENTROPY_LEFT: Final = 0.1
#: KL to the reference, nats a token.
_MOST_KL: Final = 0.5
#: How far one update may move the policy, in nats a token, and the share of tokens that may be clipped in it.
_MOVED: Final = 0.5
_CLIPPED: Final = 0.5
#: Updates in a row without a group that differs after which a policy is stuck.
_STUCK: Final = 3
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


def find_large_updates(evidence: Evidence) -> RunFinding | None:
    """Updates after which the policy was another one: it moved by nats a token, or half of its tokens were clipped."""
    large = [
        line
        for line in evidence.updates
        if _number(line, "moved") > _MOVED or _number(line, "clip_fraction") > _CLIPPED
    ]
    if not large:
        return None
    worst = max(large, key=lambda line: (_number(line, "moved"), _number(line, "clip_fraction")))
    figures = {name: _number(worst, name) for name in ("step", "moved", "clip_fraction", "learning_rate")}
    return RunFinding(
        "updates-too-large",
        Severity.CRITICAL,
        f"In {len(large)} of {len(evidence.updates)} updates the policy moved too far at once; in update {figures['step']:g} by"
        f" {figures['moved']:.3g} nats a token, with {figures['clip_fraction']:.0%} of its tokens clipped.",
        f"Lower training.learning_rate (it was {figures['learning_rate']:.3g}), and begin again or from an earlier checkpoint.",
        {**figures, "updates": len(large)},
    )


def find_collapse(evidence: Evidence) -> RunFinding | None:
    """A policy that has stopped trying: for several updates no group differs, at a return below an earlier one."""
    lines = [line for line in evidence.updates if isinstance(line.get("groups_informative"), int)]
    last = max((at for at, line in enumerate(lines) if line["groups_informative"]), default=None)
    if last is None or len(lines) - last - 1 < _STUCK:
        return None
    before, after = (
        [line["mean_return"] for line in part if isinstance(line.get("mean_return"), int | float)]
        for part in (lines[: last + 1], lines[last + 1 :])
    )
    if not before or not after or fmean(after) >= max(before):
        return None
    stuck = len(lines) - last - 1
    return RunFinding(
        "policy-collapsed",
        Severity.CRITICAL,
        f"In the last {stuck} updates all rollouts of every task earned the same, and less ({fmean(after):.3g}) than in an"
        f" earlier update ({max(before):.3g}): nothing can be learnt any more.",
        "Go back to an earlier checkpoint (RUN/best), lower training.learning_rate, raise training.kl_coef.",
        {"updates": stuck, "return": fmean(after), "best_return": max(before)},
    )


def _number(line: Mapping[str, Any], name: str) -> float:
    value = line.get(name)
    return float(value) if isinstance(value, int | float) else 0.0


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
    early, late = (evidence.recorded_of(rollouts) for rollouts in (evidence.early, evidence.late))
    first, last = (_mean([(rollout, value(record)) for rollout, record in recorded]) for recorded in (early, late))
    if not (last.low > first.high and last.mean - first.mean >= least):
        return None
    task_first, task_last = (
        _mean([(rollout, rollout.rewards.get(TASK, 0.0)) for rollout, _ in recorded]) for recorded in (early, late)
    )
    rises = task_last.low > task_first.high
    figures = {"first": first.mean, "last": last.mean, "task_first": task_first.mean, "task_last": task_last.mean}
    verb = "rose" if rises else "went"
    return RunFinding(
        name,
        Severity.CRITICAL if rises else Severity.HIGH,
        f"{sentence.format(**figures)}, while the task reward {verb} from {task_first.mean:.3g} to {task_last.mean:.3g}.",
        advice,
        {**figures, "task_rises": float(rises)},
        named(rollout.rollout_id for rollout, record in late if value(record)),
    )


def _mean(values: Sequence[tuple[TrainedRollout, float]]) -> Estimate:
    groups: dict[str, list[float]] = {}
    for rollout, value in values:
        groups.setdefault(f"{rollout.group[0]} {rollout.group[1]}", []).append(value)
    return grouped_interval(groups)


_CHECKS: Final[tuple[Callable[[Evidence], RunFinding | None], ...]] = (
    find_violations,
    find_farming,
    find_large_updates,
    find_collapse,
    find_dull_reward,
    find_air_alone,
    find_truncated,
    find_malformed,
    find_entropy_collapse,
    find_kl,
    find_stale_weights,
    find_other_weights,
    find_drift,
)
_SEVERITIES: Final = list(Severity)
#: All findings, by the part of the evidence that they need; some need two.
_NEEDS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "metrics": (
            *_ENDINGS,
            "updates-too-large",
            "policy-collapsed",
            "entropy-collapsed",
            "kl-running-off",
            "weights-stale",
            "logprobs-differ",
        ),
        "kl": ("kl-running-off",),
        "store": ("tool-calls-malformed", "retokenisation-drift", "violations-rising", "tool-rewards-farmed"),
        "ends": ("violations-rising", "tool-rewards-farmed"),
        "rollouts": ("replies-truncated",),
        "reward": ("reward-constant", "reward-sparse", "groups-alike", "advantages-from-air-alone"),
    }
)


def examine(place: str | Path) -> DiagnosisReport:
    """Examines ``place``: the folder of a run (finished or in progress), or a trace store (a path or an address).

    Reads only, and writes nothing; a run may go on meanwhile. Raises `LgovError` where there is nothing to examine or it
    cannot be read. Callable from any thread.
    """
    return examine_evidence(without_password(str(place)), read_evidence(str(place)))


def examine_evidence(place: str, evidence: Evidence) -> DiagnosisReport:
    """As `examine`, of evidence at hand. Pure."""
    findings = [*find_endings(evidence), *(finding for check in _CHECKS if (finding := check(evidence)) is not None)]
    findings.sort(key=lambda finding: -_SEVERITIES.index(finding.severity))
    rollouts = {rollout.rollout_id for rollout in (*evidence.early, *evidence.recent)}
    names = {finding.name for finding in findings}
    missing = {name: why for name, why in _not_examined(evidence).items() if name not in names}
    checked = dict.fromkeys(name for names_of_need in _NEEDS.values() for name in names_of_need if name not in missing)
    return DiagnosisReport(place, len(evidence.updates), len(rollouts), tuple(findings), tuple(checked), missing)


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
    if not evidence.recorded:
        missing["store"] = "no rollout that was trained on is in a trace store"
    if not any(TASK in rollout.rewards for rollout in evidence.recent):
        missing["reward"] = "no rollout has a reward of the dimension task"
    return {name: why for need, why in missing.items() for name in _NEEDS[need]}
