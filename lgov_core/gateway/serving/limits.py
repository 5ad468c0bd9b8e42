"""What one client, and all of them together, may use of the endpoint: sizes, times, places."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

from lgov_core.errors import EndpointError

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of an endpoint. Raises `EndpointError` for values without meaning.

    ``max_body``, ``max_headers`` (all of them together) and ``max_url`` are in bytes. ``max_running`` calls are answered at
    the same time, ``max_waiting`` more wait for a place or for the end of a pause, ``wait_s`` seconds at most; what comes
    beyond that is refused with the advice to come back. ``max_connections`` are open at the same time. ``max_held`` bytes of
    all requests' bodies together are in memory at the same time; a request that would need more is refused too.

    A client has ``header_s`` seconds to send its headers, ``body_s`` to send its body, ``write_s`` to take each piece of
    the answer, and may then be silent for ``idle_s``.
    """

    max_body: int = 8 * 1024 * 1024
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
    """How many bytes of request bodies are in memory, of all requests together. For one event loop."""

    def __init__(self, limits: Limits) -> None:
        self.most, self.of_one = max(limits.max_held, limits.max_body), limits.max_body
        self.bytes = 0

    def reserve(self) -> BodyReservation:
        """The share of one request, empty at first."""
        return BodyReservation(self)


class BodyReservation:
    """The bytes that one request holds of a `BodyBudget`."""

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self._held = 0

    def add(self, more: int) -> None:
        """Counts ``more`` bytes; those beyond the longest body are not kept. Raises `Busy` (503) beyond the budget."""
        more = min(more, self._budget.of_one - self._held)
        if self._budget.bytes + more > self._budget.most:
            raise Busy("too many requests are being read", status=503)
        self._budget.bytes += more
        self._held += more

    def release(self) -> None:
        """Gives the bytes back: the request is over."""
        self._budget.bytes -= self._held
        self._held = 0


def receive_within(receive: Receive, seconds: float, count: Callable[[int], None]) -> Receive:
    """``receive`` that raises `EndpointError` (408) when the body is not there ``seconds`` after the first call.

    ``count`` is called with the length of each piece.
    """
    deadline: float | None = None
    whole = False

    async def receive_in_time() -> Message:
        nonlocal deadline, whole
        if whole:
            return await receive()
        if deadline is None:
            deadline = asyncio.get_running_loop().time() + seconds
        try:
            async with asyncio.timeout_at(deadline):
                message = await receive()
        except TimeoutError as error:
            raise EndpointError(
                f"the request's body did not come within {seconds:g} s", status=408, hint="send it again, faster"
            ) from error
        whole = not message.get("more_body", False)
        count(len(message.get("body") or b""))
        return message

    return receive_in_time


class TimedSend:
    """``send`` that gives a client ``seconds`` to take each piece, and notes the status and the time of the first byte.

    A client that takes nothing for so long counts as disconnected: `OSError`.
    """

    def __init__(self, send: Send, seconds: float) -> None:
        self._send = send
        self._seconds = seconds
        self.status = 0
        self.first_at: float | None = None

    async def __call__(self, message: Message) -> None:
        """Sends one message."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.first_at = time.perf_counter()
        try:
            async with asyncio.timeout(self._seconds):
                await self._send(message)
        except TimeoutError as error:
            raise OSError(f"the client took nothing for {self._seconds:g} s") from error
