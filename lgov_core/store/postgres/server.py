"""The PostgreSQL server of a trace store: its address, connections to it, and errors. A password is never shown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias
from urllib.parse import quote

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from lgov_core.errors import StoreError

#: What a connection is opened with unless the address says otherwise; a server that vanished is detected.
_DEFAULTS: Final[Mapping[str, str]] = {
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
    "application_name": "lgov",
    "client_encoding": "utf8",
}

_PLAIN: Final = "write postgresql://user@host:5432/database, and keep the password in PGPASSWORD or ~/.pgpass"
_ESCAPE: Final = (
    "write % / ? : @ in a user name or password as %25 %2F %3F %3A %40, or keep the password in PGPASSWORD or ~/.pgpass"
)

_HOST: Final = r"(\[[^\]]*\]|[^:\[\]]*)(:\d*)?"
_HOSTS: Final = rf"{_HOST}(,{_HOST})*"


@dataclass(frozen=True, slots=True)
class PostgresAddress:
    """A database on a server. ``shown`` may be printed; ``conninfo`` may hold a password and is not in the repr."""

    shown: str
    conninfo: str = field(repr=False)


def read_address(address: str) -> PostgresAddress:
    """The database that ``address`` (``postgresql://user@host:port/database?option=value``) names.

    What it leaves out, libpq finds where it always looks: PGHOST, PGUSER, PGPASSWORD, PGSERVICE, ~/.pgpass and so on.
    Raises `StoreError` for a malformed address; its message contains no part of it, because any part may be the password.
    """
    rest = address.partition("://")[2]
    if credentials := re.match("[^@/]*@", rest):
        rest = rest[credentials.end() :]
    hosts = re.split("[/?]", rest, maxsplit=1)[0]
    if "@" in rest.partition("?")[0] or not re.fullmatch(_HOSTS, hosts):
        raise StoreError("the address of the PostgreSQL trace store has an invalid host or port", hint=_ESCAPE)
    try:
        values: dict[str, Any] = conninfo_to_dict(address)
    except psycopg.Error:  # its text quotes what it could not read
        raise StoreError("the address of the PostgreSQL trace store cannot be read", hint=_PLAIN) from None
    return PostgresAddress(_shown(values), make_conninfo("", **{**_DEFAULTS, **values}))


def _shown(values: Mapping[str, Any]) -> str:
    user = f"{quote(str(values['user']))}@" if "user" in values else ""
    database = quote(str(values.get("dbname") or ""))
    hosts = str(values.get("host") or values.get("hostaddr") or "").split(",")
    ports = str(values.get("port") or "").split(",")
    if any(host.startswith("/") for host in hosts):
        return f"postgresql://{user}/{database}?host={','.join(hosts)}"
    if len(ports) == 1:
        ports *= len(hosts)
    hosts = [f"[{host}]" if ":" in host else quote(host) for host in hosts]
    places = [f"{host}:{port}" if port else host for host, port in zip(hosts, ports, strict=False)]
    return f"postgresql://{user}{','.join(places)}/{database}"


_HINTS: Final[Mapping[str, str]] = {
    "08": "the connection was lost; see whether the server runs",
    "25006": "the server is a standby or read-only; give the address of the primary",
    "28": "check the user, and the password in PGPASSWORD or ~/.pgpass",
    "3D000": "make the database first: createdb",
    "3F000": "the schema was removed",
    "42501": "let the user create a schema in the database, or use the tables of the one that is there",
    "42P01": "the tables were removed",
    "53100": "the server's disk is full: make space; nothing was half-written and writing can go on after that",
    "53200": "the server is out of memory; nothing was half-written",
    "53300": "the server has no connection left: raise its max_connections, or use fewer stores",
    "55P03": "another process holds what this one needs for too long; find it",
    "57": "the server was shut down or ended the connection; see whether it runs",
}


def describe(address: PostgresAddress, error: BaseException) -> StoreError:
    """``error`` as a `StoreError`: which database, what went wrong, and what to do."""
    if isinstance(error, StoreError):
        return error
    message = " ".join(str(error).split()) or type(error).__name__
    state = getattr(error, "sqlstate", None) or ""
    hint = _HINTS.get(state) or _HINTS.get(state[:2])
    if hint is None and isinstance(error, psycopg.OperationalError) and not state:
        if "password" in message or "authentication" in message:
            hint = _HINTS["28"]
        elif "does not exist" in message:
            hint = "make the database and the user first, or correct the address"
        else:
            hint = "see whether the server runs, and whether it can be reached from here"
    return StoreError(f"trace store {address.shown}: {message}", hint=hint)


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
    """True for an error that means a lost connection; false where the server refused a statement."""
    if isinstance(error, StoreError) and error.__cause__ is not None:
        error = error.__cause__
    # With an error of this severity the server ends the session, which the driver notices only at the next statement.
    fatal = isinstance(error, psycopg.Error) and error.diag.severity_nonlocalized in ("FATAL", "PANIC")
    return connection.closed or fatal


def is_conflict(error: BaseException) -> bool:
    """True for an error that another transaction at the same time caused, so that the same may be tried again."""
    return isinstance(error, (errors.DeadlockDetected, errors.SerializationFailure))
