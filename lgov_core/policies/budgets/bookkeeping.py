"""The common part of policies that keep count: whose count it is, and which judgements are still going on."""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Callable
from typing import Any, ClassVar, Final, Literal

from lgov_core._util.containers import BoundedDict
from lgov_core._util.sqlite_file import keep_quiet_across_fork
from lgov_core.errors import PolicyError
from lgov_core.policies.base import BoundedPolicy
from lgov_core.types import Action, Decision, ModelCallFailed, ToolOutcome

#: Whose calls are counted together.
Per = Literal["rollout", "attempt", "session", "agent", "global"]
#: The count of the actions that carry no id of the kind that is counted by: they share one.
COMMON: Final = ""
#: Judgements that may be going on at the same time and still be recognised.
MAX_JUDGEMENTS: Final = 65_536
#: Outcomes of tool calls that were never made: what was set aside for them is given back.
NOT_MADE: Final = frozenset({"denied", "invalid_args", "unknown_tool"})
_LONGEST_KEY: Final = 200


def checked_clock(owner: str, clock: Callable[[], float]) -> Callable[[], float]:
    """``clock`` when it is a function. Raises `PolicyError`."""
    if not callable(clock):
        raise PolicyError(f"{owner}: clock is {clock!r}", hint="give a function that returns seconds")
    return clock


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
        "agent": action.agent,
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
