"""Which attempt a reward is of, where it does not say."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from lgov_core.types import Attempt, CapturedCall, Reward


def attempt_of(reward: Reward, attempts: Collection[Attempt], calls: Iterable[CapturedCall]) -> int:
    """The attempt that ``reward`` names, or that has the call that it names, or else the last one that has ended.

    So transitions have it. ``attempts`` and ``calls`` are those of its rollout; without any attempt it is the first one.
    """
    if reward.attempt is not None:
        return reward.attempt
    if len(attempts) > 1 and (reward.response_id is not None or reward.tool_call_id is not None):
        for call in calls:
            if reward.response_id is None:
                is_meant = reward.tool_call_id in call.tool_call_ids
            else:
                is_meant = reward.response_id == call.response_id
            if is_meant:
                return call.attempt or 1
    ended = [one.attempt for one in attempts if one.outcome is not None or one.ended_at is not None]
    return max(ended or (one.attempt for one in attempts), default=1)
