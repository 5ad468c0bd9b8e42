"""Traces in memory: the part of the store for tests that writes down and reads what happened."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Self, TypeVar

from lgov_core.errors import StoreError
from lgov_core.store import encoding, rows
from lgov_core.store.work import QueueEntry, RolloutState, require_move
from lgov_core.types import Attempt, CapturedCall, JSONValue, Outcome, Reward, Rollout, Span

T = TypeVar("T")

#: Columns of a call that may be unknown.
_UNKNOWN_IN_A_CALL = {"prompt_rest", "response_ids", "logprobs", "weights_version", "rollout_id", "attempt", "agent"}


@dataclass(slots=True)
class MemoryPlace:
    """What `MemoryStore` objects keep together; each row is as the SQLite store has it. ``lock`` guards all of it."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    rollouts: dict[str, rows.Row] = field(default_factory=dict[str, rows.Row])
    attempts: dict[tuple[str, int], Attempt] = field(default_factory=dict[tuple[str, int], Attempt])
    calls: dict[tuple[str, int], rows.Row] = field(default_factory=dict[tuple[str, int], rows.Row])
    rewards: dict[str, rows.Row] = field(default_factory=dict[str, rows.Row])
    spans: dict[bytes, rows.Row] = field(default_factory=dict[bytes, rows.Row])
    queue: dict[str, QueueEntry] = field(default_factory=dict[str, QueueEntry])
    ended: dict[int, str] = field(default_factory=dict[int, str])
    endings: int = 0


class MemoryTraces:
    """A `TraceStore` in the memory of this process, for tests: plain rows in the order of writing, nothing folded.

    Several objects may share a ``place`` (see `MemoryStore.place`), as several open one file. Nothing outlives the process,
    and there is no limit to what it takes. All methods may be called from any thread. Values are checked and copied as
    the other stores do. Fails closed: what raises `StoreError` has changed nothing.
    """

    def __init__(self, place: MemoryPlace | None = None) -> None:
        self.place = place or MemoryPlace()
        self._closed = False

    # ------------------------------------------------------------------ writing

    def add_rollouts(self, rollouts: Sequence[Rollout]) -> None:
        """Adds rollouts. An id that exists already raises `StoreError`; then none is added."""
        new = [_writable(rows.rollout_row(rollout)) for rollout in rollouts]
        with self._open() as place:
            _insert(place.rollouts, [(row[0], row) for row in new], "rollout")

    def start_attempt(self, rollout_id: str, attempt: int) -> Attempt:
        """Opens an attempt. Raises `StoreError` for an unknown rollout, one of the queue, or an attempt that exists."""
        if attempt < 1:
            raise StoreError(f"attempt {attempt} of rollout {rollout_id}: attempts are numbered from 1")
        with self._open() as place:
            if rollout_id not in place.rollouts:
                raise StoreError(f"there is no rollout {rollout_id}", hint="add the rollout before its first attempt")
            if rollout_id in place.queue:
                raise StoreError(f"rollout {rollout_id} is handed out by the queue", hint="claim it instead")
            if (rollout_id, attempt) in place.attempts:
                raise StoreError(f"attempt {attempt} of rollout {rollout_id} exists already", hint="use a fresh one")
            opened = place.attempts[rollout_id, attempt] = Attempt(rollout_id, attempt, time.time())
            return opened

    def finish_attempt(
        self,
        rollout_id: str,
        attempt: int,
        outcome: Outcome,
        *,
        error: str | None = None,
        result: JSONValue = None,
        rewards: Iterable[Reward] = (),
    ) -> Attempt:
        """Closes an attempt and adds its final rewards at once. Closing it again raises `StoreError`."""
        text = None if result is None else encoding.json_text(result, f"result of rollout {rollout_id}")
        final = [_writable(rows.reward_row(rows.own_reward(reward, rollout_id, attempt))) for reward in rewards]
        readable = None if error is None else encoding.readable(error)
        with self._open() as place:
            _require_new(place.rewards, [row[0] for row in final], "reward")
            closed = close_attempt(place, rollout_id, attempt, Outcome(outcome), time.time(), readable, text)
            place.rewards.update((row[0], row) for row in final)
            return closed

    def add_call(self, call: CapturedCall) -> None:
        """Adds a captured model call. One with its ``response_id`` and ``choice`` raises `StoreError`."""
        row = _writable(rows.call_row(call))
        for name, value in zip(rows.CALL_COLUMNS.replace(" ", "").split(","), row, strict=True):
            if value is None and name not in _UNKNOWN_IN_A_CALL:
                raise StoreError(f"call {call.response_id} has no {name}")
        with self._open() as place:
            which = f", choice {call.choice}" if call.choice else ""
            if (call.response_id, call.choice) in place.calls:
                raise StoreError(
                    f"call {call.response_id}{which} exists already", hint="ids are written once; use a fresh one"
                )
            place.calls[call.response_id, call.choice] = row

    def add_rewards(self, rewards: Iterable[Reward]) -> None:
        """Adds rewards. A value that is not finite, or an id that exists, raises `StoreError`; then none is added."""
        new = [_writable(rows.reward_row(reward)) for reward in rewards]
        with self._open() as place:
            _insert(place.rewards, [(row[0], row) for row in new], "reward")

    def add_span(self, span: Span) -> None:
        """Adds a span; there is no queue, and none is dropped."""
        self.add_spans((span,))

    def add_spans(self, spans: Iterable[Span]) -> int:
        """Adds spans, all of them or none, and returns how many were new."""
        new = [_writable(rows.span_row(span)) for span in spans]
        with self._open() as place:
            before = len(place.spans)
            for row in new:
                place.spans.setdefault(rows.span_digest(row), row)
            return len(place.spans) - before

    def flush(self) -> None:
        """Returns at once: nothing is queued."""
        self._check()

    @property
    def dropped_spans(self) -> int:
        """Always 0."""
        return 0

    def fail_open_attempts(self, reason: str) -> int:
        """Closes every open attempt as infrastructure. Returns how many."""
        why, now = encoding.readable(reason), time.time()
        with self._open() as place:
            left = [one for one in place.attempts.values() if one.ended_at is None]
            for one in left:
                close_attempt(place, one.rollout_id, one.attempt, Outcome.INFRASTRUCTURE, now, why)
            return len(left)

    # ------------------------------------------------------------------ reading

    def rollouts(self, *, run_id: str | None = None, ids: Sequence[str] | None = None) -> list[Rollout]:
        """Rollouts, all or those of a run, or those with the given ids."""
        with self._open() as place:
            found = list(map(rows.rollout_of, place.rollouts.values()))
        return [
            one for one in found if (run_id is None or one.run_id == run_id) and (ids is None or one.rollout_id in ids)
        ]

    def attempts(self, rollout_ids: Sequence[str] | None = None) -> list[Attempt]:
        """Attempts, all or those of the given rollouts."""
        with self._open() as place:
            return _of(rollout_ids, list(place.attempts.values()), lambda one: one.rollout_id)

    def calls(self, rollout_ids: Sequence[str] | None = None) -> Iterator[CapturedCall]:
        """Captured calls, all or those of the given rollouts, as they are when the iteration begins."""
        self._check()
        return self._calls(rollout_ids)

    def _calls(self, rollout_ids: Sequence[str] | None) -> Iterator[CapturedCall]:
        with self._open() as place:
            found = list(place.calls.values())
        yield from map(rows.call_of, _of(rollout_ids, found, lambda row: row[rows.ROLLOUT_ID]))

    def rewards(self, rollout_ids: Sequence[str] | None = None) -> list[Reward]:
        """Rewards, all or those of the given rollouts."""
        with self._open() as place:
            found = list(map(rows.reward_of, place.rewards.values()))
        return _of(rollout_ids, found, lambda one: one.rollout_id)

    def spans(self, rollout_ids: Sequence[str] | None = None) -> list[Span]:
        """Spans, all or those of the given rollouts."""
        with self._open() as place:
            found = list(map(rows.span_of, place.spans.values()))
        return _of(rollout_ids, found, lambda one: one.rollout_id)

    # ------------------------------------------------------------------ the end

    def close(self) -> None:
        """Closes this object; others on the place go on. Any call after it raises `StoreError`."""
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _check(self) -> None:
        if self._closed:
            raise StoreError("this store in memory is closed", hint="open another on its place to go on")

    def _open(self) -> _Held:
        self._check()
        return _Held(self.place)


