"""What has to be remembered between two judgements of one run. Bounded: the run that was longest silent is forgotten."""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

MAX_REMEMBERED: Final = 4096

V = TypeVar("V")


class Remembered(Generic[V]):
    """A mapping that forgets what was longest not asked for. May be used from several threads at once."""

    def __init__(self, limit: int = MAX_REMEMBERED) -> None:
        self._limit = limit
        self._values: OrderedDict[Hashable, V] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> V | None:
        """The value, or None."""
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key]

    def get_or_make(self, key: Hashable, make: Callable[[], V]) -> V:
        """The value; made first where there is none."""
        with self._lock:
            if key not in self._values:
                self._values[key] = make()
                if len(self._values) > self._limit:
                    self._values.popitem(last=False)
            self._values.move_to_end(key)
            return self._values[key]

    def put(self, key: Hashable, value: V) -> None:
        """Remembers ``value``."""
        self.drop(key)
        self.get_or_make(key, lambda: value)

    def drop(self, key: Hashable) -> V | None:
        """Forgets the value and returns it; None where there was none."""
        with self._lock:
            return self._values.pop(key, None)


class Run:
    """One run as interceptors see it: ``blocked`` says that its last invocation ended by a denial."""

    def __init__(self) -> None:
        self.blocked = False
        self._sequence = itertools.count()

    def next_number(self) -> int:
        """0, 1, 2, … in the order of asking; from any thread."""
        return next(self._sequence)
