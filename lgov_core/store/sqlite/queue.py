"""The queue of a SQLite store: what is done on the connection, inside the transaction of the one who writes."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any, Final

from lgov_core.errors import StoreError
from lgov_core.store import rows
from lgov_core.store.work import Claim, QueueEntry, RolloutConfig, RolloutState, require_move
from lgov_core.types import Attempt, Outcome

#: What is written here as in the indexes, so that SQLite uses them.
_WAITS: Final = "state IN ('queued', 'requeued')"
_LAPSE: Final = "min(lease_until, ifnull(deadline, lease_until))"

_INSERT_ENTRY: Final = (
    "INSERT INTO queue (rollout_id, run_id, state, config, enqueued_at, available_at) VALUES (?, ?, ?, ?, ?, ?)"
)


def enqueue(connection: sqlite3.Connection, new: Sequence[tuple[str, str]], config: RolloutConfig, now: float) -> None:
    """Puts rollouts (id and run), which are in the store, behind those that wait."""
    text = json.dumps(config.as_json())
    connection.executemany(
        _INSERT_ENTRY, [(rollout_id, run_id, RolloutState.QUEUED.value, text, now, now) for rollout_id, run_id in new]
    )


def entry(connection: sqlite3.Connection, rollout_id: str) -> QueueEntry | None:
    """The entry of a rollout; None when the queue does not know it."""
    row = connection.execute(f"SELECT {rows.ENTRY_COLUMNS} FROM queue WHERE rollout_id = ?", (rollout_id,)).fetchone()
    return None if row is None else rows.entry_of(row)


def claim(
    connection: sqlite3.Connection, worker_id: str, limit: int, lease_s: float, run_id: str | None, now: float
) -> list[Claim]:
    """See `RolloutQueue.claim`."""
    expire(connection, now)
    of_run = "" if run_id is None else "AND run_id = ?"
    given: tuple[Any, ...] = (now,) if run_id is None else (now, run_id)
    found = connection.execute(
        f"SELECT {rows.ENTRY_COLUMNS} FROM queue WHERE {_WAITS} AND available_at <= ? {of_run} ORDER BY seq LIMIT ?",
        (*given, max(limit, 0)),
    ).fetchall()
    return [_open(connection, rows.entry_of(row), worker_id, lease_s, now) for row in found]


def _open(connection: sqlite3.Connection, waiting: QueueEntry, worker_id: str, lease_s: float, now: float) -> Claim:
    require_move(waiting.rollout_id, waiting.state, RolloutState.RUNNING)
    attempt = Attempt(waiting.rollout_id, waiting.attempt + 1, now)
    lease_until, deadline = waiting.config.lease_until(now, lease_s), waiting.config.deadline(now)
    connection.execute(
        rows.insert("attempts", rows.ATTEMPT_COLUMNS),
        (attempt.rollout_id, attempt.attempt, now, None, None, None, None),
    )
    connection.execute(
        "UPDATE queue SET state = ?, attempt = ?, outcome = NULL, worker_id = ?, lease_until = ?, deadline = ?,"
        " reason = NULL WHERE rollout_id = ?",
        (RolloutState.RUNNING.value, attempt.attempt, worker_id, lease_until, deadline, attempt.rollout_id),
    )
    rollout = connection.execute(
        f"SELECT {rows.ROLLOUT_COLUMNS} FROM rollouts WHERE rollout_id = ?", (attempt.rollout_id,)
    ).fetchone()
    return Claim(rows.rollout_of(rollout), attempt, waiting.config, lease_until, deadline)


def heartbeat(
    connection: sqlite3.Connection,
    worker_id: str,
    lease_s: float,
    attempts: Sequence[tuple[str, int]] | None,
    now: float,
) -> list[Attempt]:
    """See `RolloutQueue.heartbeat`."""
    found = connection.execute(
        f"SELECT {rows.ENTRY_COLUMNS} FROM queue WHERE state = 'running' AND worker_id = ? ORDER BY seq", (worker_id,)
    ).fetchall()
    asked = None if attempts is None else set(attempts)
    held: list[Attempt] = []
    for running in map(rows.entry_of, found):
        if asked is not None and (running.rollout_id, running.attempt) not in asked:
            continue
        if running.deadline is not None and now > running.deadline:
            continue
        connection.execute(
            "UPDATE queue SET lease_until = ? WHERE rollout_id = ?",
            (running.config.lease_until(now, lease_s), running.rollout_id),
        )
        held.append(_attempt(connection, running.rollout_id, running.attempt))
    return held


def expire(connection: sqlite3.Connection, now: float) -> list[Attempt]:
    """See `RolloutQueue.expire`."""
    found = connection.execute(
        f"SELECT {rows.ENTRY_COLUMNS} FROM queue WHERE state = 'running' AND {_LAPSE} < ? ORDER BY seq", (now,)
    ).fetchall()
    closed: list[Attempt] = []
    for running in map(rows.entry_of, found):
        outcome, reason = running.lapse(now)
        close(connection, running.rollout_id, running.attempt, outcome, now, error=reason)
        closed.append(_attempt(connection, running.rollout_id, running.attempt))
    return closed


def cancel(connection: sqlite3.Connection, rollout_id: str, reason: str, now: float) -> QueueEntry:
    """See `RolloutQueue.cancel`."""
    found = entry(connection, rollout_id)
    if found is None:
        raise StoreError(
            f"there is no rollout {rollout_id} in the queue", hint="only what was enqueued can be cancelled"
        )
    require_move(rollout_id, found.state, RolloutState.CANCELLED)
    if found.state is RolloutState.RUNNING:
        _close_attempt(connection, rollout_id, found.attempt, Outcome.INFRASTRUCTURE, now, f"cancelled: {reason}", None)
        connection.execute(
            "UPDATE queue SET outcome = ? WHERE rollout_id = ?", (Outcome.INFRASTRUCTURE.value, rollout_id)
        )
    _move(connection, rollout_id, RolloutState.CANCELLED, now, reason=reason, available_at=found.available_at)
    cancelled = entry(connection, rollout_id)
    assert cancelled is not None
    return cancelled


def close(
    connection: sqlite3.Connection,
    rollout_id: str,
    attempt: int,
    outcome: Outcome,
    now: float,
    *,
    error: str | None = None,
    result: str | None = None,
) -> Attempt:
    """Closes an attempt and moves its rollout on, if that is in the queue.

    Raises `StoreError` for an attempt that does not exist or has ended.
    """
    _close_attempt(connection, rollout_id, attempt, outcome, now, error, result)
    running = entry(connection, rollout_id)
    if running is not None:
        then = running.config.after(attempt, outcome)
        require_move(rollout_id, running.state, then)
        available_at = running.available_at
        if then is RolloutState.REQUEUED:
            available_at = now + running.config.delay_after(attempt)
        connection.execute("UPDATE queue SET outcome = ? WHERE rollout_id = ?", (outcome.value, rollout_id))
        _move(connection, rollout_id, then, now, reason=error, available_at=available_at)
    return _attempt(connection, rollout_id, attempt)


def close_all(connection: sqlite3.Connection, outcome: Outcome, reason: str, now: float) -> int:
    """Closes every open attempt, as `close`; returns how many."""
    found = connection.execute(
        "SELECT rollout_id, attempt FROM attempts WHERE ended_at IS NULL ORDER BY seq"
    ).fetchall()
    for rollout_id, attempt in found:
        close(connection, rollout_id, attempt, outcome, now, error=reason)
    return len(found)


def _close_attempt(
    connection: sqlite3.Connection,
    rollout_id: str,
    attempt: int,
    outcome: Outcome,
    now: float,
    error: str | None,
    result: str | None,
) -> None:
    closed = connection.execute(
        "UPDATE attempts SET ended_at = ?, outcome = ?, error = ?, result = ?"
        " WHERE rollout_id = ? AND attempt = ? AND ended_at IS NULL",
        (now, outcome.value, error, result, rollout_id, attempt),
    ).rowcount
    if not closed:
        ended = _attempt(connection, rollout_id, attempt)
        raise StoreError(f"attempt {attempt} of rollout {rollout_id} ended already, as {ended.outcome}")


def _attempt(connection: sqlite3.Connection, rollout_id: str, attempt: int) -> Attempt:
    found = connection.execute(
        f"SELECT {rows.ATTEMPT_COLUMNS} FROM attempts WHERE rollout_id = ? AND attempt = ?", (rollout_id, attempt)
    ).fetchone()
    if found is None:
        raise StoreError(
            f"there is no attempt {attempt} of rollout {rollout_id}", hint="start it before it is finished"
        )
    return rows.attempt_of(found)


def _move(
    connection: sqlite3.Connection,
    rollout_id: str,
    then: RolloutState,
    now: float,
    *,
    reason: str | None,
    available_at: float,
) -> None:
    connection.execute(
        "UPDATE queue SET state = ?, worker_id = NULL, lease_until = NULL, deadline = NULL, reason = ?,"
        " available_at = ?, ended_at = ? WHERE rollout_id = ?",
        (then.value, reason, available_at, now if then.ended else None, rollout_id),
    )
    if then.ended:
        connection.execute("INSERT INTO ended (rollout_id) VALUES (?)", (rollout_id,))


def selection(
    run_id: str | None, ids: Sequence[str] | None, states: Iterable[RolloutState] | None
) -> tuple[str, tuple[Any, ...]]:
    """The condition, and what is given for it, of the entries that fit everything that is not None."""
    terms: list[str] = []
    given: list[Any] = []
    if run_id is not None:
        terms.append("run_id = ?")
        given.append(run_id)
    if ids is not None:
        terms.append("rollout_id IN (SELECT value FROM json_each(?))")
        given.append(json.dumps(list(ids)))
    if states is not None:
        terms.append("state IN (SELECT value FROM json_each(?))")
        given.append(json.dumps([RolloutState(state).value for state in states]))
    return ("WHERE " + " AND ".join(terms) if terms else ""), tuple(given)
