"""Collecting ahead: the rollouts of later updates run in a thread while an update is made."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

Found = TypeVar("Found")
Progress = Callable[[int, int], None]

#: Seconds between progress reports.
_REPORT_S = 0.2


class CollectedAhead(Generic[Found]):
    """Collections that continue in a thread of their own, one after the other, each known by its step.

    ``collecting`` is held while one continues: anything else that uses the same workers takes it too. `begin` and
    `take` are called from one thread. The thread is a daemon; it ends when there is nothing left to do.
    """

    def __init__(self) -> None:
        self.collecting = threading.Lock()
        self._changed = threading.Condition()
        self._line: deque[_Collection[Found]] = deque()
        self._running = False
        self._known: dict[int, _Collection[Found]] = {}

    def begin(self, step: int, of: Any, collect: Callable[[Progress], Found]) -> None:
        """Has ``collect`` called in the thread, after all that was begun before; does nothing for a step that was begun.

        ``of`` says what is collected: `take` must name the same. ``collect`` gets a function that takes its progress.
        """
        if step in self._known:
            return
        collection = self._known[step] = _Collection(of, collect)
        with self._changed:
            self._line.append(collection)
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name="lgov-collect", daemon=True).start()

    def take(self, step: int, of: Any, progress: Progress) -> Found | None:
        """What was collected for the step, once it is there; what was begun for steps before it is forgotten.

        None when it was not begun, was begun for something else, or failed: the caller then collects it itself, and sees
        itself what is wrong. ``progress`` is called in this thread while it waits.
        """
        for earlier in [number for number in self._known if number < step]:
            self._forget(self._known.pop(earlier))
        collection = self._known.get(step)
        if collection is None:
            return None
        if collection.of != of:
            self._forget(self._known.pop(step))
            return None
        while not collection.ended.wait(_REPORT_S):
            progress(*collection.progress)
        del self._known[step]
        if collection.found:
            progress(*collection.progress)
        return collection.found[0] if collection.found else None

    @property
    def steps(self) -> list[int]:
        """The steps that were begun and not taken."""
        return sorted(self._known)

    def _forget(self, collection: _Collection[Found]) -> None:
        with self._changed:
            if collection in self._line:
                self._line.remove(collection)

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._line:
                    self._running = False
                    return
                collection = self._line.popleft()
            try:
                with self.collecting:
                    collection.found.append(collection.collect(collection.report))
            except BaseException:  # noqa: BLE001  the caller of take meets it again when it collects
                pass
            finally:
                collection.ended.set()


class _Collection(Generic[Found]):
    def __init__(self, of: Any, collect: Callable[[Progress], Found]) -> None:
        self.of = of
        self.collect = collect
        self.found: list[Found] = []
        self.ended = threading.Event()
        self.progress = (0, 0)

    def report(self, done: int, total: int) -> None:
        self.progress = (done, total)
