"""Replies that the program reads while they arrive, because nothing evaluates them; recorded for their spans."""

from __future__ import annotations

import threading
import weakref
from collections.abc import AsyncIterator, Callable, Collection, Generator, Hashable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from typing import Any

import httpx
import httpx2

from lgov_openai.http_messages import Reply


class RecordedBody(httpx.SyncByteStream, httpx.AsyncByteStream, httpx2.SyncByteStream, httpx2.AsyncByteStream):
    """The body of a response, for any client; passes each piece on as it arrives."""

    def __init__(self, body: Any, recording: Recording) -> None:
        self._body = body
        self._recording = recording

    @property
    def elapsed(self) -> Any:
        """The duration of the exchange, which httpx2 reads from the body of a closed response."""
        return getattr(self._body, "elapsed", None)

    def __iter__(self) -> Iterator[bytes]:
        with self._recording.reading():
            for piece in self._body:
                self._recording.pieces.append(piece)
                yield piece

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with self._recording.reading():
            async for piece in self._body:
                self._recording.pieces.append(piece)
                yield piece

    def close(self) -> None:
        """Closes the body and ends the recording."""
        try:
            self._body.close()
        finally:
            self._recording.end(GeneratorExit())

    async def aclose(self) -> None:
        """As `close`, for asynchronous clients."""
        try:
            await self._body.aclose()
        finally:
            self._recording.end(GeneratorExit())


class Recording:
    """Records the body of ``response``, which the program reads, and concludes its model call once.

    ``read`` reads a response of what has arrived. ``conclude`` gets the reply and the error that ended the body: None at
    its end, `GeneratorExit` where the program stopped reading. It runs in the context in which the request was sent, in
    the thread that ended the body, and must not raise.
    """

    def __init__(
        self,
        response: Any,
        key: Hashable,
        read: Callable[[Any], Reply],
        conclude: Callable[[Reply, BaseException | None], None],
    ) -> None:
        #: Identifies the transcript that the reply continues.
        self.key = key
        self.pieces: list[bytes] = []
        self._copy = partial(type(response), response.status_code, headers=response.headers, request=response.request)
        self._read = read
        self._conclude = partial(copy_context().run, conclude)
        self._ended = False
        self._lock = threading.RLock()  # a garbage collection may close the body in the thread that holds it
        response.stream = body = RecordedBody(response.stream, self)
        self._body = weakref.ref(body)

    @property
    def abandoned(self) -> bool:
        """Whether the program dropped the response without closing it."""
        return self._body() is None

    @contextmanager
    def reading(self) -> Generator[None]:
        """Ends the recording when the block ends or raises."""
        try:
            yield
        except BaseException as error:
            self.end(error)
            raise
        self.end(None)

    def end(self, error: BaseException | None) -> None:
        """Concludes the call; does nothing the second time."""
        with self._lock:
            if not self._ended:
                self._ended = True
                self._conclude(self._reply(), error)

    def end_if_complete(self) -> None:
        """Concludes the call if the reply has arrived, although the program has not read to the end of the body."""
        with self._lock:
            if not self._ended and (reply := self._reply()).content is not None:
                self._ended = True
                self._conclude(reply, None)

    def contains(self, text: bytes) -> bool:
        """Whether ``text`` has arrived (in a body that is not compressed)."""
        return text in b"".join(self.pieces)

    def _reply(self) -> Reply:
        try:
            return self._read(self._copy(content=b"".join(self.pieces)))
        except Exception as error:  # noqa: BLE001 - the program reads the body itself, whatever is wrong with it
            return Reply(None, error=error)


class OpenStreams:
    """The recordings that have not ended. Callable from any thread."""

    def __init__(self) -> None:
        self._recordings: set[Recording] = set()

    def record(
        self,
        response: Any,
        key: Hashable,
        read: Callable[[Any], Reply],
        conclude: Callable[[Reply, BaseException | None], None],
    ) -> None:
        """Records the body of ``response``; for the arguments see `Recording`."""

        def conclude_and_discard(reply: Reply, error: BaseException | None) -> None:
            try:
                conclude(reply, error)
            finally:
                self._recordings.discard(recording)

        recording = Recording(response, key, read, conclude_and_discard)
        self._recordings.add(recording)

    def catch_up(self, key: Hashable, call_ids: Collection[str]) -> None:
        """Concludes replies that the program has read far enough to go on: those that continue ``key`` or hold a call.

        ``call_ids`` are calls in the program's transcript that are not known. Ends abandoned streams.
        """
        for recording in list(self._recordings):
            if recording.abandoned:
                recording.end(GeneratorExit())
            elif recording.key == key or any(recording.contains(name.encode()) for name in call_ids):
                recording.end_if_complete()

    def end(self) -> None:
        """Ends all streams, as if the program had stopped reading."""
        for recording in list(self._recordings):
            recording.end(GeneratorExit())
