"""A ledger in a SQLite file, so that several processes spend from one budget."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from lgov_core._util.sqlite_file import FileKind, describe, file_identity, open_sqlite, require_same_file
from lgov_core.errors import PolicyError
from lgov_core.policies.budgets.bookkeeping import SharedState
from lgov_core.policies.budgets.ledger import Amount, Balance, Limits, Shortfall

LEDGER: Final = FileKind(
    what="budget ledger",
    application_id=int.from_bytes(b"lgvB"),
    version=1,
    schema=(
        """CREATE TABLE budgets (
            owner TEXT NOT NULL, key TEXT NOT NULL,
            nano_usd INTEGER NOT NULL, tokens INTEGER NOT NULL, calls INTEGER NOT NULL,
            reserved_nano_usd INTEGER NOT NULL, reserved_tokens INTEGER NOT NULL, reserved_calls INTEGER NOT NULL,
            since REAL NOT NULL, until REAL NOT NULL,
            PRIMARY KEY (owner, key)
        ) WITHOUT ROWID""",
        """CREATE TABLE reservations (
            owner TEXT NOT NULL, operation TEXT NOT NULL, key TEXT NOT NULL,
            nano_usd INTEGER NOT NULL, tokens INTEGER NOT NULL, calls INTEGER NOT NULL,
            PRIMARY KEY (owner, operation)
        ) WITHOUT ROWID""",
    ),
    error=PolicyError,
)

_MOVE = (
    "UPDATE budgets SET nano_usd = nano_usd + ?, tokens = tokens + ?, calls = calls + ?,"
    " reserved_nano_usd = reserved_nano_usd + ?, reserved_tokens = reserved_tokens + ?,"
    " reserved_calls = reserved_calls + ? WHERE owner = ? AND key = ?"
)
_COLUMNS = "nano_usd, tokens, calls, reserved_nano_usd, reserved_tokens, reserved_calls, since, until"


class FileLedger(SharedState):
    """The budgets of the policy called ``owner`` in the file at ``path``, which is made (mode 0600) when it is missing.

    Any number of processes, and of policies with different names, may use one file; each change is one transaction. What
    a process that died had set aside stays set aside, since it is unknown whether it was spent, until `reset`. Waits
    ``busy_timeout_s`` for other processes at most. Every method raises `PolicyError` when the file cannot be used.
    """

    def __init__(self, path: str | os.PathLike[str], owner: str, *, busy_timeout_s: float = 1.5) -> None:
        self.path = Path(path)
        self.owner = owner
        self._busy_timeout_s = busy_timeout_s
        self._connection: sqlite3.Connection | None = open_sqlite(LEDGER, self.path, busy_timeout_s=busy_timeout_s)
        self._identity = file_identity(self.path)
        super().__init__()

    def reserve(
        self, key: str, operation: str | None, amount: Amount, limits: Limits, now: float, *, again: bool = False
    ) -> Shortfall | None:
        """See `lgov_core.policies.budgets.ledger.Ledger.reserve`."""
        with self._transaction() as connection:
            balance = self._balance(connection, key, now)
            before = self._reserved(connection, operation)
            replaced = before[1] if before is not None and again and before[0] == key else None
            total = balance.total + amount if replaced is None else balance.total - replaced + amount
            lack = limits.lack(total, balance.elapsed_s)
            if lack is not None:
                return Shortfall(lack, balance)
            if operation is None:
                self._move(connection, key, amount, Amount())
                return None
            if before is not None:
                spent = Amount() if replaced is not None else before[1]
                self._move(connection, before[0], spent, Amount() - before[1])
            self._move(connection, key, Amount(), amount)
            connection.execute(
                "INSERT OR REPLACE INTO reservations VALUES (?, ?, ?, ?, ?, ?)",
                (self.owner, operation, key, amount.nano_usd, amount.tokens, amount.calls),
            )
            return None

    def settle(self, key: str, operation: str, actual: Amount | None, now: float) -> None:
        """See `lgov_core.policies.budgets.ledger.Ledger.settle`."""
        with self._transaction() as connection:
            found = self._reserved(connection, operation)
            if found is not None:
                self._move(connection, found[0], found[1] if actual is None else actual, Amount() - found[1])
                self._forget(connection, operation)
            elif actual is not None:
                self._balance(connection, key, now)
                self._move(connection, key, actual, Amount())

    def release(self, operation: str) -> None:
        """See `lgov_core.policies.budgets.ledger.Ledger.release`."""
        with self._transaction() as connection:
            found = self._reserved(connection, operation)
            if found is not None:
                self._move(connection, found[0], Amount(), Amount() - found[1])
                self._forget(connection, operation)

    def balance(self, key: str | None, now: float) -> Balance:
        """See `lgov_core.policies.budgets.ledger.Ledger.balance`."""
        where, given = ("owner = ?", (self.owner,)) if key is None else ("owner = ? AND key = ?", (self.owner, key))
        with self._transaction() as connection:
            rows = connection.execute(f"SELECT {_COLUMNS} FROM budgets WHERE {where}", given).fetchall()
        spent = reserved = Amount()
        for row in rows:
            spent, reserved = spent + Amount(*row[:3]), reserved + Amount(*row[3:6])
        return Balance(spent, reserved, max((max(row[7], now) - row[6] for row in rows), default=0.0))

    def reset(self, key: str | None) -> None:
        """See `lgov_core.policies.budgets.ledger.Ledger.reset`."""
        where, given = ("owner = ?", (self.owner,)) if key is None else ("owner = ? AND key = ?", (self.owner, key))
        with self._transaction() as connection:
            for table in ("budgets", "reservations"):
                connection.execute(f"DELETE FROM {table} WHERE {where}", given)

    def ended(self, key: str) -> None:
        """Nothing: a file has room for the budgets that have ended."""

    def close(self) -> None:
        """Closes the file; the next call opens it again."""
        with self._lock:
            self._let_go()

    # ------------------------------------------------------------------ within a transaction

    def _balance(self, connection: sqlite3.Connection, key: str, now: float) -> Balance:
        connection.execute(
            f"INSERT INTO budgets (owner, key, {_COLUMNS}) VALUES (?, ?, 0, 0, 0, 0, 0, 0, ?, ?)"
            " ON CONFLICT DO UPDATE SET until = max(until, excluded.until)",
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

    def _move(self, connection: sqlite3.Connection, key: str, spent: Amount, reserved: Amount) -> None:
        given = (spent.nano_usd, spent.tokens, spent.calls, reserved.nano_usd, reserved.tokens, reserved.calls)
        connection.execute(_MOVE, (*given, self.owner, key))

    def _forget(self, connection: sqlite3.Connection, operation: str) -> None:
        connection.execute("DELETE FROM reservations WHERE owner = ? AND operation = ?", (self.owner, operation))

    @contextmanager
    def _transaction(self) -> Generator[sqlite3.Connection]:
        if not self._lock.acquire(timeout=self._busy_timeout_s):
            raise PolicyError(f"budget ledger {self.path}: other threads held it for {self._busy_timeout_s:g} s")
        try:
            require_same_file(LEDGER, self.path, self._identity)
            if self._connection is None:
                self._connection = open_sqlite(
                    LEDGER, self.path, busy_timeout_s=self._busy_timeout_s, expected=self._identity
                )
            self._connection.execute("BEGIN IMMEDIATE")
            yield self._connection
            self._connection.execute("COMMIT")
        except BaseException as error:
            self._let_go()  # which rolls back: it is unknown how far it got
            if isinstance(error, sqlite3.Error | OSError | OverflowError):
                raise describe(LEDGER, self.path, error) from error
            raise
        finally:
            self._lock.release()

    def _let_go(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def before_fork(self) -> None:
        """Closes the connection, so that a child does not inherit it. Called by the interpreter."""
        super().before_fork()
        self._let_go()
