"""A streamed reply: every piece as it comes, the end only after the call is recorded."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, Final, cast

from lgov_core.errors import EndpointError, LgovError, UpstreamError
from lgov_core.gateway.serving.capture import Capture, ReceivedCall
from lgov_core.wire.exchange import Completion, StreamPiece
from lgov_core.wire.reply_writer import ReplyWriter, text_in

_LOG = logging.getLogger("lgov.gateway")
_GONE: Final = "gone"
_ENDED: Final = "ended"

_Item = StreamPiece | Exception | str
_Send = Callable[[dict[str, Any]], Awaitable[None]]
_Receive = Callable[[], Awaitable[dict[str, Any]]]
#: Judges a finished reply with its body, of which the client has got a text, in these bytes: None passes the rest unchanged,
#: else the body and the bytes that replace the rest.
Release = Callable[[Completion, Mapping[str, Any], str, bytes], Awaitable[tuple[Mapping[str, Any], bytes] | None]]


def as_lgov_error(error: Exception, engine: str) -> LgovError:
    """An engine's error as one of lgov's; one that is not is a defect of the engine and is logged."""
    if isinstance(error, LgovError):
        return error
    _LOG.error("engine %s failed", engine, exc_info=error)
    return EndpointError(f"engine {engine} failed: {type(error).__name__}: {error}", status=500)


class _Outgoing:
    """The pieces of a stream that are ``ready`` to be sent, and those that are ``held`` until its end.

    ``passes_text``: the pieces that hold only text are ready until another one comes; their bytes are in ``passed``.
    """

    def __init__(self, passes_text: bool, *, holding: bool) -> None:
        self._passes_text = passes_text
        self._holding = holding
        self.ready: list[bytes] = []
        self.held: list[bytes] = []
        self.passed_text = ""
        self.passed = b""

    def add(self, piece: StreamPiece, written: bytes, ends: bool) -> None:
        """Takes what a piece became; ``ends`` if it tells the client that the reply is whole."""
        text = text_in(piece) if self._passes_text and not self._holding else None
        self._holding = self._holding or ends or (self._passes_text and text is None)
        if not self._holding and text is not None:
            self.passed_text, self.passed = self.passed_text + text, self.passed + written
        if written:
            (self.held if self._holding else self.ready).append(written)

    def taken(self) -> bytes:
        """Everything that is ready, which then is not any more."""
        written = b"".join(self.ready)
        self.ready.clear()
        return written


class StreamedReply:
    """An ASGI response that relays one engine stream, as ``writer`` writes it.

    Each piece is sent when it comes; the one that completes the reply waits for the commit, and with ``release``
    everything waits until the reply is judged; with ``passes_text``, everything from the first piece that has more than
    text. ``kept`` gets the body that the client gets, after the commit. An error
    before the first piece is an ordinary response (``error_response``), a later one an event of the API. When the client
    disconnects, the engine's stream is closed and what came is recorded with the finish reason ``cancelled``.
    """

    def __init__(
        self,
        call: ReceivedCall,
        pieces: AsyncIterator[StreamPiece],
        capture: Capture,
        writer: ReplyWriter,
        error_response: Callable[[LgovError], Any],
        *,
        release: Release | None,
        passes_text: bool,
        kept: Callable[[Mapping[str, Any]], None],
    ) -> None:
        self._call = call
        self._pieces = pieces
        self._capture = capture
        self._writer = writer
        self._error_response = error_response
        self._release = release
        self._passes_text = passes_text
        self._kept = kept
        self._started = False

    async def __call__(self, scope: Any, receive: _Receive, send: _Send) -> None:
        """Relays the stream. Called once, by the server."""
        # One queue for pieces and for the client's leaving: whichever comes first is handled first.
        queue: asyncio.Queue[_Item] = asyncio.Queue()
        pump = asyncio.create_task(self._pump(queue))
        watch = asyncio.create_task(self._watch(receive, queue))
        try:
            last = await self._relay(queue, send)
            if last is _GONE:
                pump.cancel()
                await asyncio.gather(pump, return_exceptions=True)
                await self._record_cancelled(queue)
            elif isinstance(last, Exception):
                await self._fail(as_lgov_error(last, self._call.engine.name), scope, receive, send)
        finally:
            pump.cancel()
            watch.cancel()
            await asyncio.gather(pump, watch, return_exceptions=True)

    async def _pump(self, queue: asyncio.Queue[_Item]) -> None:
        try:
            async with aclosing(cast("Any", self._pieces)) as pieces:
                async for piece in pieces:
                    queue.put_nowait(piece)
        except Exception as error:  # noqa: BLE001 - not swallowed: the relay answers with it
            queue.put_nowait(error)
        else:
            queue.put_nowait(_ENDED)

    @staticmethod
    async def _watch(receive: _Receive, queue: asyncio.Queue[_Item]) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        queue.put_nowait(_GONE)

    async def _relay(self, queue: asyncio.Queue[_Item], send: _Send) -> Exception | str | None:
        """Sends until the reply is complete (None), or returns what stopped it."""
        outgoing = _Outgoing(self._passes_text, holding=self._release is not None and not self._passes_text)
        while True:
            if outgoing.ready and queue.empty():
                await self._send(send, outgoing.taken())
            item = await queue.get()
            if item is _GONE:
                return _GONE
            if isinstance(item, StreamPiece) and item.completion is None:
                try:
                    outgoing.add(item, *self._writer.piece(item))
                except LgovError as error:
                    return error
                continue
            if outgoing.ready:
                await self._send(send, outgoing.taken())
            if isinstance(item, Exception):
                return item
            if not isinstance(item, StreamPiece) or item.completion is None:
                return EndpointError(f"engine {self._call.engine.name} ended without a completion", status=500)
            try:
                reply, rest = await self._ended(item.completion, outgoing)
            except LgovError as error:
                return error
            self._kept(reply)
            await self._send(send, rest, more=False)
            return None

    async def _ended(self, completion: Completion, outgoing: _Outgoing) -> tuple[Mapping[str, Any], bytes]:
        """The reply as the client gets it, once it is recorded and judged: its body, and the bytes that are left of it."""
        completion, body, last = await self._commit(completion)
        if self._release is not None:
            changed = await self._release(completion, body, outgoing.passed_text, outgoing.passed)
            if changed is not None:
                return changed
        return body, b"".join(outgoing.held) + last

    async def _commit(self, completion: Completion) -> tuple[Completion, Mapping[str, Any], bytes]:
        completion, body, last = self._writer.settle(completion)
        await self._capture.commit(self._call, completion, body)
        return completion, body, last

    async def _record_cancelled(self, queue: asyncio.Queue[_Item]) -> None:
        try:
            while not queue.empty():
                item = queue.get_nowait()
                if isinstance(item, StreamPiece):
                    if item.completion is not None:  # it was complete: only its reader is gone
                        await self._commit(item.completion)
                        return
                    self._writer.piece(item)
            completion: Completion | None = self._writer.so_far()
        except UpstreamError:
            completion = None  # nothing that has an id came; counted below
        if completion is None:
            self._capture.counters.cancelled_unrecorded += 1
            return
        await self._commit(dataclasses.replace(completion, model=completion.model or self._call.exchange.request.model))
        self._capture.counters.cancelled += 1

    async def _send(self, send: _Send, body: bytes, *, more: bool = True) -> None:
        if not self._started:
            self._started = True
            headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": more})

    async def _fail(self, error: LgovError, scope: Any, receive: _Receive, send: _Send) -> None:
        response = self._error_response(error)
        if not self._started:
            await response(scope, receive, send)
            return
        await self._send(send, self._writer.failed(error, getattr(error, "status", 500)), more=False)
