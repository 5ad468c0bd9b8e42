"""Prompt tuning: a beam search over prompt templates in which a critic says what is wrong and writes better ones.

ProTeGi (Pryzant et al. 2023, arXiv 2305.03495): the criticism of a prompt on cases that it failed is its textual gradient,
a rewriting that answers the criticism is a step against it, and the best few of all prompts continue. Pure: what scores a
template and who criticises are given.
"""

from __future__ import annotations

import hashlib
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final, Protocol

from lgov_core.errors import TrainError

#: A template longer than this multiple of the first is rejected: critics tend to add text.
_LONGEST: Final = 8


def placeholders(template: str) -> frozenset[str]:
    """The names in braces. Raises `TrainError` for a text that `str.format` would not take."""
    try:
        return frozenset(name for _, name, _, _ in string.Formatter().parse(template) if name is not None)
    except ValueError as error:
        raise TrainError(
            f"the template cannot be filled in: {error}", hint="write {{ and }} for literal braces"
        ) from error


@dataclass(frozen=True, slots=True)
class PromptCase:
    """One rollout as a critic sees it: the task, what was said, what it earned, and what went wrong in words."""

    task: Mapping[str, Any]
    reward: float
    said: str = ""
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Scored:
    """The score of a template: the mean reward over its rollouts, and the rollouts. None without one that could be used."""

    mean: float | None
    cases: tuple[PromptCase, ...]
    rollouts: int


@dataclass(slots=True)
class PromptVersion:
    """One template. ``parent`` is the version it was made from (None: the first), ``criticism`` what it answers.

    ``score`` is the mean reward over all rollouts so far, ``rollouts`` how many these were.
    """

    version: int
    template: str
    parent: int | None = None
    round: int = 0
    criticism: str | None = None
    score: float | None = None
    rollouts: int = 0
    cases: tuple[PromptCase, ...] = field(default=(), repr=False)

    def as_json(self) -> dict[str, Any]:
        """It as JSON values, without the cases."""
        return {
            "version": self.version,
            "parent": self.parent,
            "round": self.round,
            "score": self.score,
            "rollouts": self.rollouts,
            "criticism": self.criticism,
            "sha256": hashlib.sha256(self.template.encode()).hexdigest(),
            "template": self.template,
        }


class Critic(Protocol):
    """Criticises and rewrites. What it raises ends the search; what it answers badly is counted and dropped."""

    def criticise(self, template: str, cases: Sequence[PromptCase], number: int) -> str:
        """Says what is wrong with ``template``, shown where it earned least. ``number`` tells several criticisms apart."""
        ...

    def rewrite(self, template: str, criticism: str) -> str:
        """A template that answers the criticism."""
        ...


@dataclass(eq=False)
class PromptSearch:
    """A search. For one thread.

    ``score(template, tasks)`` runs the agent with a template on the tasks of these numbers. ``draw(round)`` says which tasks a
    round is scored on: all templates of a round on the same ones. ``budget`` bounds the rollouts: a template that cannot
    be scored whole is not scored. ``changed`` is called with all versions whenever there is something new.
    """

    first: str
    _: KW_ONLY
    score: Callable[[str, Sequence[int]], Scored]
    critic: Critic
    draw: Callable[[int], Sequence[int]]
    rounds: int
    beam: int
    candidates: int
    budget: int | None = None
    shown: int = 4
    changed: Callable[[Sequence[PromptVersion]], None] = lambda versions: None

    def __post_init__(self) -> None:
        self._names = placeholders(self.first)
        self._left = self.budget
        self.versions: list[PromptVersion] = [PromptVersion(0, self.first)]
        #: Answers of the critic that were not used, by the reason.
        self.dropped: Counter[str] = Counter()
        self._per_template = 0

    @property
    def best(self) -> PromptVersion:
        """The version with the highest score; of equals the oldest. The first before anything is scored."""
        scored = [version for version in self.versions if version.score is not None]
        return max(scored, key=lambda version: (version.score or 0.0, -version.version)) if scored else self.versions[0]

    def run(self) -> PromptVersion:
        """Searches to the end, or until the budget is spent; returns the best. Raises what the critic or agents raise."""
        beam = [self.versions[0]]
        self._scored(self.versions[0], self.draw(0))
        for number in range(1, self.rounds + 1):
            tasks = self.draw(number)
            children = [child for parent in beam for child in self._children(parent, number)]
            self.changed(self.versions)
            # Those that stay are scored again: a template must not live on one lucky round.
            for version in [*beam, *children]:
                self._scored(version, tasks)
            ranked = sorted(
                (version for version in [*beam, *children] if version.score is not None),
                key=lambda version: (-(version.score or 0.0), version.version),
            )
            beam = ranked[: self.beam] or beam
            if self._spent:
                break
        return self.best

    def _children(self, parent: PromptVersion, number: int) -> list[PromptVersion]:
        if self._spent:
            return []
        worst = sorted(parent.cases, key=lambda case: case.reward)[: self.shown]
        children: list[PromptVersion] = []
        for candidate in range(self.candidates):
            criticism = self.critic.criticise(parent.template, worst, candidate).strip()
            if not criticism:
                self.dropped["empty_criticism"] += 1
                continue
            template = self.critic.rewrite(parent.template, criticism).strip()
            reason = self._unusable(template)
            if reason is not None:
                self.dropped[reason] += 1
                continue
            child = PromptVersion(len(self.versions), template, parent.version, number, criticism)
            self.versions.append(child)
            children.append(child)
        return children

    def _unusable(self, template: str) -> str | None:
        if not template:
            return "empty_template"
        if len(template) > _LONGEST * max(len(self.versions[0].template), 200):
            return "too_long"
        if any(template == version.template for version in self.versions):
            return "seen_before"
        try:
            names = placeholders(template)
        except TrainError:
            return "cannot_be_filled_in"
        return None if names == self._names else "other_placeholders"

    @property
    def _spent(self) -> bool:
        return self._left is not None and self._left < max(self._per_template, 1)

    def _scored(self, version: PromptVersion, tasks: Sequence[int]) -> None:
        if self._spent:
            return
        scored = self.score(version.template, tasks)
        self._per_template = max(self._per_template, scored.rollouts)
        if self._left is not None:
            self._left -= scored.rollouts
        usable = len(scored.cases)
        if scored.mean is not None and usable:
            before = (version.score or 0.0) * version.rollouts
            version.rollouts += usable
            version.score = (before + scored.mean * usable) / version.rollouts
            version.cases = scored.cases
        self.changed(self.versions)
