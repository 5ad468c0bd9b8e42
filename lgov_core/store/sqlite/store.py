"""The default store: one SQLite file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar

from lgov_core.store.sql.rollout_queue import RolloutQueue
from lgov_core.store.sqlite.database import SQLiteDatabase


class SQLiteStore(RolloutQueue):
    """A `RolloutQueue` on the SQLite file at ``path``, which is created (mode 0600) when it does not exist.

    ``path`` None: in memory, for tests; nothing outlives the object. A commit survives the death of the process. Several
    processes may write to one file: each waits for the others, ``busy_timeout_s`` seconds at most. ``span_queue`` is how
    many spans may wait before more are dropped. For threads and forks see `TraceStore`.

    Fails closed: `StoreError` names the file and what to do, nothing is half-written, and once a full disk has space
    again the same object works again. Raises `StoreError` when the file cannot be opened.
    """

    _tables: ClassVar = ("ended", *RolloutQueue._tables)
    _ended: ClassVar = "SELECT ended.seq AS place, queue.* FROM ended JOIN queue USING (rollout_id) WHERE ended.seq > ?"
    _size: ClassVar = (
        "SELECT page_count * page_size, freelist_count * page_size"
        " FROM pragma_page_count, pragma_freelist_count, pragma_page_size"
    )

    def __init__(
        self, path: str | os.PathLike[str] | None, *, busy_timeout_s: float = 10.0, span_queue: int = 10_000
    ) -> None:
        # Absolute: the file is opened again later, wherever the program's working directory is by then.
        place = None if path is None else Path(path).absolute()
        writing = SQLiteDatabase(place, busy_timeout_s=busy_timeout_s)
        reading = writing
        if place is not None:
            self.path = place
            reading = SQLiteDatabase(place, busy_timeout_s=busy_timeout_s, identity=writing.identity)
        super().__init__(writing.shown, writing, reading, span_queue=span_queue)
        self._database = reading

    def vacuum(self) -> None:
        """Rewrites the file without what was deleted. It needs as much space again meanwhile, and writers wait."""
        self._check()
        self._database.vacuum()
