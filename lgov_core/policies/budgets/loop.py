"""LoopPolicy: denies calls that an agent keeps repeating."""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from lgov_core._util.containers import BoundedDict
from lgov_core._util.json_text import NotCanonical, fingerprint
from lgov_core.governor.options import matches_any, positive_integer, string_tuple
from lgov_core.policies.budgets.bookkeeping import COMMON, CountingPolicy, SharedState, count_key, decided
from lgov_core.types import Action, Decision, Point, Severity

#: The longest cycle that is looked for, in calls.
LONGEST_CYCLE: Final = 8
#: Rollouts whose calls are remembered at once; the one that has been quiet for longest is forgotten first.
MAX_ROLLOUTS: Final = 10_000


class LoopPolicy(CountingPolicy):
    """Denies a tool call that the agent keeps repeating.

    The same call is the same tool with the same arguments. It may be made ``max_repeats`` times in a row, and so may a
    cycle of up to eight calls (A, B, A, B, ...); what would repeat it once more is denied. With ``window`` the same call
    may also be made only ``max_repeats`` times among the last ``window`` calls. Tools that fit a glob in ``ignore`` are
    neither counted nor denied. ``abort_after`` such denials in a rollout end the run.

    Counted for each attempt at a rollout; without one, for each session, agent, or all together. A call that another
    policy denies counts too. Remembers the calls of the ten thousand rollouts that were active last.

    A limit is not a permission: where nothing is repeated the policy has no opinion. May be called from several threads at
    once. Raises `PolicyError` when made with something that has no meaning.
    """

    counts = ("_histories",)

    def __init__(
        self,
        max_repeats: int = 3,
        *,
        window: int | None = None,
        ignore: Sequence[str] = (),
        abort_after: int | None = None,
        name: str = "LoopPolicy",
    ) -> None:
        super().__init__()
        self.name = name
        self.max_repeats = positive_integer(name, "max_repeats", max_repeats)
        self.window = None if window is None else positive_integer(name, "window", window)
        self.ignore = string_tuple(name, "ignore", ignore)
        self.abort_after = None if abort_after is None else positive_integer(name, "abort_after", abort_after)
        self._kept = max(self.window or 0, LONGEST_CYCLE * self.max_repeats)
        self._histories = _Histories()

    def judge(self, action: Action) -> Decision | None:
        """A deny that tells the agent that it repeats itself, or None."""
        if action.point is not Point.PRE_TOOL_CALL or matches_any(action.name, self.ignore):
            return None
        call, again = _call(action), not self.judgements.begin(action)
        with self._histories.of(_whose(action)) as history:
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
        tried, carried_out = [past_call for _, past_call in history.tried], [past_call for _, past_call in history.made]
        for length in range(1, LONGEST_CYCLE + 1):
            needed = length * self.max_repeats
            if len(tried) < needed:
                break
            tail = [*tried[-needed:], call]
            if all(tail[at] == tail[at + length] for at in range(needed + 1 - length)):
                return length
        recent = carried_out[max(0, len(carried_out) + 1 - self.window) :] if self.window is not None else []
        return 0 if recent.count(call) >= self.max_repeats else None

    def observe(self, event: Any) -> None:
        """Ends the judgement of a decision that was taken, and forgets a rollout that ended."""
        super().observe(event)
        judged = decided(event)
        if judged is not None and judged[0].point is Point.AGENT_SHUTDOWN:
            self._histories.drop(_whose(judged[0]))

    def reset(self) -> None:
        """Forgets every call."""
        self._histories.clear()


class _History:
    """The last calls of one rollout, oldest first, each with its operation id.

    Those that were denied here were tried all the same: a cycle goes on until the agent does something else.
    """

    def __init__(self) -> None:
        self.tried: list[tuple[str | None, str]] = []
        self.made: list[tuple[str | None, str]] = []
        self.denied = 0

    def add(self, operation: str | None, call: str, kept: int, *, made: bool) -> None:
        for calls in (self.tried, self.made) if made else (self.tried,):
            calls.append((operation, call))
            del calls[:-kept]

    def take_back(self, operation: str | None) -> None:
        """Forgets what this operation was counted as: it is being judged again, perhaps in another form."""
        for calls in (self.tried, self.made):
            places = [at for at, (made_by, _) in enumerate(calls) if made_by == operation]
            if places:
                del calls[places[-1]]


class _Histories(SharedState):
    """The histories of the rollouts that were active last."""

    def __init__(self) -> None:
        super().__init__()
        self._by_key: BoundedDict[str, _History] = BoundedDict(MAX_ROLLOUTS)

    @contextmanager
    def of(self, key: str) -> Generator[_History]:
        """The history of one rollout, exclusive for as long as the block lasts."""
        with self._lock:
            history = self._by_key.get(key) or _History()
            self._by_key.put(key, history)
            yield history

    def drop(self, key: str) -> None:
        with self._lock:
            self._by_key.pop(key)

    def clear(self) -> None:
        with self._lock:
            self._by_key = BoundedDict(MAX_ROLLOUTS)


def _whose(action: Action) -> str:
    for per in ("attempt", "session", "agent"):
        if key := count_key(action, per):
            return f"{per} {key}"
    return COMMON


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
