"""The contract of a trace store; every database passes the same tests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from lgov_core.types import Attempt, CapturedCall, JSONValue, Outcome, Reward, Rollout, Span


class TraceStore(Protocol):
    """Rollouts, attempts, captured calls, spans and rewards.

    Every write is durable against the death of the process when the method returns, unless it says otherwise; a write
    that cannot be made so raises `StoreError` and leaves nothing half-written. All methods may be called from any
    thread, and several processes may hold stores on the same place. Readers see committed rows only, in the order in
    which they were written.
    """

    def add_rollouts(self, rollouts: Sequence[Rollout]) -> None:
        """Adds rollouts. An id that exists already raises `StoreError`; then none is added."""
        ...

    def start_attempt(self, rollout_id: str, attempt: int) -> Attempt:
        """Opens an attempt (numbered from 1). Raises `StoreError` for an unknown rollout or an attempt that exists."""
        ...

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
        """Closes an attempt and adds its final rewards in the same transaction.

        Rewards that name no rollout get this one and this attempt; one that names another raises `StoreError`. Closing the
        attempt again raises `StoreError`: the first outcome stays.
        """
        ...

    def add_call(self, call: CapturedCall) -> None:
        """Adds a captured model call. One with its ``response_id`` and ``choice`` raises `StoreError`."""
        ...

    def add_rewards(self, rewards: Iterable[Reward]) -> None:
        """Adds rewards. A value that is not finite raises `StoreError`; then none is added."""
        ...

    def add_span(self, span: Span) -> None:
        """Queues a span and returns at once. A full queue drops it and counts it in `dropped_spans`."""
        ...

    def add_spans(self, spans: Iterable[Span]) -> int:
        """Adds spans, all of them or none, and returns how many were new.

        A span that is there already, equal in every field, is not written again, so a batch may be sent twice. One that has
        the id of another and different contents is kept beside it; readers decide which of them is right. The same
        holds for `add_span`.
        """
        ...

    def flush(self) -> None:
        """Returns when everything queued before the call is durable."""
        ...

    @property
    def dropped_spans(self) -> int:
        """How many spans this store object dropped because its queue was full."""
        ...

    def rollouts(self, *, run_id: str | None = None, ids: Sequence[str] | None = None) -> list[Rollout]:
        """Rollouts, all or those of a run, or those with the given ids."""
        ...

    def attempts(self, rollout_ids: Sequence[str] | None = None) -> list[Attempt]:
        """Attempts, all or those of the given rollouts."""
        ...

    def calls(self, rollout_ids: Sequence[str] | None = None) -> Iterator[CapturedCall]:
        """Captured calls, all or those of the given rollouts."""
        ...

    def rewards(self, rollout_ids: Sequence[str] | None = None) -> list[Reward]:
        """Rewards, all or those of the given rollouts."""
        ...

    def spans(self, rollout_ids: Sequence[str] | None = None) -> list[Span]:
        """Spans, all or those of the given rollouts."""
        ...

    def fail_open_attempts(self, reason: str) -> int:
        """Closes every open attempt as infrastructure (after a crash). Returns how many."""
        ...

    def close(self) -> None:
        """Flushes and closes. Calling it again does nothing; any other call after it raises `StoreError`."""
        ...
