"""Dynamic sampling: further groups in place of those in which all rollouts are alike, since these teach nothing.

DAPO (Yu et al. 2025, arXiv 2503.14476, section 3.2). A group is alike when `assign_credit` says so. Further tasks are chosen
before anything of them is known, each once a step: a group is never run again until it suits.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lgov_core.errors import TrainError, counted
from lgov_core.train.loop.collecting import RolloutTask, StepRollouts
from lgov_core.transitions import CreditRules, DataFinding, TransitionSet
from lgov_core.types import Attempt

#: The most characters of an error in a note.
_ERROR_CHARACTERS = 400


@dataclass(frozen=True, slots=True)
class Round:
    """Rollouts that were collected together: ``data`` are their transitions, ``credited`` the same with their credit."""

    results: Sequence[Attempt]
    data: TransitionSet
    credited: TransitionSet

    @property
    def tasks(self) -> list[str]:
        """The groups, in order."""
        return list(dict.fromkeys(result.task_id for result in self.results))

    @property
    def alike(self) -> set[str]:
        """The groups in which nothing is to be learnt, though there were enough rollouts to compare."""
        return _groups_with(DataFinding.EQUAL_GROUP, self.credited)

    @property
    def informative(self) -> list[str]:
        """The groups from which something is learnt, in order."""
        there = {transition.task_id for transition in self.credited.transitions}
        left_out = self.alike | _groups_with(DataFinding.SMALL_GROUP, self.credited)
        return [task for task in self.tasks if task in there and task not in left_out]


def _groups_with(finding: DataFinding, data: TransitionSet) -> set[str]:
    return {diagnostic.subject for diagnostic in data.diagnostics if diagnostic.finding is finding}


@dataclass(frozen=True, slots=True)
class Sampled:
    """The rounds of a step: the one that it was asked for, further ones, and ``batch``, which the update is made of."""

    asked: Round
    further: Sequence[Round]
    batch: TransitionSet

    @property
    def results(self) -> list[Attempt]:
        """The results of all rounds."""
        return [result for round_ in (self.asked, *self.further) for result in round_.results]

    @property
    def extra(self) -> Round | None:
        """All further rounds as one; None when there were none."""
        if not self.further:
            return None
        return Round(
            [result for round_ in self.further for result in round_.results],
            _joined([round_.data for round_ in self.further]),
            _joined([round_.credited for round_ in self.further]),
        )

    def figures(self) -> dict[str, Any]:
        """How many groups were collected, alike, informative and replaced; ``note`` where the batch is not full of those."""
        rounds = (self.asked, *self.further)
        requested, collected = len(self.asked.tasks), sum(len(round_.tasks) for round_ in rounds)
        informative = sum(len(round_.informative) for round_ in rounds)
        alike = sum(len(round_.alike) for round_ in rounds)
        figures: dict[str, Any] = {
            "groups": collected,
            "groups_informative": informative,
            "groups_alike": alike,
            "groups_replaced": max(0, min(requested, informative) - len(self.asked.informative)),
        }
        if informative == 0:
            rest = f"{collected - alike} have too few rollouts that can be used"
            figures["note"] = f"nothing to learn from: of {collected} groups {alike} are alike, {rest}"
            errors = [result.error for result in self.results if result.error]
            if errors:
                ended = f"{len(errors)} of {counted(len(self.results), 'rollout')} ended with an error"
                figures["note"] += f"; {ended}, the first: {errors[0][:_ERROR_CHARACTERS]}"
        elif self.further and informative < requested:
            figures["note"] = f"{informative} of {requested} groups are informative, of {collected} that were collected"
        return figures


def sample_groups(
    rollouts: StepRollouts,
    first: Round,
    run_next: Callable[[], Round],
    credit: Callable[[TransitionSet], TransitionSet],
    further: Sequence[RolloutTask],
    most: int,
) -> Sampled:
    """Collects at most ``most`` groups of ``further`` tasks, until as many are informative as ``first`` has groups.

    Each round (run by ``run_next``, as `StepRollouts.run_next`) has as many groups as are missing. Ends early without
    more tasks, and after a round with no comparable group: then agents or machines fail. Rounds on record of a killed
    run are always run.
    """
    rounds, extra = [first], 0
    others = _once(further, rollouts.task_ids)
    while True:
        if not rollouts.pending:
            missing = len(first.tasks) - sum(len(round_.informative) for round_ in rounds)
            count = min(missing, most - extra)
            compared = rounds[-1].informative or rounds[-1].alike
            tasks = list(itertools.islice(others, count)) if compared and count > 0 else []
            if not tasks:
                return Sampled(first, rounds[1:], _batch(rounds, credit))
            rollouts.add_round(tasks)
        rounds.append(run_next())
        extra += len(rounds[-1].tasks)


def check_extra_groups(most: int, rules: CreditRules) -> None:
    """Raises `TrainError` for a bound without meaning."""
    if most < 0:
        raise TrainError(f"max_extra_groups must be at least 0, not {most}")
    if most and not rules.compares_groups:
        raise TrainError(
            "max_extra_groups is above 0, and the algorithm compares no groups: none of them can be alike",
            hint="leave it out, or choose an algorithm such as dapo or grpo",
        )


def _batch(rounds: Sequence[Round], credit: Callable[[TransitionSet], TransitionSet]) -> TransitionSet:
    """As many groups as were asked for: informative ones, then asked ones that were not replaced."""
    first = rounds[0]
    if len(rounds) == 1:
        return first.credited
    size = len(first.tasks)
    kept = [task for round_ in rounds for task in round_.informative][:size]
    others = [task for task in first.tasks if task not in kept]
    kept += others[len(others) - (size - len(kept)) :]
    everything = _joined([round_.data for round_ in rounds])
    chosen = tuple(transition for transition in everything.transitions if transition.task_id in kept)
    return credit(TransitionSet(chosen, everything.diagnostics, everything.unassigned))


def _once(tasks: Sequence[RolloutTask], taken: set[str]) -> Iterator[RolloutTask]:
    """``tasks`` without those that are taken, each once."""
    seen = set(taken)
    for task in tasks:
        if task.task_id not in seen:
            seen.add(task.task_id)
            yield task


def _joined(sets: Sequence[TransitionSet]) -> TransitionSet:
    return TransitionSet(
        tuple(transition for data in sets for transition in data.transitions),
        tuple(diagnostic for data in sets for diagnostic in data.diagnostics),
        tuple(reward for data in sets for reward in data.unassigned),
    )
