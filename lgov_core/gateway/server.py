"""Serves an application on a local port, in a thread of its own or in the main thread; what an application mounts.

uvicorn's HTTP protocol gets limits on connections, URLs, headers and the time that they take.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
from asyncio import AbstractEventLoop, TimerHandle, Transport
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, cast

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from lgov_core.errors import EndpointError
from lgov_core.gateway.access import KeyRing, require_keys
from lgov_core.gateway.door import Door
from lgov_core.gateway.limits import Limits

if TYPE_CHECKING:
    from lgov_core.gateway.protocol import Engine, Gate
    from lgov_core.store import TraceStore


#: Seconds for the answers to requests that were cut.
_ANSWERING_S: Final = 5
#: Bytes that wait for the end of a turn of the event loop.
_JOINED: Final = 64 * 1024
_REFUSALS = {
    408: "Request Timeout: the request's body did not arrive within {0.body_s:g} s",
    414: "URI Too Long: the request's URL is too long",
    431: "Request Header Fields Too Large: the request's headers are too long",
    503: "Service Unavailable: too many connections are open",
}


class _Refused(Exception):
    """Ends the parsing of a request that is over a limit."""


def protocol_with(limits: Limits) -> type[HttpToolsProtocol]:
    """The protocol class of an endpoint with ``limits``."""
    return type("LimitedProtocol", (_LimitedProtocol,), {"limits": limits})


class _Joining:
    """A transport that sends at once what is written in one turn of the event loop: a head and its body are one packet."""

    def __init__(self, transport: Any, loop: AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._waiting: list[bytes] = []
        self._size = 0
        self.is_closing = transport.is_closing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._waiting:
            self._loop.call_soon(self._send)
        self._waiting.append(data)
        self._size += len(data)
        if self._size > _JOINED:
            self._send()

    def close(self) -> None:
        self._send()
        self._transport.close()

    def _send(self) -> None:
        waiting, self._waiting, self._size = self._waiting, [], 0
        if waiting:
            self._transport.write(b"".join(waiting))


class _LimitedProtocol(HttpToolsProtocol):
    """Refuses URLs and headers that are too long, connections that are too many, and clients that are too slow."""

    limits: Limits

    def connection_made(self, transport: Any) -> None:
        super().connection_made(cast("Transport", _Joining(transport, self.loop)))
        self._head_open = True
        self._head_size = 0
        self._refusal = 400
        self._read_timer: TimerHandle | None = self.loop.call_later(self.limits.header_s, self._hang_up)
        self._write_timer: TimerHandle | None = None
        if len(self.connections) > self.limits.max_connections:
            self._refuse(503)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        if self._write_timer is not None:
            self._write_timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self.transport.is_closing():
            return
        if not self._head_open:
            if self._read_timer is None and self.cycle.more_body:
                self._read_timer = self.loop.call_later(self.limits.body_s, self._body_is_late)
            return
        self._head_size += len(data)
        if self._head_size > self.limits.max_headers + self.limits.max_url:
            self._refuse(431)
        elif self._read_timer is None:
            self._read_timer = self.loop.call_later(self.limits.header_s, self._hang_up)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_open = True
        self._head_size = 0
        self._fields_size = 0

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > self.limits.max_url:
            self._refusal = 414
            raise _Refused

    def on_header(self, name: bytes, value: bytes) -> None:  # of trailers too
        self._fields_size += len(name) + len(value) + 4
        if self._fields_size > self.limits.max_headers:
            self._refusal = 431
            raise _Refused
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._head_open = False
        self._stop_timer()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._stop_timer()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        # A client that never reads the answer must not keep it in memory.
        transport: Transport = self.transport
        if transport.is_closing() and transport.get_write_buffer_size():
            self.loop.call_later(self.limits.write_s, transport.abort)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_timer = self.loop.call_later(self.limits.write_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()

    def timeout_keep_alive_handler(self) -> None:
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        super().timeout_keep_alive_handler()

    def send_400_response(self, msg: str) -> None:
        self._stop_timer()
        if self._refusal not in _REFUSALS:
            super().send_400_response(msg)
            return
        phrase, _, text = _REFUSALS[self._refusal].format(self.limits).partition(": ")
        head = f"HTTP/1.1 {self._refusal} {phrase}\r\ncontent-type: text/plain\r\ncontent-length: {len(text)}"
        self.transport.write(f"{head}\r\nconnection: close\r\n\r\n{text}".encode())
        self.transport.close()

    def _refuse(self, status: int) -> None:
        self._refusal = status
        self.send_400_response("")

    def _body_is_late(self) -> None:
        self._read_timer = None
        if self.flow.read_paused:  # until there is a place for the request
            self._read_timer = self.loop.call_later(self.limits.body_s, self._body_is_late)
        elif self.cycle.response_started or self.pipeline:
            self.transport.abort()
        else:
            self._refuse(408)

    def _hang_up(self) -> None:
        self._read_timer = None
        self.transport.abort()

    def _stop_timer(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket. A client that connects before the server runs waits; it is not refused."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        hints = {
            errno.EADDRINUSE: "stop the program that listens there, or choose another port (0 takes any free one)",
            errno.EACCES: "ports below 1024 need more rights; choose a higher one",
            errno.EADDRNOTAVAIL: "this machine has no such address; 127.0.0.1 is always there",
        }
        what = (
            f"port {port} on {host} is in use" if error.errno == errno.EADDRINUSE else f"cannot listen on {host}:{port}"
        )
        reason = error.strerror or str(error)
        raise EndpointError(f"{what}: {reason}", status=500, hint=hints.get(error.errno or 0)) from error
    listener.setblocking(False)
    return listener


class _Server(uvicorn.Server):
    """Calls ``cut`` when running requests have had ``drain_s`` seconds to end; they are answered before it stops."""

    def __init__(self, config: uvicorn.Config, drain_s: float, cut: Callable[[], None]) -> None:
        super().__init__(config)
        self._drain_s, self._cut = drain_s, cut

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """See `uvicorn.Server.shutdown`."""
        cutting = asyncio.get_running_loop().call_later(self._drain_s, self._cut)
        await super().shutdown(sockets)
        cutting.cancel()


class EndpointServer:
    """The endpoint on a port; a context manager.

    Takes an application, or engines with the store and keys to make one of (`lgov_core.gateway.app.create_app`). An
    application that requires no keys is served on a loopback address only. ``gate`` and ``limits`` are those of
    `create_app`. Every request passes `Door`: that of the application, or where it has none one of the server. ``port`` 0
    takes any free port: the attribute ``port`` is the one it got. ``app`` is the application that is served. Raises
    `EndpointError`.

    `start`, `stop` and `serve_forever` are for one thread; the properties may be read from any.
    """

    def __init__(
        self,
        app_or_engines: Starlette | Sequence[Engine],
        store: TraceStore | None = None,
        *,
        keys: KeyRing | None = None,
        gate: Gate | None = None,
        limits: Limits | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        if isinstance(app_or_engines, Sequence):
            from lgov_core.gateway.app import create_app

            ring = KeyRing(required=False) if keys is None else keys
            self.app: Any = create_app(app_or_engines, store, keys=ring, gate=gate, limits=limits)
        else:
            self.app = app_or_engines
        state = getattr(getattr(self.app, "state", None), "endpoint", None)
        self._limits: Limits = limits or getattr(state, "limits", None) or Limits()
        self._cut: Callable[[], None] | None = getattr(state, "cut", None)
        ring = getattr(state, "keys", None)
        require_keys(host, ring)
        self._served = Door(self.app, has_keys=False) if state is None else self.app
        self._host = host
        self.port = port
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    @property
    def url(self) -> str:
        """``http://host:port``, or ``https`` with TLS, in a form that a client on this machine can use."""
        host = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(self._host, self._host)
        scheme = "https" if self._limits.tls else "http"
        return f"{scheme}://[{host}]:{self.port}" if ":" in host else f"{scheme}://{host}:{self.port}"

    @property
    def base_url(self) -> str:
        """The base URL for an OpenAI client."""
        return f"{self.url}/v1"

    def start(self) -> Self:
        """Starts serving in a thread and returns once requests are answered.

        Raises `EndpointError` when the port cannot be had, or an engine does not start.
        """
        if self._thread is not None:
            raise EndpointError(f"the server on {self.url} runs already", status=500)
        server, listener = self._prepare()

        def serve() -> None:
            try:
                server.run(sockets=[listener])
            except BaseException as error:  # noqa: BLE001 - raised by start()
                self._failure = error
            finally:
                listener.close()

        self._failure = None
        self._thread = threading.Thread(target=serve, name=f"lgov-endpoint-{self.port}", daemon=True)
        self._thread.start()
        while not server.started and self._thread.is_alive():
            self._thread.join(0.005)
        if not server.started:
            self._thread.join()
            self._thread = self._server = None
            self._raise_failure()
        return self

    def stop(self) -> None:
        """Takes no more requests, lets the running ones end, and closes the engines. Calling it again does nothing."""
        thread, server = self._thread, self._server
        if thread is None or server is None:
            return
        server.should_exit = True
        thread.join()
        self._thread = self._server = None

    def serve_forever(self) -> None:
        """Serves in the calling thread until SIGINT or SIGTERM (which are raised again once everything is closed)."""
        server, listener = self._prepare()
        try:
            server.run(sockets=[listener])
        except SystemExit as error:
            self._failure = error
        finally:
            listener.close()
            self._server = None
        if not server.started:
            self._raise_failure()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def _prepare(self) -> tuple[uvicorn.Server, socket.socket]:
        certificate, key = self._limits.tls or (None, None)
        config = uvicorn.Config(
            self._served,
            ssl_certfile=certificate,
            ssl_keyfile=key,
            http=protocol_with(self._limits),
            timeout_keep_alive=max(1, round(self._limits.idle_s)),
            backlog=2048,
            proxy_headers=False,
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=self._limits.drain_s + (_ANSWERING_S if self._cut is not None else 0),
        )
        try:
            config.load()
        except OSError as error:  # ssl.SSLError is one of these
            what = f"the certificate {certificate} with the key {key} cannot be used: {error.strerror or error}"
            raise EndpointError(what, status=500, hint="give the files of a PEM certificate and of its key") from error
        listener = _listen(self._host, self.port)
        self.port = listener.getsockname()[1]
        self._server = _Server(config, self._limits.drain_s, self._cut or (lambda: None))
        return self._server, listener

    def _raise_failure(self) -> None:
        cause = getattr(getattr(self.app, "state", None), "startup_error", None) or self._failure
        raise EndpointError(f"the endpoint on {self.url} did not start: {cause}", status=500) from cause


class MountedApp(Protocol):
    """An application that is served below ``path``, with rules of its own about who may use it."""

    path: str

    def app(self, keys: KeyRing | None) -> ASGIApp:
        """The application, on an endpoint with these keys."""
        ...

    def started(self, url: str) -> None:
        """Called once the endpoint answers at ``url``."""
        ...


@contextmanager
def served_alone(
    mounted: MountedApp, *, host: str = "127.0.0.1", port: int = 0, announce: bool = True
) -> Generator[EndpointServer]:
    """Serves ``mounted`` on a port of its own until the block ends, without an endpoint. Raises `EndpointError`.

    Calls `MountedApp.started` unless ``announce`` is False.
    """

    async def to_path(request: Request) -> Response:
        return RedirectResponse(f"{mounted.path}/", 307)

    app = Starlette(routes=[Mount(mounted.path, mounted.app(None)), Route("/", to_path)])
    with EndpointServer(app, limits=Limits(drain_s=3), host=host, port=port) as server:
        if announce:
            mounted.started(server.url)
        yield server
