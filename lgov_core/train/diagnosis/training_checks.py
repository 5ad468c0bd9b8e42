"""Findings as values, and the checks of how a training runs: its rollouts' endings, its replies, its weights and updates.

Each check is a function of the `Evidence`. Texts, and the order in which findings are to be repaired, are in ``findings.yaml``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any, Final

from lgov_core.governor.options import DataFile
from lgov_core.train.algorithms.algorithms import MOST_MOVED
from lgov_core.train.diagnosis.evidence import Evidence, groups_of
from lgov_core.train.loop.figures import ENTROPY_LEFT, LEAST_ENTROPY, collapse, wilson_interval
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


#: What is said of the findings, what they need, and how severe they are.
TEXTS: Final = DataFile("lgov_core.train.diagnosis", "findings.yaml")


def finding(
    name: str, figures: Mapping[str, float], rollout_ids: Iterable[str] = (), *, critical: bool = False, **words: str
) -> RunFinding:
    """The finding of that name; its texts are given ``figures`` and ``words``."""
    level = next((level for level in TEXTS.content["severity"] if name in TEXTS.words("severity", level)), "high")
    sentence, advice = (text.format(**figures, **words) for text in TEXTS.content["findings"][name])
    rollouts = tuple(dict.fromkeys(rollout_ids))[:ROLLOUTS_NAMED]
    return RunFinding(name, Severity("critical" if critical else level), sentence, advice, figures, rollouts)


#: The share of rollouts, calls and tool calls that may end badly, be truncated, malformed, drifted.
_SHARE: Final = 0.05
#: Of the tool calls, the share that may fail: an agent that explores fails often.
_FAIL: Final = 0.9
#: Of the groups, the share that may be alike.
ALIKE: Final = 0.75
#: How many versions older than the update the weights of its calls may be, on average.
_STALE: Final = 2.0
#: Mean difference between recorded and recomputed log-probabilities, nats a token: several times that of bfloat16.
_DIFFERENCE: Final = 0.2
#: Updates at the end of a run whose endings, staleness and log-probabilities are looked at.
_LAST: Final = 10


def exceeds(count: int, total: int, share: float) -> bool:
    """Returns whether ``count`` of ``total`` is more than ``share``, with 95 % confidence."""
    return total > 0 and wilson_interval(min(count, total), total)[0] > share


def find_endings(evidence: Evidence) -> Iterator[RunFinding]:
    """Rollouts that ended without a call, by an exception and so on, with the commonest error."""
    lines = [line for line in evidence.updates[-_LAST:] if isinstance(line.get("endings"), Mapping)]
    total = sum(line["rollouts"] for line in lines)
    for name in ("no-model-call", "prompts-too-long", "agents-raise", "rollouts-lost", "unknown-choice"):
        count = sum(line["endings"].get(name, 0) for line in lines)
        if exceeds(count, total, _SHARE):
            texts = [line["warnings"][name] for line in lines if name in (line.get("warnings") or {})]
            error = texts[-1].partition(": ")[2] if texts else ""
            figures = {"rollouts": total, "count": count, "share": count / total}
            error = f"; in the last update {error}" if error else ""
            yield finding(name, figures, critical=2 * count > total, error=error)


def find_shares(evidence: Evidence) -> Iterator[RunFinding]:
    """Truncated replies; tool calls that no tool can take, or that nearly all fail; conversations that went on in other tokens
    than were sampled.
    """
    rollouts: list[tuple[str, Any]] = [(rollout.rollout_id, rollout) for rollout in evidence.recent]
    records = [(rollout.rollout_id, record) for rollout, record in evidence.recorded_of(evidence.recent)]
    for name, counted, bad, of, share in (
        ("replies-truncated", rollouts, "truncated", "calls", _SHARE),
        ("tool-calls-malformed", records, "malformed", "tool_calls", _SHARE),
        ("tools-fail", records, "failed", "tool_calls", _FAIL),
        ("retokenisation-drift", records, "drifted", "later_calls", _SHARE),
    ):
        count, total = (sum(getattr(values, key) for _, values in counted) for key in (bad, of))
        if exceeds(count, total, share):
            figures = {of: total, bad: count, "share": count / total}
            yield finding(name, figures, (rollout_id for rollout_id, values in counted if getattr(values, bad)))


def find_equal_replies(evidence: Evidence) -> Iterator[RunFinding]:
    """Groups in which all rollouts begin with the same tokens, though by their log-probabilities they would differ."""
    groups = [
        [(rollout.rollout_id, record) for rollout, record in recorded]
        for group in groups_of(evidence.recent).values()
        if len(recorded := evidence.recorded_of(group)) > 1
    ]
    equal = [group for group in groups if len({record.first_reply for _, record in group}) == 1]
    if exceeds(len(equal), len(groups), ALIKE):
        expected = fmean(group[0][1].chance ** (len(group) - 1) for group in groups)
        figures = {"groups": len(groups), "groups_equal": len(equal), "expected_share": expected}
        if expected < 0.5:
            yield finding("replies-equal", figures, (rollout_id for group in equal for rollout_id, _ in group))


def find_other_weights(evidence: Evidence) -> Iterator[RunFinding]:
    """Calls made with weights that are several updates old, or with others than their version says; frozen weights."""
    lines = [line for line in evidence.updates[-_LAST:] if isinstance(line.get("staleness"), int | float)]
    if lines and (mean := fmean(line["staleness"] for line in lines)) > _STALE:
        most = max(line.get("staleness_max") or 0 for line in lines)
        yield finding("weights-stale", {"staleness": mean, "staleness_max": most, "updates": len(lines)})
    drifts = _values(evidence.updates[-_LAST:], "logprob_drift")
    if drifts and (mean := fmean(drifts)) > _DIFFERENCE:
        yield finding("logprobs-differ", {"logprob_drift": mean, "updates": len(drifts)})
    frozen = sum(
        line.get("weights_sha256", "") == before.get("weights_sha256")
        and _number(line, "grad_norm") * _number(line, "learning_rate") > 0
        for before, line in pairwise(evidence.updates)
    )
    if frozen:
        yield finding("weights-frozen", {"updates": len(evidence.updates), "updates_frozen": frozen})


#: KL to the reference, nats a token.
_MOST_KL: Final = 0.5
#: KL to the reference that is no more than rounding, and updates after which no more of it is a finding.
_NO_KL: Final = 1e-7
_STILL: Final = 10
#: The share of tokens that may be clipped in an update.
_CLIPPED: Final = 0.5
#: Updates at either end that are averaged at most.
_ENDS: Final = 10


def find_far_policy(evidence: Evidence) -> Iterator[RunFinding]:
    """An entropy of all but zero, or of a tenth of what it was; a policy far from its reference, stopped by ``max_kl``, or
    that has not left it.
    """
    first, last = _ends(evidence.updates, "entropy") or (0.0, 1.0)
    if last < max(LEAST_ENTROPY, ENTROPY_LEFT * first):
        yield finding("entropy-collapsed", {"first": first, "last": last})
    failed = sum("max_kl" in str(line.get("error")) for line in evidence.failed)
    first, last = _ends(evidence.updates, "kl") or (0.0, 0.0)
    if last > _MOST_KL or failed:
        yield finding("kl-running-off", {"first": first, "last": last, "failed_updates": failed})
    distances = _values(evidence.updates, "kl")
    if len(distances) >= _STILL and max(distances) < _NO_KL:
        figures = {"updates": len(distances), "kl": max(distances)}
        yield finding("policy-unmoved", {**figures, "learning_rate": _number(evidence.updates[-1], "learning_rate")})


def find_large_updates(evidence: Evidence) -> Iterator[RunFinding]:
    """Updates after which the policy was another one: it moved by nats a token, or half of its tokens were clipped."""
    large = [
        line
        for line in evidence.updates
        if _number(line, "moved") > MOST_MOVED or _number(line, "clip_fraction") > _CLIPPED
    ]
    if large:
        worst = max(large, key=lambda line: (_number(line, "moved"), _number(line, "clip_fraction")))
        figures = {name: _number(worst, name) for name in ("step", "moved", "clip_fraction", "learning_rate")}
        yield finding("updates-too-large", {**figures, "updates": len(large), "of_updates": len(evidence.updates)})


def find_collapse(evidence: Evidence) -> Iterator[RunFinding]:
    """A policy that earned more once, and has lost it for good."""
    if figures := collapse(evidence.updates):
        yield finding("policy-collapsed", figures)


def _number(line: Mapping[str, Any], name: str) -> float:
    value = line.get(name)
    return float(value) if isinstance(value, int | float) else 0.0


def _ends(updates: Sequence[Mapping[str, Any]], name: str) -> tuple[float, float] | None:
    """The mean of a figure over the first and over the last quarter of the updates; None for fewer than two."""
    values = _values(updates, name)
    quarter = max(1, min(_ENDS, len(values) // 4))
    return (fmean(values[:quarter]), fmean(values[-quarter:])) if len(values) > 1 else None


def _values(updates: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    """A figure of the updates. One that had no row to learn from measured nothing."""
    return [float(line[name]) for line in updates if isinstance(line.get(name), int | float) and line.get("rows") != 0]
