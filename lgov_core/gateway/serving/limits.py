"""What a client may take of the endpoint: sizes, times, places."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, MutableMapping
from dataclasses import dataclass, fields
from functools import partial
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
    all requests' bodies together are in memory at the same time; a request that would need more is refused in the same way.

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
    """There is no place for a call now: 429 when too many wait already, 503 when the endpoint is paused or ends.

    ``retry_after_s`` is the advice that the client gets.
    """

    code = "busy"

    def __init__(self, message: str, *, status: int, retry_after_s: float = 1.0) -> None:
        super().__init__(message, status=status, hint="send the call again later")
        self.retry_after_s = retry_after_s


class _Rest:
    """What is left of a coroutine that has been begun: awaiting it goes on where it waits."""

    __slots__ = ("_begun", "_waits_for")

    def __init__(self, begun: Coroutine[Any, Any, Any], waits_for: Any) -> None:
        self._begun = begun
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, Any]:
        begun, waits_for = self._begun, self._waits_for
        while True:
            try:
                value = yield waits_for
            except BaseException as error:  # noqa: BLE001 - handed on: a cancellation, above all
                go_on = partial(begun.throw, error)
            else:
                go_on = partial(begun.send, value)
            try:
                waits_for = go_on()
            except StopIteration as done:
                return done.value


async def within(coroutine: Awaitable[Any], deadline: Callable[[], float]) -> Any:
    """What ``coroutine`` returns. Raises `TimeoutError` at ``deadline`` (of the loop's clock).

    The clock is set only if the coroutine has to wait, which most that are asked this way have not: a timeout costs more
    than what is timed.
    """
    if not isinstance(coroutine, Coroutine):
        async with asyncio.timeout_at(deadline()):
            return await coroutine
    try:
        waits_for = coroutine.send(None)
    except StopIteration as done:
        return done.value
    async with asyncio.timeout_at(deadline()):
        return await _Rest(coroutine, waits_for)


class HeldBodies:
    """How many bytes of bodies are in memory, of all requests together. For one event loop."""

    def __init__(self, limits: Limits) -> None:
        self._most, self._of_one = max(limits.max_held, limits.max_body), limits.max_body
        self.bytes = 0

    def hold(self, held: int, more: int) -> int:
        """What a request holds that held ``held`` bytes and gets ``more``; beyond the longest body nothing is kept.

        Raises `Busy` (503) where there is no room.
        """
        more = min(more, self._of_one - held)
        if self.bytes + more > self._most:
            raise Busy("too many requests are being read", status=503)
        self.bytes += more
        return held + more

    def release(self, held: int) -> None:
        """The request is over."""
        self.bytes -= held


def in_time(receive: Receive, seconds: float, hold: Callable[[int], None]) -> Receive:
    """``receive`` that raises `EndpointError` (408) when the request's body is not there ``seconds`` after the first call.

    ``hold`` is told the length of each piece.
    """
    deadline: float | None = None
    whole = False

    def until() -> float:
        nonlocal deadline
        if deadline is None:
            deadline = asyncio.get_running_loop().time() + seconds
        return deadline

    async def receive_in_time() -> Message:
        nonlocal whole
        if whole:
            return await receive()
        try:
            message = await within(receive(), until)
        except TimeoutError as error:
            raise EndpointError(
                f"the request's body did not come within {seconds:g} s", status=408, hint="send it again, faster"
            ) from error
        whole = not message.get("more_body", False)
        if body := message.get("body"):
            hold(len(body))
        return message

    return receive_in_time


class Sending:
    """``send`` that gives a client ``seconds`` to take each piece, and notes the status and the time of the first byte.

    A client that does not take what is sent to it is as good as gone: `OSError`, as for one that has hung up.
    """

    __slots__ = ("_seconds", "_send", "first_at", "status")

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
            await self._send(message)
            return
        try:
            await within(self._send(message), self._until)
        except TimeoutError as error:
            raise OSError(f"the client took nothing for {self._seconds:g} s") from error

    def _until(self) -> float:
        return asyncio.get_running_loop().time() + self._seconds
