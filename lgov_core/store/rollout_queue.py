"""The trace store with a queue of rollouts: hands them out, deletes those that are not needed, counts what there is.

What is deleted is chosen by a condition; rollouts that have not ended are spared, and an attempt goes only as a whole.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar, Final

from lgov_core.errors import StoreError, counted
from lgov_core.store import rows, work_queue
from lgov_core.store.database import Transaction
from lgov_core.store.rollout_states import Claim, EndedRollouts, QueueEntry, RolloutConfig, RolloutState, require_lease
from lgov_core.store.trace_store import TraceStore
from lgov_core.types import Attempt, Rollout

#: Rollouts deleted in one transaction, so that other writers do not wait long.
ROLLOUTS_A_PORTION: Final = 100
#: An open attempt of no worker counts as ended so many seconds after the last write: its program was killed.
SILENT_S: Final = 3600.0
_MOST_NAMED: Final = 10


@dataclass(frozen=True, slots=True)
class Pruned:
    """How many rows were deleted (or would be), and the ids of rollouts that were spared because they have not ended."""

    rollouts: int = 0
    attempts: int = 0
    calls: int = 0
    rewards: int = 0
    spans: int = 0
    spared: tuple[str, ...] = ()

    def spared_text(self) -> str:
        """The spared rollouts in words, with when one that was killed is no longer spared."""
        named = ", ".join(self.spared[:_MOST_NAMED]) + ", ..." * (len(self.spared) > _MOST_NAMED)
        when = f"one whose program was killed is over {SILENT_S / 3600:g} h after its last write"
        return f"{counted(len(self.spared), 'rollout')} ({named}); {when}"

    def __add__(self, other: Pruned) -> Pruned:
        return Pruned(*(getattr(self, counted.name) + getattr(other, counted.name) for counted in fields(self)))


@dataclass(frozen=True, slots=True)
class StoreStatistics:
    """Counts of what is in a store. ``rollouts`` were added; ``named_only`` ones are only named by calls, spans or rewards.

    ``queue`` counts the rollouts of the queue by state. ``size_bytes`` is what the store takes, of which ``free_bytes``
    are not in use and given back by a vacuum. ``oldest`` and ``newest`` (Unix seconds) are the times of last activity of the
    least and the most recently active rollout; None when there is none.
    """

    rollouts: int
    named_only: int
    attempts: int
    open_attempts: int
    calls: int
    rewards: int
    spans: int
    size_bytes: int
    free_bytes: int
    oldest: float | None
    newest: float | None
    queue: Mapping[RolloutState, int] = field(default_factory=dict[RolloutState, int])


def require_choice(
    before: float | None, run_id: str | None, keep_last: int | None, rollout_ids: Collection[str] | None
) -> None:
    """Raises `StoreError` unless this chooses something on purpose."""
    if before is None and run_id is None and keep_last is None and rollout_ids is None:
        raise StoreError("no condition says what to delete", hint="give a time, a run or how many rollouts to keep")
    if keep_last is not None and keep_last < 0:
        raise StoreError(f"keep_last is {keep_last}", hint="give how many rollouts to keep, 0 or more")
    if before is not None and not math.isfinite(before):
        raise StoreError(f"before is {before}", hint="give Unix seconds")


def chosen(active: Iterable[tuple[str, float]], before: float | None, keep_last: int | None) -> list[str]:
    """The rollouts to delete of those that are ``active``, each with the time of its last activity (Unix seconds)."""
    by_age = sorted(active, key=lambda rollout: (-rollout[1], rollout[0]))[keep_last or 0 :]
    return [rollout_id for rollout_id, last in reversed(by_age) if before is None or last < before]


#: Every rollout that anything names, with when it was last active.
LAST_ACTIVE: Final = (
    "SELECT rollout_id, max(at) FROM ("
    " SELECT rollout_id, created_at AS at FROM rollouts"
    " UNION ALL SELECT rollout_id, max(coalesce(ended_at, started_at)) FROM attempts GROUP BY rollout_id"
    " UNION ALL SELECT rollout_id, max(ended_at) FROM calls WHERE rollout_id IS NOT NULL GROUP BY rollout_id"
    " UNION ALL SELECT rollout_id, max(coalesce(ended_at, started_at)) FROM spans WHERE rollout_id IS NOT NULL"
    " GROUP BY rollout_id"
    " UNION ALL SELECT DISTINCT rollout_id, 0.0 FROM rewards WHERE rollout_id IS NOT NULL"
    ") AS active {where} GROUP BY rollout_id"
)
OF_RUN: Final = "WHERE rollout_id IN (SELECT rollout_id FROM rollouts WHERE run_id = ? AND added = 1)"

COUNTS: Final = (
    "SELECT (SELECT count(*) FROM rollouts WHERE added = 1), (SELECT count(*) FROM attempts),"
    " (SELECT count(*) FROM attempts WHERE ended_at IS NULL), (SELECT count(*) FROM calls),"
    " (SELECT count(*) FROM rewards), (SELECT count(*) FROM spans)"
)

#: Attempts that calls and spans name and that nobody opened, with when each began.
UNOPENED: Final = (
    "SELECT rollout_id, attempt, min(at) FROM ("
    " SELECT rollout_id, coalesce(attempt, 1) AS attempt, started_at AS at FROM calls WHERE rollout_id IS NOT NULL"
    " UNION ALL SELECT rollout_id, coalesce(attempt, 1), started_at FROM spans WHERE rollout_id IS NOT NULL"
    ") AS named WHERE NOT EXISTS (SELECT 1 FROM attempts"
    " WHERE attempts.rollout_id = named.rollout_id AND attempts.attempt = named.attempt)"
    " GROUP BY rollout_id, attempt ORDER BY 3, 1, 2"
)

_UNFINISHED: Final = (
    "SELECT rollout_id FROM attempts WHERE ended_at IS NULL AND rollout_id = ANY(?)"
    " UNION SELECT rollout_id FROM queue WHERE state IN ('queued', 'requeued', 'running') AND rollout_id = ANY(?)"
)
_OLD_CALLS: Final = "rollout_id IS NULL AND ended_at < ?"
_OLD_SPANS: Final = "rollout_id IS NULL AND coalesce(ended_at, started_at) < ?"
_OLD_REWARDS: Final = f"rollout_id IS NULL AND response_id IN (SELECT response_id FROM calls WHERE {_OLD_CALLS})"


def delete_rollouts(
    transaction: Transaction, ids: list[str], silent: Collection[str], tables: tuple[str, ...], *, dry_run: bool
) -> Pruned:
    """Deletes rollouts, except unfinished ones, from all ``tables``: a table is before those that it refers to.

    The open attempts of the ``silent`` ones have ended, unless a worker has them.
    """
    heard = [rollout_id for rollout_id in ids if rollout_id not in silent]
    spared = {rollout_id for (rollout_id,) in transaction.execute(_UNFINISHED, (heard, ids))}
    going = [rollout_id for rollout_id in ids if rollout_id not in spared]
    counts = {table: _delete(transaction, table, "rollout_id = ANY(?)", going, dry_run=dry_run) for table in tables}
    return Pruned(
        len(going), counts["attempts"], counts["calls"], counts["rewards"], counts["spans"], tuple(sorted(spared))
    )


def delete_unattributed(transaction: Transaction, before: float, *, dry_run: bool) -> Pruned:
    """Deletes older calls and spans of no rollout, and the rewards that name such a call."""
    rewards = _delete(transaction, "rewards", _OLD_REWARDS, before, dry_run=dry_run)
    calls = _delete(transaction, "calls", _OLD_CALLS, before, dry_run=dry_run)
    spans = _delete(transaction, "spans", _OLD_SPANS, before, dry_run=dry_run)
    return Pruned(calls=calls, rewards=rewards, spans=spans)


#: Names of tools, agents and rules that no decision has any more.
_UNUSED_KINDS: Final = "DELETE FROM decision_kinds WHERE kind NOT IN (SELECT kind FROM decisions)"


def _delete(transaction: Transaction, table: str, where: str, values: Any, *, dry_run: bool) -> int:
    if dry_run:
        return transaction.execute(f"SELECT count(*) FROM {table} WHERE {where}", (values,))[0][0]
    return transaction.change(f"DELETE FROM {table} WHERE {where}", (values,))


class RolloutQueue(TraceStore):
    """A trace store that also hands out rollouts to workers, retries them, and deletes what is no longer needed.

    What the trace store promises of writes, threads and processes holds here too: a rollout is handed to one worker
    only, however many ask at the same time. A worker ends its attempt with `TraceStore.finish_attempt`, which moves the
    rollout on in the same transaction: to ``succeeded``, back into the queue while its configuration grants another try,
    or to ``failed``. An attempt that was closed meanwhile (it expired, or was cancelled) cannot be finished any more,
    so a worker that reconnects too late changes nothing. `TraceStore.start_attempt` refuses rollouts of the
    queue; `TraceStore.fail_open_attempts` moves them on as `expire` does, those of living workers too.

    ``now`` (Unix seconds) is the store's own clock when it is None, which for a store on a server is the server's; give
    it only where time is yours to set, as in tests. Every move of a state is one of `STATE_MOVES`, or raises `StoreError`.
    A subclass opens the connections, and names what differs between databases.
    """

    #: Tables with rows of a rollout; one is before those that it refers to.
    _tables: ClassVar = ("queue", "rewards", "spans", "calls", "attempts", "rollouts")
    #: The rollouts that ended: their place in that order, and the entry.
    _ended: ClassVar[str]
    #: Bytes that the store takes, and those of them that are free.
    _size: ClassVar[str]

    def enqueue(
        self, rollouts: Sequence[Rollout], config: RolloutConfig | None = None, *, now: float | None = None
    ) -> None:
        """Adds rollouts to the store and to the queue, behind those that are there.

        An id that exists already raises `StoreError`; then none is added.
        """
        new = [rows.rollout_row(rollout) for rollout in rollouts]
        names = [(rollout.rollout_id, rollout.run_id) for rollout in rollouts]

        def run(transaction: Transaction) -> None:
            work_queue.add_rollouts(transaction, new)
            work_queue.enqueue(transaction, names, config or RolloutConfig(), now)

        self._submit(run, len(new)).result()

    def claim(
        self, worker_id: str, limit: int = 1, *, lease_s: float, run_id: str | None = None, now: float | None = None
    ) -> list[Claim]:
        """Hands out at most ``limit`` rollouts that wait, the first enqueued first, and opens an attempt of each.

        Does what `expire` does first, so that nothing waits for a worker that is gone. ``run_id`` keeps to one run.
        Never waits: an empty list when there is nothing. Raises `StoreError` for a lease that is not above 0 seconds.
        """
        require_lease(lease_s)
        return self._submit(
            lambda transaction: work_queue.claim(transaction, worker_id, limit, lease_s, run_id, now), limit
        ).result()

    def heartbeat(
        self,
        worker_id: str,
        *,
        lease_s: float,
        attempts: Iterable[tuple[str, int]] | None = None,
        now: float | None = None,
    ) -> list[Attempt]:
        """Extends the leases of the attempts that a worker has in hand, and returns those attempts, oldest first.

        ``attempts`` (rollout id and number) keeps to these, so that one that hangs is not kept alive by the others; None:
        all of them. An attempt that is missing from the answer is no longer the worker's: it was cancelled or expired,
        or has passed its deadline, and must be stopped. A worker that was started again learns here what it had.
        """
        require_lease(lease_s)
        keys = None if attempts is None else list(attempts)
        return self._submit(
            lambda transaction: work_queue.heartbeat(transaction, worker_id, lease_s, keys, now)
        ).result()

    def expire(self, *, now: float | None = None) -> list[Attempt]:
        """Closes each attempt of the queue that has passed its deadline, as timeout, or its lease, as infrastructure.

        Their rollouts wait again while tries remain, and have failed otherwise. Returns the closed attempts, with the
        reason as their ``error``.
        """
        expired = self._submit(lambda transaction: work_queue.expire(transaction, now)).result()
        for attempt in expired:
            self._ended_here.put((attempt.rollout_id, attempt.attempt), True)
        return expired

    def cancel(self, rollout_id: str, reason: str, *, now: float | None = None) -> QueueEntry:
        """Takes a rollout out of the queue for good; an attempt that runs is closed as infrastructure.

        Raises `StoreError` for a rollout that is not in the queue or has ended.
        """
        why = rows.readable(reason)
        return self._submit(lambda transaction: work_queue.cancel(transaction, rollout_id, why, now)).result()

    def queue_entries(
        self,
        *,
        run_id: str | None = None,
        ids: Sequence[str] | None = None,
        states: Iterable[RolloutState] | None = None,
    ) -> list[QueueEntry]:
        """Rollouts as the queue sees them, in the order of enqueuing; all, or those that fit everything given."""
        where, values = work_queue.selection(run_id, ids, states)
        return [rows.entry_of(row) for row in self._read("queue", rows.ENTRY_COLUMNS, where, values)]

    def ended_since(self, cursor: int = 0, *, limit: int = 100, run_id: str | None = None) -> EndedRollouts:
        """At most ``limit`` rollouts that ended after the place ``cursor``, in the order in which they ended.

        Start with 0, then give the cursor of the last answer: every rollout that ends is returned once, however
        many end at the same time. The cursor does not move when there is nothing new.
        """
        self._check()
        of_run = "" if run_id is None else "WHERE run_id = ?"
        fetched = self._reading.fetch(
            f"SELECT place, {rows.ENTRY_COLUMNS} FROM ({self._ended}) AS ended {of_run} ORDER BY place LIMIT ?",
            (cursor, *(() if run_id is None else (run_id,)), max(limit, 0)),
        )
        entries = tuple(rows.entry_of(row[1:]) for row in fetched)
        return EndedRollouts(entries, fetched[-1][0] if fetched else cursor)

    # ------------------------------------------------------------------ deleting

    def prune(
        self,
        *,
        before: float | None = None,
        run_id: str | None = None,
        keep_last: int | None = None,
        rollout_ids: Collection[str] | None = None,
        dry_run: bool = False,
    ) -> Pruned:
        """Deletes rollouts with all that belongs to them: those that fit everything given.

        ``before`` (Unix seconds): rollouts without activity since; ``run_id``: those of one run; ``rollout_ids``: these;
        ``keep_last``: all but the N most recently active of these. Rollouts that were never added, which calls, spans or
        rewards name, are rollouts too, of no run. With ``before``, no run and no ids, older calls and spans of no rollout are
        deleted as well, with the rewards that name these calls.

        A rollout is deleted whole or not at all; many are deleted in several transactions, so that others can write in
        between. One that waits in the queue or has an open attempt is spared, the latter until `SILENT_S` seconds after its
        last write where no worker has it. With ``dry_run`` nothing is deleted.
        Raises `StoreError` when nothing at all is given to choose by.
        """
        require_choice(before, run_id, keep_last, rollout_ids)
        total = Pruned()
        active = [rollout for rollout in self._last_active(run_id) if rollout_ids is None or rollout[0] in rollout_ids]
        silent = {rollout_id for rollout_id, last in active if last < time.time() - SILENT_S}
        doomed = chosen(active, before, keep_last)
        for first in range(0, len(doomed), ROLLOUTS_A_PORTION):
            ids = doomed[first : first + ROLLOUTS_A_PORTION]
            total += self._submit(
                lambda transaction, ids=ids: delete_rollouts(transaction, ids, silent, self._tables, dry_run=dry_run),
                alone=True,
            ).result()
        if before is not None and run_id is None and rollout_ids is None:
            total += self._submit(
                lambda transaction: delete_unattributed(transaction, before, dry_run=dry_run), alone=True
            ).result()
        return total

    def erase(self, holds: Callable[[Any], bool], *, dry_run: bool = False) -> Pruned:
        """Deletes every rollout with a value of which ``holds`` is true, and such calls and spans of no rollout, for good.

        The values are inputs, results, requests, responses, names and attributes. As `prune` otherwise; rewrites the store
        afterwards (`vacuum`), because deleted texts are in it until then.
        """
        ids = {rollout.rollout_id for rollout in self.rollouts() if holds([rollout.task_id, rollout.input])}
        ids |= {attempt.rollout_id for attempt in self.attempts() if holds([attempt.error, attempt.result])}
        calls = {(call.rollout_id, call.response_id) for call in self.calls() if holds([call.request, call.response])}
        spans = {(span.rollout_id, span.span_id) for span in self.spans() if holds(asdict(span))}
        ids |= {rollout_id for rollout_id, _ in (*calls, *spans) if rollout_id is not None}
        names = 0

        def delete_loose(transaction: Transaction) -> Pruned:
            nonlocal names
            of_calls, of_spans = ([own for rollout_id, own in rows if rollout_id is None] for rows in (calls, spans))
            of_response, of_span = (f"rollout_id IS NULL AND {name} = ANY(?)" for name in ("response_id", "span_id"))
            pruned = Pruned(
                rewards=_delete(transaction, "rewards", of_response, of_calls, dry_run=dry_run),
                calls=_delete(transaction, "calls", of_response, of_calls, dry_run=dry_run),
                spans=_delete(transaction, "spans", of_span, of_spans, dry_run=dry_run),
            )
            names = 0 if dry_run else transaction.change(_UNUSED_KINDS)
            return pruned

        erased = self.prune(rollout_ids=ids, dry_run=dry_run) + self._submit(delete_loose, alone=True).result()
        if names or (not dry_run and erased != Pruned(spared=erased.spared)):
            self.vacuum()
        return erased

    def vacuum(self) -> None:
        """Gives the space of what was deleted back to the system. Writers may have to wait for as long as it takes."""
        raise NotImplementedError

    def statistics(self) -> StoreStatistics:
        """Counts what is in the store, and how much space it takes."""
        self._check()
        ((rollouts, attempts, still_open, calls, rewards, spans),) = self._reading.fetch(COUNTS)
        ((size, free),) = self._reading.fetch(self._size)
        active = self._last_active(None)
        states = self._reading.fetch("SELECT state, count(*) FROM queue GROUP BY state")
        times = sorted(at for _, at in active if at)
        return StoreStatistics(
            rollouts=rollouts,
            named_only=len(active) - rollouts,
            attempts=attempts,
            open_attempts=still_open,
            calls=calls,
            rewards=rewards,
            spans=spans,
            size_bytes=size,
            free_bytes=free,
            oldest=times[0] if times else None,
            newest=times[-1] if times else None,
            queue={RolloutState(state): count for state, count in states},
        )

    def unopened_attempts(self) -> list[Attempt]:
        """Attempts that calls and spans name and that nobody opened, in the order in which they began.

        ``started_at`` is when the first call or span began; ``ended_at`` and ``outcome`` are None. What names no attempt
        belongs to the first.
        """
        self._check()
        return [Attempt(*row) for row in self._reading.fetch(UNOPENED)]

    def _last_active(self, run_id: str | None) -> list[tuple[str, float]]:
        self._check()
        where, values = ("", ()) if run_id is None else (OF_RUN, (run_id,))
        return [(row[0], row[1]) for row in self._reading.fetch(LAST_ACTIVE.format(where=where), values)]
