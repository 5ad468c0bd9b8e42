"""Transitions of values at hand."""

from __future__ import annotations

from collections.abc import Iterable

from lgov_core.transitions import Records, Selection, TransitionSet, join, make_transitions
from lgov_core.types import Attempt, CapturedCall, Reward, Rollout, Span


def assemble(
    rollouts: Iterable[Rollout],
    attempts: Iterable[Attempt],
    calls: Iterable[CapturedCall],
    rewards: Iterable[Reward],
    spans: Iterable[Span] = (),
    selection: Selection | None = None,
) -> TransitionSet:
    """The transitions of these records; ``spans`` are joined to the calls on the response's id."""
    records = join(Records(tuple(rollouts), tuple(attempts), tuple(calls), tuple(rewards)), spans)
    return make_transitions(records, selection, need_logprobs=True)
