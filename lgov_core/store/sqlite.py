"""The default store: one SQLite file, of format 5, and how files of earlier formats become one.

In format 2 the prompt's token ids were never left out of replies. Spans that were moved from format 1 have no ``digest``.
Rewards of formats before 4 say no ``choice``. Before format 5, decisions were spans only, and rollouts that nobody added had no
row.
"""

from __future__ import annotations

import functools
import json
import os
import re
import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from lgov_core._util.sqlite_file import (
    FileKind,
    describe,
    file_identity,
    is_busy,
    open_in_memory,
    open_sqlite,
    require_same_file,
    require_writable,
)
from lgov_core.errors import StoreError
from lgov_core.store import rows
from lgov_core.store.database import Database, DatabaseUnavailable, Transaction
from lgov_core.store.rollout_queue import RolloutQueue
from lgov_core.store.tables import ADD_ROLLOUTS, CALLS, DECISIONS, QUEUE, ROLLOUTS_INDEX, TABLES, migrate_decisions

#: What SQLite writes differently. A row needs no lock: one process writes at a time.
_TRANSLATIONS: Final = (
    (r" FOR UPDATE( OF \w+)?( SKIP LOCKED)?", ""),
    (r"= ANY\(\?\)", "IN (SELECT value FROM json_each(?))"),
    (r"least\(lease_until, deadline\)", "min(lease_until, ifnull(deadline, lease_until))"),
    (r"greatest\(", "max("),
)


@functools.cache
def translate(statement: str) -> str:
    """A statement of the shared store in SQLite's SQL."""
    for theirs, ours in _TRANSLATIONS:
        statement = re.sub(theirs, ours, statement)
    return statement


_CALLS_INDEX: Final = "CREATE INDEX calls_of_rollout ON calls (rollout_id, attempt)"
_ENDED: Final = """CREATE TABLE ended (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        rollout_id TEXT NOT NULL UNIQUE REFERENCES queue (rollout_id)
    )"""

#: A call has one choice in format 1, and spoke the chat API.
_FROM_1 = (
    "ALTER TABLE calls RENAME TO calls_of_format_1",
    "DROP INDEX calls_of_rollout",
    CALLS,
    "INSERT INTO calls (seq, response_id, choice, route, model, request, response, prompt_rest, response_ids, logprobs,"
    " finish_reason, weights_version, temperature, top_p, started_at, ended_at, rollout_id, attempt, agent, tool_call_ids,"
    " engine) SELECT seq, response_id, 0, 'chat', model, request, response, prompt_ids, response_ids, logprobs,"
    " finish_reason, weights_version, temperature, top_p, started_at, ended_at, rollout_id, attempt, agent, tool_call_ids,"
    " engine FROM calls_of_format_1 ORDER BY seq",
    "DROP TABLE calls_of_format_1",
    _CALLS_INDEX,
    "ALTER TABLE spans ADD COLUMN trace_id TEXT",
    "ALTER TABLE spans ADD COLUMN events TEXT",
    "ALTER TABLE spans ADD COLUMN claimed INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE spans ADD COLUMN digest BLOB",
    "CREATE UNIQUE INDEX spans_once ON spans (digest)",
    *map(translate, QUEUE),
    _ENDED,
)


def _fill_decisions(connection: sqlite3.Connection) -> None:
    migrate_decisions(
        lambda query, values: connection.execute(query, values).fetchall(),
        lambda statement, values: connection.executemany(statement, values),
    )


_FROM_4: Final[tuple[str | Callable[[sqlite3.Connection], None], ...]] = (
    "ALTER TABLE rollouts ADD COLUMN added INTEGER NOT NULL DEFAULT 1",
    "DROP INDEX rollouts_of_run",
    ROLLOUTS_INDEX,
    *DECISIONS,
    ADD_ROLLOUTS,
    _fill_decisions,
)

TRACE_STORE: Final = FileKind(
    what="trace store",
    application_id=int.from_bytes(b"lgvS"),
    version=5,
    schema=(*map(translate, TABLES), _CALLS_INDEX, _ENDED),
    error=StoreError,
    migrations={1: _FROM_1, 2: (), 3: ("ALTER TABLE rewards ADD COLUMN choice INTEGER",), 4: _FROM_4},
)


#: Steps of SQLite's machine between two looks at the clock.
_STEPS: Final = 10_000


def _values(values: Sequence[Any]) -> list[Any]:
    return [json.dumps(value) if isinstance(value, list) else value for value in values]


