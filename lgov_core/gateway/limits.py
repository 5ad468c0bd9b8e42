"""The sizes, times and places that one client, and all of them together, may use; the calls that are let in; their counts.

Counts are for Prometheus. They never hold content: no ids, no texts, no keys.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, fields
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response

from lgov_core._util.json_text import ReceivedBody, wire_bytes
from lgov_core._util.schema import Mistake, checked
from lgov_core.errors import EndpointError, LgovError
from lgov_core.wire.fields import count_values, read_json

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Send


_LOG = logging.getLogger("lgov.gateway")
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
    body, ``write_s`` to take each piece of the answer, and ``idle_s`` between requests. Requests that run when the server is
    stopped have ``drain_s`` whole seconds to end. ``allowed_hosts`` are further names of the server, such as that of a proxy in
    front (`lgov_core.gateway.door.Door`). ``tls`` names the files of a certificate and its key, with which the server speaks
    HTTPS; ``metrics_by`` is ``agent``, ``key`` or both. With ``strict_fields`` a request that asks for what no model can be
    offered is refused.
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
    drain_s: int = 10
    allowed_hosts: tuple[str, ...] = ()
    strict_fields: bool = False
    tls: tuple[str, ...] = ()
    metrics_by: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if unknown := set(self.metrics_by) - {"agent", "key"}:
            raise EndpointError(f"metrics_by is {min(unknown)!r}", status=500, hint="write agent, key or both")
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, tuple | bool):
                continue
            if value < 0 or (value == 0 and field.name not in ("drain_s", "max_waiting")):
                raise EndpointError(f"the limit {field.name} is {value}", status=500, hint="give a positive number")


class Busy(EndpointError):
    """No place is free for a call: 429 when too many wait already, 503 when the endpoint is paused or ends.

    ``retry_after_s`` is the advice that the client gets.
    """

    code = "busy"

    def __init__(self, message: str, *, status: int, retry_after_s: float = 1.0) -> None:
        super().__init__(message, status=status, hint="send the call again later")
        self.retry_after_s = retry_after_s


def cut_short() -> Busy:
    """The error for the client of a request that ran when the server stopped."""
    return Busy("the endpoint stopped before the reply was complete", status=503, retry_after_s=5)


def retry_headers(error: LgovError) -> Mapping[str, str]:
    """The headers that tell the client when to send a refused call again: an upstream's own, or lgov's."""
    seconds: float | None = getattr(error, "retry_after_s", None)
    return getattr(error, "headers", {}) if seconds is None else {"retry-after": str(max(1, round(seconds)))}


class BodyBudget:
    """The bytes of request bodies in memory, as sent and as parsed, of all requests together. For one event loop."""

    def __init__(self, limits: Limits) -> None:
        self.limit = max(limits.max_held, limits.max_body)
        self.bytes = 0
        self.parsing = asyncio.Semaphore(_PARSED_AT_ONCE)


class LimitedRequest:
    """``receive`` and ``send`` of one request within the limits; notes its status and the time of the first byte.

    What `receive` reads, at most ``max_body`` bytes, counts against the budget until `release`; `Busy` (503) beyond it. How
    long a client may take is up to the server's protocol (`lgov_core.gateway.server`).
    """

    def __init__(self, limits: Limits, budget: BodyBudget, receive: Receive, send: Send) -> None:
        self._limits = limits
        self._budget = budget
        self._receive = receive
        self._send = send
        self._held = 0
        self.status = 0
        self.first_at: float | None = None

    async def receive(self) -> Message:
        """The next message of the client."""
        message = await self._receive()
        more = min(len(message.get("body") or b""), self._limits.max_body - self._held)  # no more is kept
        self._hold(more)
        return message

    @asynccontextmanager
    async def while_client_waits(self) -> AsyncGenerator[None]:
        """Cancels the block when the client disconnects. Raises `EndpointError` (499) then."""
        limit = asyncio.timeout(None)

        async def watch() -> None:
            while (await self.receive())["type"] != "http.disconnect":
                pass
            limit.reschedule(asyncio.get_running_loop().time())

        watching = asyncio.create_task(watch())
        try:
            async with limit:
                yield
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise EndpointError("the client disconnected before the reply was there", status=499) from error
        finally:
            watching.cancel()

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
        await self._send(message)

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
        _LOG.info("paused", extra={"lgov_fields": {"reason": reason}})
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
        _LOG.info("resumed", extra={"lgov_fields": {"weights_version": self.weights_version}})
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


T = TypeVar("T")

ROLLOUT_PREFIX = "/rollout/{rollout_id}/attempt/{attempt}"


async def read_body(request: Request, limit: int) -> bytes:
    """The request's body. Raises `EndpointError` (413) for one of more than ``limit`` bytes.

    A body that is moderately too long is read to its end and thrown away, since a client that is cut off while it
    sends does not see the answer.
    """
    parts: list[bytes] = []
    size = 0
    more = True
    while more and size <= 8 * limit:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise EndpointError("the client disconnected while it was sending its request")
        chunk, more = message.get("body", b""), message.get("more_body", False)
        size += len(chunk)
        if size <= limit:
            parts.append(chunk)
    if size > limit:
        raise EndpointError(f"the request has more than {limit} bytes", status=413)
    return b"".join(parts)


async def read_object(request: Request, limit: int) -> Mapping[str, Any]:
    """The JSON object in the request's body, ``{}`` for an empty one; errors as of `read_body` and `LimitedRequest.parse`."""
    return await request.scope["lgov.request"].parse(await read_body(request, limit) or b"{}")


