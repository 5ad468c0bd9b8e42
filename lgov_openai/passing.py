"""Streamed replies that go to the program as they come, and are noted in passing.

What a program reads of such a response comes from where it came from, piece by piece, when the program asks for it: here
it is only kept as well. Nothing of it is changed or held back, and what is done with it raises nothing into the program.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from contextvars import copy_context
from functools import lru_cache, partial
from typing import Any


class Passing:
    """One reply on its way; made, it has ``response`` pass through it.

    ``ended`` is called once, with what ended it: None for the end of the stream, or the error that the program got, or
    `GeneratorExit` where it reads no further. ``whole`` may be called before, and says whether the reply was whole by
    then; after it said so it is not asked again. Both get this reply, and run in the context in which the request was
    sent, whoever reads, and wherever. May be read by any thread.
    """

    def __init__(
        self,
        response: Any,
        ended: Callable[[Passing, BaseException | None], None],
        whole: Callable[[Passing], bool],
        *,
        asynchronous: bool,
    ) -> None:
        self._on_end = ended
        self._on_look = whole
        self._context = copy_context()
        self._lock = threading.RLock()
        self._over = False
        #: The reply was whole once, and that has been noted.
        self.noted = False
        #: Nobody reads any further, which was found where nothing could be done about it.
        self.left = False
        self.pieces: list[bytes] = []
        # Not the response: as long as that is held by somebody who only notes, nobody learns that the program dropped it.
        self._like = partial(type(response), response.status_code, headers=response.headers, request=response.request)
        response.stream = _stream_class(type(response.stream), asynchronous)(response.stream, self)

    def so_far(self) -> Any:
        """A response that has been read and says what came so far. Raises what the HTTP library raises for it."""
        return self._like(content=b"".join(self.pieces))

    def end(self, error: BaseException | None) -> None:
        """Says that nothing comes any more."""
        with self._lock:
            if not self._over:
                self._over = True
                self._quietly(self._on_end, self, error)

    def look(self) -> None:
        """Has noted what came so far, if that is a whole reply: a program may go on when it has read enough."""
        with self._lock:
            if not self._over and not self.noted:
                self.noted = bool(self._quietly(self._on_look, self))

    def _quietly(self, what: Callable[..., Any], *given: Any) -> Any:
        with suppress(Exception):
            return self._context.copy().run(what, *given)


def is_stream(response: Any) -> bool:
    """Whether a reply comes as server-sent events."""
    return str(response.headers.get("content-type", "")).lower().startswith("text/event-stream")


def passes(response: Any) -> bool:
    """Whether what ``response`` says is still to come, in pieces."""
    return 200 <= response.status_code < 300 and is_stream(response) and not response.is_closed


class _Kept:
    """A stream as it was, and what came of it."""

    def __init__(self, inner: Any, passing: Passing) -> None:
        self._inner = inner
        self._passing = passing

    def __del__(self) -> None:
        self._passing.left = True  # no more than that: a collector of garbage comes while others hold locks


class _Pieces(_Kept):
    def __iter__(self) -> Iterator[bytes]:
        try:
            for piece in self._inner:
                self._passing.pieces.append(piece)
                yield piece
        except GeneratorExit:  # the response is closed next, as a rule
            raise
        except BaseException as error:
            self._passing.end(error)
            raise
        self._passing.end(None)

    def close(self) -> None:
        try:
            self._inner.close()
        finally:
            if sys.exc_info()[0] is GeneratorExit:  # maybe by the collector, which closes generators too
                self._passing.left = True
            else:
                self._passing.end(GeneratorExit())


class _AsyncPieces(_Kept):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._inner:
                self._passing.pieces.append(piece)
                yield piece
        except GeneratorExit:
            raise
        except BaseException as error:
            self._passing.end(error)
            raise
        self._passing.end(None)

    async def aclose(self) -> None:
        try:
            await self._inner.aclose()
        finally:
            self._passing.end(GeneratorExit())


@lru_cache(maxsize=64)
def _stream_class(cls: type[Any], asynchronous: bool) -> Any:
    """A stream that a response takes for one like ``cls``: HTTP libraries tell by the class how it can be read."""
    own, name = (_AsyncPieces, "AsyncByteStream") if asynchronous else (_Pieces, "SyncByteStream")
    return type(own.__name__, (own, *(base for base in cls.__mro__ if base.__name__ == name)), {})
