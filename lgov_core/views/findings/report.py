"""What an examination found, as values: the text, the JSON and the pages are views of these."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from lgov_core.types import Severity

#: Rollouts named by one finding.
ROLLOUTS_NAMED: Final = 20


@dataclass(frozen=True, slots=True)
class RunFinding:
    """One thing that is wrong with a run.

    ``name`` is stable and meant for programs; ``sentence`` and ``advice`` are for people. ``figures`` are the numbers
    that the sentence rests on. ``rollouts`` are ids of rollouts that show it, at most `ROLLOUTS_NAMED`; none where the
    figures are those of whole updates.
    """

    name: str
    severity: Severity
    sentence: str
    advice: str
    figures: Mapping[str, float]
    rollouts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """An examination of ``place``: ``findings``, the worst first; ``checked``, the names of what was looked for; and
    ``not_examined``, which says by the name of a finding why it could not be. ``updates`` and ``rollouts`` count what was
    looked at.
    """

    place: str
    updates: int
    rollouts: int
    findings: tuple[RunFinding, ...]
    checked: tuple[str, ...]
    not_examined: Mapping[str, str]

    def as_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


def named(rollout_ids: Iterable[str]) -> tuple[str, ...]:
    """The first of the given ids, each once, as many as a finding names."""
    return tuple(dict.fromkeys(rollout_ids))[:ROLLOUTS_NAMED]