def checked_body(body: Mapping[str, Any], schema: type[T], whose: str, *, status: int = 400) -> T:
    """``body`` as an instance of ``schema``; null stands for a field that is left out.

    Raises `EndpointError` of ``status`` that names the field, also for one that the schema does not know: a misspelt one would
    make a key without expiry, or lose a version.
    """
    try:
        return checked({name: value for name, value in body.items() if value is not None}, schema)
    except Mistake as mistake:
        where = ".".join(map(str, mistake.path)) or "the request"
        if mistake.unknown is not None:
            problem = f"{mistake.unknown!r} is not a field that {whose} knows"
            raise EndpointError(problem, status=status, hint="leave it out: nothing is dropped silently") from mistake
        raise EndpointError(f"{where!r} must be {mistake.expected}", status=status) from mistake


def json_response(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """``content`` as a JSON response; a body that an upstream wrote goes out byte for byte."""
    if isinstance(content, ReceivedBody):
        return Response(content.received, status, headers, media_type="application/json")
    return Response(wire_bytes(content), status, headers, media_type="application/json")


CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
#: Upper bounds of the buckets of times, in seconds.
_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)

#: One metric, read when the metrics are asked for: counter or gauge, name, help, label (None for no label), and its
#: values by label.
Reading = tuple[str, str, str, str | None, Mapping[str, float]]


class Metrics(Collector):
    """Counts requests and their times by route; everything else is read from its source. For one event loop."""

    def __init__(self, admission: Admission, about: Mapping[str, str]) -> None:
        self._admission = admission
        self._sources: list[Callable[[], Iterable[Reading]]] = [self._of_admission]
        self._registry = registry = CollectorRegistry(auto_describe=False)
        self._requests = Counter(
            "lgov_requests", "Requests that were answered, by route and status.", ["route", "status"], registry=registry
        )
        self._running = Gauge(
            "lgov_requests_in_flight", "Requests that are being answered, by route.", ["route"], registry=registry
        )
        self._took, self._first = (
            Histogram(name, what, ["route"], buckets=_BUCKETS, registry=registry)
            for name, what in (
                ("lgov_request_seconds", "Seconds to the end of an answer, by route."),
                ("lgov_first_byte_seconds", "Seconds to the first byte of an answer, by route."),
            )
        )
        Info("lgov", "Version of lgov and digest of the policy, as labels.", registry=registry).info({**about})
        registry.register(self)
        #: Looking a label up takes longer than counting.
        self._of_route = cache(self._labelled)
        self._of_status = cache(self._requests.labels)

    def add_source(self, source: Callable[[], Iterable[Reading]]) -> None:
        """Adds a source of numbers; it is called whenever the metrics are read, in the event loop."""
        self._sources.append(source)

    def _labelled(self, route: str) -> tuple[Gauge, Histogram, Histogram]:
        return self._running.labels(route), self._took.labels(route), self._first.labels(route)

    def began(self, route: str) -> None:
        """A request came for ``route``, the path with its parameters' names."""
        self._of_route(route)[0].inc()

    def ended(self, route: str, status: int, seconds: float, first_s: float | None) -> None:
        """It was answered (0: the client got no answer) after ``seconds``; the first byte went out after ``first_s``."""
        running, took, first = self._of_route(route)
        running.dec()
        self._of_status(route, status).inc()
        took.observe(seconds)
        if first_s is not None:
            first.observe(first_s)

    def exposition(self) -> bytes:
        """Everything in the text format of Prometheus."""
        return generate_latest(self._registry)

    def collect(self) -> Iterable[Any]:
        """The numbers of the sources; called by the registry."""
        for kind, name, what, label, values in (reading for source in self._sources for reading in source()):
            family_of = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
            family = family_of(name, what, labels=[label] if label else None)
            for key, value in sorted(values.items()):
                family.add_metric([key] if label else [], value)
            yield family

    def _of_admission(self) -> Iterable[Reading]:
        at = self._admission
        yield "gauge", "lgov_calls_running", "Model calls that are running.", None, {"": at.running}
        yield (
            "gauge",
            "lgov_calls_waiting",
            "Model calls that wait because max_running others run.",
            None,
            {"": at.waiting},
        )
        yield (
            "counter",
            "lgov_calls_turned_away",
            "Model calls that were refused because too many waited, or after waiting too long.",
            None,
            {"": at.refused},
        )
        yield "gauge", "lgov_paused", "1 while the endpoint is paused, else 0.", None, {"": float(at.paused)}
