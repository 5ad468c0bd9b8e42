"""Replies that go to the program as they come, and are noted in passing.

What a program reads of such a response comes from where it came from, piece by piece, when the program asks for it: here
it is only kept as well. Nothing of it is changed or held back, and what is done with it raises nothing into the program.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Mapping
from contextlib import suppress
from contextvars import Context, copy_context
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

#: Headers of a reply that say how its body was sent, not what it says.
OF_THE_BODY = frozenset({"content-length", "content-encoding", "transfer-encoding"})


@dataclass(frozen=True, slots=True)
class _Noting:
    """What is done with a reply, and in which context."""

    ended: Callable[[Any, BaseException | None], None]
    look: Callable[[Any], None]
    context: Context
    like: Callable[..., Any]
    headers: Any

    def so_far(self, pieces: list[bytes]) -> Any:
        """A response that has been read and says what came, as far as it can be decoded."""
        coded, parts = self.like(headers=self.headers, content=iter(pieces)), list[bytes]()
        with suppress(Exception):  # the end may be missing, and some decoders ask for it
            parts.extend(coded.iter_bytes())
        headers = [(name, value) for name, value in self.headers.multi_items() if name.lower() not in OF_THE_BODY]
        return self.like(headers=headers, content=b"".join(parts))

    def quietly(self, what: Callable[..., None], *given: Any) -> None:
        """Runs it in the context in which the request was sent, and raises nothing."""
        with suppress(Exception):
            self.context.copy().run(what, *given)


class Passing:
    """One reply on its way; made, it has ``response`` pass through it.

    ``ended`` is called once, with a response that says what came, and what ended it: None for the end of the stream, the
    error that the program got, or `GeneratorExit` where it reads no further. ``look`` may be called before that with what
    came so far. Both run in the context in which the request was sent, whoever reads, and wherever. ``place`` is what the
    reply answers. May be read by any thread.
    """

    def __init__(
        self,
        response: Any,
        ended: Callable[[Any, BaseException | None], None],
        look: Callable[[Any], None],
        place: Hashable,
        *,
        asynchronous: bool,
    ) -> None:
        self.place = place
        #: Nobody reads any further, which was found where nothing could be done about it.
        self.left = False
        # Not the response: as long as that is held by somebody who only notes, nobody learns that the program dropped it.
        like = partial(type(response), response.status_code, request=response.request)
        self._noting: _Noting | None = _Noting(ended, look, copy_context(), like, response.headers)
        self._lock = threading.RLock()
        self._pieces: list[bytes] = []
        self._looked_at = 0
        response.stream = _stream_class(type(response.stream), asynchronous)(response.stream, self)

    def add(self, piece: bytes) -> None:
        """Keeps what came."""
        if self._noting is not None:
            self._pieces.append(piece)

    def end(self, error: BaseException | None) -> None:
        """Says that nothing comes any more."""
        with self._lock:
            noting, self._noting = self._noting, None
            if noting is not None:
                pieces, self._pieces = self._pieces, []
                noting.quietly(lambda: noting.ended(noting.so_far(pieces), error))

    def leave(self) -> None:
        """Says that nobody reads any further."""
        if getattr(_COLLECTING, "now", False):  # a collector of garbage comes while others hold locks
            self.left = True
        else:
            self.end(GeneratorExit())

    def look(self) -> None:
        """Has noted what came so far: a program may go on when it has read enough."""
        with self._lock:
            noting, count = self._noting, len(self._pieces)
            if noting is not None and count != self._looked_at:
                self._looked_at = count
                noting.quietly(lambda: noting.look(noting.so_far(self._pieces[:count])))

    def holds(self, text: bytes) -> bool:
        """Whether this came, if it was sent as it is."""
        return text in b"".join(self._pieces)


_COLLECTING = threading.local()


def _note_collection(phase: str, _: Mapping[str, int]) -> None:
    _COLLECTING.now = phase == "start"


class _Kept:
    """A stream as it was, and what came of it."""

    def __init__(self, inner: Any, passing: Passing) -> None:
        self._inner = inner
        self._passing = passing
        if _note_collection not in gc.callbacks:
            gc.callbacks.append(_note_collection)

    def __del__(self) -> None:
        self._passing.leave()


class _Pieces(_Kept):
    def __iter__(self) -> Iterator[bytes]:
        try:
            for piece in self._inner:
                self._passing.add(piece)
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
            self._passing.leave()


class _AsyncPieces(_Kept):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._inner:
                self._passing.add(piece)
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
            self._passing.leave()


@lru_cache(maxsize=64)
def _stream_class(cls: type[Any], asynchronous: bool) -> Any:
    """A stream that a response takes for one like ``cls``: HTTP libraries tell by the class how it can be read."""
    own, name = (_AsyncPieces, "AsyncByteStream") if asynchronous else (_Pieces, "SyncByteStream")
    return type(own.__name__, (own, *(base for base in cls.__mro__ if base.__name__ == name)), {})
