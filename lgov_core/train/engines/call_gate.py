"""Holds calls back while a server changes in a way that no call may notice."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator


class CallGate:
    """Lets calls in, or none while it is `closed`. From any thread."""

    def __init__(self) -> None:
        self._state = threading.Condition()
        self._running = self._closed = 0

    def enter(self) -> bool:
        """Whether a call may begin; if so, it has to `leave`."""
        with self._state:
            if self._closed:
                return False
            self._running += 1
            return True

    def leave(self) -> None:
        """A call that entered has ended."""
        with self._state:
            self._running -= 1
            self._state.notify_all()

    @contextlib.contextmanager
    def closed(self) -> Generator[None]:
        """Within it no call runs: those that do are waited for, new ones wait."""
        with self._state:
            self._closed += 1
        try:
            with self._state:
                self._state.wait_for(lambda: not self._running)
            yield
        finally:
            with self._state:
                self._closed -= 1
