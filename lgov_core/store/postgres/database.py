"""A PostgreSQL connection as the shared store uses it: reconnects, and never writes a transaction twice."""

from __future__ import annotations

import contextlib
import math
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import psycopg
from psycopg import errors

from lgov_core.errors import StoreError
from lgov_core.store.postgres.address import PostgresAddress, describe
from lgov_core.store.postgres.connection import Connection, connect, is_conflict, is_lost
from lgov_core.store.postgres.transaction import PostgresTransaction, translate
from lgov_core.store.rows import Row
from lgov_core.store.sql.database import Database, DatabaseUnavailable, Transaction

#: How often a transaction is tried again because another one got in its way.
_CONFLICTS: Final = 5

#: An unreachable server is tried again after the first pause, then after twice that, up to the longest pause.
_FIRST_PAUSE_S: Final = 0.01
_LONGEST_PAUSE_S: Final = 0.5

#: How long a store that is being closed waits for an unreachable server.
_CLOSING_S: Final = 5.0


class _ConnectionLost(Exception):
    """The connection was lost before the commit: nothing was written."""


class PostgresDatabase(Database):
    """A connection to ``schema`` at ``address``; one that is lost is opened again, for ``reconnect_s`` seconds at most.

    When a connection is lost during a commit, the server is asked whether the transaction took place: each transaction
    leaves its number in this writer's row of the table ``writers``. That row is locked until the old transaction has
    ended either way, so the answer is final.
    """

    def __init__(self, address: PostgresAddress, schema: str, *, reconnect_s: float) -> None:
        super().__init__()
        self._address = address
        self._schema = schema
        self._reconnect_s = reconnect_s
        self._give_up_at = math.inf
        self._writer = secrets.randbits(63)
        self._number = 0

    def run(self, work: Callable[[Transaction], None], *, alone: bool = False) -> None:
        """See `Database.run`."""
        until = time.monotonic() + self._reconnect_s
        pauses, conflicts = _pauses(), 0
        while True:
            try:
                with self._lock:
                    self._transact(work, until, alone=alone)
                return
            except _ConnectionLost as lost:
                if time.monotonic() > min(until, self._give_up_at):
                    described = self.describe(lost.__cause__ or lost)
                    raise DatabaseUnavailable(described.message, hint=described.hint) from lost.__cause__
                time.sleep(next(pauses))
            except psycopg.Error as error:
                conflicts += 1
                if not is_conflict(error) or conflicts > _CONFLICTS:
                    raise

    def fetch(self, query: str, given: Sequence[Any] = (), *, limit_s: float | None = None) -> list[Row]:
        """See `Database.fetch`."""
        until, pauses = time.monotonic() + self._reconnect_s, _pauses()
        while True:
            with self._lock:
                try:
                    connection = self._open()
                    if limit_s is None:
                        with connection.cursor(binary=True) as cursor:
                            return cursor.execute(translate(query), given).fetchall()
                    with connection.transaction(), connection.cursor(binary=True) as cursor:
                        cursor.execute(f"SET LOCAL statement_timeout = {max(int(limit_s * 1000), 1):d}".encode())
                        return cursor.execute(translate(query), given).fetchall()
                except errors.QueryCanceled as stopped:
                    if limit_s is None:
                        raise self.describe(stopped) from stopped
                    raise self.too_slow(limit_s) from stopped
                except _ConnectionLost as lost:
                    error = lost.__cause__ or lost
                except (psycopg.Error, UnicodeEncodeError) as failed:
                    if self._connection is None or not is_lost(self._connection, failed):
                        raise self.describe(failed) from failed
                    error = failed
                self._disconnect()
            if time.monotonic() > until:
                raise self.describe(error) from error
            time.sleep(next(pauses))

    def begin_close(self) -> None:
        """See `Database.begin_close`."""
        self._give_up_at = min(self._give_up_at, time.monotonic() + _CLOSING_S)

    def close(self) -> None:
        """See `Database.close`. Removes the writer's row, when the server can be reached."""
        with self._lock:
            if self._connection is not None and self._number:
                with contextlib.suppress(psycopg.Error):  # rows that are left are removed by later writers
                    self._connection.execute(b"DELETE FROM writers WHERE writer = %s", (self._writer,))
        super().close()

    def describe(self, error: BaseException) -> StoreError:
        """See `Database.describe`."""
        return describe(self._address, error)

    def _transact(self, work: Callable[[Transaction], None], until: float, *, alone: bool) -> None:
        connection = self._open()
        self._number += 1
        committing = False
        try:
            transaction = PostgresTransaction(connection)
            transaction.begin(self._writer, self._number, alone=alone)
            work(transaction)
            transaction.order_ended()
            committing = True
            transaction.commit()
        except BaseException as error:
            if is_lost(connection, error):
                self._disconnect()
                if committing and self._was_committed(until):
                    return
                raise _ConnectionLost from error
            self._roll_back(connection)
            raise

    def _was_committed(self, until: float) -> bool:
        """Whether the last transaction took place, although its commit was not confirmed."""
        for pause in _pauses():
            try:
                return _last_number(self._open(), self._writer) == self._number
            except (psycopg.Error, _ConnectionLost) as error:
                self._disconnect()
                if time.monotonic() > min(until, self._give_up_at):
                    raise DatabaseUnavailable(
                        f"trace store {self._address.shown}: the connection was lost during a commit, and the server does"
                        f" not answer: {self.describe(error.__cause__ or error).message}",
                        hint="it is unknown whether it was written: look for it by its id before writing it again",
                    ) from error
                time.sleep(pause)
        raise AssertionError("unreachable")

    def _open(self) -> Connection:
        if self._closed:
            raise StoreError(f"trace store {self._address.shown} is closed", hint="open it again to go on")
        if self._connection is None or self._connection.closed:
            try:
                self._connection = connect(self._address, self._schema)
            except psycopg.Error as error:
                raise _ConnectionLost from error
        return self._connection

    def _roll_back(self, connection: Connection) -> None:
        try:
            connection.execute("ROLLBACK")
        except psycopg.Error:
            self._disconnect()  # closing rolls back; the next transaction opens another connection


def _pauses() -> Iterator[float]:
    pause = _FIRST_PAUSE_S
    while True:
        yield pause
        pause = min(2 * pause, _LONGEST_PAUSE_S)


def _last_number(connection: Connection, writer: int) -> int:
    """The number of a writer's last committed transaction; waits until none is in progress."""
    with connection.transaction():
        connection.execute(b"INSERT INTO writers (writer, number) VALUES (%s, 0) ON CONFLICT DO NOTHING", (writer,))
        found = connection.execute(b"SELECT number FROM writers WHERE writer = %s FOR UPDATE", (writer,))
        ((number,),) = found.fetchall()
        return number
