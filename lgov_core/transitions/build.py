"""Recorded calls and rewards become transitions. Reads a store, writes nothing, guesses nothing."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

from lgov_core.store.protocol import TraceStore
from lgov_core.transitions.values import Diagnostic, Finding, Transition, TransitionSet
from lgov_core.types import Attempt, CapturedCall, Reward, Rollout


def build_transitions(store: TraceStore, rollout_ids: Sequence[str]) -> TransitionSet:
    """The transitions of the given rollouts.

    Of each rollout the last closed attempt counts, and only when its outcome is the agent's doing: an attempt that ended
    by infrastructure or timeout yields a diagnostic and no transition. Within an attempt the turns are in the order in
    which the endpoint captured the calls. Rewards go to the call that their target names: a tool call's to the model call
    that proposed it, an attempt's to the last call. Calls without token ids or logprobs are left out, with a
    diagnostic.
    """
    return assemble(
        store.rollouts(ids=rollout_ids),
        store.attempts(rollout_ids),
        store.calls(rollout_ids),
        store.rewards(rollout_ids),
    )


def assemble(
    rollouts: Iterable[Rollout], attempts: Iterable[Attempt], calls: Iterable[CapturedCall], rewards: Iterable[Reward]
) -> TransitionSet:
    """As `build_transitions`, from values at hand. Pure: the same values give the same result in any order of rewards."""
    calls_of: dict[tuple[str, int], list[CapturedCall]] = defaultdict(list)
    for call in calls:
        if call.rollout_id is not None and call.attempt is not None:
            calls_of[call.rollout_id, call.attempt].append(call)
    rewards_of: dict[tuple[str, int], list[Reward]] = defaultdict(list)
    for reward in rewards:
        if reward.rollout_id is not None and reward.attempt is not None:
            rewards_of[reward.rollout_id, reward.attempt].append(reward)
    attempts_of: dict[str, list[Attempt]] = defaultdict(list)
    for attempt in attempts:
        attempts_of[attempt.rollout_id].append(attempt)
    transitions: list[Transition] = []
    found: list[Diagnostic] = []
    for rollout in rollouts:
        attempt = _attempt_that_counts(rollout, attempts_of[rollout.rollout_id], found)
        if attempt is not None:
            key = (rollout.rollout_id, attempt.attempt)
            transitions += _of_attempt(rollout, attempt, calls_of[key], rewards_of[key], found)
    return TransitionSet(tuple(transitions), tuple(found))


def _attempt_that_counts(rollout: Rollout, attempts: Sequence[Attempt], found: list[Diagnostic]) -> Attempt | None:
    closed = [attempt for attempt in attempts if attempt.outcome is not None]
    if len(closed) < len(attempts) or not attempts:
        found.append(Diagnostic(Finding.OPEN_ATTEMPT, rollout.rollout_id))
    if not closed:
        return None
    last = max(closed, key=lambda attempt: attempt.attempt)
    if last.outcome is None or not last.outcome.trainable:
        found.append(Diagnostic(Finding.EXCLUDED_OUTCOME, rollout.rollout_id, f"{last.outcome}: {last.error or ''}"))
        return None
    return last


def _of_attempt(
    rollout: Rollout,
    attempt: Attempt,
    calls: Sequence[CapturedCall],
    rewards: Sequence[Reward],
    found: list[Diagnostic],
) -> list[Transition]:
    usable = [call for call in calls if _usable(call, found)]
    if not usable:
        found.append(Diagnostic(Finding.NO_CALLS, rollout.rollout_id))
        return []
    if attempt.outcome is None:  # pragma: no cover - the caller passes closed attempts only
        return []
    if len({call.weights_version for call in usable}) > 1:
        found.append(Diagnostic(Finding.MIXED_WEIGHTS, rollout.rollout_id))
    earned = _rewards_by_call(rollout, usable, rewards, found)
    return [
        Transition(
            run_id=rollout.run_id,
            weights_version=call.weights_version,
            model=call.model,
            task_id=rollout.task_id,
            rollout_id=rollout.rollout_id,
            attempt=attempt.attempt,
            turn=turn,
            response_id=call.response_id,
            agent=call.agent,
            prompt_ids=call.prompt_ids or (),
            response_ids=call.response_ids or (),
            response_mask=(1,) * len(call.response_ids or ()),
            logprobs=call.logprobs,
            temperature=call.temperature,
            finish_reason=call.finish_reason,
            outcome=attempt.outcome,
            rewards=earned[call.response_id],
            truncated=call.finish_reason == "length",
        )
        for turn, call in enumerate(usable)
    ]


def _usable(call: CapturedCall, found: list[Diagnostic]) -> bool:
    if call.finish_reason == "cancelled":
        found.append(Diagnostic(Finding.CANCELLED_REPLY, call.response_id))
        return False
    if not call.prompt_ids or not call.response_ids:
        found.append(Diagnostic(Finding.NO_TOKEN_IDS, call.response_id))
        return False
    if call.logprobs is None:
        found.append(Diagnostic(Finding.NO_LOGPROBS, call.response_id))
        return False
    if len(call.logprobs) != len(call.response_ids) or not all(map(math.isfinite, call.logprobs)):
        found.append(Diagnostic(Finding.LENGTHS_DIFFER, call.response_id))
        return False
    if call.finish_reason == "length":
        found.append(Diagnostic(Finding.TRUNCATED_REPLY, call.response_id))
    return True


def _rewards_by_call(
    rollout: Rollout, calls: Sequence[CapturedCall], rewards: Sequence[Reward], found: list[Diagnostic]
) -> dict[str, dict[str, float]]:
    proposed_by = {tool_call: call.response_id for call in calls for tool_call in call.tool_call_ids}
    earned: dict[str, dict[str, float]] = {call.response_id: {} for call in calls}
    final = False
    # Sorted by id so that floating-point sums do not depend on the order of arrival.
    for reward in sorted(rewards, key=lambda reward: reward.reward_id):
        if reward.response_id is not None:
            target = reward.response_id if reward.response_id in earned else None
        elif reward.tool_call_id is not None:
            target = proposed_by.get(reward.tool_call_id)
        else:
            target, final = calls[-1].response_id, True
        if target is None:
            found.append(Diagnostic(Finding.UNKNOWN_REWARD_TARGET, reward.reward_id, rollout.rollout_id))
            continue
        by_dimension = earned[target]
        by_dimension[reward.dimension] = by_dimension.get(reward.dimension, 0.0) + reward.value
    if not final:
        found.append(Diagnostic(Finding.NO_FINAL_REWARD, rollout.rollout_id))
    return earned
