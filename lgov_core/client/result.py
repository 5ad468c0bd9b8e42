"""The result of a training: figures of every update and evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lgov_core._util.plurals import counted


@dataclass(frozen=True, slots=True)
class TrainResult:
    """A finished run.

    ``metrics`` are this run's lines of the server's ``metrics.jsonl``, in order: ``phase`` is ``train`` or ``test``.
    ``counts`` are this client's: attempts by outcome, violations, bad rewards. ``folder`` is the run's, on the server.
    """

    run_id: str
    metrics: Sequence[Mapping[str, Any]]
    counts: Mapping[str, int] = field(default_factory=dict[str, int])
    folder: str = ""

    @property
    def curves(self) -> dict[str, list[float]]:
        """Each figure of the updates as a list, one value an update; ``step`` among them."""
        return _columns([line for line in self.metrics if line.get("phase") == "train"])

    @property
    def test_curves(self) -> dict[str, list[float]]:
        """The same of the evaluations on held-out tasks."""
        return _columns([line for line in self.metrics if line.get("phase") == "test"])

    @property
    def updates(self) -> int:
        """How many updates were made."""
        return sum(line.get("phase") == "train" for line in self.metrics)

    def __str__(self) -> str:
        curves, tests = self.curves, self.test_curves
        parts = [counted(self.updates, "update")]
        if rewards := curves.get("reward"):
            parts.append(f"training reward {rewards[0]:.3f} -> {rewards[-1]:.3f}")
        if rewards := tests.get("reward"):
            parts.append(f"held-out reward {rewards[0]:.3f} -> {rewards[-1]:.3f}")
        return ", ".join(parts)


def _columns(lines: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    names = {
        name: None
        for line in lines
        for name, value in line.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    return {
        name: [float(line[name]) if line.get(name) is not None else float("nan") for line in lines] for name in names
    }
