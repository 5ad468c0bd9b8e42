"""Has the log of an audit record written back into its file, beside those who decide."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from pathlib import Path

from lgov_core._util.sqlite_file import FileKind, write_back
from lgov_core.errors import AuditError


class WritingBack:
    """Writes the log back in a thread that ends with it: the disk is waited for, and no act should wait for that.

    All methods may be called from any thread. What fails is left in the log, where it is durable.
    """

    def __init__(self, kind: FileKind, path: Path, identity: tuple[int, int]) -> None:
        self._kind = kind
        self._path = path
        self._identity = identity
        self._busy = threading.Lock()

    def begin(self) -> None:
        """Begins to write back, unless that is being done."""
        if not self._busy.acquire(blocking=False):
            return
        try:
            threading.Thread(target=self._write_back, name="lgov-audit-write-back", daemon=True).start()
        except RuntimeError:  # the interpreter is ending
            self._busy.release()

    def hold(self) -> None:
        """Waits for what is being done, and keeps it from beginning again until `release`."""
        self._busy.acquire()

    def release(self) -> None:
        """Ends `hold`."""
        self._busy.release()

    def _write_back(self) -> None:
        try:
            with contextlib.suppress(sqlite3.Error, OSError, AuditError):
                write_back(self._kind, self._path, self._identity)
        finally:
            self._busy.release()
