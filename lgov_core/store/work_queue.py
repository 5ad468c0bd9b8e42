"""The queue of rollouts, inside the writer's transaction.

A row of the queue is locked before it is changed, and before the attempt that belongs to it; `claim` and `expire` skip rows
that another process has locked. Times are the transaction's where none is given.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

from lgov_core.errors import StoreError
from lgov_core.store import rows
from lgov_core.store.database import Transaction
from lgov_core.store.rollout_states import Claim, QueueEntry, RolloutConfig, RolloutState, require_move
from lgov_core.store.rows import insert
from lgov_core.types import Attempt, Outcome

#: Written as in the indexes, so that the database uses them.
_WAITS: Final = "state IN ('queued', 'requeued')"
_LAPSE: Final = "least(lease_until, deadline)"

_ENTRY: Final = ", ".join(f"queue.{name.strip()}" for name in rows.ENTRY_COLUMNS.split(","))
_ROLLOUT: Final = ", ".join(f"rollouts.{name.strip()}" for name in rows.ROLLOUT_COLUMNS.split(","))
_ENTRY_WIDTH: Final = rows.ENTRY_COLUMNS.count(",") + 1

_INSERT_ENTRY: Final = insert("queue", "rollout_id, run_id, state, config, enqueued_at, available_at")
_INSERT_ATTEMPT: Final = insert("attempts", rows.ATTEMPT_COLUMNS)
_RUN: Final = (
    "UPDATE queue SET state = ?, attempt = ?, outcome = NULL, worker_id = ?, lease_until = ?, deadline = ?,"
    " reason = NULL WHERE rollout_id = ?"
)
_MOVE: Final = (
    "UPDATE queue SET state = ?, outcome = coalesce(?, outcome), worker_id = NULL, lease_until = NULL, deadline = NULL,"
    " reason = ?, available_at = ?, ended_at = ? WHERE rollout_id = ?"
)


_ADD_ROLLOUT: Final = insert("rollouts", rows.ROLLOUT_COLUMNS) + (
    " ON CONFLICT (rollout_id) DO UPDATE SET task_id = excluded.task_id, run_id = excluded.run_id,"
    " input = excluded.input, created_at = excluded.created_at, added = 1 WHERE rollouts.added = 0"
)


def add_rollouts(transaction: Transaction, new: Sequence[rows.Row]) -> None:
    """Adds rows of ``ROLLOUT_COLUMNS``; one that calls or spans named before keeps its place. Raises `StoreError` for one
    that was added before.
    """
    query = "SELECT rollout_id FROM rollouts WHERE added = 1 AND rollout_id = ANY(?)"
    taken = {rollout_id for (rollout_id,) in transaction.execute(query, ([row[0] for row in new],))}
    for row in new:
        if row[0] in taken:
            raise rows.exists_already("rollouts", row)
        taken.add(row[0])
    if transaction.change_each(_ADD_ROLLOUT, new) < len(new):  # another process added one meanwhile
        raise rows.exists_already("rollouts", new[0])


def enqueue(transaction: Transaction, new: Sequence[tuple[str, str]], config: RolloutConfig, now: float | None) -> None:
    """Puts rollouts (id and run), which are in the store, behind those that wait."""
    now = transaction.now if now is None else now
    text = json.dumps(config.as_json())
    transaction.change_each(
        _INSERT_ENTRY, [(rollout_id, run_id, RolloutState.QUEUED.value, text, now, now) for rollout_id, run_id in new]
    )


def claim(
    transaction: Transaction, worker_id: str, limit: int, lease_s: float, run_id: str | None, now: float | None
) -> list[Claim]:
    """See `RolloutQueue.claim`."""
    now = transaction.now if now is None else now
    expire(transaction, now)
    of_run = "" if run_id is None else "AND queue.run_id = ?"
    values: tuple[Any, ...] = (now,) if run_id is None else (now, run_id)
    fetched = transaction.execute(
        f"SELECT {_ENTRY}, {_ROLLOUT} FROM queue JOIN rollouts USING (rollout_id)"
        f" WHERE {_WAITS} AND available_at <= ? {of_run} ORDER BY queue.seq LIMIT ? FOR UPDATE OF queue SKIP LOCKED",
        (*values, max(limit, 0)),
    )
    claims: list[Claim] = []
    for row in fetched:
        waiting, rollout = rows.entry_of(row[:_ENTRY_WIDTH]), rows.rollout_of(row[_ENTRY_WIDTH:])
        require_move(waiting.rollout_id, waiting.state, RolloutState.RUNNING)
        attempt = Attempt(waiting.rollout_id, waiting.attempt + 1, now)
        config = waiting.config
        claims.append(Claim(rollout, attempt, config, config.lease_until(now, lease_s), config.deadline(now)))
    transaction.change_each(
        _INSERT_ATTEMPT,
        [(claim.attempt.rollout_id, claim.attempt.attempt, now, None, None, None, None) for claim in claims],
    )
    running = RolloutState.RUNNING.value
    transaction.change_each(
        _RUN,
        [
            (running, claim.attempt.attempt, worker_id, claim.lease_until, claim.deadline, claim.attempt.rollout_id)
            for claim in claims
        ],
    )
    return claims


def heartbeat(
    transaction: Transaction,
    worker_id: str,
    lease_s: float,
    attempts: Sequence[tuple[str, int]] | None,
    now: float | None,
) -> list[Attempt]:
    """See `RolloutQueue.heartbeat`."""
    now = transaction.now if now is None else now
    fetched = transaction.execute(
        f"SELECT {_ENTRY} FROM queue WHERE state = 'running' AND worker_id = ? ORDER BY seq FOR UPDATE", (worker_id,)
    )
    keys = None if attempts is None else set(attempts)
    held = [
        running
        for running in map(rows.entry_of, fetched)
        if (keys is None or (running.rollout_id, running.attempt) in keys)
        and (running.deadline is None or now <= running.deadline)
    ]
    names = [running.rollout_id for running in held]
    transaction.change_each(
        "UPDATE queue SET lease_until = ? WHERE rollout_id = ?",
        [(running.config.lease_until(now, lease_s), running.rollout_id) for running in held],
    )
    columns = ", ".join(f"attempts.{name.strip()}" for name in rows.ATTEMPT_COLUMNS.split(","))
    attempts_held = transaction.execute(
        f"SELECT {columns} FROM attempts JOIN queue USING (rollout_id, attempt) WHERE rollout_id = ANY(?)"
        " ORDER BY queue.seq",
        (names,),
    )
    return [rows.attempt_of(row) for row in attempts_held]


def expire(transaction: Transaction, now: float | None) -> list[Attempt]:
    """See `RolloutQueue.expire`."""
    now = transaction.now if now is None else now
    fetched = transaction.execute(
        f"SELECT {_ENTRY} FROM queue WHERE state = 'running' AND {_LAPSE} < ? ORDER BY seq FOR UPDATE SKIP LOCKED",
        (now,),
    )
    closed: list[Attempt] = []
    for running in map(rows.entry_of, fetched):
        outcome, reason = running.lapse(now)
        closed.append(close(transaction, running.rollout_id, running.attempt, outcome, now, error=reason))
    return closed


def cancel(transaction: Transaction, rollout_id: str, reason: str, now: float | None) -> QueueEntry:
    """See `RolloutQueue.cancel`."""
    now = transaction.now if now is None else now
    entry = _locked(transaction, rollout_id)
    if entry is None:
        raise StoreError(
            f"there is no rollout {rollout_id} in the queue", hint="only what was enqueued can be cancelled"
        )
    require_move(rollout_id, entry.state, RolloutState.CANCELLED)
    outcome = None
    if entry.state is RolloutState.RUNNING:
        outcome = Outcome.INFRASTRUCTURE
        _close_attempt(transaction, rollout_id, entry.attempt, outcome, now, f"cancelled: {reason}", None)
    _move(transaction, rollout_id, RolloutState.CANCELLED, outcome, now, reason, entry.available_at)
    cancelled = _locked(transaction, rollout_id)
    assert cancelled is not None
    return cancelled


def close(
    transaction: Transaction,
    rollout_id: str,
    attempt: int,
    outcome: Outcome,
    now: float | None,
    *,
    error: str | None = None,
    result: str | None = None,
) -> Attempt:
    """Closes an attempt and moves its rollout on, if that is in the queue.

    Raises `StoreError` for an attempt that does not exist or has ended.
    """
    now = transaction.now if now is None else now
    running = _locked(transaction, rollout_id)
    closed = _close_attempt(transaction, rollout_id, attempt, outcome, now, error, result)
    if closed is None:
        ended = transaction.execute(
            "SELECT outcome FROM attempts WHERE rollout_id = ? AND attempt = ?", (rollout_id, attempt)
        )
        if not ended:
            raise StoreError(
                f"there is no attempt {attempt} of rollout {rollout_id}", hint="start it before it is finished"
            )
        raise StoreError(f"attempt {attempt} of rollout {rollout_id} ended already, as {ended[0][0]}")
    if running is not None:
        then = running.config.after(attempt, outcome)
        require_move(rollout_id, running.state, then)
        available_at = running.available_at
        if then is RolloutState.REQUEUED:
            available_at = now + running.config.delay_after(attempt)
        _move(transaction, rollout_id, then, outcome, now, error, available_at)
    return closed


def close_all(transaction: Transaction, outcome: Outcome, reason: str, now: float | None) -> int:
    """Closes every open attempt, as `close`; returns how many."""
    now = transaction.now if now is None else now
    transaction.execute(
        "SELECT 1 FROM queue WHERE rollout_id IN (SELECT rollout_id FROM attempts WHERE ended_at IS NULL)"
        " ORDER BY seq FOR UPDATE"
    )
    fetched = transaction.execute(
        "SELECT rollout_id, attempt FROM attempts WHERE ended_at IS NULL ORDER BY seq FOR UPDATE"
    )
    for rollout_id, attempt in fetched:
        close(transaction, rollout_id, attempt, outcome, now, error=reason)
    return len(fetched)


def _close_attempt(
    transaction: Transaction,
    rollout_id: str,
    attempt: int,
    outcome: Outcome,
    now: float,
    error: str | None,
    result: str | None,
) -> Attempt | None:
    """The closed attempt; None when there is no open one."""
    closed = transaction.execute(
        "UPDATE attempts SET ended_at = greatest(?, started_at), outcome = ?, error = ?, result = ?"
        f" WHERE rollout_id = ? AND attempt = ? AND ended_at IS NULL RETURNING {rows.ATTEMPT_COLUMNS}",
        (now, outcome.value, error, result, rollout_id, attempt),
    )
    return rows.attempt_of(closed[0]) if closed else None


def _locked(transaction: Transaction, rollout_id: str) -> QueueEntry | None:
    fetched = transaction.execute(f"SELECT {_ENTRY} FROM queue WHERE rollout_id = ? FOR UPDATE", (rollout_id,))
    return rows.entry_of(fetched[0]) if fetched else None


def _move(
    transaction: Transaction,
    rollout_id: str,
    then: RolloutState,
    outcome: Outcome | None,
    now: float,
    reason: str | None,
    available_at: float,
) -> None:
    transaction.change(
        _MOVE,
        (then.value, outcome and outcome.value, reason, available_at, now if then.ended else None, rollout_id),
    )
    if then.ended:
        transaction.end(rollout_id)


def selection(
    run_id: str | None, ids: Sequence[str] | None, states: Iterable[RolloutState] | None
) -> tuple[str, tuple[Any, ...]]:
    """The WHERE clause and its values for the entries that fit everything that is not None."""
    terms: dict[str, Any] = {
        "run_id = ?": run_id,
        "rollout_id = ANY(?)": None if ids is None else list(ids),
        "state = ANY(?)": None if states is None else [RolloutState(state).value for state in states],
    }
    values = {term: value for term, value in terms.items() if value is not None}
    return ("WHERE " + " AND ".join(values) if values else ""), tuple(values.values())
