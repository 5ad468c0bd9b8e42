"""The reading side of a store on PostgreSQL."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import psycopg

from lgov_core.errors import StoreError
from lgov_core.store.postgres.address import PostgresAddress, describe
from lgov_core.store.postgres.connection import Connection, connect, is_lost
from lgov_core.store.rows import Row
from lgov_core.store.sqlite.held_connection import HeldConnection

#: So many rows are fetched at a time, so that one long reading neither holds up the others nor fills the memory.
_ROWS_A_PORTION: Final = 500

_LONGEST_PAUSE_S: Final = 0.5


class PostgresReader(HeldConnection[Connection]):
    """Reads committed rows on a connection of its own, which is opened when first needed. Callable from any thread.

    A reading whose connection is lost is made again on another one, for ``reconnect_s`` seconds at most.
    """

    def __init__(self, address: PostgresAddress, schema: str, *, reconnect_s: float) -> None:
        super().__init__()
        self._address = address
        self._schema = schema
        self._reconnect_s = reconnect_s
        self._closed = False

    def read(self, table: str, columns: str, where: str = "", given: Sequence[Any] = ()) -> Iterator[Row]:
        """The rows of ``table`` that are there when the iteration begins, in the order in which they were written.

        Between two portions no lock is held and no transaction is open. Raises `StoreError`.
        """
        found = [seq for (seq,) in self.fetch(f"SELECT seq FROM {table} {where} ORDER BY seq", given)]
        for first in range(0, len(found), _ROWS_A_PORTION):
            portion = found[first : first + _ROWS_A_PORTION]
            yield from self.fetch(f"SELECT {columns} FROM {table} WHERE seq = ANY(%s) ORDER BY seq", (portion,))

    def fetch(self, query: str, given: Sequence[Any] = ()) -> list[Row]:
        """All rows that a query finds, of which there must be few. Raises `StoreError`."""
        until = time.monotonic() + self._reconnect_s
        pause = 0.01
        while True:
            with self._lock:
                if self._closed:
                    raise StoreError(f"trace store {self._address.shown} is closed", hint="open it again to go on")
                try:
                    return self._fetch(query, given)
                except psycopg.Error as error:
                    # None: there was no connection to be had.
                    if self._connection is not None and not is_lost(self._connection, error):
                        raise describe(self._address, error) from error
                    self._let_go()
                    if time.monotonic() > until:
                        raise describe(self._address, error) from error
                except UnicodeEncodeError as error:
                    raise describe(self._address, error) from error
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _fetch(self, query: str, given: Sequence[Any]) -> list[Row]:
        if self._connection is None:
            self._connection = connect(self._address, self._schema)
        with self._connection.cursor(binary=True) as cursor:
            return cursor.execute(query.encode(), given).fetchall()

    def close(self) -> None:
        """Closes the connection; every reading after it raises."""
        self._closed = True
        super().close()
