"""Rollouts without a row of their own: an endpoint or an adapter without a trainer leaves only their calls and spans."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Final

from lgov_core.store.sql.pages import RolloutHead, StorePages

#: Their places are behind those of all others.
FIRST: Final = 2**60
#: Seconds that one answer looks for, and rows that are read together.
_SLICE_S: Final = 0.05
_ROWS: Final = 1_000
#: Rollouts that are kept, the newest; beyond that `lgov traces list` shows them.
_MOST: Final = 50_000


class Unannounced:
    """Finds them in slices, and keeps up with what is added. Callable from any thread.

    ``complete`` says whether all rows were read.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read = {"calls": 0, "spans": 0}
        self._found: dict[str, RolloutHead] = {}
        self.complete = False

    def newest_first(self, pages: StorePages) -> Sequence[RolloutHead]:
        """Those found so far, the newest first. Each is a task of its own, of no run. Raises `StoreError`."""
        with self._lock:
            marks, until = pages.marks(), time.monotonic() + _SLICE_S
            for number, table in enumerate(self._read):
                while self._read[table] < marks[table] and time.monotonic() < until:
                    last = min(self._read[table] + _ROWS, marks[table])
                    for rollout_id, seq, at in pages.unannounced_between(table, self._read[table], last):
                        if rollout_id not in self._found and len(self._found) < _MOST:
                            place = FIRST + seq * len(self._read) + number
                            self._found[rollout_id] = RolloutHead(place, rollout_id, rollout_id, "", at)
                    self._read[table] = last
            self.complete = all(self._read[table] >= marks[table] for table in self._read)
            return sorted(self._found.values(), key=lambda one: -one.seq)