@dataclass(slots=True)
class _Held:
    place: MemoryPlace

    def __enter__(self) -> MemoryPlace:
        self.place.lock.acquire()
        return self.place

    def __exit__(self, *exc: object) -> None:
        self.place.lock.release()


def close_attempt(
    place: MemoryPlace,
    rollout_id: str,
    attempt: int,
    outcome: Outcome,
    now: float,
    error: str | None = None,
    result: str | None = None,
    then: RolloutState | None = None,
) -> Attempt:
    """Closes an attempt and moves its rollout on, if that is in the queue: to ``then``, or as its configuration says."""
    running = place.attempts.get((rollout_id, attempt))
    if running is None:
        raise StoreError(
            f"there is no attempt {attempt} of rollout {rollout_id}", hint="start it before it is finished"
        )
    if running.ended_at is not None:
        raise StoreError(f"attempt {attempt} of rollout {rollout_id} ended already, as {running.outcome}")
    row = (rollout_id, attempt, running.started_at, now, outcome.value, error, result)
    entry = place.queue.get(rollout_id)
    if entry is not None:
        after = then or entry.config.after(attempt, outcome)
        available_at = entry.available_at
        if after is RolloutState.REQUEUED:
            available_at = now + entry.config.delay_after(attempt)
        move(place, replace(entry, outcome=outcome, available_at=available_at), after, now, error)
    closed = place.attempts[rollout_id, attempt] = rows.attempt_of(row)
    return closed


def move(place: MemoryPlace, entry: QueueEntry, then: RolloutState, now: float, reason: str | None) -> None:
    """Moves a rollout of the queue to a state in which no worker has it. A move that is not allowed raises."""
    require_move(entry.rollout_id, entry.state, then)
    place.queue[entry.rollout_id] = replace(
        entry,
        state=then,
        worker_id=None,
        lease_until=None,
        deadline=None,
        reason=reason,
        ended_at=now if then.ended else None,
    )
    if then.ended:
        place.endings += 1
        place.ended[place.endings] = entry.rollout_id


def _insert(table: dict[str, rows.Row], new: Sequence[tuple[str, rows.Row]], what: str) -> None:
    _require_new(table, [key for key, _ in new], what)
    table.update(new)


def _require_new(table: dict[str, rows.Row], keys: Sequence[str], what: str) -> None:
    for place, key in enumerate(keys):
        if key in table or key in keys[:place]:
            raise StoreError(f"{what} {key} exists already", hint="ids are written once; use a fresh one")


def _of(rollout_ids: Sequence[str] | None, found: list[T], whose: Callable[[T], str | None]) -> list[T]:
    if rollout_ids is None:
        return found
    wanted = set(rollout_ids)
    return [one for one in found if whose(one) in wanted]


def _writable(row: rows.Row) -> rows.Row:
    """``row``, if each text in it can be written anywhere. Raises `StoreError`."""
    try:
        for value in row:
            if isinstance(value, str):
                value.encode()
    except UnicodeEncodeError as error:
        raise StoreError(f"a text cannot be stored: {error}") from error
    return row
