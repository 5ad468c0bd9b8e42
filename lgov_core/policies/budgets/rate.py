"""RateLimitPolicy: how often something may be done."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final, Literal, get_args

from lgov_core.governor.options import one_of, positive_integer, positive_number
from lgov_core.policies.budgets.bookkeeping import (
    COMMON,
    CountingPolicy,
    SharedState,
    checked_clock,
    count_key,
    now_of,
)
from lgov_core.types import Action, Decision, Point, Severity

Per = Literal["agent", "session", "rollout", "global", "tool"]
#: Points at which something is about to begin. Elsewhere there is nothing left to hold back.
COUNTED: Final = frozenset({Point.AGENT_STARTUP, Point.INPUT, Point.PRE_MODEL_CALL, Point.PRE_TOOL_CALL})


class RateLimitPolicy(CountingPolicy):
    """Lets ``max_calls`` calls through every ``per_seconds`` seconds.

    A token bucket: it holds ``burst`` calls (``max_calls`` unless given) and fills up evenly. There is one for each agent,
    session, rollout or tool (``per``), or one for all (``global``), and for each point: tool calls and model calls do not
    use up each other's. Actions without the id in question share one. What is denied here uses nothing up; what another
    policy denies does, since it was tried. Points at which nothing begins are ignored.

    ``clock`` gives seconds and never goes back. A bucket that is full is forgotten, so memory is bounded by the calls of
    one period; beyond ``max_buckets`` at once new ones are denied.

    A limit is not a permission: within it the policy has no opinion. May be called from several threads at once. Raises
    `PolicyError` when made with something that has no meaning.
    """

    counts = ("_buckets", "_clock")

    def __init__(
        self,
        max_calls: int,
        per_seconds: float,
        *,
        per: Per = "agent",
        burst: int | None = None,
        max_buckets: int = 100_000,
        clock: Callable[[], float] = time.monotonic,
        name: str = "RateLimitPolicy",
    ) -> None:
        super().__init__()
        self.name = name
        self.max_calls = positive_integer(name, "max_calls", max_calls)
        self.per_seconds = positive_number(name, "per_seconds", per_seconds)
        self.per = one_of(name, "per", per, get_args(Per))
        self.burst = self.max_calls if burst is None else positive_integer(name, "burst", burst)
        self.max_buckets = positive_integer(name, "max_buckets", max_buckets)
        self._clock = checked_clock(name, clock)
        self._buckets = _Buckets()

    def judge(self, action: Action) -> Decision | None:
        """A deny that says when to try again, or None."""
        if action.point not in COUNTED or self.judgements.note(action) == "counted":
            return None
        key = (action.point.value, count_key(action, self.per))
        interval_s = self.per_seconds / self.max_calls
        wait = self._buckets.take(key, now_of(self.name, self._clock), interval_s, self.burst, self.max_buckets)
        if wait is None:
            self.judgements.begin(action, "counted")
            return None
        if math.isinf(wait):
            return self.deny("rate-buckets", "Too many are limited at once, so no more can be; raise max_buckets")
        whose = f"one {self.per}" if key[1] != COMMON else "all together"
        after_s = math.ceil(wait * 10) / 10
        reason = f"At most {self.max_calls} in {self.per_seconds:g} s for {whose}. Try again in {after_s:g} s."
        return self.deny("rate-limit", reason, Severity.MEDIUM)

    def reset(self) -> None:
        """Fills every bucket."""
        self._buckets.clear()


class _Buckets(SharedState):
    """Token buckets by key. A bucket is kept as the moment at which it will be full."""

    def __init__(self) -> None:
        super().__init__()
        self._full_at: dict[tuple[str, str], float] = {}

    def take(self, key: tuple[str, str], now: float, interval_s: float, burst: int, most: int) -> float | None:
        """Takes one call out; or says after how many seconds there will be one (infinite: no room for the bucket)."""
        with self._lock:
            full_at = max(self._full_at.get(key, now), now)
            wait = full_at + interval_s - now - interval_s * burst
            # A hair more than exact, so that sums of many small intervals do not lose a call.
            if wait > interval_s * 1e-6:
                return wait
            if key not in self._full_at and len(self._full_at) >= most:
                self._full_at = {name: moment for name, moment in self._full_at.items() if moment > now}
                if len(self._full_at) >= most:
                    return math.inf
            self._full_at[key] = full_at + interval_s
            return None

    def clear(self) -> None:
        with self._lock:
            self._full_at.clear()
