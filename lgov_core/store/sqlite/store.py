"""The default store: one SQLite file with what happened and what is to be done."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Sequence
from contextlib import closing

from lgov_core._util.sqlite_file import describe, open_sqlite
from lgov_core.store import encoding, rows
from lgov_core.store.retention import Pruned, StoreStatistics, chosen, portions, require_choice
from lgov_core.store.sqlite import queue as sqlite_queue
from lgov_core.store.sqlite import retention as sqlite_retention
from lgov_core.store.sqlite.schema import TRACE_STORE
from lgov_core.store.sqlite.traces import SQLiteTraces
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
        why = encoding.readable(reason)
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
            (*given, max(limit, 0)),
        )
        entries = tuple(rows.entry_of(row[1:]) for row in found)
        return EndedRollouts(entries, found[-1][0] if found else cursor)

    # ------------------------------------------------------------------ retention

    def prune(
        self,
        *,
        before: float | None = None,
        run_id: str | None = None,
        keep_last: int | None = None,
        dry_run: bool = False,
    ) -> Pruned:
        """Deletes rollouts with all that belongs to them: those that fit everything given. See `Retention.prune`."""
        require_choice(before, run_id, keep_last)
        total = Pruned()
        for ids in portions(chosen(self._last_heard(run_id), before, keep_last)):
            total += self._submit(
                lambda connection, ids=ids: sqlite_retention.delete_rollouts(connection, ids, dry_run=dry_run)
            ).result()
        if before is not None and run_id is None:
            total += self._submit(
                lambda connection: sqlite_retention.delete_unattributed(connection, before, dry_run=dry_run)
            ).result()
        return total

    def vacuum(self) -> None:
        """Writes the file anew, without what was deleted. It needs as much room again while it does, and others wait."""
        self._check()
        try:
            connection = open_sqlite(
                TRACE_STORE, self.path, busy_timeout_s=self._busy_timeout_s, expected=self._writer.identity
            )
            with closing(connection):
                connection.execute("VACUUM")
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.Error as error:
            raise describe(TRACE_STORE, self.path, error) from error

    def statistics(self) -> StoreStatistics:
        """What is in the file, and how large it is, the log of what was written last not counted."""
        self._check()
        ((rollouts, attempts, opened, calls, rewards, spans, pages, free, page),) = self._reader.fetch(
            sqlite_retention.COUNTS, ()
        )
        heard = dict(self._last_heard(None))
        states = self._reader.fetch("SELECT state, count(*) FROM queue GROUP BY state", ())
        times = sorted(at for at in heard.values() if at)
        return StoreStatistics(
            rollouts=rollouts,
            unannounced=len(heard) - rollouts,
            attempts=attempts,
            open_attempts=opened,
            calls=calls,
            rewards=rewards,
            spans=spans,
            size_bytes=pages * page,
            free_bytes=free * page,
            oldest=times[0] if times else None,
            newest=times[-1] if times else None,
            queue={RolloutState(state): count for state, count in states},
        )

    def unannounced(self) -> list[Attempt]:
        """Attempts that calls and spans name and nobody opened. See `Retention.unannounced`."""
        self._check()
        return [Attempt(*row) for row in self._reader.fetch(sqlite_retention.UNANNOUNCED, ())]

    def _last_heard(self, run_id: str | None) -> list[tuple[str, float]]:
        self._check()
        where, given = ("", ()) if run_id is None else (sqlite_retention.OF_RUN, (run_id,))
        return [(row[0], row[1]) for row in self._reader.fetch(sqlite_retention.LAST_HEARD.format(where=where), given)]


def _clock(now: float | None) -> float:
    return time.time() if now is None else now
