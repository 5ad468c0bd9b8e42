"""Collecting ahead: the rollouts of later updates run in a thread while an update is made."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

Found = TypeVar("Found")
Progress = Callable[[int, int], None]

#: Seconds between progress reports.
_REPORT_S = 0.2


class CollectedAhead(Generic[Found]):
    """Collections in daemon threads, each after the one before it, each known by its step.

    ``collecting`` is held while one runs: anything else that uses the same workers takes it too. `begin` and `take` are
    called from one thread.
    """

    def __init__(self) -> None:
        self.collecting = threading.Lock()
        self._known: dict[int, _Collection[Found]] = {}
        self._last: threading.Event | None = None

    def begin(self, step: int, of: Any, collect: Callable[[Progress], Found]) -> None:
        """Has ``collect`` called in a thread, after all that was begun before; does nothing for a step that was begun.

        ``of`` says what is collected: `take` must name the same. ``collect`` gets a function that takes its progress.
        """
        if step not in self._known:
            made = self._known[step] = _Collection(of, collect)
            args = (made, self._last)
            self._last = made.ended
            threading.Thread(target=self._run, args=args, name="lgov-collect", daemon=True).start()

    def take(self, step: int, of: Any, progress: Progress) -> Found | None:
        """The result of a step, once it is there; collections of steps before it are dropped.

        None when it was not begun, was begun for something else, or failed: the caller then collects it itself, and meets
        the error itself. ``progress`` is called in this thread while it waits.
        """
        for earlier in [number for number in self._known if number < step]:
            self._known.pop(earlier).wanted = False
        found = self._known.pop(step, None)
        if found is None or found.of != of:
            if found is not None:
                found.wanted = False
            return None
        while not found.ended.wait(_REPORT_S):
            progress(*found.progress)
        if found.result is not None:
            progress(*found.progress)
        return found.result

    @property
    def steps(self) -> list[int]:
        """The steps that were begun and not taken."""
        return sorted(self._known)

    def _run(self, collection: _Collection[Found], before: threading.Event | None) -> None:
        if before is not None:
            before.wait()
        try:
            with self.collecting:
                if collection.wanted:
                    collection.result = collection.collect(collection.report)
        except BaseException:  # noqa: BLE001 - the caller of take meets it again when it collects
            pass
        finally:
            collection.ended.set()


class _Collection(Generic[Found]):
    def __init__(self, of: Any, collect: Callable[[Progress], Found]) -> None:
        self.of, self.collect = of, collect
        self.result: Found | None = None
        self.wanted = True
        self.ended = threading.Event()
        self.progress = (0, 0)

    def report(self, done: int, total: int) -> None:
        self.progress = (done, total)
