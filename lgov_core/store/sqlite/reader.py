"""The reading side of a store on one file."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from lgov_core._util.sqlite_file import FileKind, describe, open_sqlite
from lgov_core.store.rows import Row
from lgov_core.store.sqlite.held_connection import HeldConnection

#: So many rows are fetched at a time, so that one long reading neither holds up the others nor fills the memory.
_ROWS_A_PORTION: Final = 500


class TableReader(HeldConnection[sqlite3.Connection]):
    """Reads committed rows on a connection of its own, which is opened when first needed. Callable from any thread."""

    def __init__(self, kind: FileKind, path: Path, identity: tuple[int, int], *, busy_timeout_s: float) -> None:
        super().__init__()
        self._kind = kind
        self._path = path
        self._identity = identity
        self._busy_timeout_s = busy_timeout_s
        self._closed = False

    def read(self, table: str, columns: str, where: str = "", given: Sequence[Any] = ()) -> Iterator[Row]:
        """The rows of ``table`` that are there when the iteration begins, in the order in which they were written.

        Between two portions no lock is held and no transaction is open. Raises `StoreError`.
        """
        # The sign keeps SQLite from walking the whole table in order where an index finds the few rows asked for.
        found = self.fetch(f"SELECT seq FROM {table} {where} ORDER BY +seq", given)
        for first in range(0, len(found), _ROWS_A_PORTION):
            portion = json.dumps([seq for (seq,) in found[first : first + _ROWS_A_PORTION]])
            yield from self.fetch(
                f"SELECT {columns} FROM {table} WHERE seq IN (SELECT value FROM json_each(?)) ORDER BY seq", (portion,)
            )

    def fetch(self, query: str, given: Sequence[Any]) -> list[Row]:
        """All rows that a query finds, of which there must be few. Raises `StoreError`."""
        with self._lock:
            if self._closed:
                raise self._kind.error(f"{self._kind.what} {self._path} is closed", hint="open it again to go on")
            try:
                if self._connection is None:
                    self._connection = open_sqlite(
                        self._kind, self._path, busy_timeout_s=self._busy_timeout_s, expected=self._identity
                    )
                    self._connection.execute("PRAGMA query_only=ON")
                return self._connection.execute(query, given).fetchall()
            except sqlite3.Error as error:
                raise describe(self._kind, self._path, error) from error

    def close(self) -> None:
        """Closes the connection; every reading after it raises."""
        self._closed = True
        super().close()
