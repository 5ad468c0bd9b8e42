"""PostgreSQL as the shared store uses it: its address, connections that come back, transactions of which none is written twice.

A password is never shown.
"""

from __future__ import annotations

import contextlib
import functools
import math
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias
from urllib.parse import quote

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from lgov_core.errors import StoreError
from lgov_core.store import rows
from lgov_core.store.database import Database, DatabaseUnavailable, OutcomeUnknown, Transaction
from lgov_core.store.rows import Row

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


#: What a call needs, without writing one: a server that takes writes, the tables, and the right to insert into them.
_PING: Final = b"BEGIN READ WRITE; %s; COMMIT" % b"; ".join(
    b"EXPLAIN INSERT INTO %s DEFAULT VALUES" % table for table in (b"writers", b"rollouts", b"calls")
)


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

    def ping(self) -> None:
        """See `Database.ping`."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._open().execute(_PING)
        except (psycopg.Error, _ConnectionLost) as error:
            self._disconnect()
            raise self.describe(error.__cause__ or error) from error
        finally:
            self._lock.release()

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
                    raise OutcomeUnknown(
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
