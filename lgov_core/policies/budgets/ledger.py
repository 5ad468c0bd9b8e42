"""The ledger of budgets: in memory, in a SQLite file that processes share, or in PostgreSQL, which machines share.

Beside it are amounts, limits and prices.

The user says what models and tools cost. lgov ships no prices: they change, and a wrong one is worse than none.
"""

from __future__ import annotations

import logging
import math
import os
import re
import sqlite3
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta

from lgov_core._util.sqlite_file import FileKind, describe, file_identity, open_sqlite, require_same_file
from lgov_core.errors import PolicyError
from lgov_core.policies.base import BoundedPolicy
from lgov_core.policies.budgets.counting import SharedState
from lgov_core.settings import without_password
from lgov_core.types import Decision

_LOG = logging.getLogger("lgov.policies")
#: One US dollar. Money is counted in whole billionths of one, so that sums are exact.
NANO: Final = 1_000_000_000

Lack: TypeAlias = Literal["cost", "tokens", "calls", "seconds", "budgets", "closed"]


@dataclass(frozen=True, slots=True)
class Amount:
    """Something to spend: billionths of a US dollar, tokens and calls."""

    nano_usd: int = 0
    tokens: int = 0
    calls: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.nano_usd + other.nano_usd, self.tokens + other.tokens, self.calls + other.calls)

    def __sub__(self, other: Amount) -> Amount:
        return Amount(self.nano_usd - other.nano_usd, self.tokens - other.tokens, self.calls - other.calls)


@dataclass(frozen=True, slots=True)
class BudgetLimits:
    """The most that a budget may spend; None means no limit. ``seconds`` since its first action."""

    nano_usd: int | None = None
    tokens: int | None = None
    calls: int | None = None
    seconds: float | None = None

    def lack(self, total: Amount, elapsed_s: float) -> Lack | None:
        """Returns the first amount that would not suffice, or None."""
        if self.seconds is not None and elapsed_s >= self.seconds:
            return "seconds"
        if self.nano_usd is not None and total.nano_usd > self.nano_usd:
            return "cost"
        if self.tokens is not None and total.tokens > self.tokens:
            return "tokens"
        if self.calls is not None and total.calls > self.calls:
            return "calls"
        return None


@dataclass(frozen=True, slots=True)
class Balance:
    """A budget at one moment: what is spent for good, what is set aside for calls under way, and its age in seconds."""

    spent: Amount = Amount()
    reserved: Amount = Amount()
    elapsed_s: float = 0.0

    @property
    def total(self) -> Amount:
        """Spent and set aside together: what limits are compared with."""
        return self.spent + self.reserved


_PRICE: Final = "{input: 2.5, output: 10}: US dollars for a million tokens"
_MILLION = 1_000_000
#: What a call or a million tokens cost.
Dollars = Annotated[float, Meta(ge=0, lt=_MILLION, description="US dollars, 0 or more, as a number")]


