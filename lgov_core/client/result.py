"""The result of a training, figures of every update and evaluation, and the bar that a client shows meanwhile."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from lgov_core._util.words import counted


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


class TrainingBar:
    """One bar over the updates of a run; a line now and then where standard error is not a terminal. Nothing when ``quiet``."""

    def __init__(self, *, quiet: bool = False) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self._console = Console(file=sys.stderr, quiet=quiet)
        columns = (
            TextColumn("{task.description:<10}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"),
            TextColumn("{task.fields[note]}", markup=False),
        )
        self._progress = Progress(*columns, console=self._console, disable=not self._console.is_terminal)
        self._task = self._progress.add_task("training", total=None, left="", note="")
        self._printed = 0.0
        self._shown = -1
        self._said: set[str] = set()
        self._warned: set[str] = set()

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._progress.stop()

    def show(self, progress: Mapping[str, Any], new: Sequence[Mapping[str, Any]]) -> None:
        """Shows what the server said of the run, and the notes and warnings of the ``new`` lines of its figures.

        A warning is shown when it begins, and again when it comes back after an update without it.
        """
        if (note := progress.get("note")) and note not in self._said:
            self._said.add(note)
            self.say(f"NOTE: {note}")
        for line in new:
            if line.get("note"):
                self.say(f"update {line['step']}: {line['note']}")
            if line.get("phase") == "train":
                warnings: Mapping[str, str] = line.get("warnings") or {}
                for code in warnings.keys() - self._warned:
                    self.say(f"WARNING: update {line['step']}: {warnings[code]}")
                self._warned = set(warnings)
        step, steps = int(progress["step"]), int(progress["steps"])
        remaining = time_left(progress.get("seconds_left"))
        note = f"{progress['state']} {progress['done']}/{progress['total']}" if progress["total"] else progress["state"]
        reward = progress.get("reward")
        note += "" if reward is None else f"  reward {reward:.3f}"
        self._progress.update(self._task, completed=step, total=steps, left=remaining, note=note)
        now = time.monotonic()
        if not self._console.is_terminal and (step > self._shown or now - self._printed > 30):
            self._printed, self._shown = now, step
            self._console.print(
                f"{step} of {steps} updates made; {note}  {remaining}".rstrip(), highlight=False, soft_wrap=True
            )

    def say(self, text: str) -> None:
        """One line."""
        self._console.print(text, highlight=False, soft_wrap=True, markup=False)


def time_left(seconds: float | None) -> str:
    """A time for people; nothing where it is not known."""
    if seconds is None:
        return ""
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min left"
    return f"{whole // 60} min {whole % 60:02d} s left" if whole >= 60 else f"{whole} s left"
