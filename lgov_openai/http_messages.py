"""Reads the HTTP requests and responses of model calls, whole or while a stream arrives, and makes others in their place.

A client may use httpx2 or httpx: what is made is of the class of what it replaces. Where nothing judges replies, a `Recording`
follows the whole body for the call's span. Where no policy reads text, `HeldCalls` passes the text on at once, and holds the
tool calls until they are judged.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import weakref
from codecs import utf_8_decode
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Sequence
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from datetime import timedelta
from functools import cache, partial
from typing import Any, Protocol, cast

import httpx2
from openai import APIStatusError

from lgov_core.instrumentation import Flow, arun_flow, run_flow
from lgov_core.instrumentation.endpoint_headers import endpoint_headers
from lgov_core.scope import current_scope
from lgov_core.types import new_id
from lgov_core.wire.chat_turns import ChatProtocol
from lgov_core.wire.responses_turns import ResponsesProtocol
from lgov_core.wire.turns import JSON, MessageProtocol, ModelReading, Turn, read_events

_PROTOCOLS: tuple[tuple[str, MessageProtocol], ...] = (
    ("/chat/completions", ChatProtocol()),
    ("/responses", ResponsesProtocol()),
)
_IDEMPOTENCY_KEYS = frozenset({"idempotency-key", "x-idempotency-key"})
#: Headers that describe how a body was sent.
_BODY_HEADERS = frozenset({"content-length", "content-encoding", "transfer-encoding"})
#: What a line of server-sent events may begin with.
_EVENT_FIELDS = (b"data:", b"event:", b"id:", b"retry:", b":")


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply of a model call. ``content`` is None if it is not a complete reply; ``error`` then says why.

    ``response`` is for the program. ``events`` are those of a stream. ``turns`` and ``reading`` are read from ``content``.
    """

    response: Any
    content: JSON | None = None
    events: Sequence[JSON] = ()
    error: Exception | None = None
    turns: Sequence[Turn] = ()
    reading: ModelReading | None = None


def protocol_of(method: str, path: str) -> MessageProtocol | None:
    """The API that a request calls; None if it is not a model call."""
    if method.upper() != "POST":
        return None
    return next((protocol for ending, protocol in _PROTOCOLS if path.rstrip("/").endswith(ending)), None)


def library_of(message: Any) -> Any:
    """The HTTP library of a request or response: httpx2, or httpx."""
    httpx: Any = sys.modules.get("httpx")
    return httpx if httpx is not None and isinstance(message, httpx.Request | httpx.Response) else httpx2


def body_of(request: Any) -> JSON:
    """The JSON object in the body of ``request``. Raises ValueError for anything else."""
    body = json.loads(request.content)
    if not isinstance(body, dict):
        raise ValueError("the body is not a JSON object")
    return cast(JSON, body)


def attribute(request: Any) -> None:
    """Adds the headers by which lgov's own endpoint knows the rollout."""
    if (scope := current_scope()) is not None:
        request.headers.update(endpoint_headers(str(request.url), scope))


def request_with(body: JSON, request: Any, *, again: bool) -> Any:
    """``request`` with another body. ``again``: one has been sent for it, so that its idempotency key was used."""
    headers = [(name, value) for name, value in request.headers.multi_items() if name.lower() not in _BODY_HEADERS]
    if again:
        headers = [(name, new_id("lgov") if name.lower() in _IDEMPOTENCY_KEYS else value) for name, value in headers]
    content, extensions = json.dumps(body).encode(), dict(request.extensions)
    return type(request)(request.method, request.url, headers=headers, content=content, extensions=extensions)


def read_reply(response: Any, protocol: MessageProtocol, *, partial: bool = False) -> Reply:
    """Reads the body of ``response``; with ``partial`` one that may have been cut. Raises any error for an unreadable one."""
    if not response.is_success:
        error = APIStatusError(f"Error code: {response.status_code}", response=response, body=None)
        return Reply(response, error=error)
    if not _is_stream(response):
        return _read(response, protocol, json.loads(response.content))
    text, _ = utf_8_decode(response.content, "strict", not partial)
    events = read_events(text, partial=partial)
    if (content := protocol.from_stream(events, ended=not partial or "data: [DONE]" in text[-80:])) is not None:
        return _read(response, protocol, content, events)
    failed = [event for event in events if "error" in event or event.get("type") in ("error", "response.failed")]
    if not failed:
        raise ValueError("the stream ended before the reply did")
    # The program learns that the model failed, and gets nothing that was not evaluated.
    frames = "".join(f"data: {json.dumps(event)}\n\n" for event in failed)
    return Reply(_response_with(frames, response), error=RuntimeError("the model failed in the middle of a stream"))


def _read(response: Any, protocol: MessageProtocol, content: JSON, events: Sequence[JSON] = ()) -> Reply:
    clear = protocol.with_call_ids(content)
    if clear is not content and not events:  # a stream with calls is always written anew
        response = _response_with(json.dumps(clear), response)
    content, turns = clear, protocol.turns(clear)
    return Reply(response, content, events, turns=turns, reading=protocol.reading(content, turns))


