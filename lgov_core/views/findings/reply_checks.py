"""Are the replies what the trainer takes them for? Truncation, tool calls that cannot be read, drift, other weights."""

from __future__ import annotations

from statistics import fmean
from typing import Final

from lgov_core.types import Severity
from lgov_core.views.findings.evidence import Evidence
from lgov_core.views.findings.report import RunFinding, named
from lgov_core.views.findings.signal_checks import exceeds

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
    calls, cut = (sum(getattr(one, name) for one in evidence.recent) for name in ("calls", "truncated"))
    if not exceeds(cut, calls, _SHARE):
        return None
    return RunFinding(
        "replies-truncated",
        Severity.HIGH,
        f"{cut} of {calls} recent replies were cut off by the limit of tokens.",
        "Raise the limit (max_new_tokens, or max_tokens of the agent), or penalise long replies.",
        {"calls": calls, "truncated": cut, "share": cut / calls},
        named(one.rollout_id for one in evidence.recent if one.truncated),
    )


def find_malformed(evidence: Evidence) -> RunFinding | None:
    """Tool calls that could not be read, or that no tool can take."""
    recorded = evidence.recorded_of(evidence.recent)
    calls, bad = (sum(getattr(one, name) for _, one in recorded) for name in ("tool_calls", "malformed"))
    if not exceeds(min(bad, calls), calls, _SHARE):
        return None
    return RunFinding(
        "tool-calls-malformed",
        Severity.HIGH,
        f"{bad} of {calls} recent tool calls cannot be read, or name a tool or arguments that do not exist.",
        "Look at the replies as written: is it the model's own tool format? Imitate a few good rollouts first (sft), or"
        " ask for structured output.",
        {"tool_calls": calls, "malformed": bad, "share": bad / calls},
        named(one.rollout_id for one, record in recorded if record.malformed),
    )


def find_drift(evidence: Evidence) -> RunFinding | None:
    """Conversations that went on in other tokens than the model had written."""
    recorded = evidence.recorded_of(evidence.recent)
    later = sum(max(one.calls - 1, 0) for _, one in recorded)
    drifted = sum(one.drifted for _, one in recorded)
    if not exceeds(min(drifted, later), later, _SHARE):
        return None
    return RunFinding(
        "retokenisation-drift",
        Severity.MEDIUM,
        f"{drifted} of {later} recent calls that go on from another have its reply in other tokens than were sampled.",
        "Let the agent send replies back unchanged, tool calls too, and check that the chat template keeps them.",
        {"later_calls": later, "drifted": drifted, "share": drifted / later},
        named(one.rollout_id for one, record in recorded if record.drifted),
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
