"""Training data as values: transitions, and what was found wrong while making them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from lgov_core.transitions.findings import Diagnostic
from lgov_core.types import Reward, Transition


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
