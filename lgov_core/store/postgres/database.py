"""PostgreSQL as the shared store uses it: transactions of which none is written twice, and connections that come back."""

from __future__ import annotations

import contextlib
import functools
import math
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import psycopg
from psycopg import errors

from lgov_core.errors import StoreError
from lgov_core.store import rows
from lgov_core.store.database import Database, DatabaseUnavailable, Transaction
from lgov_core.store.postgres.server import Connection, PostgresAddress, connect, describe, is_conflict, is_lost
from lgov_core.store.rows import Row

#: Appends rollouts to the order of those that ended. Its lock is held until the commit, so that a reader who sees a place sees
#: all those before it; it is the last lock that a transaction takes, so no holder of it waits for another.
_END: Final = """
    WITH lock AS MATERIALIZED (SELECT pg_advisory_xact_lock(hashtextextended('lgov ended ' || current_schema(), 0)))
    UPDATE queue SET ended_seq = places.place FROM (
        SELECT id, nextval('ended_order') AS place FROM (
            SELECT id FROM lock, unnest(?::text[]) WITH ORDINALITY AS ended (id, nth) ORDER BY nth
        ) AS ordered
    ) AS places WHERE queue.rollout_id = places.id
"""

#: Writers share it; deleting takes it alone, so that no new call refers to one that is being deleted.
_WRITING_LOCK: Final = "SELECT pg_advisory_xact_lock{how}(hashtextextended('lgov writing ' || current_schema(), 0))"

#: How long the rows of killed writers are kept.
_FORGET_WRITERS: Final = "DELETE FROM writers WHERE seen_at < clock_timestamp() - interval '7 days'"

_INSERT_CALL: Final = rows.insert("calls", f"{rows.FOLDED_COLUMNS}, seq").removesuffix("?)") + (
    "nextval('calls_order')) RETURNING seq"
)


@functools.cache
def translate(statement: str) -> bytes:
    """A statement of the shared store as psycopg takes it."""
    return statement.replace("?", "%s").encode()


class PostgresTransaction(Transaction):
    """See `Transaction`. What fails raises `psycopg.Error`, or `StoreError` for an id that exists."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self.connection = connection
        self._ended: list[str] = []
        self.now = 0.0

    def _run(self, statement: str, values: Sequence[Any]) -> Any:
        return self.connection.execute(translate(statement), values)

    def change_each(self, statement: str, values: Sequence[Sequence[Any]]) -> int:
        """See `Transaction.change_each`. What is given is sent together."""
        if not values:
            return 0
        with self.connection.cursor() as cursor:
            cursor.executemany(translate(statement), values)
            return cursor.rowcount

    def insert(self, table: str, new: Sequence[Row]) -> None:
        """See `Transaction.insert`."""
        columns, _ = rows.TABLES[table]
        try:
            self.change_each(rows.insert(table, columns), new)
        except errors.UniqueViolation as error:
            detail = error.diag.message_detail or ""  # Key (rollout_id)=(r1) already exists.
            row = next((row for row in new if f"=({row[0]})" in detail), new[0])
            raise rows.exists_already(table, row) from error

    def insert_call(self, row: Row) -> int:
        """See `Transaction.insert_call`."""
        try:
            return self.execute(_INSERT_CALL, row)[0][0]
        except errors.UniqueViolation as error:
            raise rows.exists_already("calls", row) from error

    def end(self, rollout_id: str) -> None:
        """See `Transaction.end`. Takes effect before the commit."""
        self._ended.append(rollout_id)

    def begin(self, writer: int, number: int, *, alone: bool) -> None:
        """Begins, and writes the number of the transaction to the writer's row, which stays locked until the end."""
        forget = f"{_FORGET_WRITERS};" if number == 1 else ""
        cursor = self.connection.execute(
            "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;"
            f" {_WRITING_LOCK.format(how='' if alone else '_shared')}; {forget}"
            f" INSERT INTO writers (writer, number) VALUES ({writer:d}, {number:d})"
            " ON CONFLICT (writer) DO UPDATE SET number = excluded.number, seen_at = excluded.seen_at"
            " RETURNING extract(epoch FROM clock_timestamp())::double precision".encode()
        )
        while cursor.nextset():
            pass
        ((self.now,),) = cursor.fetchall()

    def order_ended(self) -> None:
        """Writes the order of the rollouts that ended; the last statement before the commit."""
        if self._ended:
            self.change(_END, (self._ended,))

    def commit(self) -> None:
        """Commits. Raises `StoreError` when the server rolled back instead."""
        status = self.connection.execute(b"COMMIT").statusmessage
        if status != "COMMIT":
            raise StoreError(f"the server did not commit but answered {status}")


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

    def fetch(self, query: str, values: Sequence[Any] = (), *, limit_s: float | None = None) -> list[Row]:
        """See `Database.fetch`."""
        until, pauses = time.monotonic() + self._reconnect_s, _pauses()
        while True:
            with self._lock:
                try:
                    connection = self._open()
                    if limit_s is None:
                        with connection.cursor(binary=True) as cursor:
                            return cursor.execute(translate(query), values).fetchall()
                    with connection.transaction(), connection.cursor(binary=True) as cursor:
                        cursor.execute(f"SET LOCAL statement_timeout = {max(int(limit_s * 1000), 1):d}".encode())
                        return cursor.execute(translate(query), values).fetchall()
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
        """Asks the server whether the last transaction, whose commit was not confirmed, took place."""
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
        fetched = connection.execute(b"SELECT number FROM writers WHERE writer = %s FOR UPDATE", (writer,))
        ((number,),) = fetched.fetchall()
        return number
