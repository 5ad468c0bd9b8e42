"""The result of verifying a run: counts, and the first few wrong calls."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from lgov_core.types import CapturedCall

_FINDINGS_KEPT = 20


@dataclass(frozen=True, slots=True)
class Finding:
    """A wrong call. ``logprob_diff`` is the largest absolute difference, if it is a number."""

    rollout_id: str | None
    attempt: int | None
    response_id: str
    weights_version: int | None
    problem: str
    logprob_diff: float | None = None


@dataclass(slots=True)
class VersionCount:
    """The calls that one version of the weights answered; ``version`` is None when it was not recorded.

    ``checked`` calls had their log-probabilities recomputed, ``unchecked`` ones could not because the version's weights
    are not kept. ``mismatched`` are off by more than the tolerance or have none that can be compared.
    """

    version: int | None
    calls: int = 0
    checked: int = 0
    unchecked: int = 0
    mismatched: int = 0
    max_logprob_diff: float = 0.0


@dataclass(slots=True)
class Verification:
    """``recorded`` calls are in the store, ``calls`` of them were verified.

    ``findings`` holds the first few problems; the counts hold all.
    """

    recorded: int
    tolerance: float
    calls: int = 0
    decoded_ok: int = 0
    decoded_bad: int = 0
    findings: list[Finding] = field(default_factory=list[Finding])
    by_version: dict[int | None, VersionCount] = field(default_factory=dict[int | None, VersionCount])

    @property
    def versions(self) -> list[VersionCount]:
        """One count a version, in order."""
        return sorted(self.by_version.values(), key=lambda one: -1 if one.version is None else one.version)

    @property
    def total(self) -> VersionCount:
        """The counts of all versions together."""
        every = self.by_version.values()
        return VersionCount(
            None,
            sum(one.calls for one in every),
            sum(one.checked for one in every),
            sum(one.unchecked for one in every),
            sum(one.mismatched for one in every),
            max((one.max_logprob_diff for one in every), default=0.0),
        )

    @property
    def passed(self) -> bool:
        """Whether at least one call was checked, and none is wrong."""
        return self.total.checked > 0 and not self.decoded_bad and not self.total.mismatched

    def add(self, call: CapturedCall, problem: str, diff: float | None = None) -> None:
        """Records a finding about a call, unless there are many already."""
        if len(self.findings) < _FINDINGS_KEPT:
            about = (call.rollout_id, call.attempt, call.response_id, call.weights_version)
            self.findings.append(Finding(*about, problem, diff))

    def as_json(self) -> dict[str, Any]:
        """All numbers as plain JSON values."""
        names = ("passed", "recorded", "calls", "decoded_ok", "decoded_bad", "tolerance")
        totals = ("checked", "unchecked", "mismatched", "max_logprob_diff")
        return {
            **{name: getattr(self, name) for name in names},
            **{name: getattr(self.total, name) for name in totals},
            "versions": [asdict(one) for one in self.versions],
            "findings": [asdict(one) for one in self.findings],
        }
