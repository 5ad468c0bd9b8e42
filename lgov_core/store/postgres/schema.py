"""The tables of a PostgreSQL trace store, and how they come to be in a schema of their own.

They are those of the SQLite store (see `lgov_core.store.sqlite.schema`) with PostgreSQL's types: ``seq`` is the
order in which rows
were written, times are Unix seconds, token ids and logprobs are little-endian bytes, mappings are JSON text in ASCII.
Some things differ. ``writers`` has a row for each store object that has written; its number goes up with every
transaction, which tells after a lost connection whether the last one was committed. ``ended_seq`` of the queue is
given out under a lock that is held until the commit, so that rollouts become visible in that order. Calls are deleted under
a lock that excludes everyone who writes, so that none is deleted to which a new one refers. ``format`` has one row, the
number of the layout.
"""

from __future__ import annotations

from typing import Any, Final

import psycopg
from psycopg import errors

from lgov_core.errors import StoreError
from lgov_core.store.postgres.address import PostgresAddress, describe
from lgov_core.store.postgres.connection import Connection

_FORMAT_1: Final = (
    """CREATE TABLE rollouts (
        seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        rollout_id text NOT NULL UNIQUE,
        task_id text NOT NULL,
        run_id text NOT NULL,
        input text NOT NULL,
        created_at double precision NOT NULL
    )""",
    "CREATE INDEX rollouts_of_run ON rollouts (run_id)",
    """CREATE TABLE attempts (
        seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        rollout_id text NOT NULL REFERENCES rollouts (rollout_id),
        attempt bigint NOT NULL,
        started_at double precision NOT NULL,
        ended_at double precision,
        outcome text,
        error text,
        result text,
        UNIQUE (rollout_id, attempt)
    )""",
    "CREATE INDEX attempts_open ON attempts (seq) WHERE ended_at IS NULL",
    """CREATE TABLE calls (
        seq bigint PRIMARY KEY,
        response_id text NOT NULL,
        choice bigint NOT NULL,
        route text NOT NULL,
        model text NOT NULL,
        request text NOT NULL,
        response text NOT NULL,
        prompt_rest bytea,
        response_ids bytea,
        logprobs bytea,
        finish_reason text NOT NULL,
        weights_version bigint,
        temperature double precision NOT NULL,
        top_p double precision NOT NULL,
        started_at double precision NOT NULL,
        ended_at double precision NOT NULL,
        rollout_id text,
        attempt bigint,
        agent text,
        tool_call_ids text NOT NULL,
        engine text NOT NULL,
        base bigint,
        prompt_shared bigint NOT NULL,
        request_repeats text,
        UNIQUE (response_id, choice)
    )""",
    "CREATE SEQUENCE calls_order",
    "CREATE INDEX calls_of_rollout ON calls (rollout_id, attempt, seq)",
    """CREATE TABLE rewards (
        seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        reward_id text NOT NULL UNIQUE,
        value double precision NOT NULL,
        dimension text NOT NULL,
        rollout_id text,
        attempt bigint,
        response_id text,
        tool_call_id text,
        source text NOT NULL
    )""",
    "CREATE INDEX rewards_of_rollout ON rewards (rollout_id)",
    """CREATE TABLE spans (
        seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        span_id text NOT NULL,
        name text NOT NULL,
        started_at double precision NOT NULL,
        ended_at double precision,
        attributes text NOT NULL,
        rollout_id text,
        attempt bigint,
        parent_id text,
        trace_id text,
        events text,
        claimed smallint NOT NULL,
        digest bytea NOT NULL UNIQUE
    )""",
    "CREATE INDEX spans_of_rollout ON spans (rollout_id)",
    """CREATE TABLE queue (
        seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        rollout_id text NOT NULL UNIQUE REFERENCES rollouts (rollout_id),
        run_id text NOT NULL,
        state text NOT NULL,
        config text NOT NULL,
        enqueued_at double precision NOT NULL,
        available_at double precision NOT NULL,
        attempt bigint NOT NULL DEFAULT 0,
        outcome text,
        worker_id text,
        lease_until double precision,
        deadline double precision,
        ended_at double precision,
        reason text,
        ended_seq bigint UNIQUE
    )""",
    "CREATE SEQUENCE ended_order",
    "CREATE INDEX queue_waits ON queue (seq) WHERE state IN ('queued', 'requeued')",
    "CREATE INDEX queue_waits_of_run ON queue (run_id, seq) WHERE state IN ('queued', 'requeued')",
    "CREATE INDEX queue_runs ON queue (least(lease_until, deadline)) WHERE state = 'running'",
    "CREATE INDEX queue_of_worker ON queue (worker_id) WHERE state = 'running'",
    "CREATE INDEX queue_of_run ON queue (run_id)",
    """CREATE TABLE writers (
        writer bigint PRIMARY KEY,
        number bigint NOT NULL,
        seen_at timestamptz NOT NULL DEFAULT clock_timestamp()
    )""",
)

