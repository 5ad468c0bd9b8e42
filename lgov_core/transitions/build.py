"""Recorded calls and rewards become transitions. Reads a store, writes nothing, guesses nothing.

The order of everything is that of explicit values, never of arrival: rollouts by when they were made and their id, the
calls of an attempt by when they began, then response id, then choice; diagnostics by what they say.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from lgov_core.store import TraceStore
from lgov_core.transitions.reading.calls import ChoiceKey, Selecting, Selection, calls_by_attempt, set_aside
from lgov_core.transitions.reading.records import Records, join, read_store
from lgov_core.transitions.reading.rewards import (
    NOT_SELECTED,
    UNUSABLE,
    PlacedCall,
    RewardTargets,
    distinct,
    owners_of_targets,
    rollout_of,
)
from lgov_core.transitions.tokens import find_drift
from lgov_core.transitions.transition_set import Diagnostic, Finding, Transition, TransitionSet
from lgov_core.types import Attempt, CapturedCall, Reward, Rollout, Span

#: What APIs call the end of a reply that reached its limit of tokens.
CUT_OFF: Final = frozenset({"length", "max_tokens", "max_output_tokens", "MAX_TOKENS"})


def build_transitions(
    store: TraceStore,
    rollout_ids: Sequence[str] | None = None,
    selection: Selection | None = None,
    *,
    need_logprobs: bool = True,
    keep_infrastructure: bool = False,
) -> TransitionSet:
    """The transitions of the given rollouts in ``store`` (None: of all). See `make_transitions`. Raises `StoreError`."""
    records = read_store(store, rollout_ids)
    return make_transitions(records, selection, need_logprobs=need_logprobs, keep_infrastructure=keep_infrastructure)


def assemble(
    rollouts: Iterable[Rollout],
    attempts: Iterable[Attempt],
    calls: Iterable[CapturedCall],
    rewards: Iterable[Reward],
    spans: Iterable[Span] = (),
    selection: Selection | None = None,
    *,
    need_logprobs: bool = True,
    keep_infrastructure: bool = False,
) -> TransitionSet:
    """As `make_transitions`, from values at hand; ``spans`` are joined to the calls on the response's id."""
    records = join(Records(tuple(rollouts), tuple(attempts), tuple(calls), tuple(rewards)), spans)
    return make_transitions(records, selection, need_logprobs=need_logprobs, keep_infrastructure=keep_infrastructure)


def make_transitions(
    records: Records,
    selection: Selection | None = None,
    *,
    need_logprobs: bool = False,
    keep_infrastructure: bool = False,
) -> TransitionSet:
    """The transitions of ``records``. Pure: the same values give the same result, in whatever order they are.

    Of each rollout the last closed attempt counts, and only when its outcome is the agent's doing: an attempt that ended
    by infrastructure or timeout yields a diagnostic and no transition, unless ``keep_infrastructure``. Rollouts that measure
    the model (`Rollout.held_out`) yield nothing, unless ``selection`` has ``held_out``. Within an attempt
    the turns are in the order in which the calls began. Rewards go to what their target names: a call; a tool call, that
    is the call that proposed it; an attempt, that is its last selected call. Calls without token ids are left out with a
    diagnostic, and so are those without log-probabilities where ``need_logprobs``. Callable from any thread.
    """
    diagnostics = list(records.diagnostics)
    unassigned: list[Reward] = []
    transitions: list[Transition] = []
    calls_of = calls_by_attempt(records, diagnostics)
    rewards_of = _rewards_by_rollout(records, calls_of, diagnostics, unassigned)
    attempts_of: dict[str, list[Attempt]] = defaultdict(list)
    for attempt in records.attempts:
        attempts_of[attempt.rollout_id].append(attempt)
    work = _Work(Selecting(selection or Selection(), records), diagnostics, unassigned, need_logprobs, records)
    for rollout in sorted(records.rollouts, key=lambda rollout: (rollout.created_at, rollout.rollout_id)):
        if rollout.held_out and not work.selecting.held_out:
            continue
        attempts = attempts_of[rollout.rollout_id]
        attempt = _attempt_that_counts(rollout, attempts, diagnostics, keep_infrastructure)
        if attempt is None:
            continue
        others = [other.attempt for other in attempts if other.attempt != attempt.attempt]
        elsewhere = [call for number in others for call in calls_of.get((rollout.rollout_id, number), ())]
        transitions += work.of_attempt(
            rollout,
            attempt,
            calls_of.get((rollout.rollout_id, attempt.attempt), ()),
            rewards_of.get(rollout.rollout_id, ()),
            elsewhere,
            others,
        )
    diagnostics += work.selecting.missed()
    diagnostics.sort(key=lambda diagnostic: (diagnostic.finding.value, diagnostic.subject, diagnostic.detail))
    unassigned.sort(key=lambda reward: (reward.reward_id, reward.dimension, repr(reward.value)))
    return TransitionSet(tuple(transitions), tuple(diagnostics), tuple(unassigned))


