"""What the rows of a trace store say about rollouts. Pure functions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from typing import Any, Final, TypeVar

from lgov_core.trace import semconv
from lgov_core.transitions import Diagnostic
from lgov_core.transitions.build import CUT_OFF
from lgov_core.transitions.reading.reward_targets import INTERMEDIATE
from lgov_core.transitions.tokens.drift import find_drift
from lgov_core.types import BLOCKING, Attempt, CapturedCall, Point, Reward, Rollout, Span
from lgov_core.views.findings.evidence import RecordedRollout, TrainedRollout
from lgov_core.views.written_calls import written_calls

#: Outcomes of tool calls whose arguments, or whose tool, do not exist.
_MALFORMED: Final = frozenset({"invalid_args", "unknown_tool"})

_Row = TypeVar("_Row", CapturedCall, Reward, Span)


def trained_rollouts(
    rollouts: Sequence[Rollout],
    attempts: Sequence[Attempt],
    calls: Sequence[CapturedCall],
    rewards: Sequence[Reward],
) -> list[TrainedRollout]:
    """The rollouts whose last attempt ended by the agent's doing, with the rewards that name the rollout."""
    last = {one.rollout_id: one for one in sorted(attempts, key=lambda one: one.attempt)}
    calls_of, rewards_of = _by_rollout(calls), _by_rollout(rewards)
    found: list[TrainedRollout] = []
    for rollout in rollouts:
        attempt = last.get(rollout.rollout_id)
        if attempt is None or attempt.outcome is None or not attempt.outcome.trainable:
            continue
        totals: dict[str, float] = defaultdict(float)
        own = [one for one in rewards_of[rollout.rollout_id] if one.attempt in (None, attempt.attempt)]
        for reward in own:
            totals[reward.dimension] += reward.value
        made = [one for one in calls_of[rollout.rollout_id] if one.attempt in (None, attempt.attempt)]
        found.append(
            TrainedRollout(
                rollout.rollout_id,
                (0, rollout.task_id),
                dict(totals),
                tuple(one.value for one in own if one.dimension == INTERMEDIATE),
                None,
                len(made),
                sum(one.finish_reason in CUT_OFF for one in made),
            )
        )
    return found


def recorded_rollouts(
    rollouts: Sequence[Rollout],
    calls: Sequence[CapturedCall],
    rewards: Sequence[Reward],
    spans: Sequence[Span],
    oracle: Mapping[str, bool],
) -> dict[str, RecordedRollout]:
    """By rollout what its calls and spans say. ``oracle`` says of rollouts whether they violated something; where it is
    silent, an act that shadow mode let pass is a violation.
    """
    calls_of, spans_of = _by_rollout(calls), _by_rollout(one for one in spans if not one.claimed)
    paid = {one.tool_call_id for one in rewards if one.tool_call_id is not None and one.value > 0}
    found: dict[str, RecordedRollout] = {}
    for rollout in rollouts:
        own, its_spans = calls_of[rollout.rollout_id], spans_of[rollout.rollout_id]
        written = [one for call in own for one in written_calls(call)]
        statuses = [str(one.attributes.get(semconv.TOOL_STATUS, "")) for one in its_spans]
        unreadable = sum(one.arguments is None for one in written)
        refused = sum(status in _MALFORMED for status in statuses)
        found[rollout.rollout_id] = RecordedRollout(
            calls=len(own),
            tool_calls=max(len(written), sum(map(bool, statuses))),
            malformed=unreadable + refused,
            drifted=_drifted(own),
            violated=oracle.get(rollout.rollout_id, any(map(_let_pass, its_spans))),
            repeats=_repeats(its_spans, paid),
        )
    return found


def _by_rollout(rows: Iterable[_Row]) -> dict[str, list[_Row]]:
    found: dict[str, list[_Row]] = defaultdict(list)
    for one in rows:
        if one.rollout_id is not None:
            found[one.rollout_id].append(one)
    return found


def _drifted(calls: Sequence[CapturedCall]) -> int:
    diagnostics: list[Diagnostic] = []
    for attempt in sorted({one.attempt or 1 for one in calls}):
        of_it = [one for one in calls if (one.attempt or 1) == attempt and one.prompt_ids is not None]
        find_drift(of_it, diagnostics)
    return len(diagnostics)


def _let_pass(span: Span) -> bool:
    """Whether ``span`` is a decision on an act that would have blocked it, and did not."""
    found = span.attributes
    return (
        span.name == semconv.DECISION_SPAN_NAME
        and found.get(semconv.POINT) == Point.PRE_TOOL_CALL.value
        and found.get(semconv.DECISION_WOULD) in BLOCKING
    )


def _repeats(spans: Sequence[Span], paid: Set[Any]) -> int:
    """Tool calls that were rewarded, and were the same as an earlier one of their attempt."""
    seen: set[Hashable] = set()
    count = 0
    for span in spans:
        attributes = span.attributes
        if attributes.get(semconv.TOOL_STATUS) is None:
            continue
        same = (span.attempt, str(attributes.get(semconv.TOOL_NAME)), str(attributes.get(semconv.TOOL_ARGUMENTS)))
        count += same in seen and attributes.get(semconv.TOOL_CALL_ID) in paid
        seen.add(same)
    return count
