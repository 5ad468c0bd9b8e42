"""A transaction on a PostgreSQL store (`lgov_core.store.sql.database.Transaction`)."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Final

from psycopg import errors

from lgov_core.errors import StoreError
from lgov_core.store import rows
from lgov_core.store.postgres.connection import Connection
from lgov_core.store.rows import Row
from lgov_core.store.sql.database import Transaction

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

    def _run(self, statement: str, given: Sequence[Any]) -> Any:
        return self.connection.execute(translate(statement), given)

    def change_each(self, statement: str, given: Sequence[Sequence[Any]]) -> int:
        """See `Transaction.change_each`. What is given is sent together."""
        if not given:
            return 0
        with self.connection.cursor() as cursor:
            cursor.executemany(translate(statement), given)
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
