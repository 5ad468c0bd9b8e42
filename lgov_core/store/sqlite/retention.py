"""Deleting from a SQLite store: what is done on the connection, inside the transaction of the one who writes."""

from __future__ import annotations

import json
import sqlite3
from typing import Any, Final

from lgov_core.store.retention import Pruned

#: Every rollout that anything names, with when it was last heard of.
LAST_HEARD: Final = (
    "SELECT rollout_id, max(at) FROM ("
    " SELECT rollout_id, created_at AS at FROM rollouts"
    " UNION ALL SELECT rollout_id, max(ifnull(ended_at, started_at)) FROM attempts GROUP BY rollout_id"
    " UNION ALL SELECT rollout_id, max(ended_at) FROM calls WHERE rollout_id IS NOT NULL GROUP BY rollout_id"
    " UNION ALL SELECT rollout_id, max(ifnull(ended_at, started_at)) FROM spans WHERE rollout_id IS NOT NULL"
    " GROUP BY rollout_id"
    " UNION ALL SELECT DISTINCT rollout_id, 0.0 FROM rewards WHERE rollout_id IS NOT NULL"
    ") {where} GROUP BY rollout_id"
)
OF_RUN: Final = "WHERE rollout_id IN (SELECT rollout_id FROM rollouts WHERE run_id = ?)"

COUNTS: Final = (
    "SELECT (SELECT count(*) FROM rollouts), (SELECT count(*) FROM attempts),"
    " (SELECT count(*) FROM attempts WHERE ended_at IS NULL), (SELECT count(*) FROM calls),"
    " (SELECT count(*) FROM rewards), (SELECT count(*) FROM spans),"
    " (SELECT page_count FROM pragma_page_count), (SELECT freelist_count FROM pragma_freelist_count),"
    " (SELECT page_size FROM pragma_page_size)"
)

#: Attempts that nobody opened, with when each began.
UNANNOUNCED: Final = (
    "SELECT rollout_id, attempt, min(at) FROM ("
    " SELECT rollout_id, ifnull(attempt, 1) AS attempt, started_at AS at FROM calls WHERE rollout_id IS NOT NULL"
    " UNION ALL SELECT rollout_id, ifnull(attempt, 1), started_at FROM spans WHERE rollout_id IS NOT NULL"
    ") AS named WHERE NOT EXISTS (SELECT 1 FROM attempts"
    " WHERE attempts.rollout_id = named.rollout_id AND attempts.attempt = named.attempt)"
    " GROUP BY rollout_id, attempt ORDER BY 3, 1, 2"
)

_NAMED: Final = "IN (SELECT value FROM json_each(?))"
_RUNS: Final = (
    f"SELECT rollout_id FROM attempts WHERE ended_at IS NULL AND rollout_id {_NAMED}"
    f" UNION SELECT rollout_id FROM queue WHERE state IN ('queued', 'requeued', 'running') AND rollout_id {_NAMED}"
)
_OLD_CALLS: Final = "rollout_id IS NULL AND ended_at < ?"
_OLD_SPANS: Final = "rollout_id IS NULL AND ifnull(ended_at, started_at) < ?"
_OLD_REWARDS: Final = f"rollout_id IS NULL AND response_id IN (SELECT response_id FROM calls WHERE {_OLD_CALLS})"


def delete_rollouts(connection: sqlite3.Connection, ids: list[str], *, dry_run: bool) -> Pruned:
    """Deletes rollouts and all that belongs to them, except those that are not over."""
    given = json.dumps(ids)
    spared = {rollout_id for (rollout_id,) in connection.execute(_RUNS, (given, given))}
    going = [rollout_id for rollout_id in ids if rollout_id not in spared]
    named = f"rollout_id {_NAMED}", json.dumps(going)
    # What refers to a row goes before it.
    _delete(connection, "ended", *named, dry_run=dry_run)
    _delete(connection, "queue", *named, dry_run=dry_run)
    rewards, spans, calls, attempts = (
        _delete(connection, table, *named, dry_run=dry_run) for table in ("rewards", "spans", "calls", "attempts")
    )
    _delete(connection, "rollouts", *named, dry_run=dry_run)
    return Pruned(len(going), attempts, calls, rewards, spans, len(spared))


def delete_unattributed(connection: sqlite3.Connection, before: float, *, dry_run: bool) -> Pruned:
    """Deletes calls and spans of no rollout that are older, and the rewards that name such a call."""
    rewards = _delete(connection, "rewards", _OLD_REWARDS, before, dry_run=dry_run)
    calls = _delete(connection, "calls", _OLD_CALLS, before, dry_run=dry_run)
    spans = _delete(connection, "spans", _OLD_SPANS, before, dry_run=dry_run)
    return Pruned(calls=calls, rewards=rewards, spans=spans)


def _delete(connection: sqlite3.Connection, table: str, where: str, given: Any, *, dry_run: bool) -> int:
    if dry_run:
        return connection.execute(f"SELECT count(*) FROM {table} WHERE {where}", (given,)).fetchone()[0]
    return connection.execute(f"DELETE FROM {table} WHERE {where}", (given,)).rowcount