#: What makes each format of the one before it; the first makes the tables. In the second, replies may be without the
#: prompt's token ids (see `lgov_core.store.reply_text`): nothing is made, but an older lgov could not read them. In the
#: third, a reward says which choice of a reply it is for.
_STEPS: Final[tuple[tuple[str, ...], ...]] = (_FORMAT_1, (), ("ALTER TABLE rewards ADD COLUMN choice bigint",))

FORMAT: Final = len(_STEPS)


def prepare(connection: Connection, address: PostgresAddress, schema: str, *, make: bool = True) -> None:
    """Makes the tables in ``schema``, or brings those that are there to the present format, in one transaction.

    Several processes may do so at the same time: one works, the others wait for it. Raises `StoreError` when the schema
    holds something else or was written by a newer lgov, when the user may not make what is missing, and when there is
    nothing and ``make`` is false.
    """
    try:
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"lgov format {schema}",))
            found = _format(connection, address, schema)
            if found == 0 and not make:
                raise StoreError(
                    f"there is no trace store in {address.shown}", hint="name the store that was given to --store"
                )
            if found == 0 and not _exists(connection, schema):
                connection.execute(f'CREATE SCHEMA "{schema}"'.encode())
            for number, step in enumerate(_STEPS[found:], start=found + 1):
                for statement in step:
                    connection.execute(statement.encode())
                connection.execute("CREATE TABLE IF NOT EXISTS format (number bigint NOT NULL)")
                connection.execute("DELETE FROM format")
                connection.execute("INSERT INTO format VALUES (%s)", (number,))
    except psycopg.Error as error:
        raise describe(address, error) from error


def _format(connection: Connection, address: PostgresAddress, schema: str) -> int:
    """The format of the tables in ``schema``, 0 when there are none. Raises `StoreError` when it cannot be used."""
    where = f"trace store {address.shown}"
    relations = _relations(connection, schema)
    if not relations:
        return 0
    found: Any = None
    strange = relations[0]
    if "format" in relations:
        try:
            found = connection.execute(f'SELECT number FROM "{schema}".format'.encode()).fetchone()
        except errors.UndefinedColumn:
            strange = "format"
    if found is None:
        raise StoreError(
            f"{where}: the schema {schema} holds something that lgov did not make ({strange})",
            hint="give another database",
        )
    if not 1 <= found[0] <= FORMAT:
        raise StoreError(
            f"{where} has format {found[0]}; this lgov knows formats up to {FORMAT}",
            hint="upgrade lgov, or use another database",
        )
    return int(found[0])


def _relations(connection: Connection, schema: str) -> list[str]:
    """The names of the tables, indexes and sequences in ``schema``.

    Asked of the catalogue's tables: functions such as to_regclass answer from what the session remembers, and do not see what
    another made while this one waited for a lock.
    """
    found = connection.execute(
        "SELECT relname FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace WHERE nspname = %s"
        " ORDER BY relname",
        (schema,),
    )
    return [name for (name,) in found]


def _exists(connection: Connection, schema: str) -> bool:
    return connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (schema,)).fetchone() is not None