def _rewards_by_rollout(
    records: Records,
    calls_of: Mapping[tuple[str, int], Sequence[CapturedCall]],
    diagnostics: list[Diagnostic],
    unassigned: list[Reward],
) -> dict[str, list[Reward]]:
    rollout_ids = {rollout.rollout_id for rollout in records.rollouts}
    owners = owners_of_targets(calls_of)
    rewards_of: dict[str, list[Reward]] = defaultdict(list)
    for reward in distinct(records.rewards, diagnostics):
        rollout_id = reward.rollout_id if reward.rollout_id is not None else rollout_of(reward, owners)
        if rollout_id is None or rollout_id not in rollout_ids:
            where = "names no rollout" if rollout_id is None else f"names rollout {rollout_id}, which is not on record"
            diagnostics.append(Diagnostic(Finding.UNKNOWN_REWARD_TARGET, reward.reward_id, f"it {where}"))
            unassigned.append(reward)
            continue
        rewards_of[rollout_id].append(reward)
    return rewards_of


def _attempt_that_counts(
    rollout: Rollout, attempts: Sequence[Attempt], diagnostics: list[Diagnostic], keep_infrastructure: bool
) -> Attempt | None:
    # An attempt that others describe may have ended without their saying how.
    closed = [attempt for attempt in attempts if attempt.outcome is not None or attempt.ended_at is not None]
    if not attempts:
        diagnostics.append(Diagnostic(Finding.NO_ATTEMPT, rollout.rollout_id))
    elif len(closed) < len(attempts):
        diagnostics.append(Diagnostic(Finding.OPEN_ATTEMPT, rollout.rollout_id))
    if not closed:
        return None
    last = max(closed, key=lambda attempt: attempt.attempt)
    if last.outcome is None:
        diagnostics.append(Diagnostic(Finding.NO_OUTCOME, rollout.rollout_id, f"attempt {last.attempt}"))
    elif not last.outcome.trainable:
        diagnostics.append(
            Diagnostic(Finding.EXCLUDED_OUTCOME, rollout.rollout_id, f"{last.outcome}: {last.error or ''}")
        )
        return last if keep_infrastructure else None
    return last


