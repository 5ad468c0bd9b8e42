"""Rollouts without a row of their own: known from calls and spans, as an endpoint or an adapter without a trainer leaves them."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Final

from lgov_core.store.sql.pages import RolloutHead, StorePages

#: Seconds that one answer looks for, and rows that are read together.
_SLICE_S: Final = 0.05
_ROWS: Final = 5_000
#: Rollouts that are kept, the newest; beyond that `lgov traces list` shows them.
_MOST: Final = 50_000


class Unannounced:
    """Finds them in slices, and keeps up with what is added. Callable from any thread. ``complete`` says whether it is up to date."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read = {"calls": 0, "spans": 0}
        self._found: dict[str, RolloutHead] = {}
        self.complete = False

    def newest_first(self, pages: StorePages) -> Sequence[RolloutHead]:
        """Those found so far. Each counts as a task of its own, of no run; its place is that of its first row, in thousands.

        Raises `StoreError`.
        """
        with self._lock:
            marks, until = pages.marks(), time.monotonic() + _SLICE_S
            for table in self._read:
                while self._read[table] < marks[table] and time.monotonic() < until:
                    last = min(self._read[table] + _ROWS, marks[table])
                    for rollout_id, seq, at in pages.unannounced_between(table, self._read[table], last):
                        if rollout_id not in self._found and len(self._found) < _MOST:
                            self._found[rollout_id] = RolloutHead(seq, rollout_id, rollout_id, "", at)
                    self._read[table] = last
            self.complete = all(self._read[table] >= marks[table] for table in self._read)
            return sorted(self._found.values(), key=lambda one: -one.created_at)
