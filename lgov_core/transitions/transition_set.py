"""Training data as values: transitions, and what can be wrong with recorded data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from lgov_core.types import Reward, Transition

#: The dimension of intermediate rewards.
INTERMEDIATE: Final = "air"


class DataFinding(StrEnum):
    """A fault of recorded data. Counted and shown; nothing is filled in instead."""

    # What a call lacks, or has too much of.
    NO_TOKEN_IDS = "no_token_ids"
    NO_LOGPROBS = "no_logprobs"
    LENGTHS_DIFFER = "lengths_differ"
    NO_RESPONSE_ID = "no_response_id"
    NO_ROLLOUT_ID = "no_rollout_id"
    TRUNCATED_REPLY = "truncated_reply"
    CANCELLED_REPLY = "cancelled_reply"
    INVALID_ATTRIBUTE = "invalid_attribute"

    # What calls say about each other.
    DUPLICATE_CALL = "duplicate_call"
    CLAIM_DIFFERS = "claim_differs"
    CLAIM_NOT_CAPTURED = "claim_not_captured"
    MIXED_WEIGHTS = "mixed_weights"
    RETOKENISATION_DRIFT = "retokenisation_drift"
    UNKNOWN_CHOICE = "unknown_choice"

    # Spans and the tree that they form.
    DUPLICATE_SPAN = "duplicate_span"
    OPEN_SPAN = "open_span"
    CYCLIC_SPANS = "cyclic_spans"
    ORPHAN_SPAN = "orphan_span"
    UNREADABLE_SPAN = "unreadable_span"

    # Rollouts and attempts.
    NO_CALLS = "no_calls"
    NO_TASK_ID = "no_task_id"
    TASK_IDS_DIFFER = "task_ids_differ"
    NO_ATTEMPT = "no_attempt"
    OPEN_ATTEMPT = "open_attempt"
    NO_OUTCOME = "no_outcome"
    OUTCOMES_DIFFER = "outcomes_differ"
    EXCLUDED_OUTCOME = "excluded_outcome"

    # Selection.
    UNKNOWN_AGENT = "unknown_agent"
    UNKNOWN_MODEL = "unknown_model"
    AGENT_NOT_KNOWN = "agent_not_known"

    # Rewards.
    NO_FINAL_REWARD = "no_final_reward"
    UNKNOWN_REWARD_TARGET = "unknown_reward_target"
    AMBIGUOUS_REWARD_TARGET = "ambiguous_reward_target"
    UNASSIGNED_REWARD = "unassigned_reward"
    INVALID_REWARD = "invalid_reward"
    DUPLICATE_REWARD = "duplicate_reward"

    # Groups.
    SMALL_GROUP = "small_group"
    EQUAL_GROUP = "equal_group"


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One finding and what it concerns (a rollout, call, reward or span id)."""

    finding: DataFinding
    subject: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class TransitionSet:
    """Transitions in the order rollout, turn; with every diagnostic that came up while making them.

    ``unassigned`` are the rewards that are on none of them, though the record has them: of an unknown or ambiguous target,
    of a call that cannot be trained on, final ones of an attempt without a selected call, and those that are not numbers.
    Each has a diagnostic too.
    """

    transitions: tuple[Transition, ...]
    diagnostics: tuple[Diagnostic, ...] = ()
    unassigned: tuple[Reward, ...] = ()

    def counts(self) -> dict[str, int]:
        """How often each finding occurred."""
        return dict(Counter(diagnostic.finding.value for diagnostic in self.diagnostics))

    def groups(self) -> dict[str, list[list[Transition]]]:
        """Per task the rollouts' transitions in turn order; both in order of first appearance."""
        rollouts: dict[str, dict[tuple[str, int], list[Transition]]] = {}
        for transition in self.transitions:
            group = rollouts.setdefault(transition.task_id, {})
            group.setdefault((transition.rollout_id, transition.attempt), []).append(transition)
        return {task: list(group.values()) for task, group in rollouts.items()}


def by_rollout(transitions: Sequence[Transition]) -> dict[tuple[str, int], list[Transition]]:
    """Transitions per (rollout, attempt), in order of first appearance."""
    grouped: dict[tuple[str, int], list[Transition]] = {}
    for transition in transitions:
        grouped.setdefault((transition.rollout_id, transition.attempt), []).append(transition)
    return grouped


def line_of(turns: Sequence[Transition]) -> list[Transition]:
    """The turns of one attempt that follow each other: those that are not `Transition.set_aside`."""
    return [turn for turn in turns if not turn.set_aside]


def alternatives_of(turns: Sequence[Transition]) -> list[list[Transition]]:
    """Of one attempt, for each reply of which choices were set aside, the choices that rewards name.

    Each has its own rewards alone, so that they can be compared: what the attempt earned says nothing of the others.
    """
    aside = {turn.response_id for turn in turns if turn.set_aside}
    choices_of: dict[str, list[Transition]] = {}
    for turn in turns:
        own = turn.rewards if turn.own_rewards is None else turn.own_rewards
        if turn.response_id in aside and own:
            choices_of.setdefault(turn.response_id, []).append(replace(turn, rewards=own, own_rewards=None))
    return list(choices_of.values())
