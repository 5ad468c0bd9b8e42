"""Signals: what stops, resumes or ends a rollout at its next governed point."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from lgov_core.errors import ArgumentError
from lgov_core.flow import Flow, finished, wait
from lgov_core.governor import Governor, in_scope
from lgov_core.policies.base import BoundedPolicy
from lgov_core.types import Action, Decision, Point, Severity

#: The name under which a signal's denials are recorded.
SIGNAL_POLICY = "kernel-signal"


class AgentSignal(StrEnum):
    """A signal to a rollout or an agent; a member equals its name, ``AgentSignal.SIGSTOP == "SIGSTOP"``.

    ``SIGSTOP``: the next governed point waits for ``SIGCONT``, and is denied when none comes in time. ``SIGCONT`` resumes
    what was stopped. ``SIGTERM``: the next act is denied and the rollout asked to end; its output and its end are still
    judged as usual. ``SIGKILL``: every further point is denied at once, also those that wait. Neither of the last two
    can be taken back by ``SIGCONT``.
    """

    SIGSTOP = "SIGSTOP"
    SIGCONT = "SIGCONT"
    SIGTERM = "SIGTERM"
    SIGKILL = "SIGKILL"

    @classmethod
    def of(cls, name: str) -> AgentSignal:
        """The signal called ``name``. Raises `ArgumentError`."""
        try:
            return cls(name)
        except ValueError:
            raise ArgumentError(f"there is no signal {name!r}", hint=f"send one of {', '.join(cls)}") from None


_LETS_PASS_AFTER_TERM = (Point.POST_MODEL_CALL, Point.POST_TOOL_CALL, Point.OUTPUT, Point.AGENT_SHUTDOWN)


@dataclass(slots=True)
class _Box:
    """The signals of one target (a rollout or an agent)."""

    stopped: bool = False
    expired: bool = False
    ended_by: AgentSignal | None = None
    automatic: bool = False
    waiting: list[Future[None]] = field(default_factory=list["Future[None]"])


class SignalPolicy(BoundedPolicy):
    """Denies what a signal has stopped or ended; has no opinion on anything else.

    A target is the id of a rollout or the name of an agent. `wait_flow` holds an action of a stopped target
    for ``stop_timeout_s`` seconds at most; one that was not resumed in that time is denied, and so is everything of that
    target until ``SIGCONT``: fails closed. `judge` itself never waits. May be called from several threads and tasks.
    """

    default_points = tuple(Point)

    def __init__(self, *, stop_timeout_s: float = 30.0, name: str = SIGNAL_POLICY) -> None:
        # A bool is a number to Python, and a NaN passes every comparison: neither is a duration.
        number = isinstance(stop_timeout_s, int | float) and not isinstance(stop_timeout_s, bool)  # pyright: ignore[reportUnnecessaryIsInstance]
        if not number or not 0 <= stop_timeout_s < float("inf"):
            raise ArgumentError(f"stop_timeout_s must be seconds, 0 or more, not {stop_timeout_s!r}")
        self.name = name
        self.stop_timeout_s = stop_timeout_s
        self._boxes: dict[str, _Box] = {}
        self._lock = threading.Lock()

    # ------------------------------------------------------------------ sending

    def send(self, target: str, signal: AgentSignal, *, automatic: bool = False) -> None:
        """Takes effect at the target's next governed point. ``automatic`` marks what `forget` may forget by itself."""
        with self._lock:
            box = self._boxes.setdefault(target, _Box(automatic=automatic))
            box.automatic = box.automatic and (automatic or signal is AgentSignal.SIGCONT)
            if signal is AgentSignal.SIGSTOP:
                box.stopped, box.expired = True, False
            elif signal is AgentSignal.SIGCONT:
                box.stopped = box.expired = False
            elif box.ended_by is not AgentSignal.SIGKILL:
                box.ended_by = signal
            released = [] if box.stopped and box.ended_by is None else box.waiting[:]
            if box.ended_by is None and not box.stopped:
                del self._boxes[target]
        _release(released)

    def forget(self, target: str, *, automatic_only: bool = False) -> None:
        """Forgets what ``target`` was sent; with ``automatic_only`` only what the kernel sent by itself."""
        with self._lock:
            box = self._boxes.get(target)
            if box is None or (automatic_only and not box.automatic):
                return
            del self._boxes[target]
            released = box.waiting[:]
        _release(released)

    def forget_automatic(self) -> None:
        """Forgets everything that the kernel sent by itself."""
        with self._lock:
            targets = [target for target, box in self._boxes.items() if box.automatic]
        for target in targets:
            self.forget(target, automatic_only=True)

    # ------------------------------------------------------------------ taking effect

    def judge(self, action: Action) -> Decision | None:
        """A denial that asks for the end of the run, or None."""
        if not self._boxes:
            return None
        with self._lock:
            for target in (action.rollout_id, action.agent):
                box = self._boxes.get(target) if target is not None else None
                if box is not None and (denial := self._denial(box, action.point)) is not None:
                    return denial
        return None

    def _denial(self, box: _Box, point: Point) -> Decision | None:
        if point is Point.AGENT_SHUTDOWN:
            return None
        if box.ended_by is AgentSignal.SIGKILL:
            return self._stop("sigkill", "The run was killed.")
        if box.ended_by is AgentSignal.SIGTERM and point not in _LETS_PASS_AFTER_TERM:
            return self._stop("sigterm", "The run was asked to end; finish without further calls.")
        if box.expired:
            return self._stop("sigstop", f"The run was stopped and not resumed within {self.stop_timeout_s:g} s.")
        return None

    def _stop(self, rule: str, reason: str) -> Decision:
        return replace(self.deny(rule, reason, Severity.LOW), abort=True)

    def wait_flow(self, action: Action) -> Flow[None]:
        """Ends when nothing holds ``action`` any more, or it has waited long enough to be denied."""
        until = time.monotonic() + self.stop_timeout_s
        while self._boxes:
            released: Future[None] = Future()
            box = self._holding(action, released)
            if box is None:
                return
            try:
                yield from wait(finished(released, max(0.0, until - time.monotonic())))
            except TimeoutError:
                self._expire(box)
            finally:
                self._leave(box, released)

    def _holding(self, action: Action, released: Future[None]) -> _Box | None:
        """The box that makes ``action`` wait, with ``released`` put into it; None when nothing does."""
        if action.point is Point.AGENT_SHUTDOWN:
            return None
        with self._lock:
            boxes = [self._boxes.get(target) for target in (action.rollout_id, action.agent) if target is not None]
            if any(box is not None and box.ended_by is not None for box in boxes):
                return None
            for box in boxes:
                if box is not None and box.stopped and not box.expired:
                    box.waiting.append(released)
                    return box
        return None

    def _expire(self, box: _Box) -> None:
        with self._lock:
            box.expired = box.stopped

    def _leave(self, box: _Box, released: Future[None]) -> None:
        with self._lock:
            if released in box.waiting:
                box.waiting.remove(released)


class SignalledGovernor(Governor):
    """A governor at which every action of a stopped rollout waits; then the signals judge it before the policies."""

    def __init__(self, signals: SignalPolicy, policies: Any, **options: Any) -> None:
        super().__init__((signals, policies), **options)
        self._signals = signals

    def decision_flow(self, action: Action) -> Flow[Decision]:
        """As `Governor.decision_flow`, once nothing holds the rollout or the agent any more."""
        action = in_scope(action)
        yield from self._signals.wait_flow(action)
        return (yield from super().decision_flow(action))


def _release(waiting: list[Future[None]]) -> None:
    for released in waiting:
        with suppress(InvalidStateError):  # cancelled: its action waits no longer
            released.set_result(None)
