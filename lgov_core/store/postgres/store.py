"""The store for several machines: tables in a PostgreSQL database."""

from __future__ import annotations

from typing import ClassVar, Final

import psycopg

from lgov_core.errors import StoreError
from lgov_core.store.postgres.address import describe, read_address
from lgov_core.store.postgres.connection import opened
from lgov_core.store.postgres.database import PostgresDatabase
from lgov_core.store.postgres.schema import prepare
from lgov_core.store.sql.rollout_queue import RolloutQueue

_VACUUMED: Final = ("rollouts", "attempts", "calls", "rewards", "decisions", "spans", "queue")


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
