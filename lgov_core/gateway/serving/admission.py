"""Admits calls: a bounded number at once, a bounded queue before them, and a pause for updates of the weights."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from dataclasses import dataclass

from lgov_core.errors import EndpointError
from lgov_core.gateway.serving.limits import Busy, Limits


@dataclass(frozen=True, slots=True)
class AdmissionState:
    """Calls that run and that wait, and whether new ones are held, and why.

    ``drained`` is true when the endpoint is paused and no call runs. ``weights_version`` is the version that was announced
    last, None where the engines report it themselves.
    """

    paused: bool
    running: int
    waiting: int
    drained: bool
    reason: str | None
    retry_after_s: float
    weights_version: int | None


class Admission:
    """Lets calls in, first come, first served. For one event loop.

    While it is paused, new calls wait and running ones go on to their end. A call that has waited for ``limits.wait_s``
    seconds is refused, as is one that finds ``limits.max_waiting`` before it.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._idle = asyncio.Event()
        self._reason: str | None = None
        self._retry_after_s = 5.0
        self.running = 0
        self.refused = 0
        self.paused = False
        self.weights_version: int | None = None

    @property
    def waiting(self) -> int:
        """How many calls wait."""
        return len(self._waiting)

    def state(self) -> AdmissionState:
        """The present state."""
        return AdmissionState(
            self.paused,
            self.running,
            self.waiting,
            self.paused and not self.running,
            self._reason,
            self._retry_after_s,
            self.weights_version,
        )

    async def enter(self) -> None:
        """Waits for a place, which `leave` gives back. Raises `Busy`."""
        if self.running < self._limits.max_running and not self.paused and not self._waiting:
            self.running += 1
            return
        if len(self._waiting) >= self._limits.max_waiting:
            self.refused += 1
            raise self._busy("too many calls are waiting", 429)
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            async with asyncio.timeout(self._limits.wait_s):
                await place
        except BaseException as error:
            if place.done() and not place.cancelled():  # given in the same moment: hand it on
                self.leave()
            elif place in self._waiting:
                self._waiting.remove(place)
            if isinstance(error, TimeoutError):
                self.refused += 1
                why = f"paused: {self._reason or 'for an update'}" if self.paused else "busy"
                raise self._busy(f"the endpoint is {why}; the call waited {self._limits.wait_s:g} s", 503) from error
            raise

    def leave(self) -> None:
        """Gives the place back."""
        self.running -= 1
        self._let_in()
        if not self.running:
            self._idle.set()

    async def pause(self, *, drain_s: float, reason: str | None = None, retry_after_s: float = 5.0) -> AdmissionState:
        """Holds new calls and waits at most ``drain_s`` seconds for the running ones; the state then.

        It stays paused in either case, until `resume`.
        """
        self.paused, self._reason, self._retry_after_s = True, reason, retry_after_s
        if self.running and drain_s > 0:
            self._idle.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), drain_s)
        return self.state()

    def resume(self, *, weights_version: int | None = None) -> AdmissionState:
        """Lets calls in again. ``weights_version`` is that of the engines now, where they do not report it.

        Raises `EndpointError` (409) for a new version while calls of the old one run: their replies would be of both.
        """
        if weights_version is not None and weights_version != self.weights_version:
            if not self.paused or self.running:
                raise EndpointError(
                    f"{self.running} calls run, so the weights cannot become version {weights_version}",
                    status=409,
                    hint="pause the endpoint and wait until it is drained",
                )
            self.weights_version = weights_version
        self.paused, self._reason = False, None
        self._let_in()
        return self.state()

    def _let_in(self) -> None:
        while self._waiting and not self.paused and self.running < self._limits.max_running:
            place = self._waiting.popleft()
            if not place.done():
                self.running += 1
                place.set_result(None)

    def _busy(self, message: str, status: int) -> Busy:
        return Busy(message, status=status, retry_after_s=self._retry_after_s if self.paused else 1.0)
