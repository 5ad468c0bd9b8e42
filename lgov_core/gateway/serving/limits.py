"""The sizes, times and places that one client, and all of them together, may use, and the calls that are let in."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from lgov_core.errors import EndpointError
from lgov_core.wire.fields import count_values, read_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import Message, Receive, Send


#: What a parsed JSON value takes in memory, in the worst case (an object of one field).
_BYTES_OF_VALUE = 96
#: Bodies up to this size, in bytes, are parsed in the event loop.
_SMALL = 64 * 1024
_PARSED_AT_ONCE = 2


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of an endpoint. Raises `EndpointError` for values without meaning.

    ``max_body``, ``max_headers`` (all of them together), ``max_url`` and ``max_held`` (the bodies of all requests in memory,
    as sent and as parsed) are in bytes; one body holds at most ``max_values`` JSON values. At the same time
    ``max_connections`` are open, ``max_running`` calls are answered and ``max_waiting`` more wait, at most ``wait_s`` seconds;
    what exceeds that is refused with a time to retry. A client has ``header_s`` seconds to send its headers, ``body_s`` its
    body, ``write_s`` to take each piece of the answer, and ``idle_s`` between requests.
    """

    max_body: int = 8 * 1024 * 1024
    max_values: int = 320_000
    max_headers: int = 32 * 1024
    max_url: int = 8 * 1024
    max_running: int = 512
    max_waiting: int = 2048
    max_connections: int = 8192
    max_held: int = 1024 * 1024 * 1024
    wait_s: float = 60.0
    header_s: float = 15.0
    body_s: float = 60.0
    write_s: float = 60.0
    idle_s: float = 75.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value < 0 or (value == 0 and field.name != "max_waiting"):
                raise EndpointError(f"the limit {field.name} is {value}", status=500, hint="give a positive number")


class Busy(EndpointError):
    """No place is free for a call: 429 when too many wait already, 503 when the endpoint is paused or ends.

    ``retry_after_s`` is the advice that the client gets.
    """

    code = "busy"

    def __init__(self, message: str, *, status: int, retry_after_s: float = 1.0) -> None:
        super().__init__(message, status=status, hint="send the call again later")
        self.retry_after_s = retry_after_s


def retry_headers(error: Exception) -> dict[str, str]:
    """The headers that tell the client when to send a refused call again."""
    return {"retry-after": str(max(1, round(error.retry_after_s)))} if isinstance(error, Busy) else {}


class BodyBudget:
    """The bytes of request bodies in memory, as sent and as parsed, of all requests together. For one event loop."""

    def __init__(self, limits: Limits) -> None:
        self.limit = max(limits.max_held, limits.max_body)
        self.bytes = 0
        self.parsing = asyncio.Semaphore(_PARSED_AT_ONCE)


class LimitedRequest:
    """``receive`` and ``send`` of one request within the limits; notes its status and the time of the first byte.

    `receive` raises `EndpointError` (408) when the body is not there ``body_s`` seconds after its first call. What it
    reads, at most ``max_body`` bytes, counts against the budget until `release`; `Busy` (503) beyond it. A client that does
    not take a piece of the answer within ``write_s`` seconds counts as disconnected: `OSError`.
    """

    def __init__(self, limits: Limits, budget: BodyBudget, receive: Receive, send: Send) -> None:
        self._limits = limits
        self._budget = budget
        self._receive = receive
        self._send = send
        self._held = 0
        self._deadline: float | None = None
        self._whole = False
        self.status = 0
        self.first_at: float | None = None

    async def receive(self) -> Message:
        """The next message of the client."""
        if self._whole:
            return await self._receive()
        if self._deadline is None:
            self._deadline = asyncio.get_running_loop().time() + self._limits.body_s
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError as error:
            what = f"the request's body did not arrive within {self._limits.body_s:g} s"
            raise EndpointError(what, status=408, hint="send it again, faster") from error
        self._whole = not message.get("more_body", False)
        more = min(len(message.get("body") or b""), self._limits.max_body - self._held)  # no more is kept
        self._hold(more)
        return message

    async def parse(self, raw: bytes, read: Callable[[bytes], Any] = read_json) -> Any:
        """The JSON in the body ``raw``, parsed by ``read``, in a thread if it is large. What it takes in memory counts as held.

        Raises what ``read`` raises, and `EndpointError`: 413 for too many values, 503 (`Busy`) for too much in memory.
        """
        if len(raw) <= _SMALL:
            self._hold(count_values(raw, self._limits.max_values) * _BYTES_OF_VALUE)
            return read(raw)
        async with self._budget.parsing:
            count = await asyncio.to_thread(count_values, raw, self._limits.max_values)
            self._hold(count * _BYTES_OF_VALUE)
            return await asyncio.to_thread(read, raw)

    def _hold(self, more: int) -> None:
        if self._budget.bytes + more > self._budget.limit:
            raise Busy("too many requests are being read", status=503)
        self._budget.bytes += more
        self._held += more

    async def send(self, message: Message) -> None:
        """Sends one message."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.first_at = time.perf_counter()
        try:
            async with asyncio.timeout(self._limits.write_s):
                await self._send(message)
        except TimeoutError as error:
            raise OSError(f"the client took nothing for {self._limits.write_s:g} s") from error

    def release(self) -> None:
        """Gives the bytes of the body back to the budget."""
        self._budget.bytes -= self._held
        self._held = 0


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
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            async with asyncio.timeout(self._limits.wait_s):
                await waiter
        except BaseException as error:
            if waiter.done() and not waiter.cancelled():  # given in the same moment: hand it on
                self.leave()
            elif waiter in self._waiting:
                self._waiting.remove(waiter)
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
            waiter = self._waiting.popleft()
            if not waiter.done():
                self.running += 1
                waiter.set_result(None)

    def _busy(self, message: str, status: int) -> Busy:
        return Busy(message, status=status, retry_after_s=self._retry_after_s if self.paused else 1.0)