def _is_stream(response: Any) -> bool:
    """Returns whether the body is server-sent events, which a server need not declare."""
    declared = str(response.headers.get("content-type", "")).lower().startswith("text/event-stream")
    return response.content.startswith(_EVENT_FIELDS) or (declared and response.content[:1] != b"{")


def response_with(
    reply: Reply, content: JSON, protocol: MessageProtocol, body: JSON, passed: Sequence[JSON] = ()
) -> Any:
    """The response of ``reply`` with other content, in the same form; without the events ``passed``, which came before."""
    if _is_stream(reply.response):
        return _response_with(protocol.to_stream(body, content, reply.events, passed), reply.response)
    return _response_with(json.dumps(content), reply.response)


def denial_response(
    content: JSON, protocol: MessageProtocol, body: JSON, request: Any, passed: Sequence[JSON] = ()
) -> Any:
    """A response to ``request``, which was not sent, in the form that its ``body`` asks for; without the events ``passed``."""
    streamed = bool(body.get("stream"))
    text = protocol.to_stream(body, content, (), passed) if streamed else json.dumps(content)
    headers = {"content-type": "text/event-stream" if streamed else "application/json"}
    response = library_of(request).Response(200, headers=headers, content=text.encode(), request=request)
    response.elapsed = timedelta(0)
    return response


def _response_with(text: str, response: Any) -> Any:
    headers = [(name, value) for name, value in response.headers.multi_items() if name.lower() not in _BODY_HEADERS]
    new = type(response)(
        response.status_code,
        headers=headers,
        content=text.encode(),
        request=response.request,
        extensions=response.extensions,
    )
    new.elapsed = timedelta(0)
    with suppress(RuntimeError):  # no client measured the response
        new.elapsed = response.elapsed
    return new


class Recording:
    """Records the body of ``response`` while the program reads it, and concludes its model call once.

    ``read`` reads a response of what has arrived. ``conclude`` gets the reply and the error that ended the body: None at
    its end, `GeneratorExit` where the program stopped reading. It runs in the context in which the request was sent, in
    the thread that ended the body, and must not raise. Until then the recording is in ``open_recordings``. ``key``
    identifies the transcript that the reply continues.
    """

    def __init__(
        self,
        response: Any,
        key: Hashable,
        read: Callable[[Any], Reply],
        conclude: Callable[[Reply, BaseException | None], None],
        open_recordings: set[Any],
    ) -> None:
        self.key = key
        self.pieces: list[bytes] = []
        self._copy = partial(type(response), response.status_code, headers=response.headers, request=response.request)
        self._read = read
        self._conclude = partial(copy_context().run, conclude)
        self._open = open_recordings
        self._lock = threading.RLock()  # a garbage collection may close the body in the thread that holds it
        self._body = follow_body(response, self)
        self._open.add(self)

    def arrived(self, piece: bytes) -> bytes:
        """Returns ``piece`` of the body for the program: all of it."""
        self.pieces.append(piece)
        return piece

    def rest(self) -> bytes:
        """Returns the bytes for the program at the end of the body: none."""
        self.end(None)
        return b""

    async def arest(self) -> bytes:
        """As `rest`, for an asynchronous client."""
        return self.rest()

    def end(self, error: BaseException | None, *, if_complete: bool = False) -> None:
        """Concludes the call; with ``if_complete`` only if the whole reply has arrived. Does nothing the second time."""
        with self._lock:
            if self in self._open and ((reply := self._reply()).content is not None or not if_complete):
                self._open.discard(self)
                self._conclude(reply, error)

    def catch_up(self, key: Hashable, call_ids: list[str]) -> None:
        """Concludes a complete reply that the program did not read to its end, before the next request is evaluated.

        That is the reply that continues ``key``, or one with a call of ``call_ids``. Ends one that was dropped unread.
        """
        if self._body() is None:
            self.end(GeneratorExit())
        elif self.key == key or any(call_id.encode() in b"".join(self.pieces) for call_id in call_ids):
            self.end(None, if_complete=True)

    def _reply(self) -> Reply:
        try:
            return self._read(self._copy(content=b"".join(self.pieces)))
        except Exception as error:  # noqa: BLE001 - the program reads the body itself, whatever is wrong with it
            return Reply(None, error=error)


class Follower(Protocol):
    """Follows the body of a response while the program reads it, and decides which pieces the program gets."""

    def arrived(self, piece: bytes) -> bytes:
        """Returns the bytes for the program, now that ``piece`` has arrived."""
        ...

    def rest(self) -> bytes:
        """Returns the bytes for the program at the end of the body."""
        ...

    async def arest(self) -> bytes:
        """As `rest`, for an asynchronous client."""
        ...

    def end(self, error: BaseException | None) -> None:
        """Is told that the program reads no further, and why; also after the end."""
        ...


