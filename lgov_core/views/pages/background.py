"""Work that takes longer than an answer may: done in a thread, its result kept until it is asked for again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from lgov_core.errors import LgovError

T = TypeVar("T")


class Background(Generic[T]):
    """Runs one function at a time in a thread. Callable from any thread.

    ``state`` is ``running``, ``done`` (then ``result`` is set) or ``failed`` (then ``error``).
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._key: Any = None
        self.state = ""
        self.result: T | None = None
        self.error: LgovError | None = None

    def start(self, work: Callable[[], T], key: Any = None, *, again: bool = False) -> None:
        """Starts ``work`` unless it runs, or was done for the same ``key``; with ``again`` also then."""
        with self._lock:
            if self.state == "running" or (self.state and self._key == key and not again):
                return
            self._key, self.state, self.result, self.error = key, "running", None, None
        threading.Thread(target=self._run, args=(work,), name="lgov-view", daemon=True).start()

    def _run(self, work: Callable[[], T]) -> None:
        try:
            self.result = work()
            self.state = "done"
        except LgovError as error:
            self.error, self.state = error, "failed"
        except Exception as error:  # noqa: BLE001 - shown on the page
            self.error, self.state = LgovError(f"{type(error).__name__}: {error}"), "failed"
