"""Replies that the program reads while they arrive, because nothing evaluates them; recorded for their spans."""

from __future__ import annotations

import threading
import weakref
from collections.abc import AsyncIterator, Callable, Generator, Hashable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from functools import cache, partial
from typing import Any

from lgov_openai.http_messages import Reply, library_of


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
        response.stream = body = _body_class(library_of(response))(response.stream, self)
        self._body = weakref.ref(body)
        self._open.add(self)

    @contextmanager
    def reading(self) -> Generator[None]:
        """Ends the recording when the block ends or raises."""
        try:
            yield
        except BaseException as error:
            self.end(error)
            raise
        self.end(None)

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


class _RecordedBody:
    """The body of a response, which passes each piece on as it arrives."""

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
        try:
            self._body.close()
        finally:
            self._recording.end(GeneratorExit())

    async def aclose(self) -> None:
        try:
            await self._body.aclose()
        finally:
            self._recording.end(GeneratorExit())


@cache
def _body_class(library: Any) -> type[_RecordedBody]:
    """The body for an HTTP library, which recognises one by its base classes."""
    return type("RecordedBody", (_RecordedBody, library.SyncByteStream, library.AsyncByteStream), {})