class _FollowedBody:
    """The body of a response as its follower passes it on.

    The program may begin to read it anew where it stopped, as the openai SDK does to drain it. What has ended is empty then:
    a library that is asked for more of it waits for bytes that never come.
    """

    def __init__(self, body: Any, follower: Follower) -> None:
        self._body = body
        self._follower = follower
        self._has_ended = False

    @property
    def elapsed(self) -> Any:
        """The duration of the exchange, which httpx2 reads from the body of a closed response."""
        return getattr(self._body, "elapsed", None)

    def __iter__(self) -> Iterator[bytes]:
        if self._has_ended:
            return
        try:
            for piece in self._body:
                if passed := self._follower.arrived(piece):
                    yield passed
            self._has_ended = True
            if rest := self._follower.rest():
                yield rest
        except BaseException as error:
            self._follower.end(error)
            raise

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._has_ended:
            return
        try:
            async for piece in self._body:
                if passed := self._follower.arrived(piece):
                    yield passed
            self._has_ended = True
            if rest := await self._follower.arest():
                yield rest
        except BaseException as error:
            self._follower.end(error)
            raise

    def close(self) -> None:
        try:
            self._body.close()
        finally:
            self._follower.end(GeneratorExit())

    async def aclose(self) -> None:
        try:
            await self._body.aclose()
        finally:
            self._follower.end(GeneratorExit())


def follow_body(response: Any, follower: Follower) -> weakref.ref[Any]:
    """Puts ``follower`` between the body of ``response`` and the program; a weak reference to the body that is read then."""
    response.stream = body = _body_class(library_of(response))(response.stream, follower)
    return weakref.ref(body)


@cache
def _body_class(library: Any) -> type[_FollowedBody]:
    """The body for an HTTP library, which recognises one by its base classes."""
    return type("FollowedBody", (_FollowedBody, library.SyncByteStream, library.AsyncByteStream), {})


class HeldCalls:
    """Passes the text of a streamed reply on while it arrives, and holds the rest from the first event that has more.

    ``is_text`` says whether an event holds text only. At the end of the body ``finish`` gets the response, whole, and the
    events that were passed, and returns the response whose body the program gets after them; the same one stands for what
    was held. ``failed`` is called instead, once, with what ended the body early. Both run in the context in which the
    request was sent.
    """

    def __init__(
        self,
        response: Any,
        key: Hashable,
        is_text: Callable[[JSON], bool],
        finish: Callable[[Any, Sequence[JSON]], Flow[Any]],
        failed: Callable[[BaseException], None],
        open_recordings: set[Any],
    ) -> None:
        self.key = key
        self._copy = partial(type(response), response.status_code, headers=response.headers, request=response.request)
        self._is_text, self._finish, self._failed = is_text, finish, failed
        self._context = copy_context()
        self._pieces: list[bytes] = []
        self._waiting = b""
        self._holds = False
        self._passed: list[JSON] = []
        self._passed_bytes = 0
        self._open = open_recordings
        self._body = follow_body(response, self)
        self._open.add(self)

    def arrived(self, piece: bytes) -> bytes:
        """Returns the bytes of the reply that may be passed on, now that ``piece`` has arrived."""
        self._pieces.append(piece)
        if self._holds:
            return b""
        self._waiting += piece
        passed = b""
        while (end := _end_of_event(self._waiting)) and not self._holds:
            event, rest = self._waiting[:end], self._waiting[end:]
            try:
                events = read_events(event.decode())
            except ValueError:
                events = None
            if events is None or not all(map(self._is_text, events)) or b"[DONE]" in event:
                self._holds = True
            else:
                self._passed += events
                self._waiting, passed = rest, passed + event
        self._passed_bytes += len(passed)
        return passed

    def rest(self) -> bytes:
        """Returns the bytes for the program at the end of the body."""
        return self._context.run(run_flow, self._ending())

    async def arest(self) -> bytes:
        """As `rest`, for an asynchronous client."""
        return await asyncio.create_task(arun_flow(self._ending()), context=self._context)

    def _ending(self) -> Flow[bytes]:
        self._open.discard(self)
        body = b"".join(self._pieces)
        whole = self._copy(content=body)
        answer = yield from self._finish(whole, self._passed)
        return body[self._passed_bytes :] if answer is whole else answer.content

    def end(self, error: BaseException | None, *, if_complete: bool = False) -> None:
        """Concludes a call whose reply the program did not read to its end. Does nothing the second time."""
        if self in self._open and not if_complete:
            self._open.discard(self)
            self._context.run(self._failed, error or GeneratorExit())

    def catch_up(self, key: Hashable, call_ids: list[str]) -> None:
        """Concludes a reply that was dropped, or whose transcript goes on without its end."""
        if self._body() is None or self.key == key:
            self.end(GeneratorExit())


def _end_of_event(data: bytes) -> int:
    """Where the first server-sent event in ``data`` ends; 0 if it has not arrived."""
    ends = [at + len(mark) for mark in (b"\n\n", b"\r\n\r\n", b"\r\r") if (at := data.find(mark)) >= 0]
    return min(ends, default=0)
