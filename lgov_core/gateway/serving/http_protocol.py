"""uvicorn's HTTP protocol with limits on connections, URLs, headers and the time that they take."""

from __future__ import annotations

from asyncio import TimerHandle, Transport
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from lgov_core.gateway.serving.limits import Limits

_REFUSALS = {
    414: (b"URI Too Long", b"the request's URL is too long"),
    431: (b"Request Header Fields Too Large", b"the request's headers are too long"),
    503: (b"Service Unavailable", b"too many connections are open"),
}


class _Refused(Exception):
    """Ends the parsing of a request that is over a limit."""


def protocol_with(limits: Limits) -> type[HttpToolsProtocol]:
    """The protocol class of an endpoint with ``limits``."""
    return type("LimitedProtocol", (_LimitedProtocol,), {"limits": limits})


class _LimitedProtocol(HttpToolsProtocol):
    """Refuses URLs and headers that are too long, connections that are too many, and clients that are too slow."""

    limits: Limits

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._head_open = True
        self._head_size = 0
        self._refusal = 400
        self._head_timer: TimerHandle | None = self.loop.call_later(self.limits.header_s, self._hang_up)
        if len(self.connections) > self.limits.max_connections:
            self._refusal = 503
            self.send_400_response("")

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        if not self._head_open or self.transport.is_closing():
            return
        self._head_size += len(data)
        if self._head_size > self.limits.max_headers + self.limits.max_url:
            self._refusal = 431
            self.send_400_response("")
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(self.limits.header_s, self._hang_up)

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

    def on_response_complete(self) -> None:
        super().on_response_complete()
        # A client that never reads the answer must not keep it in memory.
        transport: Transport = self.transport
        if transport.is_closing() and transport.get_write_buffer_size():
            self.loop.call_later(self.limits.write_s, transport.abort)

    def timeout_keep_alive_handler(self) -> None:
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        super().timeout_keep_alive_handler()

    def send_400_response(self, msg: str) -> None:
        self._stop_timer()
        if self._refusal not in _REFUSALS:
            super().send_400_response(msg)
            return
        phrase, text = _REFUSALS[self._refusal]
        head = b"HTTP/1.1 %d %s\r\ncontent-type: text/plain\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        self.transport.write(head % (self._refusal, phrase, len(text)) + text)
        self.transport.close()

    def _hang_up(self) -> None:
        self._head_timer = None
        self.transport.abort()

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