@dataclass(frozen=True, slots=True)
class _Work:
    """The state that the attempts of one set share."""

    selecting: Selecting
    found: list[Diagnostic]
    unassigned: list[Reward]
    need_logprobs: bool
    records: Records

    def of_attempt(
        self,
        rollout: Rollout,
        attempt: Attempt,
        calls: Sequence[CapturedCall],
        rewards: Sequence[Reward],
        elsewhere: Sequence[CapturedCall],
        others: Sequence[int],
    ) -> list[Transition]:
        diagnostics = self.found
        placed: list[PlacedCall] = []
        chosen: list[CapturedCall] = []
        for call in calls:
            if not self.selecting.takes(call):
                placed.append((call, NOT_SELECTED))
            elif self._usable(call):
                placed.append((call, len(chosen)))
                chosen.append(call)
            else:
                placed.append((call, UNUSABLE))
        if not chosen and not any(index == NOT_SELECTED for _, index in placed):
            diagnostics.append(Diagnostic(Finding.NO_CALLS, rollout.rollout_id))
        versions = {(call.model, call.weights_version) for call in chosen}
        if len(versions) > len({model for model, _ in versions}):  # each model has versions of its own
            diagnostics.append(Diagnostic(Finding.MIXED_WEIGHTS, rollout.rollout_id))
        several = any(call.choice > 0 for call in calls)
        aside = self._set_aside(attempt, calls, chosen, rewards) if several else frozenset[ChoiceKey]()
        line = [turn for turn, call in enumerate(chosen) if (call.response_id, call.choice) not in aside]
        last = line[-1] if line else None
        targets = RewardTargets(rollout.rollout_id, attempt.attempt, placed, last, elsewhere, others, aside)
        earned = targets.assign(rewards, diagnostics, self.unassigned)
        if len(chosen) > 1:
            find_drift((chosen[turn] for turn in line), diagnostics)
        # Where choices are set aside: what the rewards say that name a choice itself.
        own = (
            targets.assign([reward for reward in rewards if reward.response_id or reward.tool_call_id], [], [])
            if aside
            else {}
        )
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
                rewards=earned.get(turn, {}),
                truncated=call.finish_reason in CUT_OFF,
                choice=call.choice,
                tool_call_ids=call.tool_call_ids,
                parent_response_id=self._parent(call, placed) if self.records.proposed_in else None,
                set_aside=(call.response_id, call.choice) in aside,
                own_rewards=own.get(turn, {}) if aside and turn == last else None,
                held_out=rollout.held_out,
            )
            for turn, call in enumerate(chosen)
        ]

    def _set_aside(
        self,
        attempt: Attempt,
        calls: Sequence[CapturedCall],
        chosen: Sequence[CapturedCall],
        rewards: Sequence[Reward],
    ) -> frozenset[ChoiceKey]:
        here = (None, attempt.attempt)
        used = {reward.tool_call_id for reward in rewards if reward.tool_call_id is not None and reward.attempt in here}
        used |= {
            name
            for call in calls
            for name in call.tool_call_ids
            if any((attempt.rollout_id, number, name) in self.records.tools_run for number in here)
        }
        aside, unknown = set_aside(calls, used)
        trained = {call.response_id for call in chosen}
        self.found.extend(
            Diagnostic(Finding.UNKNOWN_CHOICE, name, "it is unknown which choice was continued: the first counts")
            for name in unknown
            if name in trained
        )
        return aside

    def _parent(self, call: CapturedCall, placed: Sequence[PlacedCall]) -> str | None:
        """The call that proposed the tool call inside which ``call`` was made."""
        tool_call = self.records.proposed_in.get((call.rollout_id, call.response_id))
        if tool_call is None:
            tool_call = self.records.proposed_in.get((None, call.response_id))
        if tool_call is None:
            return None
        proposers = {candidate.response_id for candidate, _ in placed if tool_call in candidate.tool_call_ids}
        return next(iter(proposers)) if len(proposers) == 1 else None

    def _usable(self, call: CapturedCall) -> bool:
        diagnostics, logprobs = self.found, call.logprobs
        if call.finish_reason == "cancelled":
            diagnostics.append(Diagnostic(Finding.CANCELLED_REPLY, call.response_id))
            return False
        if not call.prompt_ids or not call.response_ids:
            diagnostics.append(Diagnostic(Finding.NO_TOKEN_IDS, call.response_id))
            return False
        if logprobs is None:
            diagnostics.append(Diagnostic(Finding.NO_LOGPROBS, call.response_id))
            if self.need_logprobs:
                return False
        elif len(logprobs) != len(call.response_ids) or not all(map(math.isfinite, logprobs)):
            counts = f"{len(call.response_ids)} tokens, {len(logprobs)} log-probabilities"
            detail = "a log-probability is not finite" if len(logprobs) == len(call.response_ids) else counts
            diagnostics.append(Diagnostic(Finding.LENGTHS_DIFFER, call.response_id, detail))
            return False
        if call.finish_reason in CUT_OFF:
            diagnostics.append(Diagnostic(Finding.TRUNCATED_REPLY, call.response_id))
        return True
