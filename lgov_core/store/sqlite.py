"""The default store: one SQLite file with what happened and what is to be done."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Sequence

from lgov_core.store import rows, sqlite_queue
from lgov_core.store.sqlite_traces import SQLiteTraces
from lgov_core.store.work import Claim, EndedRollouts, QueueEntry, RolloutConfig, RolloutState, require_lease
from lgov_core.types import Attempt, Rollout


class SQLiteStore(SQLiteTraces):
    """A `RolloutQueue` on one SQLite file; see `SQLiteTraces` for how it is opened, who may call it and how it fails.

    SQLite lets one process write at a time, so several workers may claim from one file, on one machine.
    """

    def enqueue(
        self, rollouts: Sequence[Rollout], config: RolloutConfig | None = None, *, now: float | None = None
    ) -> None:
        """Adds rollouts to the store and to the queue. An id that exists raises `StoreError`; then none is added."""
        new = [rows.rollout_row(rollout) for rollout in rollouts]
        names = [(rollout.rollout_id, rollout.run_id) for rollout in rollouts]

        def run(connection: sqlite3.Connection) -> None:
            self._insert_rollouts(connection, new)
            sqlite_queue.enqueue(connection, names, config or RolloutConfig(), _clock(now))

        self._submit(run, len(new)).result()

    def claim(
        self, worker_id: str, limit: int = 1, *, lease_s: float, run_id: str | None = None, now: float | None = None
    ) -> list[Claim]:
        """Hands out at most ``limit`` rollouts that wait, and opens an attempt of each. See `RolloutQueue.claim`."""
        require_lease(lease_s)

        def run(connection: sqlite3.Connection) -> list[Claim]:
            return sqlite_queue.claim(connection, worker_id, limit, lease_s, run_id, _clock(now))

        return self._submit(run, limit).result()

    def heartbeat(
        self,
        worker_id: str,
        *,
        lease_s: float,
        attempts: Iterable[tuple[str, int]] | None = None,
        now: float | None = None,
    ) -> list[Attempt]:
        """Extends leases, and returns what the worker still has in hand. See `RolloutQueue.heartbeat`."""
        require_lease(lease_s)
        asked = None if attempts is None else list(attempts)

        def run(connection: sqlite3.Connection) -> list[Attempt]:
            return sqlite_queue.heartbeat(connection, worker_id, lease_s, asked, _clock(now))

        return self._submit(run).result()

    def expire(self, *, now: float | None = None) -> list[Attempt]:
        """Closes each attempt of the queue whose time or lease has run out. See `RolloutQueue.expire`."""
        return self._submit(lambda connection: sqlite_queue.expire(connection, _clock(now))).result()

    def cancel(self, rollout_id: str, reason: str, *, now: float | None = None) -> QueueEntry:
        """Takes a rollout out of the queue for good. See `RolloutQueue.cancel`."""
        why = rows.readable(reason)
        return self._submit(lambda connection: sqlite_queue.cancel(connection, rollout_id, why, _clock(now))).result()

    def queue_entries(
        self,
        *,
        run_id: str | None = None,
        ids: Sequence[str] | None = None,
        states: Iterable[RolloutState] | None = None,
    ) -> list[QueueEntry]:
        """Rollouts as the queue sees them, in the order of enqueuing; all, or those that fit everything given."""
        self._check()
        where, given = sqlite_queue.selection(run_id, ids, states)
        return [rows.entry_of(row) for row in self._reader.read("queue", rows.ENTRY_COLUMNS, where, given)]

    def ended_since(self, cursor: int = 0, *, limit: int = 100, run_id: str | None = None) -> EndedRollouts:
        """Rollouts that ended after the place ``cursor``. See `RolloutQueue.ended_since`."""
        self._check()
        columns = ", ".join(f"queue.{name.strip()}" for name in rows.ENTRY_COLUMNS.split(","))
        of_run = "" if run_id is None else "AND queue.run_id = ?"
        given = (cursor,) if run_id is None else (cursor, run_id)
        found = self._reader.fetch(
            f"SELECT ended.seq, {columns} FROM ended JOIN queue USING (rollout_id)"
            f" WHERE ended.seq > ? {of_run} ORDER BY ended.seq LIMIT ?",
            (*given, limit),
        )
        entries = tuple(rows.entry_of(row[1:]) for row in found)
        return EndedRollouts(entries, found[-1][0] if found else cursor)


def _clock(now: float | None) -> float:
    return time.time() if now is None else now
