"""Policies that count calls: `LoopPolicy` and `RateLimitPolicy`, and what every policy that keeps count shares.

Shared are whose count it is, the clock, and which judgements are still going on.
"""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar, Final, Generic, Literal, Self, TypeAlias, TypeVar

from lgov_core._util.containers import BoundedDict
from lgov_core._util.json_text import NotCanonical, fingerprint
from lgov_core._util.sqlite_file import keep_quiet_across_fork
from lgov_core.errors import PolicyError
from lgov_core.governor.patterns import matches_any
from lgov_core.policies.base import BoundedPolicy
from lgov_core.policies.options import Count, PolicyOptions, Positive, Text, Texts, takes
from lgov_core.types import Action, Decision, ModelCallFailed, Point, Severity, ToolOutcome

#: Whose calls are counted together.
Per = Literal["rollout", "attempt", "session", "conversation", "agent", "global"]
#: The count of the actions that carry no id of the kind that is counted by: they share one.
COMMON: Final = ""
#: Judgements that may be going on at the same time and still be recognised.
MAX_JUDGEMENTS: Final = 65_536
#: Outcomes of tool calls that were never made: what was set aside for them is given back.
NOT_MADE: Final = frozenset({"denied", "invalid_args", "unknown_tool"})
_LONGEST_KEY: Final = 200
#: The attempt and the session, or else what tells the actions apart.
RolloutKey: TypeAlias = tuple[str, str, str]

_Key = TypeVar("_Key")
_Past = TypeVar("_Past")


def now_of(owner: str, clock: Callable[[], float]) -> float:
    """The time that ``clock`` says. Raises `PolicyError` when it says none: a NaN is neither before nor after anything."""
    now = clock()
    if isinstance(now, bool) or not isinstance(now, int | float) or not math.isfinite(now):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise PolicyError(f"{owner}: the clock says {now!r}", hint="give a function that returns seconds")
    return now


def count_key(action: Action, per: str) -> str:
    """Whose count ``action`` goes to.

    An action without the id in question goes to `COMMON`, which is one count for all of its kind: without an id there is
    less to spend, never more.
    """
    ids = {
        "rollout": action.rollout_id,
        "attempt": action.rollout_id and f"{action.rollout_id}/{action.attempt or 1}",
        "session": action.session_id,
        "conversation": action.session_id or action.rollout_id,
        "agent": action.agent,
        "run": action.run_id if action.run_id != action.span_id else None,  # a call by itself is no run
        "tool": action.name,
    }.get(per)
    if not ids:
        return COMMON
    key = str(ids)
    # Names are the caller's, of any length; the count must not keep them whole.
    return key if len(key) <= _LONGEST_KEY else "sha256:" + hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()


def decided(event: Any) -> tuple[Action, Decision] | None:
    """The action and the decision when ``event`` is a decision that was taken and committed, else None."""
    if isinstance(event, ToolOutcome | ModelCallFailed):
        return None
    action, decision = getattr(event, "action", None), getattr(event, "decision", None)
    return (action, decision) if isinstance(action, Action) and isinstance(decision, Decision) else None


