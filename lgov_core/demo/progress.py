"""The display of the demo while it works: one bar a stage, with the time left, on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


class Stage:
    """One bar. `to` moves it; `detail` says what continues within a step."""

    def __init__(self, progress: Progress, task: TaskID, console: Console, name: str, total: int) -> None:
        self._progress, self._task, self._console = progress, task, console
        self._name, self._total, self._note = name, total, ""
        self._printed = time.monotonic()

    def to(self, done: int, note: str | None = None) -> None:
        """``done`` steps of the total are done."""
        if note is not None:
            self._note = note
        self._progress.update(self._task, completed=done, note=self._note)
        # Without a terminal a bar is noise; a line now and then is not.
        if not self._console.is_terminal and (done == self._total or time.monotonic() - self._printed > 30):
            self._printed = time.monotonic()
            self._console.print(f"{self._name}: {done}/{self._total} {self._note}", highlight=False)

    def detail(self, stage: str, done: int, total: int) -> None:
        """Progress within the current step."""
        self._progress.update(self._task, note=f"{self._note}  [{stage} {done}/{total}]".strip())


class Display:
    """Progress bars on standard error; silent when ``quiet``."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet
        self.console = Console(file=sys.stderr, quiet=quiet)

    @contextmanager
    def stage(self, name: str, total: int) -> Generator[Stage]:
        """A bar for the length of the block."""
        columns = (
            TextColumn("{task.description:<16}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}", markup=False),
        )
        terminal = self.console.is_terminal
        with Progress(*columns, console=self.console, disable=not terminal, refresh_per_second=4) as progress:
            task = progress.add_task(name, total=total, note="")
            yield Stage(progress, task, self.console, name, total)

    def say(self, text: str) -> None:
        """One line."""
        self.console.print(text, highlight=False, soft_wrap=True)
