"""What can be wrong with recorded data, as values that are counted and shown."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Finding(StrEnum):
    """What can be wrong with recorded data. Counted and shown; nothing is filled in instead."""

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

    finding: Finding
    subject: str
    detail: str = ""