class SQLiteTransaction(Transaction):
    """See `Transaction`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__()
        self._connection = connection
        self.now = time.time()

    def _run(self, statement: str, values: Sequence[Any]) -> Any:
        return self._connection.execute(translate(statement), _values(values))

    def change_each(self, statement: str, values: Sequence[Sequence[Any]]) -> int:
        """See `Transaction.change_each`."""
        return self._connection.executemany(translate(statement), values).rowcount

    def insert(self, table: str, new: Sequence[rows.Row]) -> None:
        """See `Transaction.insert`."""
        columns, _ = rows.TABLES[table]
        for row in new:
            self._insert(table, columns, row)

    def insert_call(self, row: rows.Row) -> int:
        """See `Transaction.insert_call`."""
        return self._insert("calls", rows.FOLDED_COLUMNS, row)

    def _insert(self, table: str, columns: str, row: rows.Row) -> int:
        try:
            return self._connection.execute(rows.insert(table, columns), row).lastrowid or 0
        except sqlite3.IntegrityError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_CONSTRAINT_UNIQUE:
                raise rows.exists_already(table, row) from error
            raise

    def end(self, rollout_id: str) -> None:
        """See `Transaction.end`."""
        self._connection.execute("INSERT INTO ended (rollout_id) VALUES (?)", (rollout_id,))


class SQLiteDatabase(Database):
    """A connection to the file at ``path``, which is created (mode 0600) when it does not exist; None: in memory.

    With ``identity`` (from `file_identity`) the connection is opened when first used, without it at once. ``only_look`` as in
    `open_sqlite`.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        busy_timeout_s: float,
        identity: tuple[int, int] | None = None,
        only_look: bool = False,
    ) -> None:
        super().__init__()
        self._only_look = only_look
        self.path = path
        self.shown = "memory://" if path is None else str(path)
        self._busy_timeout_s = busy_timeout_s
        self.identity = identity or (0, 0)
        if path is None:
            self._connection = open_in_memory(TRACE_STORE)
        elif identity is None:
            self._connection = open_sqlite(TRACE_STORE, path, busy_timeout_s=busy_timeout_s, only_look=only_look)
            self.identity = file_identity(path)

    def run(self, work: Callable[[Transaction], None], *, alone: bool = False) -> None:
        """See `Database.run`."""
        with self._lock:
            try:
                connection = self._open()
                connection.execute("BEGIN IMMEDIATE")
                work(SQLiteTransaction(connection))
                connection.execute("COMMIT")
            except BaseException as error:
                self._roll_back()
                if is_busy(error):
                    described = self.describe(error)
                    raise DatabaseUnavailable(described.message, hint=described.hint) from error
                raise

    def fetch(self, query: str, values: Sequence[Any] = (), *, limit_s: float | None = None) -> list[rows.Row]:
        """See `Database.fetch`."""
        with self._lock:
            try:
                connection = self._open()
                if limit_s is None:
                    return connection.execute(translate(query), _values(values)).fetchall()
                until = time.monotonic() + limit_s
                connection.set_progress_handler(lambda: time.monotonic() > until, _STEPS)
                try:
                    return connection.execute(translate(query), _values(values)).fetchall()
                finally:
                    connection.set_progress_handler(None, 0)
            except sqlite3.Error as error:
                if limit_s is not None and getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_INTERRUPT:
                    raise self.too_slow(limit_s) from error
                raise self.describe(error) from error

    def ping(self) -> None:
        """See `Database.ping`."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            require_writable(TRACE_STORE, self.path, self._open(), "calls", "rollouts")
        except (sqlite3.Error, OSError) as error:
            raise self.describe(error) from error
        finally:
            self._lock.release()

    def vacuum(self) -> None:
        """Rewrites the file without what was deleted. Raises `StoreError`."""
        with self._lock:
            try:
                self._open().execute("VACUUM")
                self._open().execute("PRAGMA wal_checkpoint(TRUNCATE)")
            except sqlite3.Error as error:
                raise self.describe(error) from error

    def describe(self, error: BaseException) -> StoreError:
        """See `Database.describe`."""
        described = describe(TRACE_STORE, self.shown, error)
        return described if isinstance(described, StoreError) else StoreError(str(described))

    def _open(self) -> sqlite3.Connection:
        if self._closed:
            raise StoreError(f"trace store {self.shown} is closed", hint="open it again to go on")
        if self.path is not None:
            require_same_file(TRACE_STORE, self.path, self.identity)
            if self._connection is None:
                self._connection = open_sqlite(
                    TRACE_STORE,
                    self.path,
                    busy_timeout_s=self._busy_timeout_s,
                    expected=self.identity,
                    only_look=self._only_look,
                )
        return self._connection

    def _roll_back(self) -> None:
        try:
            if self._connection is not None and self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            self._disconnect()  # closing rolls back; the next transaction opens another connection

    def _disconnect(self) -> None:
        if self.path is not None or self._closed:  # a database in memory ends with its connection
            super()._disconnect()


class SQLiteStore(RolloutQueue):
    """A `RolloutQueue` on the SQLite file at ``path``, which is created (mode 0600) when it does not exist.

    ``path`` None: in memory, for tests; nothing outlives the object. A commit survives the death of the process. Several
    processes may write to one file: each waits for the others, ``busy_timeout_s`` seconds at most. ``span_queue`` is how
    many spans may wait before more are dropped. For threads and forks see `TraceStore`. With ``only_look`` a file that may
    not be written is opened for reading.

    Fails closed: `StoreError` names the file and what to do, nothing is half-written, and once a full disk has space
    again the same object works again. Raises `StoreError` when the file cannot be opened.
    """

    _tables: ClassVar = ("ended", *RolloutQueue._tables)
    _ended: ClassVar = "SELECT ended.seq AS place, queue.* FROM ended JOIN queue USING (rollout_id) WHERE ended.seq > ?"
    _size: ClassVar = (
        "SELECT page_count * page_size, freelist_count * page_size"
        " FROM pragma_page_count, pragma_freelist_count, pragma_page_size"
    )

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        *,
        busy_timeout_s: float = 10.0,
        span_queue: int = 10_000,
        only_look: bool = False,
    ) -> None:
        # Absolute: the file is opened again later, wherever the program's working directory is by then.
        absolute = None if path is None else Path(path).absolute()
        writing = SQLiteDatabase(absolute, busy_timeout_s=busy_timeout_s, only_look=only_look)
        reading = writing
        if absolute is not None:
            self.path = absolute
            reading = SQLiteDatabase(
                absolute, busy_timeout_s=busy_timeout_s, identity=writing.identity, only_look=only_look
            )
        super().__init__(writing.shown, writing, reading, span_queue=span_queue)
        self._database = reading

    def vacuum(self) -> None:
        """Rewrites the file without what was deleted. It needs as much space again meanwhile, and writers wait."""
        self._check()
        self._database.vacuum()
