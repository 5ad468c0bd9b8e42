"""The values of a queue of rollouts, and the rules of their states. Pure; every database uses them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from lgov_core.errors import StoreError
from lgov_core.types import Attempt, Outcome, Rollout


class RolloutState(StrEnum):
    """The state of a rollout of the queue. `STATE_MOVES` has the allowed transitions."""

    QUEUED = "queued"
    RUNNING = "running"
    REQUEUED = "requeued"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        """True where no state follows."""
        return not STATE_MOVES[self]


#: The state machine of a rollout: every move that is allowed. A move that is not here raises.
STATE_MOVES: Final[Mapping[RolloutState, frozenset[RolloutState]]] = MappingProxyType(
    {
        RolloutState.QUEUED: frozenset({RolloutState.RUNNING, RolloutState.CANCELLED}),
        RolloutState.RUNNING: frozenset(
            {RolloutState.REQUEUED, RolloutState.SUCCEEDED, RolloutState.FAILED, RolloutState.CANCELLED}
        ),
        RolloutState.REQUEUED: frozenset({RolloutState.RUNNING, RolloutState.CANCELLED}),
        RolloutState.SUCCEEDED: frozenset(),
        RolloutState.FAILED: frozenset(),
        RolloutState.CANCELLED: frozenset(),
    }
)

#: Outcomes after which another try is worth it by default: they say something about the machines, not about the agent.
RETRIED_BY_DEFAULT: Final = frozenset({Outcome.INFRASTRUCTURE, Outcome.TIMEOUT})

#: A delay before a retry stops growing here, in seconds.
_LONGEST_DELAY_S: Final = 3600.0


def require_move(rollout_id: str, now: RolloutState, then: RolloutState) -> None:
    """Raises `StoreError` unless a rollout may go from state ``now`` to state ``then``."""
    if then not in STATE_MOVES[now]:
        allowed = ", ".join(sorted(STATE_MOVES[now])) or "nothing"
        raise StoreError(f"rollout {rollout_id} is {now} and cannot become {then}", hint=f"what may follow: {allowed}")


@dataclass(frozen=True, slots=True)
class RolloutConfig:
    """How often and for how long a rollout of the queue is tried.

    At most ``max_attempts`` attempts are made; one follows another when its outcome is in ``retry_on``, after
    ``retry_delay_s`` seconds, doubled each time and an hour at most. An attempt that runs for longer than ``timeout_s``
    seconds is closed as ``timeout``; one whose worker gave no sign of life for ``unresponsive_s`` seconds (or for as long
    as its lease, whichever is shorter) as ``infrastructure``. None: no such limit. Raises `StoreError` for values
    without meaning.
    """

    max_attempts: int = 1
    timeout_s: float | None = None
    unresponsive_s: float | None = None
    retry_on: frozenset[Outcome] = RETRIED_BY_DEFAULT
    retry_delay_s: float = 0.0

    def __post_init__(self) -> None:
        try:
            for outcome in self.retry_on:
                Outcome(outcome)
        except (TypeError, ValueError) as error:
            outcomes = ", ".join(Outcome)
            raise StoreError(f"retry_on is {self.retry_on!r}: {error}", hint=f"outcomes are {outcomes}") from error
        if type(self.max_attempts) is not int or self.max_attempts < 1:
            raise StoreError(f"max_attempts is {self.max_attempts!r}", hint="a whole number; one attempt is the least")
        for name, limit in (("timeout_s", self.timeout_s), ("unresponsive_s", self.unresponsive_s)):
            if limit is not None and not (_is_seconds(limit) and limit > 0):
                raise StoreError(f"{name} is {limit!r}", hint="give seconds, more than 0, or None for no limit")
        if not (_is_seconds(self.retry_delay_s) and self.retry_delay_s >= 0):
            raise StoreError(f"retry_delay_s is {self.retry_delay_s!r}", hint="give seconds, 0 or more")
        if Outcome.SUCCEEDED in self.retry_on:
            raise StoreError("retry_on names succeeded", hint="only what did not succeed can be tried again")

    def after(self, attempt: int, outcome: Outcome) -> RolloutState:
        """The state of a rollout whose attempt number ``attempt`` ended so."""
        if outcome is Outcome.SUCCEEDED:
            return RolloutState.SUCCEEDED
        retried = outcome in self.retry_on and attempt < self.max_attempts
        return RolloutState.REQUEUED if retried else RolloutState.FAILED

    def delay_after(self, attempt: int) -> float:
        """For how many seconds a rollout waits after its attempt number ``attempt`` (from 1) before it is tried again."""
        return min(self.retry_delay_s * 2.0 ** min(attempt - 1, 60), max(_LONGEST_DELAY_S, self.retry_delay_s))

    def lease_until(self, now: float, lease_s: float) -> float:
        """Until when (Unix seconds) a worker that reports at ``now`` holds an attempt leased for ``lease_s`` seconds."""
        return now + (lease_s if self.unresponsive_s is None else min(lease_s, self.unresponsive_s))

    def deadline(self, started_at: float) -> float | None:
        """When (Unix seconds) an attempt that began at ``started_at`` has run for too long; None without a limit."""
        return None if self.timeout_s is None else started_at + self.timeout_s

    def as_json(self) -> dict[str, Any]:
        """The configuration as JSON values."""
        return {**asdict(self), "retry_on": sorted(self.retry_on)}

    @staticmethod
    def from_json(value: dict[str, Any]) -> RolloutConfig:
        """The configuration that `as_json` wrote."""
        values: dict[str, Any] = value | {"retry_on": frozenset(map(Outcome, value["retry_on"]))}
        return RolloutConfig(**values)


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """A rollout as the queue sees it. Times are Unix seconds.

    ``attempt`` is the number of its last attempt, 0 before the first; ``outcome`` is how that one ended, None while it
    runs; ``reason`` is the reason as text. While it is running, ``worker_id`` has it until ``lease_until``, and until
    ``deadline`` at the latest; the three are None in every other state. A rollout that waits is not handed out before
    ``available_at``. ``ended_at`` is set in the states after which nothing follows.
    """

    rollout_id: str
    run_id: str
    state: RolloutState
    config: RolloutConfig
    enqueued_at: float
    available_at: float
    attempt: int = 0
    outcome: Outcome | None = None
    worker_id: str | None = None
    lease_until: float | None = None
    deadline: float | None = None
    ended_at: float | None = None
    reason: str | None = None

    def lapse(self, now: float) -> tuple[Outcome, str]:
        """How an attempt ends that runs and has passed its deadline or its lease at ``now``, and why, in words."""
        if self.deadline is not None and now > self.deadline:
            return Outcome.TIMEOUT, f"the attempt ran for longer than {self.config.timeout_s:g} s"
        return Outcome.INFRASTRUCTURE, f"worker {self.worker_id} gave no sign of life until its lease ran out"


@dataclass(frozen=True, slots=True)
class Claim:
    """A rollout handed to a worker, with the attempt that was opened for it.

    The worker must call `RolloutQueue.heartbeat` before ``lease_until`` and finish before ``deadline``;
    both are Unix seconds by the store's clock.
    """

    rollout: Rollout
    attempt: Attempt
    config: RolloutConfig
    lease_until: float
    deadline: float | None = None


@dataclass(frozen=True, slots=True)
class EndedRollouts:
    """Rollouts that ended, in the order in which they did, and the ``cursor`` from which to go on."""

    entries: tuple[QueueEntry, ...] = field(default=())
    cursor: int = 0


def require_lease(lease_s: float) -> None:
    """Raises `StoreError` unless ``lease_s`` is a positive number of seconds."""
    if not (_is_seconds(lease_s) and lease_s > 0):
        raise StoreError(f"a lease of {lease_s!r} s", hint="give seconds, more than 0")


def _is_seconds(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