class SharedState:
    """A lock that survives forks: a child gets the counts as they were, and a lock of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        keep_quiet_across_fork(self)

    def before_fork(self) -> None:
        """Stops counting, so that no child gets a half-made count. Called by the interpreter."""
        self._lock.acquire()

    def after_fork_in_parent(self) -> None:
        """Lets counting go on. Called by the interpreter."""
        self._lock.release()

    def after_fork_in_child(self) -> None:
        """Gives the child a lock of its own. Called by the interpreter."""
        self._lock = threading.Lock()


class Pasts(SharedState, Generic[_Past]):
    """The state of each of at most ``most`` rollouts, by `rollout_key`.

    Beyond that the quietest is forgotten if ``forgets``, or else no more are opened.
    """

    def __init__(self, make: Callable[[], _Past], most: int, *, forgets: bool = True) -> None:
        super().__init__()
        self._make, self._most, self._forgets = make, most, forgets
        self._by_key: dict[RolloutKey, _Past] = {}

    @contextmanager
    def of(self, key: RolloutKey, *, opens: bool = True) -> Generator[_Past | None]:
        """The state of one rollout, exclusive for as long as the block lasts; None where there is none."""
        with self._lock:
            past = self._by_key.get(key)
            if past is None and opens and (self._forgets or len(self._by_key) < self._most):
                past = self._make()
            if past is not None:
                keep_newest(self._by_key, key, past, self._most)
            yield past

    def drop(self, key: RolloutKey) -> None:
        """Forgets a rollout that has ended, in all its sessions."""
        with self._lock:
            for other in [other for other in self._by_key if other == key or (key[0] and other[0] == key[0])]:
                del self._by_key[other]

    def clear(self) -> None:
        """Forgets every rollout."""
        with self._lock:
            self._by_key.clear()

    def limited_as(self, other: Pasts[_Past]) -> Self:
        """Itself, from now on with the limit of ``other``."""
        self._most, self._forgets = other._most, other._forgets
        return self


def rollout_key(action: Action, otherwise: str = "run") -> RolloutKey:
    """The attempt and session of ``action``, or without either what `count_key` says ``otherwise``; empty for `COMMON`."""
    attempt, session = count_key(action, "attempt"), count_key(action, "session")
    return attempt, session, count_key(action, otherwise) if attempt == session == COMMON else COMMON


def keep_newest(entries: dict[_Key, _Past], key: _Key, value: _Past, most: int) -> None:
    """Sets an entry as the newest, and drops the oldest beyond ``most``."""
    entries.pop(key, None)
    entries[key] = value
    if len(entries) > most:
        del entries[next(iter(entries))]


class Judgements(SharedState):
    """Which operations are being judged, so that one that is judged again is not counted again.

    A governor judges an action once more when a transform has changed it, and a policy may stand in several rules. Both
    show the same point and operation id until the decision is taken. An action without an operation id is always new.
    Holds `MAX_JUDGEMENTS`, then forgets the oldest. May be called from several threads at once.
    """

    def __init__(self) -> None:
        super().__init__()
        self._going_on: BoundedDict[tuple[str, str], Any] = BoundedDict(MAX_JUDGEMENTS)

    def begin(self, action: Action, note: Any = None) -> bool:
        """Keeps ``note`` with the judgement; whether this is the first time that it is seen."""
        if action.operation_id is None:
            return True
        key = (action.point.value, action.operation_id)
        with self._lock:
            first = key not in self._going_on
            self._going_on.put(key, note)
            return first

    def note(self, action: Action) -> Any:
        """Returns the value kept with this judgement, or None."""
        if action.operation_id is None:
            return None
        with self._lock:
            return self._going_on.get((action.point.value, action.operation_id))

    def end(self, action: Action) -> Any:
        """Forgets the judgement, because the decision was taken; returns what was kept with it."""
        if action.operation_id is None:
            return None
        with self._lock:
            return self._going_on.pop((action.point.value, action.operation_id))


class CountingPolicy(BoundedPolicy):
    """Base of policies that count what they judge until the decision is taken. ``counts`` names what holds the count."""

    counts: ClassVar[tuple[str, ...]]
    per: str = ""

    def __init__(self) -> None:
        self.judgements = Judgements()

    def observe(self, event: Any) -> None:
        """Ends the judgement of a decision that was taken."""
        judged = decided(event)
        if judged is not None:
            self.judgements.end(judged[0])

    def continue_from(self, previous: object) -> None:
        """Goes on with the counts of ``previous``, which this one replaces. Raises `PolicyError` when it counted else."""
        if not isinstance(previous, type(self)) or previous.per != self.per:
            what = f"per {self.per}" if self.per else "in the same way"
            raise PolicyError(f"{self.name}: calls were not counted {what}", hint="give the rule another name")
        for name in ("judgements", *self.counts):
            setattr(self, name, getattr(previous, name))


#: The longest cycle that is looked for, in calls.
LONGEST_CYCLE: Final = 8
#: Rollouts whose calls are remembered at once; the one that has been quiet for longest is forgotten first.
MAX_ROLLOUTS: Final = 10_000


class LoopOptions(PolicyOptions, frozen=True):
    """The options of a `LoopPolicy`."""

    max_repeats: Count = 3
    window: Count | None = None
    ignore: Texts = ()
    abort_after: Count | None = None
    name: Text = "LoopPolicy"


class LoopPolicy(CountingPolicy):
    """Denies a tool call that the agent keeps repeating.

    The same call is the same tool with the same arguments. It may be made ``max_repeats`` times in a row, and so may a
    cycle of up to eight calls (A, B, A, B, ...); the next repetition is denied. The same call with a new result is
    progress, where the results are seen. With ``window`` the same call may also be made only ``max_repeats`` times among
    the last ``window`` calls, whatever its results. Tools that fit a glob in ``ignore`` are neither counted nor denied.
    ``abort_after`` such denials in a rollout end the run.

    Calls are counted for each session of each attempt at a rollout; without either, for each agent, or all together. A call
    that another policy denies counts too. The policy remembers the ten thousand rollouts that were active last.

    May be called from several threads at once. Raises `PolicyError` for an option without a meaning.
    """

    counts = ("_histories",)

    @takes(LoopOptions)
    def __init__(self, options: LoopOptions) -> None:
        super().__init__()
        self.name = options.name
        self.max_repeats, self.window = options.max_repeats, options.window
        self.ignore = tuple(options.ignore)
        self.abort_after = options.abort_after
        self._kept = max(self.window or 0, LONGEST_CYCLE * self.max_repeats)
        self._histories = Pasts(_History, MAX_ROLLOUTS)

    def judge(self, action: Action) -> Decision | None:
        """A deny that tells the agent that it repeats itself, or None."""
        if action.point is not Point.PRE_TOOL_CALL or matches_any(action.name, self.ignore):
            return None
        call, again = _call(action), not self.judgements.begin(action)
        with self._histories.of(rollout_key(action, "agent")) as history:
            assert history is not None  # the quietest makes room
            if again:
                history.take_back(action.operation_id)
            cycle = self._cycle(history, call)
            history.add(action.operation_id, call, self._kept, made=cycle is None)
            if cycle is None:
                return None
            history.denied += 1
            denied = history.denied
        if cycle == 0:
            repetition = f"was made {self.max_repeats} times in the last {self.window} calls"
        elif cycle == 1:
            repetition = f"was made {self.max_repeats} times in a row"
        else:
            repetition = f"goes round in a cycle of {cycle} calls, {self.max_repeats} times already"
        reason = (
            f"You are repeating yourself: this call of {action.name[:80]} {repetition}. Do something else, or answer."
        )
        decision = self.deny("loop", reason, Severity.MEDIUM)
        ends = self.abort_after is not None and denied >= self.abort_after
        return replace(decision, rule="loop-abort", abort=True, severity=Severity.HIGH) if ends else decision

    def _cycle(self, history: _History, call: str) -> int | None:
        """The length of the cycle that ``call`` would begin once more; 0 for too often in the window; None for none."""
        carried_out = [past.call for past in history.made]
        for length in range(1, LONGEST_CYCLE + 1):
            needed = length * self.max_repeats
            if len(history.tried) < needed:
                break
            tail = [*history.tried[-needed:], _PastCall(None, call)]
            if all(tail[at].is_repeated_by(tail[at + length]) for at in range(needed + 1 - length)):
                return length
        recent = carried_out[max(0, len(carried_out) + 1 - self.window) :] if self.window is not None else []
        return 0 if recent.count(call) >= self.max_repeats else None

    def observe(self, event: Any) -> None:
        """Ends the judgement of a decision that was taken, notes results, and forgets a rollout that ended."""
        super().observe(event)
        if isinstance(event, ToolOutcome) and event.status not in NOT_MADE:
            with self._histories.of(rollout_key(event.action, "agent")) as history:
                assert history is not None
                history.ended(event)
        judged = decided(event)
        if judged is not None and judged[0].point is Point.AGENT_SHUTDOWN:
            self._histories.drop(rollout_key(judged[0], "agent"))

    def reset(self) -> None:
        """Forgets every call."""
        self._histories.clear()


@dataclass(slots=True)
class _PastCall:
    """A call, its operation id, and the digest of its result, where that is known."""

    operation: str | None
    call: str
    result: bytes | None = None

    def is_repeated_by(self, later: _PastCall) -> bool:
        return self.call == later.call and (self.result == later.result or self.result is None or later.result is None)


class _History:
    """The last calls of one rollout, oldest first.

    Those that were denied here were tried all the same: a cycle goes on until the agent does something else.
    """

    def __init__(self) -> None:
        self.tried: list[_PastCall] = []
        self.made: list[_PastCall] = []
        self.denied = 0

    def add(self, operation: str | None, call: str, kept: int, *, made: bool) -> None:
        for calls in (self.tried, self.made) if made else (self.tried,):
            calls.append(_PastCall(operation, call))
            del calls[:-kept]

    def take_back(self, operation: str | None) -> None:
        """Forgets what this operation was counted as: it is being judged again, perhaps in another form."""
        for calls in (self.tried, self.made):
            places = [at for at, past in enumerate(calls) if past.operation == operation]
            if places:
                del calls[places[-1]]

    def ended(self, outcome: ToolOutcome) -> None:
        text = f"{outcome.status} {outcome.result} {outcome.error}"
        for past in self.tried:
            if past.operation is not None and past.operation == outcome.action.operation_id:
                past.result = hashlib.sha256(text.encode("utf-8", "replace")).digest()


def _call(action: Action) -> str:
    try:
        return fingerprint([action.kind, action.name, action.arguments])
    except NotCanonical:
        # Objects are distinguished by their repr: two that look the same are the same call.
        try:
            digest = hashlib.sha256(repr(action.arguments).encode("utf-8", "replace")).hexdigest()
        except Exception as error:  # noqa: BLE001 - a repr may raise anything; all that do are the same call then
            digest = type(error).__name__
        return f"{action.kind} {action.name[:200]} {digest}"


RatePer = Literal["agent", "session", "conversation", "rollout", "global", "tool"]
#: Points at which something is about to begin. Elsewhere there is nothing left to hold back.
COUNTED: Final = frozenset({Point.AGENT_STARTUP, Point.INPUT, Point.PRE_MODEL_CALL, Point.PRE_TOOL_CALL})


class RateOptions(PolicyOptions, frozen=True):
    """The options of a `RateLimitPolicy`."""

    in_python = MappingProxyType({"clock": (Callable,)})

    max_calls: Count
    per_seconds: Positive
    per: RatePer = "agent"
    burst: Count | None = None
    max_buckets: Count = 100_000
    clock: Callable[[], float] = time.monotonic
    name: Text = "RateLimitPolicy"


class RateLimitPolicy(CountingPolicy):
    """Lets ``max_calls`` calls through every ``per_seconds`` seconds.

    A token bucket: it holds ``burst`` calls (``max_calls`` unless given) and fills up evenly. There is a bucket for each
    agent, session, conversation (its session, or else its rollout), rollout or tool (``per``), or one for all (``global``);
    tool calls and model calls have buckets of their own. Actions without the id in question share a bucket. A call that
    this rule denies uses nothing up; a call that another policy denies does, since it was tried.

    ``clock`` gives seconds and never goes back. A full bucket is forgotten, so that memory is bounded by the calls of one
    period; beyond ``max_buckets`` at once new buckets are denied.

    May be called from several threads at once. Raises `PolicyError` for an option without a meaning.
    """

    counts = ("_buckets", "_clock")

    @takes(RateOptions)
    def __init__(self, options: RateOptions) -> None:
        super().__init__()
        self.name = options.name
        self.max_calls, self.per_seconds, self.per = options.max_calls, options.per_seconds, options.per
        self.burst = options.burst or self.max_calls
        self.max_buckets = options.max_buckets
        self._clock = options.clock
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