class Price(NamedTuple):
    """Of a model: US dollars for a million tokens of the prompt and of the reply."""

    input: float
    output: float

    def nano_usd(self, input_tokens: int, output_tokens: int) -> int:
        """The price of the given numbers of tokens in billionths of a dollar, rounded up."""
        return math.ceil((input_tokens * self.input + output_tokens * self.output) * (NANO // _MILLION))


class PriceOption(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A price as it is written."""

    input: Dollars
    output: Dollars


ModelPrice = Annotated[
    PriceOption | Annotated[Sequence[Dollars], Meta(min_length=2, max_length=2)], Meta(description=_PRICE)
]


def price_of(written: Any) -> Price:
    """The price that an option, checked, says: by name, or two numbers."""
    return Price(written.input, written.output) if isinstance(written, PriceOption) else Price(*written)


def find(table: Mapping[str, Any], name: str) -> Any:
    """The entry for ``name``: its own, or that of the longest glob that fits it; None when there is none."""
    if name in table:
        return table[name]
    fitting = [glob for glob in table if fnmatchcase(name, glob)]
    return table[max(fitting, key=len)] if fitting else None


BUSY_TIMEOUT_S: Final = 1.5


_SCHEMA: Final = "lgov_budgets"
#: A commit counts once it is on the disk; the transaction of a process that was stopped holds up the others for so long.
_SETTINGS: Final = (
    *(f"{name} = {BUSY_TIMEOUT_S * 1000:.0f}" for name in ("lock_timeout", "statement_timeout")),
    *(f"search_path = {_SCHEMA}", "synchronous_commit = on", "idle_in_transaction_session_timeout = 5000"),
)
#: The SQLSTATEs of a server that others keep busy.
_BUSY: Final = ("55P03", "57014")


class _ServerConnection:
    """A connection to PostgreSQL that takes the statements of a SQLite file of ``kind``, whose tables are made when missing.

    One transaction at a time is open among those with the same ``lock``, so that each sees what those before it did. A
    connection that was lost is made anew for the next transaction. Raises ``kind.error``, whatever fails.
    """

    def __init__(self, kind: FileKind, address: str, lock: str) -> None:
        printed = without_password(address)
        self._kind, self._address, self._name = kind, address, f"{kind.what} {printed}"
        if printed.endswith("://...") or ":...@" in printed or "password=" in address:
            hint = "write postgresql://user@host/database, and keep the password in PGPASSWORD or ~/.pgpass"
            raise kind.error(f"the address of the {kind.what} cannot be read, or holds a password", hint=hint)
        try:
            import psycopg
            from psycopg import sql
        except ImportError as error:
            raise kind.error(f"{self._name} needs psycopg: {error}", hint="pip install 'lgov[postgres]'") from error
        self._psycopg, self._connection = psycopg, None
        begin = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SELECT pg_advisory_xact_lock(hashtextextended({}, 0))"
        self._begin = sql.SQL(begin).format(f"{kind.what} {lock}")
        self.execute("BEGIN IMMEDIATE")
        if not self.execute("SELECT 1 FROM pg_tables WHERE schemaname = ?", (_SCHEMA,)).fetchone():
            self.execute("SELECT pg_advisory_xact_lock(hashtextextended(?, 0))", (_SCHEMA,))
            for statement in (f"CREATE SCHEMA IF NOT EXISTS {_SCHEMA}", *kind.schema):
                self.execute(statement)
        self.execute("COMMIT")

    def execute(self, statement: str, values: Sequence[Any] = ()) -> Any:
        """Runs a statement, and returns its cursor."""
        begins = statement == "BEGIN IMMEDIATE"
        text = self._begin if begins else statement.replace("?", "%s").encode()
        while True:
            had_one = self._connection is not None
            try:
                if self._connection is None:
                    self._connection = self._psycopg.connect(self._address, autocommit=True, connect_timeout=2)
                    for setting in _SETTINGS:
                        self._connection.execute(f"SET {setting}")
                return self._connection.execute(text, values or None)
            except self._psycopg.Error as error:
                self.close()
                if not (begins and had_one) or error.sqlstate in _BUSY:
                    hint = "see whether the server runs, and whether this user may make a schema there"
                    raise self._kind.error(f"{self._name}: {' '.join(str(error).split())}", hint=hint) from error

    @property
    def in_transaction(self) -> bool:
        """As of a connection to SQLite."""
        return self._connection is not None

    def close(self) -> None:
        """Closes the connection; the next transaction opens another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class SharedDatabase(SharedState):
    """A database of ``kind`` in the file at ``path``, which is made (mode 0600) when it is missing, or in memory.

    With a ``lock`` it may be the address ``postgresql://...`` of a server, where transactions with one lock follow on each
    other. Each change is one transaction. Waits `BUSY_TIMEOUT_S` for other threads and processes at most. May be used from
    several threads at once, and after a fork: a child opens the file anew, or goes on with a copy of the memory. Raises the
    kind's error when the file cannot be used.
    """

    def __init__(
        self, kind: FileKind, path: str | os.PathLike[str] | None, *, more: tuple[str, ...] = (), lock: str = ""
    ) -> None:
        self.path = None if path is None else Path(path)
        is_address = lock and isinstance(path, str) and path.startswith(("postgresql://", "postgres://"))
        self._address = str(path) if is_address else None
        self._kind, self._lock_name = kind, lock
        self._identity: tuple[int, int] | None = None
        self._connection: Any = None
        self._memory_schema = (*kind.schema, *more)
        self._open()
        super().__init__()

    def close(self) -> None:
        """Closes the file; the next call opens it again. What is kept in memory is gone."""
        with self._lock:
            self._disconnect()

    def ping(self) -> None:
        """Raises the kind's error while nothing can be changed: also without a table, or the right to read and insert."""
        with self.transaction() as connection:
            for statement in self._kind.schema:
                for table in re.findall(r"CREATE TABLE (?:IF NOT EXISTS )?(\w+)", statement):
                    connection.execute(f"SELECT 1 FROM {table} LIMIT 1")  # SQLite explains from memory
                    connection.execute(f"EXPLAIN INSERT INTO {table} DEFAULT VALUES")

    @contextmanager
    def transaction(self) -> Generator[sqlite3.Connection]:
        """A connection within a transaction, committed at the end of the block and rolled back by an exception."""
        with self._connected() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _connected(self) -> Generator[sqlite3.Connection]:
        """The connection, which no other thread uses meanwhile. Raises the kind's error."""
        name = self._address or self.path or Path(":memory:")
        if not self._lock.acquire(timeout=BUSY_TIMEOUT_S):
            raise self._kind.error(f"{self._kind.what} {name}: other threads held it for {BUSY_TIMEOUT_S:g} s")
        try:
            yield self._open()
        except (sqlite3.Error, OSError, OverflowError) as error:
            if self.path is not None:
                self._disconnect()
            raise describe(self._kind, name, error) from error
        finally:
            self._lock.release()

    def _open(self) -> sqlite3.Connection:
        if self._address is not None:
            if self._connection is None:
                self._connection = _ServerConnection(self._kind, self._address, self._lock_name)
            return self._connection
        if self.path is None:
            if self._connection is None:
                self._connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
                for statement in self._memory_schema:
                    self._connection.execute(statement)
            return self._connection
        if self._identity is not None:
            require_same_file(self._kind, self.path, self._identity)
        if self._connection is None:
            self._connection = open_sqlite(
                self._kind, self.path, busy_timeout_s=BUSY_TIMEOUT_S, expected=self._identity
            )
            self._identity = file_identity(self.path)
        return self._connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def before_fork(self) -> None:
        """Closes the file, so that no child inherits the connection. Called by the interpreter."""
        super().before_fork()
        if self.path is not None:
            self._disconnect()


class StoredPolicy(BoundedPolicy):
    """Base of the policies that keep something in a `SharedDatabase`."""

    def store_failed(self, rule: str, reason: str, error: PolicyError) -> Decision:
        """A deny because the policy failed: an endpoint answers 503. Agents read ``reason``; the log has the ``error``."""
        _LOG.error("%s failed: %s", self.name, error.message)
        return self.deny(rule, f"{reason}; the log has the cause.").changed(fault=True)


#: Reservations in memory that may wait for their settlement; the oldest one beyond counts as spent.
MAX_OPEN: Final = 100_000

#: In words that SQLite and PostgreSQL both understand.
LEDGER: Final = FileKind(
    what="budget ledger",
    application_id=int.from_bytes(b"lgvB"),
    version=1,
    schema=(
        """CREATE TABLE IF NOT EXISTS budgets (
            owner TEXT NOT NULL, key TEXT NOT NULL,
            nano_usd bigint NOT NULL, tokens bigint NOT NULL, calls bigint NOT NULL,
            reserved_nano_usd bigint NOT NULL, reserved_tokens bigint NOT NULL, reserved_calls bigint NOT NULL,
            since double precision NOT NULL, until double precision NOT NULL,
            PRIMARY KEY (owner, key)
        )""",
        """CREATE TABLE IF NOT EXISTS reservations (
            owner TEXT NOT NULL, operation TEXT NOT NULL, key TEXT NOT NULL,
            nano_usd bigint NOT NULL, tokens bigint NOT NULL, calls bigint NOT NULL,
            PRIMARY KEY (owner, operation)
        )""",
    ),
    error=PolicyError,
)

_MOVE = (
    "UPDATE budgets SET nano_usd = nano_usd + ?, tokens = tokens + ?, calls = calls + ?,"
    " reserved_nano_usd = reserved_nano_usd + ?, reserved_tokens = reserved_tokens + ?,"
    " reserved_calls = reserved_calls + ? WHERE owner = ? AND key = ?"
)
_COLUMNS = "nano_usd, tokens, calls, reserved_nano_usd, reserved_tokens, reserved_calls, since, until"
#: What a ledger in memory has beside the tables of the file, so that its budgets can be dropped.
_IN_MEMORY: Final = ("CREATE TABLE ended (key TEXT UNIQUE)", "CREATE TABLE dropped (key TEXT PRIMARY KEY)")


@dataclass(slots=True)
class _Debt:
    """The use of an operation, or all that was set aside for it (None). ``seen``: that was there, so nothing else is spent."""

    key: str
    operation: str
    actual: Amount | None
    now: float = 0.0
    seen: bool = False


class Ledger(SharedDatabase):
    """The budgets of the policy called ``owner``, in the file or on the server at ``path`` or, without one, in memory.

    Any number of processes, and of policies with different names, may use one file or database. What a process that died
    had set aside stays set aside, since it is unknown whether it was spent, until `reset`. What a living one cannot book, of
    `MAX_OPEN` calls at most, is booked before the ledger is used again: once, also where a commit got no answer.

    In memory there are ``max_budgets`` at most. When they are used up, those that have ended are dropped, oldest first; one
    that comes back after that is refused, because what it had spent is not known any more, and so is a new one when none has
    ended. See `SharedDatabase`.
    """

    def __init__(self, path: str | os.PathLike[str] | None, owner: str, *, max_budgets: int = 100_000) -> None:
        self.owner = owner
        self.max_budgets = max_budgets
        self._owed: deque[_Debt] = deque()
        super().__init__(LEDGER, path, more=_IN_MEMORY, lock=owner)

    def flush(self) -> None:
        """Books what is owed, for the last time: what cannot be booked stays set aside, and is logged."""
        try:
            self._book_owed()
        except PolicyError as error:
            _LOG.error("%s: what %d calls used is never booked: %s", self.owner, len(self._owed), error.message)

    def after_fork_in_child(self) -> None:
        """See `SharedState`: the parent books what it owes."""
        super().after_fork_in_child()
        self._owed.clear()

    @contextmanager
    def transaction(self, *, unconfirmed: _Debt | None = None) -> Generator[sqlite3.Connection]:
        """See `SharedDatabase.transaction`. What is owed is booked first; so is ``unconfirmed`` when the commit fails."""
        self._book_owed()
        commits = False
        try:
            with super().transaction() as connection:
                yield connection
                commits = True
        except BaseException as error:
            if commits and unconfirmed is not None:
                self._owe(unconfirmed, error)
            raise

    def reserve(
        self, key: str, operation: str | None, amount: Amount, limits: BudgetLimits, now: float, *, again: bool = False
    ) -> tuple[Lack, Balance] | None:
        """Sets ``amount`` aside for a call, or says what is lacking, with the budget's balance, and changes nothing.

        ``key`` names the budget, ``operation`` the call, ``now`` is the policy's clock in seconds. ``again`` replaces what
        the operation had set aside before. Without an operation the amount is spent at once.
        """
        unused = None if operation is None else _Debt(key, operation, Amount(), seen=True)
        with self.transaction(unconfirmed=unused) as connection:  # in case it was set aside: the call is not made
            refusal = self._open_budget(connection, key)
            if refusal is not None:
                return refusal, Balance()
            balance = self._balance(connection, key, now)
            before = self._reserved(connection, operation)
            replaced = before[1] if before is not None and again and before[0] == key else None
            total = balance.total + amount if replaced is None else balance.total - replaced + amount
            lack = limits.lack(total, balance.elapsed_s)
            if lack is not None:
                return lack, balance
            if operation is None:
                self._move(connection, key, amount, Amount())
                return None
            self._close(connection, operation, None if replaced is None else Amount())
            self._set_aside(connection, key, operation, amount)
            return None

    def settle(self, key: str, operation: str, actual: Amount | None, now: float) -> None:
        """Spends what was set aside for the operation: ``actual`` of it, or all where None.

        What was never set aside is spent from ``key`` when ``actual`` says how much. Raises `PolicyError` when it is booked
        later.
        """
        self._book(_Debt(key, operation, actual, now))

    def release(self, operation: str) -> None:
        """Gives back what was set aside for the operation, if anything still is. Raises as `settle`."""
        self._book(_Debt("", operation, Amount(), seen=True))

    def balance(self, key: str | None, now: float) -> Balance:
        """One budget, or the sum of all; its age is then that of the oldest."""
        query = f"SELECT {_COLUMNS} FROM budgets WHERE owner = ? AND key = coalesce(?, key)"
        with self.transaction() as connection:
            rows = connection.execute(query, (self.owner, key)).fetchall()
        spent = reserved = Amount()
        for row in rows:
            spent, reserved = spent + Amount(*row[:3]), reserved + Amount(*row[3:6])
        return Balance(spent, reserved, max((max(row[7], now) - row[6] for row in rows), default=0.0))

    def reset(self, key: str | None) -> None:
        """Forgets one budget, or all, with what was set aside."""
        with self.transaction() as connection:
            for table in ("budgets", "reservations"):
                connection.execute(f"DELETE FROM {table} WHERE owner = ? AND key = coalesce(?, key)", (self.owner, key))
            for table in ("ended", "dropped") if self.path is None else ():
                connection.execute(f"DELETE FROM {table} WHERE key = coalesce(?, key)", (key,))

    def ended(self, key: str) -> None:
        """Notes that no more is expected from a budget, so that it may be dropped from memory."""
        if self.path is None:
            with self.transaction() as connection:
                connection.execute("INSERT OR REPLACE INTO ended SELECT key FROM budgets WHERE key = ?", (key,))

    def ended_before(self, day: str) -> None:
        """As `ended`, for the budgets of the days before ``day``, with which their keys begin."""
        if self.path is None:
            with self.transaction() as connection:
                connection.execute("INSERT OR IGNORE INTO ended SELECT key FROM budgets WHERE key < ?", (day,))

    # ------------------------------------------------------------------ what is owed

    def _book_owed(self) -> None:
        while self._owed:
            try:
                debt = self._owed.popleft()
            except IndexError:  # another thread has it
                return
            self._book(debt)

    def _book(self, debt: _Debt) -> None:
        try:
            while not self._is_booked(debt):
                pass
        except BaseException as error:
            self._owe(debt, error)
            raise

    def _is_booked(self, debt: _Debt) -> bool:
        """Books it in one transaction; False where it only set aside what is to be spent, to know it again."""
        with super().transaction() as connection:
            if self._close(connection, debt.operation, debt.actual):
                debt.seen = True  # a later try that finds it no more has nothing left to do
                return True
            if debt.seen or debt.actual is None or self._open_budget(connection, debt.key) is not None:
                return True
            self._balance(connection, debt.key, debt.now)
            self._set_aside(connection, debt.key, debt.operation, debt.actual)
            return False

    def _owe(self, debt: _Debt, error: BaseException) -> None:
        cause = error.__cause__
        is_too_large = isinstance(cause, OverflowError) or str(getattr(cause, "sqlstate", None)).startswith("22")
        if is_too_large or len(self._owed) >= MAX_OPEN:
            _LOG.error("%s: what %s used is never booked: %s", self.owner, debt.operation, error)
        else:
            self._owed.append(debt)

    # ------------------------------------------------------------------ within a transaction

    def _open_budget(self, connection: sqlite3.Connection, key: str) -> Lack | None:
        """Makes room in memory for a budget that may be new; says why there is none."""
        if self.path is not None:
            return None
        if connection.execute("SELECT 1 FROM budgets WHERE key = ?", (key,)).fetchone():
            connection.execute("DELETE FROM ended WHERE key = ?", (key,))  # it goes on after all
            return None
        if connection.execute("SELECT 1 FROM dropped WHERE key = ?", (key,)).fetchone():
            return "closed"
        if connection.execute("SELECT count(*) FROM budgets").fetchone()[0] < self.max_budgets:
            return None
        (dropped,) = connection.execute("SELECT count(*) FROM dropped").fetchone()
        oldest = connection.execute(
            "SELECT key FROM ended JOIN budgets USING (key) WHERE reserved_calls = 0 ORDER BY ended.rowid LIMIT 1"
        ).fetchone()
        if oldest is None or dropped >= 10 * self.max_budgets:
            return "budgets"
        connection.execute("DELETE FROM budgets WHERE key = ?", oldest)
        connection.execute("DELETE FROM ended WHERE key = ?", oldest)
        connection.execute("INSERT INTO dropped VALUES (?)", oldest)
        return None

    def _balance(self, connection: sqlite3.Connection, key: str, now: float) -> Balance:
        connection.execute(
            f"INSERT INTO budgets (owner, key, {_COLUMNS}) VALUES (?, ?, 0, 0, 0, 0, 0, 0, ?, ?)"
            " ON CONFLICT (owner, key) DO UPDATE SET until = excluded.until WHERE budgets.until < excluded.until",
            (self.owner, key, now, now),
        )
        row = connection.execute(
            f"SELECT {_COLUMNS} FROM budgets WHERE owner = ? AND key = ?", (self.owner, key)
        ).fetchone()
        return Balance(Amount(*row[:3]), Amount(*row[3:6]), row[7] - row[6])

    def _reserved(self, connection: sqlite3.Connection, operation: str | None) -> tuple[str, Amount] | None:
        row = connection.execute(
            "SELECT key, nano_usd, tokens, calls FROM reservations WHERE owner = ? AND operation = ?",
            (self.owner, operation),
        ).fetchone()
        return None if row is None else (row[0], Amount(*row[1:]))

    def _set_aside(self, connection: sqlite3.Connection, key: str, operation: str, amount: Amount) -> None:
        self._move(connection, key, Amount(), amount)
        connection.execute(
            "INSERT INTO reservations VALUES (?, ?, ?, ?, ?, ?)",
            (self.owner, operation, key, amount.nano_usd, amount.tokens, amount.calls),
        )
        if self.path is None and connection.execute("SELECT count(*) FROM reservations").fetchone()[0] > MAX_OPEN:
            oldest = "SELECT operation FROM reservations ORDER BY rowid LIMIT 1"
            self._close(connection, connection.execute(oldest).fetchone()[0], None)  # which spends it

    def _move(self, connection: sqlite3.Connection, key: str, spent: Amount, reserved: Amount) -> None:
        amounts = (spent.nano_usd, spent.tokens, spent.calls, reserved.nano_usd, reserved.tokens, reserved.calls)
        connection.execute(_MOVE, (*amounts, self.owner, key))

    def _close(self, connection: sqlite3.Connection, operation: str, spent: Amount | None) -> bool:
        """Ends a reservation: ``spent`` of it is spent, or all where None. Whether there was one."""
        reservation = self._reserved(connection, operation)
        if reservation is None:
            return False
        key, reserved = reservation
        self._move(connection, key, reserved if spent is None else spent, Amount() - reserved)
        connection.execute("DELETE FROM reservations WHERE owner = ? AND operation = ?", (self.owner, operation))
        return True
