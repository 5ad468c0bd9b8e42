"""The store for several machines: tables in a schema of their own in a PostgreSQL database.

They are those of `lgov_core.store.tables` with PostgreSQL's types, and some more. ``writers`` has a row for each
store object that has written; its number goes up with every transaction, which tells after a lost connection whether the
last one was committed. ``ended_seq`` of the queue is given out under a lock that is held until the commit, so that
rollouts become visible in that order. Calls are deleted under a lock that excludes everyone who writes, so that none is
deleted to which a new one refers. ``format`` has one row, the number of the layout.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final

import psycopg
from psycopg import errors

from lgov_core.errors import StoreError
from lgov_core.store.postgres_database import (
    Connection,
    PostgresAddress,
    PostgresDatabase,
    describe,
    opened,
    read_address,
    translate,
)
from lgov_core.store.rollout_queue import RolloutQueue
from lgov_core.store.tables import ADD_ROLLOUTS, DECISIONS, ROLLOUTS_INDEX, TABLES, migrate_decisions

FORMAT: Final = 4
#: A call's place is given out when it is written, so that ``base`` is always less.
_TYPES: Final = {
    "seq INTEGER PRIMARY KEY AUTOINCREMENT": "seq bigint PRIMARY KEY",
    "seq INTEGER PRIMARY KEY": "seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
    "INTEGER": "bigint",
    "REAL": "double precision",
    "BLOB": "bytea",
}
_OWN_TABLES: Final = (
    "CREATE INDEX attempts_open ON attempts (seq) WHERE ended_at IS NULL",
    "CREATE SEQUENCE calls_order",
    "CREATE INDEX calls_of_rollout ON calls (rollout_id, attempt, seq)",
    "ALTER TABLE queue ADD COLUMN ended_seq bigint UNIQUE",
    "CREATE SEQUENCE ended_order",
    """CREATE TABLE writers (
        writer bigint PRIMARY KEY,
        number bigint NOT NULL,
        seen_at timestamptz NOT NULL DEFAULT clock_timestamp()
    )""",
    "CREATE TABLE format (number bigint NOT NULL)",
    "INSERT INTO format VALUES (0)",
)


def _translate(statement: str) -> str:
    for theirs, ours in _TYPES.items():
        statement = statement.replace(theirs, ours)
    return statement


_TABLES: Final = (*map(_translate, TABLES), *_OWN_TABLES)


def _fill_decisions(connection: Connection) -> None:
    def change_each(statement: str, values: Sequence[Sequence[Any]]) -> None:
        with connection.cursor() as cursor:
            cursor.executemany(translate(statement), values)

    migrate_decisions(
        lambda query, values: connection.execute(translate(query), values).fetchall(),
        change_each,
    )


#: What makes each format of the one before it. In the second, replies may be without the prompt's token ids (see
#: `lgov_core.store.rows`), which an older lgov could not read; in the third, a reward says which choice it is for; in
#: the fourth, decisions have a table, and every rollout that anything was recorded of has a row.
_MIGRATIONS: Final[Mapping[int, tuple[str | Callable[[Connection], None], ...]]] = {
    1: (),
    2: ("ALTER TABLE rewards ADD COLUMN choice bigint",),
    3: (
        "ALTER TABLE rollouts ADD COLUMN added bigint NOT NULL DEFAULT 1",
        "DROP INDEX rollouts_of_run",
        *map(_translate, (ROLLOUTS_INDEX, *DECISIONS, ADD_ROLLOUTS)),
        _fill_decisions,
    ),
}


def prepare(connection: Connection, address: PostgresAddress, schema: str, *, make: bool = True) -> None:
    """Makes the tables in ``schema``, or brings those that are there to the present format, in one transaction.

    Several processes may do so at the same time: one works, the others wait for it. Raises `StoreError` when the schema
    holds something else or was written by a newer lgov, when the user may not make what is missing, and when there is
    nothing and ``make`` is false.
    """
    try:
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"lgov format {schema}",))
            format_number = _format(connection, address, schema)
            if format_number == 0 and not make:
                raise StoreError(
                    f"there is no trace store in {address.shown}", hint="name the store that was given to --store"
                )
            exists = connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (schema,)).fetchone()
            if format_number == 0 and exists is None:
                connection.execute(f'CREATE SCHEMA "{schema}"'.encode())
            steps = [_MIGRATIONS[number] for number in range(format_number, FORMAT)] if format_number else [_TABLES]
            for step in itertools.chain(*steps):
                if isinstance(step, str):
                    connection.execute(step.encode())
                else:
                    step(connection)
            if format_number != FORMAT:
                connection.execute("UPDATE format SET number = %s", (FORMAT,))
    except psycopg.Error as error:
        raise describe(address, error) from error


def _format(connection: Connection, address: PostgresAddress, schema: str) -> int:
    """The format of the tables in ``schema``, 0 when there are none. Raises `StoreError` when it cannot be used."""
    where = f"trace store {address.shown}"
    relations = _relations(connection, schema)
    if not relations:
        return 0
    row: Any = None
    strange = relations[0]
    if "format" in relations:
        try:
            row = connection.execute(f'SELECT number FROM "{schema}".format'.encode()).fetchone()
        except errors.UndefinedColumn:
            strange = "format"
    if row is None:
        raise StoreError(
            f"{where}: the schema {schema} holds something that lgov did not make ({strange})",
            hint="give another database",
        )
    if not 1 <= row[0] <= FORMAT:
        raise StoreError(
            f"{where} has format {row[0]}; this lgov knows formats up to {FORMAT}",
            hint="upgrade lgov, or use another database",
        )
    return int(row[0])


def _relations(connection: Connection, schema: str) -> list[str]:
    """The names of the tables, indexes and sequences in ``schema``.

    Asked of the catalogue's tables: functions such as to_regclass answer from what the session remembers, and do not see what
    another made while this one waited for a lock.
    """
    fetched = connection.execute(
        "SELECT relname FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace WHERE nspname = %s"
        " ORDER BY relname",
        (schema,),
    )
    return [name for (name,) in fetched]


_VACUUMED: Final = ("rollouts", "attempts", "calls", "rewards", "decisions", "decision_kinds", "spans", "queue")


class PostgresStore(RolloutQueue):
    """A `RolloutQueue` in the PostgreSQL database at ``address``, in tables of its own in the schema ``schema``.

    ``address`` is ``postgresql://user@host:port/database``; libpq finds what it leaves out (PGHOST, PGPASSWORD, ~/.pgpass,
    ...). The tables are created when they do not exist, unless ``make`` is false. Any number of stores, on any number of
    machines, may be open on one database; none waits for another to claim (``FOR UPDATE SKIP LOCKED``). Leases, deadlines
    and delays go by the server's clock. ``span_queue`` is how many spans may wait before more are dropped. For threads and
    forks see `TraceStore`.

    A commit survives the death of this process and of the server. When the connection is lost, writes and readings wait for
    the server for ``reconnect_s`` seconds at most; none is made twice and none that returned is lost. Fails closed:
    `StoreError` names the database (never its password) and what to do, and nothing is half-written. Raises `StoreError`
    when the database cannot be used.
    """

    _ended: ClassVar = "SELECT ended_seq AS place, queue.* FROM queue WHERE ended_seq > ?"
    _size: ClassVar = (
        "SELECT sum(pg_total_relation_size(oid))::bigint, 0 FROM pg_class"
        " WHERE relkind = 'r' AND relnamespace = current_schema()::regnamespace"
    )

    def __init__(
        self,
        address: str,
        *,
        schema: str = "lgov",
        make: bool = True,
        reconnect_s: float = 15.0,
        span_queue: int = 10_000,
    ) -> None:
        if not schema or '"' in schema or "\x00" in schema:
            raise StoreError(f"{schema!r} cannot be the name of a schema", hint="use letters, digits and _")
        self._address = read_address(address)
        self._schema = schema
        with opened(self._address, schema) as connection:
            prepare(connection, self._address, schema, make=make)
        writing, reading = (PostgresDatabase(self._address, schema, reconnect_s=reconnect_s) for _ in range(2))
        super().__init__(self._address.shown, writing, reading, span_queue=span_queue)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._address.shown!r})"

    def vacuum(self) -> None:
        """Rewrites the tables without what was deleted. Each is locked meanwhile; only their owner may do it."""
        self._check()
        refused: list[str] = []
        with opened(self._address, self._schema) as connection:
            # The server only warns about a table that is not the user's.
            connection.add_notice_handler(lambda notice: refused.append(notice.message_primary or ""))
            try:
                for table in _VACUUMED:
                    connection.execute(f"VACUUM (FULL, ANALYZE) {table}".encode())
            except psycopg.Error as error:
                raise describe(self._address, error) from error
        if refused:
            raise StoreError(
                f"trace store {self._address.shown}: {refused[0]}", hint="do it as the owner of the tables"
            )
