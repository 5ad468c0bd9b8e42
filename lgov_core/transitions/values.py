"""Training data as values: transitions, and what was found wrong while making them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from lgov_core.types import Outcome

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Transition:
    """One model call as training data.

    ``prompt_ids`` (int, length P) and ``response_ids`` (int, length R) are the exact tokens; ``response_mask`` (length R) is
    1 where the model chose the token and may be trained on it. ``logprobs`` (length R) are the behaviour
    log-probabilities at the temperature sampled. ``rewards`` maps a dimension to what this turn earned; ``value_to_go`` is
    the return from this turn on (None until credit is assigned); ``advantages`` (length R) is the credit of each response
    token, and ``loss_weight`` multiplies this transition's summed token loss: the weights of one rollout's tokens do
    not change when the rollout is split into more transitions.
    """

    run_id: str
    weights_version: int
    model: str
    task_id: str
    rollout_id: str
    attempt: int
    turn: int
    response_id: str
    agent: str | None
    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    response_mask: tuple[int, ...]
    logprobs: tuple[float, ...]
    temperature: float
    finish_reason: str
    outcome: Outcome
    rewards: Mapping[str, float]
    value_to_go: float | None = None
    advantages: tuple[float, ...] | None = None
    loss_weight: float = 0.0
    truncated: bool = False

    @property
    def reward(self) -> float:
        """The sum over all dimensions of what this turn earned."""
        return sum(self.rewards.values())

    def as_row(self) -> dict[str, Any]:
        """The transition as one row of the data contract (plain JSON types)."""
        return {
            "schema_version": SCHEMA_VERSION,
            "run_id": self.run_id,
            "policy_version": self.weights_version,
            "model": self.model,
            "task_id": self.task_id,
            "rollout_id": self.rollout_id,
            "attempt": self.attempt,
            "turn": self.turn,
            "call_id": self.response_id,
            "agent": self.agent,
            "prompt_ids": list(self.prompt_ids),
            "response_ids": list(self.response_ids),
            "response_mask": list(self.response_mask),
            "logprobs": list(self.logprobs),
            "sampling": {"temperature": self.temperature},
            "finish_reason": self.finish_reason,
            "rewards": dict(self.rewards),
            "return": self.value_to_go,
            "advantages": None if self.advantages is None else list(self.advantages),
            "loss_weight": self.loss_weight,
            "truncated": self.truncated,
            "outcome": self.outcome.value,
        }


class Finding(StrEnum):
    """What can be wrong with recorded data. Counted and shown; nothing is filled in instead."""

    NO_TOKEN_IDS = "no_token_ids"
    NO_LOGPROBS = "no_logprobs"
    LENGTHS_DIFFER = "lengths_differ"
    NO_CALLS = "no_calls"
    NO_FINAL_REWARD = "no_final_reward"
    OPEN_ATTEMPT = "open_attempt"
    EXCLUDED_OUTCOME = "excluded_outcome"
    UNKNOWN_REWARD_TARGET = "unknown_reward_target"
    TRUNCATED_REPLY = "truncated_reply"
    CANCELLED_REPLY = "cancelled_reply"
    MIXED_WEIGHTS = "mixed_weights"
    SMALL_GROUP = "small_group"
    EQUAL_GROUP = "equal_group"


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One finding and what it concerns (a rollout, call or reward id)."""

    finding: Finding
    subject: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class TransitionSet:
    """Transitions in the order rollout, turn; with every diagnostic that came up while making them."""

    transitions: tuple[Transition, ...]
    diagnostics: tuple[Diagnostic, ...] = field(default=())

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
    found: dict[tuple[str, int], list[Transition]] = {}
    for transition in transitions:
        found.setdefault((transition.rollout_id, transition.attempt), []).append(transition)
    return found
