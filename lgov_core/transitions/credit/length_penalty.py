"""A penalty on replies that come near the longest one allowed, as a reward channel of its own."""

from __future__ import annotations

from dataclasses import replace

from lgov_core.errors import TransitionError
from lgov_core.transitions.transition_set import TransitionSet


def penalise_length(
    data: TransitionSet, *, limit: int, margin: int, weight: float = 1.0, channel: str = "length"
) -> TransitionSet:
    """Adds to each transition of R response tokens a reward in ``channel``: ``weight`` times

        0 for R ≤ limit - margin;   (limit - margin - R) / margin up to R = limit;   -1 beyond.

    So a reply is not paid for being cut off, and gets a warning before it is. Source: DAPO's soft overlong punishment, Yu et
    al. 2025, arXiv 2503.14476, eq. 13. Call it before `assign_credit`. Raises `TransitionError` unless 0 < margin ≤ limit, and
    where a transition has that channel already.
    """
    if not 0 < margin <= limit:
        raise TransitionError(f"limit is {limit} and margin {margin}", hint="margin is above 0 and at most limit")
    made = []
    for one in data.transitions:
        if channel in one.rewards:
            raise TransitionError(f"transition {one.response_id} has a reward {channel!r} already", hint="name another")
        penalty = max(-1.0, min(0.0, (limit - margin - len(one.response_ids)) / margin))
        if penalty:
            added = {channel: weight * penalty}
            own = None if one.own_rewards is None else {**one.own_rewards, **added}
            one = replace(one, rewards={**one.rewards, **added}, own_rewards=own)
        made.append(one)
    return replace(data, transitions=tuple(made))
