"""Training data as values: transitions, and what was found wrong while making them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lgov_core.transitions.findings import Diagnostic, Finding
from lgov_core.types import Outcome, Reward

__all__ = [
    "SCHEMA_VERSION",
    "Diagnostic",
    "Finding",
    "Transition",
    "TransitionSet",
    "alternatives_of",
    "by_rollout",
    "line_of",
]

SCHEMA_VERSION = 2


@dataclass(frozen=True, slots=True)
class Transition:
    """One model call as training data.

    ``prompt_ids`` (int, length P) and ``response_ids`` (int, length R) are the exact tokens; ``response_mask`` (length R) is
    1 where the model chose the token and may be trained on it. ``logprobs`` (length R) are the behaviour
    log-probabilities at the temperature sampled, None where they were not recorded. ``weights_version`` is None where it is
    not known, and ``outcome`` where it is unknown. ``rewards`` maps a dimension to what this turn
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
    also what the attempt as a whole earned; None where they are the same.
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


@dataclass(frozen=True, slots=True)
class TransitionSet:
    """Transitions in the order rollout, turn; with every diagnostic that came up while making them.

    ``unassigned`` are the rewards that are on none of them, though the record has them: of an unknown or ambiguous target,
    of a call that cannot be trained on, final ones of an attempt without a selected call, and those that are not numbers.
    Each has a diagnostic too.
    """

    transitions: tuple[Transition, ...]
    diagnostics: tuple[Diagnostic, ...] = field(default=())
    unassigned: tuple[Reward, ...] = field(default=())

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


def line_of(turns: Sequence[Transition]) -> list[Transition]:
    """The turns of one attempt that follow each other: those that are not `Transition.set_aside`."""
    return [turn for turn in turns if not turn.set_aside]


def alternatives_of(turns: Sequence[Transition]) -> list[list[Transition]]:
    """Of one attempt, for each reply of which choices were set aside, the choices that rewards name.

    Each has its own rewards alone, so that they can be compared: what the attempt earned says nothing of the others.
    """
    aside = {turn.response_id for turn in turns if turn.set_aside}
    found: dict[str, list[Transition]] = {}
    for turn in turns:
        own = turn.rewards if turn.own_rewards is None else turn.own_rewards
        if turn.response_id in aside and own:
            found.setdefault(turn.response_id, []).append(replace(turn, rewards=own, own_rewards=None))
    return list(found.values())
