"""Transitions: model calls as training data, the rows of the data contract."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lgov_core.types.outcomes import Outcome

SCHEMA_VERSION = 2


@dataclass(frozen=True, slots=True)
class Transition:
    """One model call as training data.

    ``prompt_ids`` (int, length P) and ``response_ids`` (int, length R) are the exact tokens; ``response_mask`` (length R) is
    1 where the model chose the token and may be trained on it. ``logprobs`` (length R) are the behaviour
    log-probabilities at the temperature sampled, None where they were not recorded. ``weights_version`` is None where
    unknown, and ``outcome`` where the end of the attempt was not recorded. ``rewards`` maps a dimension to what this turn
    earned. Until credit is assigned ``value_to_go``, ``credit`` and ``advantages`` are None; then ``value_to_go`` is the
    return that the scheme gives this turn, ``credit`` the advantage of the turn as one number, ``advantages`` (length R)
    that of each response token, and ``loss_weight`` multiplies this transition's summed token loss: the weights of one
    rollout's tokens do not change when the rollout is split into more transitions.

    ``turn`` counts the transitions of one attempt in its `TransitionSet`, from 0, in the order in which the calls began.
    A call is identified by ``response_id`` and ``choice`` (from 0, for replies of several choices). ``tool_call_ids`` are
    the tool calls that it proposed; ``parent_response_id`` is the call that proposed the tool call inside which this call
    was made (an agent that runs as a tool), None for a call that no tool made.

    Choices of one reply are alternatives. ``set_aside`` are those that the attempt did not go on with: the others are its
    line (`line_of`), of which credit is assigned. ``own_rewards`` is what names this choice itself, where ``rewards`` holds
    also what the attempt as a whole earned; None where they are the same. ``held_out`` marks a call of a rollout that
    measures the model (`Rollout.held_out`): there is none unless it was asked for.
    """

    run_id: str
    weights_version: int | None
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
    logprobs: tuple[float, ...] | None
    temperature: float
    finish_reason: str
    outcome: Outcome | None
    rewards: Mapping[str, float]
    value_to_go: float | None = None
    advantages: tuple[float, ...] | None = None
    loss_weight: float = 0.0
    truncated: bool = False
    credit: float | None = None
    choice: int = 0
    tool_call_ids: tuple[str, ...] = ()
    parent_response_id: str | None = None
    value: float | None = None
    set_aside: bool = False
    own_rewards: Mapping[str, float] | None = None
    held_out: bool = False

    @property
    def reward(self) -> float:
        """The sum over all dimensions of what this turn earned."""
        return sum(self.rewards.values())

    def as_row(self) -> dict[str, Any]:
        """The transition as one row of the data contract (plain JSON types).

        ``call_id`` and ``response_id`` are one id under the contract's two names, as are ``policy_version`` and
        ``weights_version``.
        """
        return {
            "schema_version": SCHEMA_VERSION,
            "run_id": self.run_id,
            "rollout_id": self.rollout_id,
            "attempt": self.attempt,
            "task_id": self.task_id,
            "turn": self.turn,
            "agent": self.agent,
            "model": self.model,
            "response_id": self.response_id,
            "call_id": self.response_id,
            "choice": self.choice,
            "set_aside": self.set_aside,
            "held_out": self.held_out,
            "parent_call_id": self.parent_response_id,
            "prompt_ids": list(self.prompt_ids),
            "response_ids": list(self.response_ids),
            "response_mask": list(self.response_mask),
            "logprobs": None if self.logprobs is None else list(self.logprobs),
            "weights_version": self.weights_version,
            "policy_version": self.weights_version,
            "sampling": {"temperature": self.temperature},
            "finish_reason": self.finish_reason,
            "truncated": self.truncated,
            "rewards": dict(self.rewards),
            "return": self.value_to_go,
            "credit": self.credit,
            "value": self.value,
            "advantages": None if self.advantages is None else list(self.advantages),
            "loss_weight": self.loss_weight,
            "outcome": None if self.outcome is None else self.outcome.value,
        }
