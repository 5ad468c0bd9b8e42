"""Recorded calls and rewards become transitions. Reads a store, writes nothing, guesses nothing.

Rewards find what they name: a target is a call, a tool call or an attempt, and nothing is guessed from order or time.

The order of everything is that of explicit values, never of arrival: rollouts by when they were made and their id, the
calls of an attempt by when they began, then response id, then choice; diagnostics by what they say.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from lgov_core.store import TraceStore
from lgov_core.transitions.calls import ChoiceKey, Selecting, Selection, calls_by_attempt, set_aside
from lgov_core.transitions.records import Records, read_store
from lgov_core.transitions.tokens import find_drift
from lgov_core.transitions.transition_set import INTERMEDIATE, DataFinding, Diagnostic, Transition, TransitionSet
from lgov_core.types import Attempt, CapturedCall, Reward, Rollout
from lgov_core.types.records import MOST_REWARD

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
            diagnostics.append(Diagnostic(DataFinding.UNKNOWN_REWARD_TARGET, reward.reward_id, f"it {where}"))
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
        diagnostics.append(Diagnostic(DataFinding.NO_ATTEMPT, rollout.rollout_id))
    elif len(closed) < len(attempts):
        diagnostics.append(Diagnostic(DataFinding.OPEN_ATTEMPT, rollout.rollout_id))
    if not closed:
        return None
    last = max(closed, key=lambda attempt: attempt.attempt)
    if last.outcome is None:
        diagnostics.append(Diagnostic(DataFinding.NO_OUTCOME, rollout.rollout_id, f"attempt {last.attempt}"))
    elif not last.outcome.trainable:
        diagnostics.append(
            Diagnostic(DataFinding.EXCLUDED_OUTCOME, rollout.rollout_id, f"{last.outcome}: {last.error or ''}")
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
        placed = self._placed(rollout.rollout_id, calls)
        chosen = [call for call, index in placed if index >= 0]
        several = any(call.choice > 0 for call in calls)
        aside = self._set_aside(attempt, calls, chosen, rewards) if several else frozenset[ChoiceKey]()
        line = [turn for turn, call in enumerate(chosen) if (call.response_id, call.choice) not in aside]
        last = line[-1] if line else None
        targets = RewardTargets(attempt, placed, last, elsewhere, others, aside)
        earned = targets.assign(rewards, self.found, self.unassigned)
        own: dict[int, dict[str, float]] = {}
        if aside:  # what the rewards say that name a choice itself
            own = targets.assign([reward for reward in rewards if reward.response_id or reward.tool_call_id], [], [])
        if len(chosen) > 1:
            find_drift((chosen[turn] for turn in line), self.found)
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
                response_mask=_mask(call),
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

    def _placed(self, rollout_id: str, calls: Sequence[CapturedCall]) -> list[PlacedCall]:
        """The calls of an attempt with the numbers of their transitions, and what is wrong with all of them together."""
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
            self.found.append(Diagnostic(DataFinding.NO_CALLS, rollout_id))
        versions = {(call.model, call.weights_version) for call in chosen}
        if len(versions) > len({model for model, _ in versions}):  # each model has versions of its own
            self.found.append(Diagnostic(DataFinding.MIXED_WEIGHTS, rollout_id))
        return placed

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
            Diagnostic(DataFinding.UNKNOWN_CHOICE, name, "it is unknown which choice was continued: the first counts")
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
            diagnostics.append(Diagnostic(DataFinding.CANCELLED_REPLY, call.response_id))
            return False
        if not call.prompt_ids or not call.response_ids:
            diagnostics.append(Diagnostic(DataFinding.NO_TOKEN_IDS, call.response_id))
            return False
        if logprobs is None:
            diagnostics.append(Diagnostic(DataFinding.NO_LOGPROBS, call.response_id))
            if self.need_logprobs:
                return False
        elif len(logprobs) != len(call.response_ids) or not all(map(math.isfinite, logprobs)):
            counts = f"{len(call.response_ids)} tokens, {len(logprobs)} log-probabilities"
            detail = "a log-probability is not finite" if len(logprobs) == len(call.response_ids) else counts
            diagnostics.append(Diagnostic(DataFinding.LENGTHS_DIFFER, call.response_id, detail))
            return False
        if call.finish_reason in CUT_OFF:
            diagnostics.append(Diagnostic(DataFinding.TRUNCATED_REPLY, call.response_id))
        return True


def _mask(call: CapturedCall) -> tuple[int, ...]:
    """1 for each token that the model chose. One that a demanded form decided was not drawn from what is trained."""
    about = call.response.get("lgov")
    forced = set(about.get("forced") or ()) if isinstance(about, Mapping) else ()
    return tuple(int(number not in forced) for number in range(len(call.response_ids or ())))


#: Where a reward goes that names a call without a transition: one that cannot be trained on, or was not selected.
UNUSABLE: Final = -1
NOT_SELECTED: Final = -2

#: A call of the attempt, and the index of its transition or one of the two above.
PlacedCall: TypeAlias = tuple[CapturedCall, int]

#: Where a reward goes: an index as above, None to another attempt, else what is wrong with it and why.
_Target: TypeAlias = int | tuple[DataFinding, str] | None


def distinct(rewards: Iterable[Reward], diagnostics: list[Diagnostic]) -> list[Reward]:
    """Rewards without those that came twice. One id with different contents is a finding, and both stay."""
    rewards = list(rewards)
    if len({reward.reward_id for reward in rewards}) == len(rewards):
        return rewards
    by_id: dict[str, Reward] = {}
    kept: list[Reward] = []
    for reward in rewards:
        first = by_id.setdefault(reward.reward_id, reward)
        if first is not reward:
            if first == reward or any(other == reward for other in kept if other.reward_id == reward.reward_id):
                continue
            # What is not a number is never equal to itself.
            if math.isnan(first.value) and math.isnan(reward.value):
                continue
            diagnostics.append(
                Diagnostic(DataFinding.DUPLICATE_REWARD, reward.reward_id, "two different rewards of one id")
            )
        kept.append(reward)
    return kept


def owners_of_targets(calls_of: Mapping[tuple[str, int], Sequence[CapturedCall]]) -> dict[tuple[str, str], set[str]]:
    """The rollouts that have each call (``("call", response id)``) and tool call (``("tool", id)``)."""
    owners: dict[tuple[str, str], set[str]] = {}
    for (rollout_id, _), calls in calls_of.items():
        for call in calls:
            owners.setdefault(("call", call.response_id), set()).add(rollout_id)
            for tool_call in call.tool_call_ids:
                owners.setdefault(("tool", tool_call), set()).add(rollout_id)
    return owners


def rollout_of(reward: Reward, owners: Mapping[tuple[str, str], set[str]]) -> str | None:
    """The one rollout that has the target of a reward without a rollout; None where there is none or several."""
    target = ("tool", reward.tool_call_id or "") if reward.response_id is None else ("call", reward.response_id)
    rollout_ids = owners.get(target, ())
    return next(iter(rollout_ids)) if len(rollout_ids) == 1 else None


class RewardTargets:
    """The targets of the rewards of one attempt.

    ``placed`` are the calls of the attempt in their order, ``last`` the index of the last transition (None without
    any), ``elsewhere`` the calls of the rollout's other attempts: their rewards went with them. ``aside`` are the choices
    (response id and choice) that the attempt did not go on with.
    """

    def __init__(
        self,
        attempt: Attempt,
        placed: Sequence[PlacedCall],
        last: int | None,
        elsewhere: Sequence[CapturedCall],
        other_attempts: Iterable[int],
        aside: Container[tuple[str, int]] = (),
    ) -> None:
        self._rollout_id, self._attempt = attempt.rollout_id, attempt.attempt
        self._last = last
        self._aside = aside
        self._elsewhere = elsewhere
        self._others = frozenset(other_attempts)
        self._calls: dict[str, list[PlacedCall]] = {}
        self._tools: dict[str, list[PlacedCall]] = {}
        for placed_call in placed:
            call = placed_call[0]
            self._calls.setdefault(call.response_id, []).append(placed_call)
            for tool_call in call.tool_call_ids:
                self._tools.setdefault(tool_call, []).append(placed_call)

    def assign(
        self, rewards: Iterable[Reward], diagnostics: list[Diagnostic], unassigned: list[Reward]
    ) -> dict[int, dict[str, float]]:
        """The rewards of each transition (by index), by dimension. What finds no transition is reported and kept apart.

        Sums are exact (`math.fsum`), so no order of rewards changes them.
        """
        earned: dict[int, dict[str, list[float]]] = {}
        final = False
        for reward in rewards:
            if not abs(reward.value) <= MOST_REWARD:  # not a number, either
                target = DataFinding.INVALID_REWARD, f"its value is {reward.value}"
            elif reward.response_id is None and reward.tool_call_id is None:
                target: _Target = self._last
                if reward.attempt is not None and reward.attempt != self._attempt:
                    unknown = DataFinding.UNKNOWN_REWARD_TARGET, f"there is no attempt {reward.attempt}"
                    target = None if reward.attempt in self._others else unknown
                elif self._last is None:
                    target = DataFinding.UNASSIGNED_REWARD, "no transition of the attempt"
                # What AIR takes back at the end of an attempt says nothing about how the task went.
                final = final or (isinstance(target, int) and reward.dimension != INTERMEDIATE)
            else:
                target = self._of_call(reward, diagnostics)
            if isinstance(target, tuple):
                finding, why = target
                diagnostics.append(Diagnostic(finding, reward.reward_id, f"{self._rollout_id}: {why}"))
                unassigned.append(reward)
            elif target is not None and target >= 0:
                earned.setdefault(target, {}).setdefault(reward.dimension, []).append(float(reward.value))
        if not final and self._last is not None:
            diagnostics.append(Diagnostic(DataFinding.NO_FINAL_REWARD, self._rollout_id))
        return {
            target: {name: math.fsum(values) for name, values in sorted(parts.items())}
            for target, parts in earned.items()
        }

    def _of_call(self, reward: Reward, diagnostics: list[Diagnostic]) -> _Target:
        if reward.response_id is not None:
            meant = self._calls.get(reward.response_id, [])
        else:
            meant = self._tools.get(reward.tool_call_id or "", [])
        here = reward.attempt == self._attempt or reward.attempt is None
        if len(meant) == 1 and here and reward.choice is None and meant[0][1] != UNUSABLE:
            return meant[0][1]
        what = f"tool call {reward.tool_call_id}" if reward.response_id is None else f"call {reward.response_id}"
        # Ids may come again in a retry: of two calls of one id the one in the attempt that the reward names is meant.
        if meant and not here and self._was_elsewhere(reward, reward.attempt):
            return None
        if reward.response_id is not None and len({call.choice for call, _ in meant}) > 1:
            choice = reward.choice
            if choice is None:
                # One of them the attempt has gone on with: not all are set aside.
                choice = min(call.choice for call, _ in meant if (call.response_id, call.choice) not in self._aside)
                detail = f"{what} has several choices and the reward names none: it goes to choice {choice}"
                diagnostics.append(Diagnostic(DataFinding.AMBIGUOUS_REWARD_TARGET, reward.reward_id, detail))
            meant = [candidate for candidate in meant if candidate[0].choice == choice]
        elif reward.choice is not None:
            meant = [candidate for candidate in meant if candidate[0].choice == reward.choice]
        elif len(meant) > 1:
            # Tools run for the choice that was gone on with, whatever ids the others gave theirs.
            used = [
                candidate for candidate in meant if (candidate[0].response_id, candidate[0].choice) not in self._aside
            ]
            meant = used if len(used) == 1 else meant
        if len(meant) == 1:
            target = meant[0][1]
            return (DataFinding.UNASSIGNED_REWARD, f"{what} has no transition") if target == UNUSABLE else target
        if meant:
            return DataFinding.AMBIGUOUS_REWARD_TARGET, f"{len(meant)} calls answer to {what}"
        if self._was_elsewhere(reward):
            return None
        chosen = "" if reward.choice is None else f"choice {reward.choice} of "
        return DataFinding.UNKNOWN_REWARD_TARGET, f"there is no {chosen}{what}"

    def _was_elsewhere(self, reward: Reward, attempt: int | None = None) -> bool:
        """Returns whether another attempt (only ``attempt``, where that is given) has the call that ``reward`` names."""
        calls = [call for call in self._elsewhere if attempt is None or (call.attempt or 1) == attempt]
        if reward.response_id is not None:
            return any(call.response_id == reward.response_id for call in calls)
        return any(reward.tool_call_id in call.tool_call_ids for call in calls)
