"""One transaction on a PostgreSQL store, as the one who writes in it sees it."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from psycopg import errors

from lgov_core.errors import StoreError
from lgov_core.store import rows
from lgov_core.store.postgres.calls import CallParts, FoldingCalls
from lgov_core.store.postgres.connection import Connection
from lgov_core.store.rows import Row

#: From so many rows on, COPY is faster than statements that are sent together.
_ROWS_FOR_COPY: Final = 12

#: Gives rollouts their places among those that ended. Its lock is held until the commit, so that a place which can be seen has
#: all those before it; it is the last one that a transaction takes, so nobody who holds it waits for anyone.
_END: Final = """
    WITH lock AS MATERIALIZED (SELECT pg_advisory_xact_lock(hashtextextended('lgov ended ' || current_schema(), 0)))
    UPDATE queue SET ended_seq = places.place FROM (
        SELECT id, nextval('ended_order') AS place FROM (
            SELECT id FROM lock, unnest(%s::text[]) WITH ORDINALITY AS ended (id, nth) ORDER BY nth
        ) AS ordered
    ) AS places WHERE queue.rollout_id = places.id
"""

#: Whoever writes holds it with others; whoever deletes holds it alone.
_WRITING_LOCK: Final = "SELECT pg_advisory_xact_lock{how}(hashtextextended('lgov writing ' || current_schema(), 0))"

#: Rows of writers that were killed are kept for so long.
_FORGET_WRITERS: Final = "DELETE FROM writers WHERE seen_at < clock_timestamp() - interval '7 days'"

#: What the tables are called whose rows are added in bulk: their columns, and what one row is, for messages.
_TABLES: Final = {
    "rollouts": (rows.ROLLOUT_COLUMNS, "rollout"),
    "calls": (f"{rows.FOLDED_COLUMNS}, seq", "call"),
    "rewards": (rows.REWARD_COLUMNS, "reward"),
    "spans": (f"{rows.SPAN_COLUMNS}, digest", "span"),
}


class Transaction:
    """A transaction in progress on ``connection``. Used by the writer's thread only; what fails raises `psycopg.Error`.

    What is put, which nothing else in a transaction looks at, is written together when it is about to be committed. With
    ``one_by_one`` each is a statement of its own, and one whose id exists raises `StoreError` that names it.
    """

    def __init__(self, connection: Connection, calls: FoldingCalls, *, one_by_one: bool = False) -> None:
        self.connection = connection
        self._calls = calls
        self._one_by_one = one_by_one
        self._put_calls: list[CallParts] = []
        self._put_rewards: list[Row] = []
        self._put_spans: list[Row] = []
        self._ended: list[str] = []
        #: When the transaction began by the server's clock, in Unix seconds.
        self.now: float = 0.0

    # ------------------------------------------------------------------ for those who write

    def execute(self, statement: str, given: Sequence[Any] = ()) -> list[Row]:
        """Runs a statement and returns its rows."""
        cursor = self.connection.execute(statement.encode(), given)
        return cursor.fetchall() if cursor.description else []

    def change(self, statement: str, given: Sequence[Any] = ()) -> int:
        """Runs a statement and returns how many rows it changed."""
        return self.connection.execute(statement.encode(), given).rowcount

    def change_each(self, statement: str, given: Sequence[Sequence[Any]]) -> None:
        """Runs a statement once for each of the things given, which are sent together."""
        if len(given) == 1:
            self.connection.execute(statement.encode(), given[0])
        elif given:
            with self.connection.cursor() as cursor:
                cursor.executemany(statement.encode(), given)

    def put_call(self, call: CallParts) -> None:
        """Has a call written before the commit."""
        self._put_calls.append(call)

    def put_rewards(self, new: Sequence[Row]) -> None:
        """Has rows of ``REWARD_COLUMNS`` written before the commit."""
        self._put_rewards.extend(new)

    def insert(self, table: str, new: Sequence[Row]) -> None:
        """Writes rows now. One whose id exists raises `StoreError`."""
        if new:
            self._insert(table, new)

    def put_spans(self, new: Sequence[Row]) -> None:
        """Has rows of ``SPAN_COLUMNS`` written before the commit. Those that are there already are left out."""
        self._put_spans.extend((*row, rows.span_digest(row)) for row in new)

    def add_spans(self, new: Sequence[Row]) -> int:
        """Writes rows of ``SPAN_COLUMNS`` that are not there yet; returns how many those were."""
        self.flush()
        return self._add_spans([(*row, rows.span_digest(row)) for row in new])

    def ended(self, rollout_id: str) -> None:
        """Has a rollout of the queue, whose row this transaction has changed, get its place among those that ended."""
        self._ended.append(rollout_id)

    # ------------------------------------------------------------------ for the writer

    def begin(self, writer: int, number: int, *, alone: bool = False) -> None:
        """Begins, and leaves the number of the transaction in the row of the writer, which stays locked until the end.

        ``alone``: waits until no other transaction writes to the store, and keeps others from it.
        """
        forget = f"{_FORGET_WRITERS};" if number == 1 else ""
        cursor = self.connection.execute(
            f"BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; {_WRITING_LOCK.format(how='' if alone else '_shared')}; {forget}"
            f" INSERT INTO writers (writer, number) VALUES ({writer:d}, {number:d})"
            " ON CONFLICT (writer) DO UPDATE SET number = excluded.number, seen_at = excluded.seen_at"
            " RETURNING extract(epoch FROM clock_timestamp())::double precision".encode()
        )
        while cursor.nextset():
            pass
        ((self.now,),) = cursor.fetchall()

    @contextmanager
    def savepoint(self) -> Generator[None]:
        """Undoes what was done within when it raises."""
        self.flush()  # what was put before stands for itself
        ended = len(self._ended)
        self.connection.execute(b"SAVEPOINT one")
        try:
            yield
            self.flush()
            self.connection.execute(b"RELEASE one")
        except BaseException:
            self._put_calls, self._put_rewards, self._put_spans = [], [], []
            del self._ended[ended:]
            if not self.connection.closed:
                self.connection.execute(b"ROLLBACK TO one")
            raise

    def flush(self) -> None:
        """Writes the rows that were put."""
        calls, self._put_calls = self._put_calls, []
        if calls:
            self._insert("calls", self._calls.fold(self.execute, calls))
        rewards, self._put_rewards = self._put_rewards, []
        self.insert("rewards", rewards)
        spans, self._put_spans = self._put_spans, []
        self._add_spans(spans)

    def commit(self) -> None:
        """Commits. Raises `StoreError` when the server rolled back instead."""
        said = self.connection.execute(b"COMMIT").statusmessage
        if said != "COMMIT":
            raise StoreError(f"the server did not commit but said {said}")

    def prepare_commit(self) -> None:
        """What is left to be done: rows that were put, and the order of the rollouts that ended."""
        self.flush()
        if self._ended:
            self.change(_END, (self._ended,))

    # ------------------------------------------------------------------ rows in bulk

    def _insert(self, table: str, new: Sequence[Row]) -> None:
        columns, what = _TABLES[table]
        if len(new) >= _ROWS_FOR_COPY and not self._one_by_one:
            self._copy(table, columns, new)
            return
        statement = insert(table, columns)
        if not self._one_by_one:
            self.change_each(statement, new)
            return
        for row in new:
            try:
                self.change(statement, row)
            except errors.UniqueViolation as error:
                which = f", choice {row[1]}" if table == "calls" and row[1] else ""
                raise StoreError(
                    f"{what} {row[0]}{which} exists already", hint="ids are written once; use a fresh one"
                ) from error

    def _add_spans(self, new: Sequence[Row]) -> int:
        new = list({row[-1]: row for row in new}.values())
        columns, _ = _TABLES["spans"]
        if len(new) >= _ROWS_FOR_COPY and not self._one_by_one:
            self._copy(
                "spans", columns, new
            )  # one that is there already stops it; then they are written in the other way
            return len(new)
        if not new:
            return 0
        with self.connection.cursor() as cursor:
            cursor.executemany(f"{insert('spans', columns)} ON CONFLICT (digest) DO NOTHING".encode(), new)
            return cursor.rowcount

    def _copy(self, table: str, columns: str, new: Sequence[Row]) -> None:
        with self.connection.cursor() as cursor, cursor.copy(f"COPY {table} ({columns}) FROM STDIN".encode()) as copy:
            for row in new:
                copy.write_row(row)


def insert(table: str, columns: str) -> str:
    """The statement that inserts one row of ``columns`` into ``table``."""
    return f"INSERT INTO {table} ({columns}) VALUES ({', '.join(['%s'] * (columns.count(',') + 1))})"


def last_number(connection: Connection, writer: int) -> int:
    """The number of the last transaction of a writer that was committed; waits until none is in progress."""
    with connection.transaction():
        connection.execute(b"INSERT INTO writers (writer, number) VALUES (%s, 0) ON CONFLICT DO NOTHING", (writer,))
        found = connection.execute(b"SELECT number FROM writers WHERE writer = %s FOR UPDATE", (writer,))
        ((number,),) = found.fetchall()
        return number


def forget_writer(connection: Connection, writer: int) -> None:
    """Removes the row of a writer."""
    connection.execute(b"DELETE FROM writers WHERE writer = %s", (writer,))
