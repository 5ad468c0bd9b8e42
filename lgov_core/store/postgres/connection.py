"""Connections to the PostgreSQL server that holds a trace store."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import psycopg
from psycopg import errors

from lgov_core.errors import StoreError
from lgov_core.store.postgres.address import PostgresAddress, describe

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

#: Statements see the tables of the store without naming their schema. A commit that is only in the server's memory does not
#: count: where the server's setting says so, it is raised. A lock is not waited for without end. A transaction whose client
#: has gone is ended by the server, before those who wait for its locks give up.
_SESSION: Final = b"""
    SELECT set_config('search_path', quote_ident(%s), false),
        set_config('synchronous_commit', CASE s.now WHEN 'off' THEN 'on' ELSE s.now END, false),
        set_config('lock_timeout', '10s', false),
        set_config('idle_in_transaction_session_timeout', '5s', false)
    FROM (SELECT current_setting('synchronous_commit') AS now) AS s
"""


def connect(address: PostgresAddress, schema: str) -> Connection:
    """A connection in autocommit mode whose statements see the tables in ``schema``.

    It may be handed from thread to thread. Raises `psycopg.Error`.
    """
    connection: Connection = psycopg.connect(address.conninfo, autocommit=True)
    try:
        connection.execute(_SESSION, (schema,))
    except BaseException:
        connection.close()
        raise
    return connection


def opened(address: PostgresAddress, schema: str) -> Connection:
    """As `connect`, but raises `StoreError`."""
    try:
        return connect(address, schema)
    except psycopg.Error as error:
        raise describe(address, error) from error


def is_lost(connection: Connection, error: BaseException) -> bool:
    """Whether ``error`` means that the connection is lost, and not that the server refused a statement."""
    if isinstance(error, StoreError) and error.__cause__ is not None:
        error = error.__cause__
    # With an error of this severity the server ends the session, which the driver notices only at the next statement.
    fatal = isinstance(error, psycopg.Error) and error.diag.severity_nonlocalized in ("FATAL", "PANIC")
    return connection.closed or fatal


def is_conflict(error: BaseException) -> bool:
    """Whether ``error`` is the fault of another transaction at the same time, so that the same may be tried again."""
    return isinstance(error, (errors.DeadlockDetected, errors.SerializationFailure))
