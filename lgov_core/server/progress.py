"""Shows on standard error how the run of a server goes on, and what is said after Ctrl-C."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final

from lgov_core._util.words import counted
from lgov_core.client.result import Display, TrainResult
from lgov_core.server.coordinator import Coordinator
from lgov_core.server.run_state import RunState

#: Seconds between two looks at the run.
_PAUSE_S = 0.5
#: Said at once after Ctrl-C.
ENDING: Final = "ending after the update in progress; once more ends at once"


@contextlib.contextmanager
def shown_progress(coordinator: Coordinator) -> Generator[None]:
    """Shows each run of ``coordinator`` until the block ends, as its clients show it."""
    over = threading.Event()
    thread = threading.Thread(target=_watch, args=(coordinator, over), name="lgov-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _watch(coordinator: Coordinator, over: threading.Event) -> None:
    last: RunState | None = None
    while not over.wait(_PAUSE_S):
        run = coordinator.run
        if run is not None and run is not last:
            _show(run, over)
            last = run


def _show(run: RunState, over: threading.Event) -> None:
    metrics: list[dict[str, Any]] = []
    with Display() as display:
        while True:
            ended = run.ended or over.is_set()  # before it is asked: nothing is missed then
            progress = run.progress(len(metrics))
            metrics += progress["metrics"]
            display.show(progress, progress["metrics"])
            if ended:
                break
            over.wait(_PAUSE_S)
        summary = progress["error"] or TrainResult(run.run_id, metrics)
        display.say(f"training {progress['state']}: {summary}")


def interrupted(folder: Path, updates: int | None) -> str:
    """Said at the end: what is kept, and how to continue. ``updates`` is None while the training was getting ready."""
    if updates is None:
        return "interrupted while it was getting ready; nothing has changed, run the same command again"
    kept = counted(updates, "update is kept", "updates are kept")
    return f"interrupted; {kept}, continue with --resume --folder {folder}"
