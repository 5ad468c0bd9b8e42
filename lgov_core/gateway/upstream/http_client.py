"""A small HTTP/1.1 client for upstreams: POST and GET over connections that are kept, at a fraction of the usual cost.

No redirects, no cookies, no proxies, no compression; TLS by the system's certificates. The parser is httptools.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import httptools

#: Bytes of an answer that wait to be read before the server is held up.
_HIGH_WATER: Final = 1 << 20
#: Servers commonly drop idle connections after five seconds; a call must not race with that.
_KEPT_S: Final = 3.0


class NotSent(ConnectionError):
    """The server could not be reached, so it has seen nothing of the request."""


class BrokenAnswer(ConnectionError):
    """The connection was lost before the answer was whole, or what came is no HTTP."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a URL points: what a connection is made to, and what is asked there."""

    host: str
    port: int
    tls: bool
    path: str

    @staticmethod
    def of(url: str) -> Origin:
        """The origin of a base URL."""
        parts = urlsplit(url)
        tls = parts.scheme == "https"
        return Origin(parts.hostname or "", parts.port or (443 if tls else 80), tls, parts.path.rstrip("/"))

    @property
    def authority(self) -> str:
        """The ``Host`` header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"


class _Connection(asyncio.Protocol):
    """One connection; answers one request at a time."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.lost = False
        self.idle_since = 0.0
        self._begin()

    def _begin(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.status = 0
        self.headers: dict[str, str] = {}
        self.head_done = False
        self.whole = False
        self.keep = False
        self.error: BaseException | None = None
        self.parts: deque[bytes] = deque()
        self.size = 0
        self.paused = False
        self._waiter: asyncio.Future[None] | None = None

    def ask(self, request: bytes) -> None:
        if self.head_done or self.status:
            self._begin()
        self.transport.write(request)

    async def changed(self, deadline: float | None) -> None:
        """Returns when something has come. Raises `TimeoutError` at ``deadline``."""
        loop = asyncio.get_running_loop()
        waiter = self._waiter = loop.create_future()
        late = None if deadline is None else loop.call_at(deadline, _late, waiter)
        try:
            await waiter
        finally:
            self._waiter = None
            if late is not None:
                late.cancel()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def abort(self) -> None:
        self.lost = True
        if self.transport is not None:
            self.transport.abort()

    # -- asyncio

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.error = BrokenAnswer("it switched to another protocol")
            self.abort()
        except httptools.HttpParserError as error:
            self.error = BrokenAnswer(f"what it sent is no HTTP: {error}")
            self.abort()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        if self.head_done and not self.whole and self.error is None and self._ends_with_connection():
            self.whole = True
        if not self.whole and self.error is None:
            self.error = BrokenAnswer(str(exc) if exc else "the connection was closed before the answer was whole")
        self._wake()

    def _ends_with_connection(self) -> bool:
        return "content-length" not in self.headers and "chunked" not in self.headers.get("transfer-encoding", "")

    # -- httptools

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.status = self.parser.get_status_code()
        self.head_done = True

    def on_body(self, body: bytes) -> None:
        self.parts.append(body)
        self.size += len(body)
        if self.size > _HIGH_WATER and not self.paused:
            self.paused = True
            self.transport.pause_reading()

    def on_message_complete(self) -> None:
        if 100 <= self.status < 200:  # only announces the answer
            self.head_done = False
            return
        self.keep = self.parser.should_keep_alive()
        self.whole = True

    def take(self) -> bytes:
        """What has come since the last time."""
        data = self.parts[0] if len(self.parts) == 1 else b"".join(self.parts)
        self.parts.clear()
        self.size = 0
        if self.paused:
            self.paused = False
            if not self.lost:
                self.transport.resume_reading()
        return data


class Answer:
    """An answer whose head has come. Its reader reads it to the end or releases it."""

    __slots__ = ("_body", "_client", "_connection", "_deadline", "_done", "_origin", "_read_s", "headers", "status")

    def __init__(
        self, client: HttpClient, origin: Origin, connection: _Connection, deadline: float | None, read_s: float | None
    ) -> None:
        self._client = client
        self._origin = origin
        self._connection = connection
        self._deadline = deadline
        self._read_s = read_s
        self._done = False
        self._body: bytes | None = None
        self.status = connection.status
        self.headers: Mapping[str, str] = connection.headers

    @property
    def content_type(self) -> str:
        """The media type, without parameters, in lower case."""
        given = self.headers.get("content-type", "application/octet-stream")
        return given.partition(";")[0].strip().lower()

    async def read(self) -> bytes:
        """The whole body; may be called again. Raises `BrokenAnswer`, `TimeoutError`."""
        if self._body is None:
            connection = self._connection
            if connection.whole:
                self._body = connection.take() if connection.parts else b""
            else:
                self._body = b"".join([part async for part in self.iter_any()])
            self.release()
        return self._body

    async def iter_any(self) -> AsyncIterator[bytes]:
        """The body as it comes. Raises `BrokenAnswer`, `TimeoutError`."""
        connection = self._connection
        while True:
            if connection.parts:
                yield connection.take()
            elif connection.whole:
                return
            elif connection.error is not None:
                raise connection.error
            else:
                await connection.changed(_until(self._deadline, self._read_s))

    def release(self) -> None:
        """Gives the connection back if the answer has come whole, and ends it otherwise. May be called again."""
        if not self._done:
            self._done = True
            self._client.give_back(self._origin, self._connection)


class HttpClient:
    """Keeps connections to any number of servers. For one event loop. At most ``max_connections`` are in use at once."""

    def __init__(self, *, headers: Mapping[str, str], max_connections: int) -> None:
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._places = asyncio.Semaphore(max_connections)
        self._idle: dict[tuple[str, int, bool], deque[_Connection]] = {}
        self._used: set[_Connection] = set()
        self._tls: ssl.SSLContext | None = None
        self._heads: dict[tuple[str, str, Origin], bytes] = {}

    async def close(self) -> None:
        """Ends all connections; what is still waiting fails."""
        for connection in [*self._used, *(one for kept in self._idle.values() for one in kept)]:
            connection.abort()
        self._idle.clear()

    async def ask(
        self,
        method: str,
        origin: Origin,
        path: str,
        body: bytes = b"",
        *,
        connect_s: float,
        total_s: float | None = None,
        read_s: float | None = None,
    ) -> Answer:
        """Sends a request; returns when the answer's head is there.

        ``total_s`` is for the whole answer, ``read_s`` between two pieces of it. Raises `NotSent` where no connection could
        be made, `TimeoutError`, `BrokenAnswer`.
        """
        deadline = None if total_s is None else asyncio.get_running_loop().time() + total_s
        await self._places.acquire()
        connection: _Connection | None = None
        try:
            connection = self._kept(origin) or await self._connect(origin, connect_s)
            self._used.add(connection)
            connection.ask(b"%b%d\r\n\r\n%b" % (self._head(method, path, origin), len(body), body))
            while not connection.head_done:
                if connection.error is not None:
                    raise connection.error
                await connection.changed(_until(deadline, read_s))
            return Answer(self, origin, connection, deadline, read_s)
        except BaseException:
            if connection is None:
                self._places.release()
            else:
                self.give_back(origin, connection)
            raise

    def give_back(self, origin: Origin, connection: _Connection) -> None:
        """Keeps a connection whose answer came whole for the next request, and ends any other."""
        self._used.discard(connection)
        self._places.release()
        if connection.whole and connection.keep and not connection.lost:
            connection.idle_since = time.monotonic()
            self._idle.setdefault((origin.host, origin.port, origin.tls), deque()).append(connection)
        else:
            connection.abort()

    def _kept(self, origin: Origin) -> _Connection | None:
        kept = self._idle.get((origin.host, origin.port, origin.tls))
        while kept:
            connection = kept.pop()
            if not connection.lost and time.monotonic() - connection.idle_since < _KEPT_S:
                return connection
            connection.abort()
        return None

    async def _connect(self, origin: Origin, connect_s: float) -> _Connection:
        tls: ssl.SSLContext | None = None
        if origin.tls:
            tls = self._tls = self._tls or ssl.create_default_context()
        try:
            async with asyncio.timeout(connect_s):
                _, connection = await asyncio.get_running_loop().create_connection(
                    _Connection, origin.host, origin.port, ssl=tls
                )
        except TimeoutError as error:
            raise NotSent(f"no connection to {origin.host}:{origin.port} within {connect_s:g} s") from error
        except (OSError, ssl.SSLError) as error:
            raise NotSent(f"no connection to {origin.host}:{origin.port}: {error}") from error
        return connection

    def _head(self, method: str, path: str, origin: Origin) -> bytes:
        """The head of a request up to the number of its bytes."""
        known = self._heads.get((method, path, origin))
        if known is None:
            text = (
                f"{method} {origin.path}{path} HTTP/1.1\r\nhost: {origin.authority}\r\naccept: */*\r\n"
                f"content-type: application/json\r\n{self._headers}content-length: "
            )
            if "\n" in text.replace("\r\n", "") or not text.isascii():
                raise NotSent("the address or the key of the upstream cannot be written into a header")
            known = self._heads[method, path, origin] = text.encode()
        return known


def _late(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_exception(TimeoutError())


def _until(deadline: float | None, seconds: float | None) -> float | None:
    if seconds is None:
        return deadline
    end = asyncio.get_running_loop().time() + seconds
    return end if deadline is None else min(deadline, end)
